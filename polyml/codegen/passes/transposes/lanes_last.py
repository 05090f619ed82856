"""Scratch arrays that lanes run through along one dimension only have that dimension last: lanes are neighbours in memory then, and nothing is gathered or transposed.

A region's local array has the order of the tensor that it is a part of. Where lanes are channels, and points of a row are innermost in memory, each access is a gather, a scatter or a block that is transposed in registers. Where sizes are known such arrays mostly shrink to registers;
where they are not, what a condition leaves out of a sum keeps whole rows alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from polyml.codegen.loops import Allocate, Block, For, Function, If, Node, Place, Prefetch, UpdateArgument, Variable
from polyml.codegen.rewrite import expressions, map_places, nodes_of, targets_of, with_body
from polyml.expressions import Expr, Read, Subscript, reads_of
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine

__all__ = ["lanes_last"]

T = TypeVar("T")


def lanes_last(function: Function) -> Function:
    """The function with such dimensions last.

    Rewrite:
        local f32 y[64, W]; vector(16) for (c ..) { for (w ..) y[c, w] = ..; for (w ..) z[w, c] = y[c, w]; }
        -> local f32 y[W, 64]; vector(16) for (c ..) { for (w ..) y[w, c] = ..; for (w ..) z[w, c] = y[w, c]; }
    """
    nodes = [n for n in nodes_of(function) if isinstance(n, Allocate)]
    arrays = {n.variable.name: n.variable for n in nodes if _is_plain(n.variable)}
    found: dict[str, set[int | None]] = {name: set() for name in arrays}
    _look(function.body, None, None, found)
    moved = {name: d for name, along in found.items() for d in along if d is not None}
    return replace(function, body=_Order(moved).changed(function.body)) if moved else function


def _is_plain(variable: Variable) -> bool:
    return variable.scope == "local" and len(variable.shape) > 1 and variable.lanes == 1 and variable.strides is None


def _look(nodes: Iterable[Node], lanes: str | None, inner: str | None, found: dict[str, set[int | None]]) -> None:
    """Collects for each array the one dimension along which lanes run; arrays that stay as they are, since there are several, other steps than from element to element, or it is the last one, are left out at once.
    inner: the innermost loop's variable."""

    def add(name: str, along: set[int | None], dimensions: int) -> None:
        found[name] |= along
        if None in along or dimensions - 1 in along or len(found[name]) > 1:
            del found[name]

    for node in nodes:
        if not found:
            return
        for read in [read for expr in expressions(node) for read in reads_of(expr)]:
            if read.tensor in found:
                add(read.tensor, _along(read.subscripts, lanes, inner), len(read.subscripts))
        for place in targets_of(node):
            if place.variable in found:
                add(place.variable, _along(place.subscripts, lanes, inner), len(place.subscripts))
        match node:
            case Prefetch() if node.place.variable in found:
                del found[node.place.variable]
            case UpdateArgument():
                for place in (node.best, node.argument):
                    found.pop(place.variable, None)
            case For():
                _look(node.body, node.variable if node.kind == "vector" else lanes, node.variable, found)
            case If():
                _look((*node.then, *node.otherwise), lanes, inner, found)
            case Allocate() | Block():
                _look(node.body, lanes, inner, found)
            case _:
                pass


def _along(subscripts: tuple[Subscript, ...], lanes: str | None, inner: str | None) -> set[int | None]:
    """The dimension that lanes run along; nothing where all of them have one element, unless a loop goes along the rows as they are."""
    strides = [s.stride(lanes) if isinstance(s, Affine) and lanes is not None else 0 for s in subscripts]
    moving = [d for d, stride in enumerate(strides) if stride != 0]
    if any(not isinstance(s, Affine) for s in subscripts) or len(moving) > 1:
        return {None}
    row = subscripts[-1]
    walked = isinstance(row, Affine) and inner is not None and abs(row.stride(inner) or 0) == 1
    if walked and lanes is not None and not moving:
        return {None}
    return {d if strides[d] == 1 else None for d in moving}


@dataclass(frozen=True, slots=True)
class _Order:
    """moved: by the array, the dimension that goes last."""

    moved: Mapping[str, int]

    def changed(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        nodes = map_places(nodes, place=self.place, read=self.read)
        return renewed(nodes, map(self.declared, nodes))

    def declared(self, node: Node) -> Node:
        if isinstance(node, Allocate) and node.variable.name in self.moved:
            shape = self.order(node.variable.name, node.variable.shape)
            node = replace(node, variable=replace(node.variable, shape=shape))
        return with_body(node, lambda body: renewed(body, map(self.declared, body)))

    def place(self, old: Place) -> Place:
        return old.at(self.order(old.variable, old.subscripts)) if old.variable in self.moved else old

    def read(self, old: Read) -> Expr:
        return replace(old, subscripts=self.order(old.tensor, old.subscripts)) if old.tensor in self.moved else old

    def order(self, name: str, items: tuple[T, ...]) -> tuple[T, ...]:
        at = self.moved[name]
        return (*items[:at], *items[at + 1 :], items[at])
