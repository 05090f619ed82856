"""Loops asked to be unrolled: copies of the body one after another."""

from __future__ import annotations

from dataclasses import replace
from itertools import dropwhile

from polyml.codegen.loops import For, Function, Node, Prefetch
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import substitute_nodes, with_body
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine, maximum

__all__ = ["rolled_up", "unroll"]


def unroll(function: Function) -> Function:
    """The function with loops of kind "unroll" carried out: entirely when they have at most `factor` iterations, else `factor` copies in a loop, and
    the rest of the iterations."""
    body = _body(function.body, outside(function))
    return function if body is function.body else replace(function, body=body)


def rolled_up(loop: For) -> For:
    """The loop in steps of one, without the prefetches ahead of the copies of its iteration; the loop itself where its body is no such copies."""
    copies = tuple(dropwhile(lambda node: isinstance(node, Prefetch), loop.body))
    one = copies[: len(copies) // loop.step]
    if loop.step == 1 or loop.width > 1 or len(one) * loop.step != len(copies):
        return loop
    steps = ({loop.variable: affine(loop.variable) + j} for j in range(1, loop.step))
    others = (node for step in steps for node in substitute_nodes(one, step))
    return replace(loop, step=1, body=one) if (*one, *others) == copies else loop


def _body(nodes: tuple[Node, ...], ranges: Ranges) -> tuple[Node, ...]:
    return renewed(nodes, (new for node in nodes for new in _node(node, ranges)))


def _node(node: Node, ranges: Ranges) -> tuple[Node, ...]:
    inner = ranges.enter(node) if isinstance(node, For) else ranges
    node = with_body(node, lambda body: _body(body, inner))
    if not isinstance(node, For) or node.kind != "unroll":
        return (node,)
    loop, factor = replace(node, kind="sequential", factor=1), node.factor
    span = loop.upper - loop.lower
    known = ranges.constant(span)
    if known is not None:
        trips = max(0, -(-known // loop.step))
        if trips <= factor:
            return tuple(n for j in range(trips) for n in _iteration(loop, j, from_lower=True))
        whole = trips // factor * factor
        main = _copies(loop, factor, loop.lower + whole * loop.step)
        rest = (n for j in range(whole, trips) for n in _iteration(loop, j, from_lower=True))
        return (main, *rest)
    if factor < 2:
        return (loop,)
    if ranges.multiple(span) % (factor * loop.step) == 0:
        return (_copies(loop, factor, loop.upper),)
    low = ranges.lowest(span)
    if low is None or low < 0:
        span = maximum([span, affine(0)])
    middle = loop.lower + (span + (loop.step - 1)) // loop.step // factor * (factor * loop.step)
    return (_copies(loop, factor, middle), replace(loop, lower=middle))


def _copies(loop: For, factor: int, upper: Affine) -> For:
    copies = tuple(n for j in range(factor) for n in _iteration(loop, j, from_lower=False))
    return replace(loop, upper=upper, step=factor * loop.step, body=copies)


def _iteration(loop: For, number: int, *, from_lower: bool) -> tuple[Node, ...]:
    """The body for the variable's value `number` steps on, from the loop's lower bound or from the variable itself."""
    start = loop.lower if from_lower else affine(loop.variable)
    return substitute_nodes(loop.body, {loop.variable: start + number * loop.step})
