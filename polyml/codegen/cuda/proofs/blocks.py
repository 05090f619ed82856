"""The proof that blocks need not wait for each other: no two of them touch one element of device memory in a kernel, one of them writing, but by atomic updates.
It looks at the kernel alone, whatever the schedule's own proof (schedule/legality.py) said; for tests and for `verify`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from typing import assert_never

import islpy as isl

from polyml.codegen.cuda.program import Kernel
from polyml.codegen.cuda.proofs.touches import Touch, element_of, loop_constraints, merged
from polyml.codegen.loops import Allocate, Assign, Block, For, If, Node, Prefetch, UpdateArgument
from polyml.codegen.rewrite import uses
from polyml.dtypes import boolean
from polyml.expressions import Apply, Expr, IndexValue
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_text

__all__ = ["block_faults"]


def block_faults(kernel: Kernel) -> list[str]:
    """The arrays of which two blocks touch one element, each with an example; empty when all is well."""
    if not kernel.blocks:
        return []
    found = list(_touches(kernel, kernel.function.body, (), ()))
    faults: dict[str, str] = {}
    for name in sorted(kernel.function.written):
        mine = [touch for touch in found if touch.variable == name]
        # Most arrays are kept apart without a look at conditions, which many touches have in common then.
        if _meeting(kernel, merged([replace(touch, conditions=()) for touch in mine])) is not None:
            point = _meeting(kernel, merged(mine))
            if point is not None:
                faults[name] = f"{name}: touched by two blocks, {point}"
    return list(faults.values())


def _touches(
    kernel: Kernel, nodes: Sequence[Node], inside: tuple[For, ...], conditions: tuple[Expr, ...]
) -> Iterator[Touch]:
    """What the kernel touches of the arrays that it writes, with all loops and conditions around."""
    for node in nodes:
        for use in uses(node):
            if use.variable in kernel.function.written:
                subscripts = tuple(s if isinstance(s, Affine) else None for s in use.subscripts)
                atomic = isinstance(node, Assign) and node.atomic and use.subscripts == node.target.subscripts
                yield Touch(use.variable, use.write, subscripts, inside, atomic=atomic, conditions=conditions)
        match node:
            case For():
                yield from _touches(kernel, node.body, (*inside, replace(node, body=())), conditions)
            case If():
                yield from _touches(kernel, node.then, inside, (*conditions, node.condition))
                against = Apply("not", (node.condition,), boolean)
                yield from _touches(kernel, node.otherwise, inside, (*conditions, against))
            case Allocate() | Block():
                yield from _touches(kernel, node.body, inside, conditions)
            case Assign() | UpdateArgument() | Prefetch():
                pass
            case _:
                assert_never(node)


def _meeting(kernel: Kernel, touches: Sequence[Touch]) -> isl.Point | None:
    """Iterations of two touches, one a write, in different blocks, that meet; None: there are none."""
    for a, b in combinations_with_replacement(touches, 2):
        if (a.write or b.write) and not (a.atomic and b.atomic):
            pairs = _pairs(kernel, a, b)
            if not pairs.is_empty():
                return pairs.sample_point()
    return None


def _pairs(kernel: Kernel, a: Touch, b: Touch) -> isl.Set:
    """The iterations of both, in different blocks, that touch one element."""
    made: list[str] = []
    names: list[str] = []
    elements: list[list[Affine | None]] = []
    owners: list[dict[str, Affine]] = []
    for side, touch in (("a", a), ("b", b)):
        bounds, values = loop_constraints(touch.inside, side)
        made += bounds
        made += [f"0 <= c{side}{k} < {count}" for k, (_, count, _) in enumerate(touch.copies)]
        names += [f"{side}{k}" for k in range(len(touch.inside))] + [f"c{side}{k}" for k in range(len(touch.copies))]
        made += [text for text in (condition_text(c, values) for c in touch.conditions) if text is not None]
        elements.append(element_of(touch, values, side))
        blocks = ((k, loop) for k, loop in enumerate(touch.inside) if loop.kind == "block")
        owners.append({loop.axis or "": affine(f"{side}{k}") // loop.factor for k, loop in blocks})
    for left, right in zip(*elements, strict=True):
        if left is not None and right is not None:
            made.append(f"{left.isl_text()} = {right.isl_text()}")
    apart = [
        f"{owners[0][axis].isl_text()} != {owners[1][axis].isl_text()}" for axis in owners[0].keys() & owners[1].keys()
    ]
    made.append(f"({' or '.join(sorted(apart)) or 'false'})")
    return isl.Set(f"{parameters_text(kernel.function.sizes)}{{ [{', '.join(names)}] : {' and '.join(made)} }}")


SYMBOLS = {"eq": "=", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def condition_text(condition: Expr, values: Mapping[str, Affine]) -> str | None:
    """The condition in isl's words, with `values` for variables; None where it reads elements or isl has no words for it."""
    match condition:
        case Apply(op="and" | "or" | "not" as op):
            parts = [condition_text(arg, values) for arg in condition.args]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts):
                return None
            return f"(not {known[0]})" if op == "not" else f"({f' {op} '.join(known)})"
        case Apply(op=op, args=(IndexValue(left), IndexValue(right))) if op in SYMBOLS:
            sides = left.substitute(values), right.substitute(values)
            return f"({sides[0].isl_text()} {SYMBOLS[op]} {sides[1].isl_text()})"
        case _:
            return None
