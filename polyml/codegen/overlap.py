"""Register tiles whose last vector overlaps the one before: 24 columns are two vectors of 16, which have eight in common.

A loop over the whole vectors and another one over the rest (narrower, or under a mask) read twice what columns share, and a lone narrow vector is bound by these loads. Computing elements
twice is harmless where a tile makes them from nothing that it writes: both vectors then store the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from polyml.codegen.loops import Allocate, Assign, For, Node, Place, Variable
from polyml.codegen.rewrite import fresh, map_places, subscript_variables, uses, walk_nodes
from polyml.dtypes import DType
from polyml.expressions import Expr, Read
from polyml.sets.affine import Affine, affine

__all__ = ["overlapping_starts", "settled"]


def overlapping_starts(loop: For, trips: int, width: int) -> list[Affine]:
    """The first lanes of the fewest vectors that cover a loop of so many iterations (`width` at least), the last one inside of it."""
    return [affine(loop.variable) + min(at, trips - width) for at in range(0, trips, width)]


def settled(loop: For, types: Mapping[str, DType], taken: set[str]) -> tuple[Node, ...] | None:
    """The body with the elements that it writes in registers until its end, where they are stored; None where running it twice may make a difference, or no sum is in it.

    types: of arrays. taken: names in use; the new ones are added.

    Rewrite:
        z[i, a] = 0; for (k ..) z[i, a] += x[i, k] * y[k, a];
        -> register r; r = 0; for (k ..) r += x[i, k] * y[k, a]; z[i, a] = r;
    """
    starts = _starts(loop)
    if not starts or not all(name in types and not types[name].is_complex for name in starts):
        return None
    registers = {name: fresh(f"{name}_value", taken) for name in starts}
    places = {start.target: registers[name] for name, start in starts.items()}

    def place(old: Place) -> Place:
        return Place(places[old], ()) if old in places else old

    def read(old: Read) -> Expr:
        return Read(registers[old.tensor], (), old.dtype) if old.tensor in registers else old

    plain: Callable[[Node], Node] = lambda node: replace(node, streaming=False) if isinstance(node, Assign) else node  # noqa: E731
    made: list[Node] = [plain(node) for node in map_places(loop.body, place=place, read=read)]
    for name, start in starts.items():
        made.append(replace(start, value=Read(registers[name], (), types[name])))
    body = tuple(made)
    for name, register in registers.items():
        body = (Allocate(variable=Variable(name=register, dtype=types[name], shape=(), scope="register"), body=body),)
    return body


def _starts(loop: For) -> dict[str, Assign] | None:
    """What first assigns each array that the body writes: one element per lane, with a value of its own, and all other accesses come later, to that element."""
    inner = {node.variable for node in walk_nodes(loop.body) if isinstance(node, For)}
    if not inner or not all(_is_simple(node) for node in walk_nodes(loop.body)):
        return None
    written = {use.variable for node in walk_nodes(loop.body) for use in uses(node) if use.write}
    found: dict[str, Assign] = {}
    for node in loop.body:
        begins = isinstance(node, Assign) and node.reduction is None and node.target.variable not in found
        for part in walk_nodes((node,)):
            for use in uses(part):
                if use.variable not in written or (begins and use.write):
                    continue
                if use.variable not in found or Place(use.variable, use.subscripts) != found[use.variable].target:
                    return None
        if begins:
            assert isinstance(node, Assign), "internal: no assignment begins"
            moves = subscript_variables(node.target.subscripts)
            if loop.variable not in moves or moves & inner:
                return None
            found[node.target.variable] = node
    return found


def _is_simple(node: Node) -> bool:
    """An assignment of each lane's own, or a loop of these."""
    if isinstance(node, For):
        return node.kind in ("sequential", "unroll") and not node.masked
    return isinstance(node, Assign) and not (node.across or node.atomic or node.scan or node.asynchronous)
