"""Stores into scratch memory that no read follows: elements whose values went on in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import field, replace
from typing import TypeGuard

from polyml.codegen.element_accesses import accesses_of
from polyml.codegen.loops import Allocate, Assign, For, Node
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import is_empty, with_body
from polyml.expressions import Subscript
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine

__all__ = ["without_unread"]

_Reads = Sequence[tuple[tuple[Subscript, ...], Ranges]]
"""Subscripts of reads, each with what is known where it stands."""


@dataclass(frozen=True, slots=True)
class _Around:
    """The loops between an Allocate and a store in it, under names of their own: a read of the element belongs to another iteration."""

    loops: tuple[For, ...] = ()
    names: Mapping[str, Affine] = field(default_factory=dict)

    def enter(self, loop: For) -> _Around:
        other = f"{loop.variable}'"
        lower, upper = loop.lower.substitute(self.names), loop.upper.substitute(self.names)
        renamed = replace(loop, variable=other, lower=lower, upper=upper, body=())
        return _Around((*self.loops, renamed), {**self.names, loop.variable: affine(other)})

    def is_apart(self, stored: tuple[Subscript, ...], reads: _Reads) -> bool:
        """Whether none of the reads is of the element that is stored."""
        return all(self._differ(stored, read, ranges) for read, ranges in reads)

    def _differ(self, stored: tuple[Subscript, ...], read: tuple[Subscript, ...], ranges: Ranges) -> bool:
        for loop in self.loops:
            ranges = ranges.enter(loop)
        pairs = zip(stored, read, strict=True)
        return any(
            ranges.never_zero(a.substitute(self.names) - b)
            for a, b in pairs
            if isinstance(a, Affine) and isinstance(b, Affine)
        )


def without_unread(nodes: tuple[Node, ...], names: Set[str], ranges: Ranges) -> tuple[Node, ...]:
    """The nodes without assignments to elements of the scratch arrays `names` that no access in the array's life can read. `ranges` hold around the nodes."""
    return _body(nodes, names, ranges)


def _body(nodes: tuple[Node, ...], names: Set[str], ranges: Ranges) -> tuple[Node, ...]:
    return renewed(nodes, (_node(node, names, ranges) for node in nodes))


def _node(node: Node, names: Set[str], ranges: Ranges) -> Node:
    if isinstance(node, Allocate) and node.variable.name in names:
        name = node.variable.name
        accesses = [a for inner in node.body for a in accesses_of(inner, ranges, of={name})]
        reads = []
        for access in accesses:
            inside = ranges
            for loop in access.loops:
                inside = inside.enter(loop)
            if access.read:
                reads.append((access.subscripts, inside))
        body = _stored(node.body, name, reads, _Around())
        node = node if body is node.body else replace(node, body=body)
    if isinstance(node, For):
        inside = ranges.enter(node)
        return with_body(node, lambda body: _body(body, names, inside))
    return with_body(node, lambda body: _body(body, names, ranges))


def _stored(nodes: tuple[Node, ...], name: str, reads: _Reads, around: _Around) -> tuple[Node, ...]:
    """The nodes without assignments to elements that none of the reads is of, and without loops and branches that this empties."""
    made: list[Node] = []
    for node in nodes:
        if _only_stores(node, name) and around.is_apart(node.target.subscripts, reads):
            continue
        inside = around.enter(node) if isinstance(node, For) else around
        changed = with_body(node, lambda body, inside=inside: _stored(body, name, reads, inside))  # type: ignore[misc]
        # An emitter takes a loop that transposes for the copy in it.
        if changed is node or not is_empty(changed):
            made.append(changed)
    return renewed(nodes, tuple(made))


def _only_stores(node: Node, name: str) -> TypeGuard[Assign]:
    if not isinstance(node, Assign) or node.reduction is not None or node.scan is not None:
        return False
    return node.target.variable == name
