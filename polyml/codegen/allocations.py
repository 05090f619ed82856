"""Storage of a region's own arrays: where it exists, and whether it is a register."""

from __future__ import annotations

from dataclasses import replace

from polyml.codegen.loops import Allocate, For, Node, Place, Variable
from polyml.codegen.rewrite import map_places, walk_nodes, with_body
from polyml.expressions import Expr, Read
from polyml.schedule.schedule import Schedule
from polyml.scop.scop import Array
from polyml.sets.affine import affine

__all__ = ["LOCAL_ALIGNMENT", "allocate", "settle_allocations"]

LOCAL_ALIGNMENT = 64
"""Bytes: of the first element of scratch arrays; a cache line, and the widest vector."""


def allocate(schedule: Schedule, array: Array, body: tuple[Node, ...]) -> Node:
    """`body` with the array's storage around it, as scratch memory."""
    storage = schedule.storage.get(array.name)
    shape = array.shape if storage is None else tuple(affine(extent) for extent in storage.shape)
    variable = Variable(name=array.name, dtype=array.dtype, shape=shape, scope="local", alignment=LOCAL_ALIGNMENT)
    return Allocate(variable=variable, body=body)


def settle_allocations(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes with the pieces of each Allocate joined (isl may repeat a mark above every part of a sequence), and single elements that
    no parallel loop shares turned into registers."""
    joined: list[Node] = []
    for node in nodes:
        last = joined[-1] if joined else None
        if isinstance(node, Allocate) and isinstance(last, Allocate) and last.variable == node.variable:
            joined[-1] = replace(last, body=last.body + node.body)
        else:
            joined.append(node)
    return tuple(_register(with_body(node, settle_allocations)) for node in joined)


def _register(node: Node) -> Node:
    if not isinstance(node, Allocate) or any(extent != affine(1) for extent in node.variable.shape):
        return node
    if any(isinstance(inner, For) and inner.kind == "parallel" for inner in walk_nodes(node.body)):
        return node
    name = node.variable.name

    def place(old: Place) -> Place:
        return Place(name, ()) if old.variable == name else old

    def read(old: Read) -> Expr:
        return Read(name, (), old.dtype) if old.tensor == name else old

    register = Variable(name=name, dtype=node.variable.dtype, shape=(), scope="register")
    return Allocate(variable=register, body=map_places(node.body, place=place, read=read))
