"""Scratch memory and registers that nothing reads, and the assignments to them, left out."""

from __future__ import annotations

from polyml.codegen.loops import Allocate, Assign, Node, UpdateArgument
from polyml.codegen.rewrite import is_empty, names_read, targets_of, walk_nodes, with_body
from polyml.renewed import renewed

__all__ = ["without_never_read"]


def without_never_read(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes without scratch memory and registers that nothing reads, and without the assignments to them."""
    read = {name for node in walk_nodes(nodes) for name in _reads(node)}
    unread = {n.variable.name for n in walk_nodes(nodes) if isinstance(n, Allocate)} - read
    return _without(nodes, unread) if unread else nodes


def _reads(node: Node) -> set[str]:
    """The variables that a node reads; a reduction does not count as a read of its target, unless it is a scan's, whose values go somewhere."""
    own = isinstance(node, UpdateArgument) or (isinstance(node, Assign) and node.scan and node.reduction)
    return names_read(node) | {place.variable for place in targets_of(node)} if own else names_read(node)


def _without(nodes: tuple[Node, ...], names: set[str]) -> tuple[Node, ...]:
    """The nodes without assignments to the variables, their allocation, and loops and branches that this empties."""
    made: list[Node] = []
    for node in nodes:
        if isinstance(node, Assign) and node.target.variable in names:
            continue
        changed = with_body(node, lambda body: _without(body, names))
        if isinstance(changed, Allocate) and changed.variable.name in names:
            made.extend(changed.body)
            continue
        if changed is node or not is_empty(changed):
            made.append(changed)
    return renewed(nodes, made)
