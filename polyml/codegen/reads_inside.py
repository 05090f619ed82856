"""Whether a function reads nothing of an array beside a box of its elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function, If, Node, Prefetch
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import expressions
from polyml.expressions import Apply, Expr, IndexValue, Read, reads_of
from polyml.sets.affine import Affine, affine

__all__ = ["reads_inside"]

Places = Sequence[tuple[int, int] | None]
"""Per dimension the first place and the end of the box; None: all of them."""


def reads_inside(function: Function, array: str, places: Places) -> bool:
    """Whether each element of the array that the function reads, one at a time, is sure to be inside; requests ahead of a read do not count."""
    ranges = Ranges(bounds=function.bounds, multiples=function.multiples)
    return all(
        _is_inside(read, inside, places)
        for node, inside in _nodes(function.body, ranges)
        if not isinstance(node, Prefetch)
        for expr in expressions(node)
        for read in reads_of(expr)
        if read.tensor == array
    )


def _nodes(nodes: Sequence[Node], ranges: Ranges) -> Iterator[tuple[Node, Ranges]]:
    """All nodes, with what is known there."""
    for node in nodes:
        yield node, ranges
        match node:
            case For():
                yield from _nodes(node.body, ranges.enter(node))
            case If(condition=condition, then=then, otherwise=otherwise):
                yield from _nodes(then, _where(condition, ranges, holds=True))
                yield from _nodes(otherwise, _where(condition, ranges, holds=False))
            case Assign() | Prefetch():
                pass
            case _:
                yield from _nodes(getattr(node, "body", ()), ranges)


def _where(condition: Expr, ranges: Ranges, *, holds: bool) -> Ranges:
    """What is known where a comparison of a loop's variable with a number holds, or does not."""
    match condition:
        case Apply(op="ge" | "lt" as op, args=(IndexValue(affine=value), IndexValue(affine=limit))) if (
            limit.is_constant
        ):
            name = value.name
        case _:
            return ranges
    if name is None:
        return ranges
    from_here_on = (op == "ge") == holds
    made = Ranges(bounds=ranges.bounds, multiples=ranges.multiples)
    for loop in ranges.loops:
        if loop.variable == name and loop.lower.is_constant and loop.upper.is_constant:
            # The first value that is not below the limit.
            step, lower = loop.step, loop.lower.constant
            first = lower + max(0, -((lower - limit.constant) // step)) * step
            loop = (
                replace(loop, lower=affine(first))
                if from_here_on
                else replace(loop, upper=affine(min(first, loop.upper.constant)))
            )
        made = made.enter(loop)
    return made


def _is_inside(read: Read, ranges: Ranges, places: Places) -> bool:
    lanes = {loop.variable for loop in ranges.loops if loop.kind not in ("sequential", "parallel")}
    if len(read.subscripts) != len(places):
        return False
    for subscript, place in zip(read.subscripts, places, strict=True):
        if not isinstance(subscript, Affine) or subscript.variables() & lanes:
            return False
        if place is not None:
            first, end = place
            if not (ranges.is_positive(subscript - first + 1) and ranges.is_positive(end - subscript)):
                return False
    return True
