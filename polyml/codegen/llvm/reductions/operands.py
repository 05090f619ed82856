"""What the candidates of a loop of minima and maxima are made of, and what that has to be for none of them to be a NaN.

A candidate `x + y` is no NaN where neither is, and neither is -inf (for a minimum; for a maximum +inf).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from polyml.codegen.loops import Assign, For, Prefetch, Variable
from polyml.expressions import Apply, Read
from polyml.sets.affine import Affine

__all__ = ["Asked", "Bound", "asked_by"]

TOGETHER = 4
"""Minima and maxima in an iteration, at least."""

Bound = tuple[str, float]
"""A comparison with an infinity, which holds for no NaN."""

ABOVE: Bound = ("gt", -inf)
BELOW: Bound = ("lt", inf)

Asked = tuple[Read, Bound]
"""An element, and what it has to fulfil."""


def asked_by(loop: For, variables: Mapping[str, Variable]) -> list[Asked]:
    """What the candidates of a loop of nothing else are made of; nothing where that is not known, or does not decide about NaN."""
    moves = [node for node in loop.body if not isinstance(node, Prefetch)]
    if loop.kind != "sequential" or len(moves) < TOGETHER:
        return []
    found: dict[Asked, None] = {}
    for node in moves:
        made = _of(node, variables) if isinstance(node, Assign) else None
        if made is None:
            return []
        found.update(dict.fromkeys(made))
    return list(found)


def _of(node: Assign, variables: Mapping[str, Variable]) -> tuple[Asked, ...] | None:
    if node.across or node.scan is not None or variables[node.target.variable].scope != "register":
        return None
    match node:
        case Assign(value=Apply(op="min" | "max" as op, args=(Read(tensor=old), value)), reduction=None):
            if old != node.target.variable:
                return None
        case Assign(value=value, reduction="min" | "max" as op):
            pass
        case _:
            return None
    near, far = (ABOVE, BELOW) if op == "min" else (BELOW, ABOVE)
    match value:
        case Apply(op="add", args=(Read() as x, Read() as y)):
            asked = ((x, near), (y, near))
        case Apply(op="sub", args=(Read() as x, Read() as y)):
            asked = ((x, near), (y, far))
        case _:
            return None
    return asked if all(_in_memory(read, variables) for read, _ in asked) else None


def _in_memory(read: Read, variables: Mapping[str, Variable]) -> bool:
    variable = variables.get(read.tensor)
    floats = variable is not None and variable.dtype.name in ("f32", "f64") and read.dtype == variable.dtype
    plain = variable is not None and variable.scope != "register" and variable.lanes == 1
    return floats and plain and all(isinstance(s, Affine) for s in read.subscripts)
