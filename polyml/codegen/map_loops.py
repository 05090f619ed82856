"""The walk that most passes are: loops, outermost first, each replaced by what a pass makes of it."""

from __future__ import annotations

from collections.abc import Callable

from polyml.codegen.loops import For, Function, Node
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import have_no_bodies, is_leaf, with_body
from polyml.records import replace
from polyml.renewed import renewed

__all__ = ["map_loops"]

Change = Callable[[For, Ranges, For | None], Node | tuple[Node, ...] | None]
"""What takes a loop's place; None: the loops inside are asked. Given are the loop, what is known around it, and the loop over vectors around it."""


def map_loops(function: Function, change: Change) -> Function:
    """The function with its loops changed; the same object where none is."""

    def inside(nodes: tuple[Node, ...], ranges: Ranges, lanes: For | None) -> tuple[Node, ...]:
        if have_no_bodies(nodes):
            return nodes
        made: list[Node] = []
        for node in nodes:
            if is_leaf(node):
                made.append(node)
            else:
                made += visit(node, ranges, lanes)
        return renewed(nodes, made)

    def visit(node: Node, ranges: Ranges, lanes: For | None) -> tuple[Node, ...]:
        if isinstance(node, For):
            made = change(node, ranges, lanes)
            if made is not None:
                return made if isinstance(made, tuple) else (made,)
            ranges = ranges.enter(node)
            lanes = node if node.kind == "vector" and node.width > 1 else lanes
        return (with_body(node, lambda body: inside(body, ranges, lanes)),)

    body = inside(function.body, outside(function), None)
    return function if body is function.body else replace(function, body=body)
