"""Loops that scatter, element by element, are unrolled a little: one jump a cycle is all that a core takes, and counting one by one leaves it no time for the next element (a histogram is a load and an addition to memory)."""

from __future__ import annotations

from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function, Node
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import with_body
from polyml.renewed import renewed
from polyml.sets.affine import Affine

__all__ = ["unroll_scatters"]

_FACTOR = 4


def unroll_scatters(function: Function) -> Function:
    """The function with its innermost loops marked for unrolling whose one statement goes to an element that another tensor says; the copies follow one another, so that each element keeps its order."""
    body = _body(function.body, outside(function))
    return function if body is function.body else replace(function, body=body)


def _body(nodes: tuple[Node, ...], ranges: Ranges) -> tuple[Node, ...]:
    made = tuple(_node(node, ranges) for node in nodes)
    return renewed(nodes, made)


def _node(node: Node, ranges: Ranges) -> Node:
    if not isinstance(node, For):
        return with_body(node, lambda body: _body(body, ranges))
    if node.kind == "sequential" and _scatters(node):
        trips = ranges.highest(node.upper - node.lower)
        long = trips is None or trips >= 2 * _FACTOR * node.step
        return replace(node, kind="unroll", factor=_FACTOR) if long else node
    inner = ranges.enter(node)
    return with_body(node, lambda body: _body(body, inner))


def _scatters(loop: For) -> bool:
    match loop.body:
        case (Assign(scan=None) as assign,):
            return any(not isinstance(subscript, Affine) for subscript in assign.target.subscripts)
        case _:
            return False
