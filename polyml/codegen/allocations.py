"""Storage of a region's own arrays: where it exists, and whether it is a register."""

from __future__ import annotations

from polyml.codegen.loops import Allocate, For, If, Node, Place, Variable
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
    """The nodes with the pieces of each Allocate joined, and single elements that no parallel loop shares turned into registers.

    isl repeats a mark above every part of a sequence, below the guards of the part: what stands between the first and the last piece goes into one Allocate.
    """
    places: dict[str, list[int]] = {}
    variables: dict[str, Variable] = {}
    for position, node in enumerate(nodes):
        for variable in _pieces(node):
            places.setdefault(variable.name, []).append(position)
            variables[variable.name] = variable
    for name, found in places.items():
        first, last = found[0], found[-1]
        if first < last:
            body = _without((*nodes[first : last + 1],), name)
            joined = Allocate(variable=variables[name], body=body)
            return settle_allocations((*nodes[:first], joined, *nodes[last + 1 :]))
    return tuple(_register(with_body(node, settle_allocations)) for node in nodes)


def _pieces(node: Node) -> list[Variable]:
    """The variables that a node allocates, under conditions or not, but not in a loop."""
    match node:
        case Allocate():
            return [node.variable, *(v for inner in node.body for v in _pieces(inner))]
        case If():
            return [v for inner in (*node.then, *node.otherwise) for v in _pieces(inner)]
        case _:
            return []


def _without(nodes: tuple[Node, ...], name: str) -> tuple[Node, ...]:
    """The nodes with the Allocates of a variable dissolved, outside of loops."""
    made: list[Node] = []
    for node in nodes:
        if isinstance(node, Allocate | If):
            node = with_body(node, lambda body: _without(body, name))
        made.extend(node.body if isinstance(node, Allocate) and node.variable.name == name else (node,))
    return tuple(made)


def _register(node: Node) -> Node:
    if not isinstance(node, Allocate) or any(extent != affine(1) for extent in node.variable.shape):
        return node
    if any(isinstance(inner, For) and (inner.kind == "parallel" or inner.mapped) for inner in walk_nodes(node.body)):
        return node
    name = node.variable.name

    def place(old: Place) -> Place:
        return Place(name, ()) if old.variable == name else old

    def read(old: Read) -> Expr:
        return Read(name, (), old.dtype) if old.tensor == name else old

    register = Variable(name=name, dtype=node.variable.dtype, shape=(), scope="register")
    return Allocate(variable=register, body=map_places(node.body, place=place, read=read))
