"""Stores into scratch memory that no read follows: elements whose values went on in registers."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from polyml.codegen.element_accesses import accesses_of
from polyml.codegen.loops import Allocate, Assign, For, Node
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import with_body
from polyml.expressions import Subscript
from polyml.sets.affine import Affine

__all__ = ["without_unread"]

_Box = tuple[tuple[int | None, int | None], ...]
"""Per dimension the lowest and the highest subscript, as far as they are known."""


def without_unread(nodes: tuple[Node, ...], names: Set[str]) -> tuple[Node, ...]:
    """The nodes without assignments to elements of the scratch arrays `names` that no access in the array's life can read."""
    return _body(nodes, names, Ranges())


def _body(nodes: tuple[Node, ...], names: Set[str], ranges: Ranges) -> tuple[Node, ...]:
    made = tuple(_node(node, names, ranges) for node in nodes)
    return nodes if all(a is b for a, b in zip(made, nodes, strict=True)) else made


def _node(node: Node, names: Set[str], ranges: Ranges) -> Node:
    if isinstance(node, Allocate) and node.variable.name in names:
        name = node.variable.name
        accesses = [a for inner in node.body for a in accesses_of(inner, ranges, of={name})]
        boxes = []
        for access in accesses:
            inside = ranges
            for loop in access.loops:
                inside = inside.enter(loop)
            if access.read:
                boxes.append(_box(access.subscripts, inside))
        body = _stored(node.body, name, boxes, ranges)
        node = node if body is node.body else replace(node, body=body)
    if isinstance(node, For):
        inside = ranges.enter(node)
        return with_body(node, lambda body: _body(body, names, inside))
    return with_body(node, lambda body: _body(body, names, ranges))


def _stored(nodes: tuple[Node, ...], name: str, reads: list[_Box], ranges: Ranges) -> tuple[Node, ...]:
    """The nodes without assignments to elements outside of all boxes."""
    made: list[Node] = []
    for node in nodes:
        if isinstance(node, Assign) and node.target.variable == name and node.reduction is None and node.scan is None:
            box = _box(node.target.subscripts, ranges)
            if all(_apart(box, other) for other in reads):
                continue
        inside = ranges.enter(node) if isinstance(node, For) else ranges
        made.append(with_body(node, lambda body, inside=inside: _stored(body, name, reads, inside)))  # type: ignore[misc]
    return nodes if len(made) == len(nodes) and all(a is b for a, b in zip(made, nodes, strict=True)) else tuple(made)


def _box(subscripts: tuple[Subscript, ...], ranges: Ranges) -> _Box:
    affine = (s if isinstance(s, Affine) else None for s in subscripts)
    return tuple((None, None) if s is None else (ranges.lowest(s), ranges.highest(s)) for s in affine)


def _apart(one: _Box, other: _Box) -> bool:
    for (low, high), (least, most) in zip(one, other, strict=True):
        if (high is not None and least is not None and high < least) or (
            low is not None and most is not None and low > most
        ):
            return True
    return False
