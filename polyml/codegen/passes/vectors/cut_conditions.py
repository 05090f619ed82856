"""Vector loops cut where a condition on some of their statements changes along the lanes, so that no vector of either part asks.

Statements that a tile over time shifts against each other share a row but for its ends:

    vector for (j = s; j < s + 128; j++) { a[i, j] = b[i, j]; if (j < s + 120) b[i, j] = c[i, j]; }
    -> vector for (j = s; j < s + 120; j++) { a[i, j] = b[i, j]; b[i, j] = c[i, j]; }
       vector for (j = s + 120; j < s + 128; j++) a[i, j] = b[i, j];

When: masks are vectors, and a store under one takes several times as long as a plain one (AVX2). Elsewhere masks are cheap, and a loop less is worth more.
"""

from __future__ import annotations

from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function, If, Node
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.guards import difference_of
from polyml.codegen.ranges import Ranges
from polyml.expressions import Apply, Expr
from polyml.sets.affine import Affine, affine, maximum, minimum

__all__ = ["cut_conditions"]

CUTS = 2
"""Of a loop, at most: each part has ends of its own."""


def cut_conditions(function: Function) -> Function:
    """The function with such loops in parts."""

    def parts(loop: For, ranges: Ranges, lanes: For | None) -> tuple[Node, ...] | None:
        # In steps of more than one the place may be one that the loop skips; such a loop has no lanes to ask for.
        return _parts(loop, CUTS) if loop.kind == "vector" and loop.step == 1 else None

    return map_loops(function, parts)


def _parts(loop: For, cuts: int) -> tuple[Node, ...]:
    found = _changing(loop) if cuts else None
    if found is None:
        return (loop,)
    condition, first = found
    middle = minimum([maximum([first, loop.lower]), loop.upper])
    # A difference that grows along the loop holds behind the place, any other one before it.
    holds_first = _grows(condition, loop.variable) < 0
    parts = (
        replace(loop, upper=middle, body=_known(loop.body, condition, holds_first)),
        replace(loop, lower=middle, body=_known(loop.body, condition, not holds_first)),
    )
    return tuple(made for part in parts if part.body for made in _parts(part, cuts - 1))


def _changing(loop: For) -> tuple[Expr, Affine] | None:
    """A condition that some of the loop's statements have and others do not, and the first place where it is another one; None where there is none, or the loop has anything but statements."""
    asking = [node for node in loop.body if isinstance(node, If)]
    if not asking or not any(isinstance(node, Assign) for node in loop.body):
        return None
    if any(not isinstance(node, Assign | If) or (isinstance(node, If) and node.otherwise) for node in loop.body):
        return None
    for node in asking:
        for condition in _all_of(node.condition):
            difference = difference_of(condition)
            slope = _grows(condition, loop.variable)
            if difference is not None and slope in (1, -1):
                here = affine(loop.variable)
                return condition, here - difference if slope > 0 else here + difference + 1
    return None


def _grows(condition: Expr, variable: str) -> int:
    """By how much what the condition says is at least 0 changes from lane to lane; 0 where that is not known."""
    difference = difference_of(condition)
    return (difference.stride(variable) or 0) if difference is not None else 0


def _all_of(condition: Expr) -> tuple[Expr, ...]:
    if isinstance(condition, Apply) and condition.op == "and":
        return tuple(part for arg in condition.args for part in _all_of(arg))
    return (condition,)


def _known(nodes: tuple[Node, ...], condition: Expr, value: bool) -> tuple[Node, ...]:
    """The nodes where the condition is what `value` says."""
    made: list[Node] = []
    for node in nodes:
        if isinstance(node, If) and condition in (asked := _all_of(node.condition)):
            left = tuple(part for part in asked if part != condition)
            if not value:
                continue
            if not left:
                made += node.then
            else:
                made.append(replace(node, condition=left[0] if len(left) == 1 else Apply("and", left, condition.dtype)))
        else:
            made.append(node)
    return tuple(made)
