"""What a thread keeps from one of its block's phases to the next: arrays whose places are numbers become registers, one per place."""

from __future__ import annotations

from dataclasses import replace

from polyml.codegen.loops import Allocate, Function, Node, Place, Variable
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.rewrite import map_places, uses, walk_nodes, with_body
from polyml.expressions import Expr, Read, Subscript
from polyml.new_names import fresh
from polyml.sets.affine import Affine
from polyml.sets.shapes import element_count

__all__ = ["private_registers"]


MANY, FEW = 128, 8
"""Where a thread has more than `MANY` places, arrays of more than `FEW` stay arrays: their subscripts are numbers, so that the compiler keeps them in registers as well, and nests of hundreds of
variables are too deep for recursive passes."""


def private_registers(function: Function) -> Function:
    """The kernel with a variable per place of its private arrays. An array with a place that is no number stays an array, in the thread's memory."""
    taken = names_in(function)
    arrays = [
        n.variable for n in walk_nodes(function.body) if isinstance(n, Allocate) and n.variable.scope == "private"
    ]
    total = sum(element_count(array.shape) for array in arrays)
    most = FEW if total > MANY else total
    return replace(function, body=tuple(_visit(node, taken, most) for node in function.body))


def _visit(node: Node, taken: set[str], most: int) -> Node:
    """most: places of an array that becomes variables."""
    if not isinstance(node, Allocate) or node.variable.scope != "private":
        return with_body(node, lambda body: tuple(_visit(child, taken, most) for child in body))
    array = node.variable
    places: dict[tuple[int, ...], str] = {}
    for use in (use for inner in walk_nodes(node.body) for use in uses(inner) if use.variable == array.name):
        numbers = _numbers(use.subscripts)
        if numbers is None:
            return node
        digits = (str(n) for n, extent in zip(numbers, array.shape, strict=True) if extent.constant != 1)
        if numbers not in places:
            places[numbers] = fresh("_".join((array.name, *digits)), taken)
    if len(places) > most:
        return replace(node, body=tuple(_visit(child, taken, most) for child in node.body))

    def place(old: Place) -> Place:
        numbers = _numbers(old.subscripts)
        return old if old.variable != array.name or numbers is None else Place(places[numbers], ())

    def read(old: Read) -> Expr:
        numbers = _numbers(old.subscripts)
        return old if old.tensor != array.name or numbers is None else Read(places[numbers], (), old.dtype)

    body = map_places(tuple(_visit(child, taken, most) for child in node.body), place=place, read=read)
    for name in reversed(places.values()):
        body = (Allocate(variable=Variable(name=name, dtype=array.dtype, shape=(), scope="private"), body=body),)
    return body[0]


def _numbers(subscripts: tuple[Subscript, ...]) -> tuple[int, ...] | None:
    found = [s.constant for s in subscripts if isinstance(s, Affine) and s.is_constant]
    return tuple(found) if len(found) == len(subscripts) else None
