"""Vectors that overlap at the ends of a row: register tiles of 24 columns are two vectors of 16, which have eight in common.

A loop over the whole vectors and another one over the rest (narrower, or under a mask) read twice what columns share, and a lone narrow vector is bound by these loads. Computing elements
twice is harmless where a tile makes them from nothing that it writes, or goes on with what all of its vectors load before any is stored: both vectors then store the same. Of columns whose number is not known a tile's vectors
begin no later than a vector's length before the end. Rows whose whole vectors lie at lines have one more that starts where the row does, and one that ends there, instead of two under masks (passes/vectors/parts.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeGuard

from polyml.codegen.loops import Allocate, Assign, For, If, Node, Place, Variable
from polyml.codegen.passes.unrolling.jam import jam
from polyml.codegen.rewrite import map_places, subscript_variables, uses, variables_of, walk_nodes
from polyml.dtypes import DType
from polyml.expressions import Expr, Read, Subscript, reads_of
from polyml.new_names import fresh
from polyml.sets.affine import Affine, affine, maximum, minimum

__all__ = ["clamped_tiles", "may_run_twice", "overlapping_starts", "overlapping_tiles", "settled"]


def overlapping_starts(loop: For, trips: int, width: int) -> list[Affine]:
    """The first lanes of the fewest vectors that cover a loop of so many iterations (`width` at least), the last one inside of it."""
    return [affine(loop.variable) + min(at, trips - width) for at in range(0, trips, width)]


def overlapping_tiles(loop: For, body: tuple[Node, ...], vectors: int, width: int, taken: set[str]) -> tuple[Node, ...]:
    """A loop over several vectors at once, as long as there is more than one left, of which none begins later than where a whole one ends; and a masked one for what is left, if there is anything.

    body: the loop's, settled, with lanes in its registers. taken: names in use; the new ones are added.

    Rewrite, two vectors of 4:
        vector for (a = c; a < m; a++) { .. z[a] }
        -> for (t = c; t < m - 4; t += 8) vector for (a = t; a < t + 4; a += 4) { .. z[a]; .. z[a - t + min(t + 4, m - 4)] }
           masked vector for (a = c + 8 * ((max(m - 4 - c, 0) + 7) // 8); a < m; a += 4) { .. z[a] }
    """
    tile = fresh(f"{loop.variable}_vectors", taken)
    first, last, step = affine(tile), loop.upper - width, vectors * width
    own = affine(loop.variable)
    later = (minimum([first + at * width, last]) - first for at in range(1, vectors))
    copies = jam(body, loop.variable, [own, *(own + offset for offset in later)], taken=taken)
    shape = replace(loop, kind="vector", factor=1, step=width, width=width)
    inside = replace(shape, lower=first, upper=first + width, body=copies)
    tiles = replace(loop, variable=tile, upper=last, step=step, kind="sequential", factor=1, body=(inside,))
    done = (maximum([last - loop.lower, affine(0)]) + (step - 1)) // step * step
    single = jam(body, loop.variable, [own], taken=set())
    return tiles, replace(shape, lower=loop.lower + done, masked=True, body=single)


def clamped_tiles(loop: For, body: tuple[Node, ...], vectors: int, width: int, taken: set[str]) -> For:
    """A loop of at least `width` iterations over several vectors at once, none of which begins later than where a whole one ends.

    body: the loop's, settled, with lanes in its registers. taken: names in use; the new ones are added.

    Rewrite, one vector of 4:
        vector for (a = c; a < m; a++) { .. z[a] }
        -> for (t = c; t < m; t += 4) vector for (a = min(t, m - 4); a < min(t, m - 4) + 4; a += 4) { .. z[a] }
    """
    tile = fresh(f"{loop.variable}_vectors", taken)
    starts = [minimum([affine(tile) + at * width, loop.upper - width]) for at in range(vectors)]
    own, first = affine(loop.variable), starts[0]
    copies = jam(body, loop.variable, [own, *(own + (start - first) for start in starts[1:])], taken=taken)
    inside = replace(
        loop, kind="vector", factor=1, lower=first, upper=first + width, step=width, width=width, body=copies
    )
    return replace(loop, variable=tile, step=vectors * width, kind="sequential", factor=1, body=(inside,))


def may_run_twice(loop: For) -> bool:
    """Whether the loop does nothing but store, in each iteration, values of what it never writes: an iteration that runs twice stores the same again."""
    stores = [node for node in loop.body if isinstance(node, Assign)]
    if len(stores) != len(loop.body) or not all(
        _is_simple(n) and n.reduction is None and not n.streaming for n in stores
    ):
        return False
    written = {node.target.variable for node in stores}
    moving = all(loop.variable in subscript_variables(node.target.subscripts) for node in stores)
    read = {use.variable for node in stores for use in uses(node) if not use.write}
    return moving and not written & read


def settled(loop: For, types: Mapping[str, DType], taken: set[str], *, at_once: bool = True) -> tuple[Node, ...] | None:
    """The body with the elements that it writes in registers until its end, where they are stored; None where running it twice may make a difference, or no loop is in it.

    types: of arrays. taken: names in use; the new ones are added. at_once: vectors that overlap run side by side, so that all load before any stores; else none may go on with what is there.

    Rewrite:
        z[i, a] = 0; for (k ..) z[i, a] += x[i, k] * y[k, a];
        -> register r; r = 0; for (k ..) r += x[i, k] * y[k, a]; z[i, a] = r;
        if (c) z[i, a] = 0; for (k ..) z[i, a] += x[i, k] * y[k, a];
        -> register r; if (c) r = 0; else r = z[i, a]; for (k ..) r += x[i, k] * y[k, a]; z[i, a] = r;
        for (k ..) z[a] = z[a] * x[a] + c[k];
        -> register r; r = z[a]; for (k ..) r = r * x[a] + c[k]; z[a] = r;
    """
    sums = any(isinstance(node, Assign) and node.reduction is not None for node in walk_nodes(loop.body))
    starts = _starts(loop, _places_at_hand(loop) if at_once and not sums else {})
    if not starts or not all(name in types and not (sums and types[name].is_complex) for name in starts):
        return None
    registers = {name: fresh(f"{name}_value", taken) for name in starts}
    places = {start.target: registers[name] for name, start in starts.items()}

    def place(old: Place) -> Place:
        return Place(places[old], ()) if old in places else old

    def read(old: Read) -> Expr:
        return Read(registers[old.tensor], (), old.dtype) if old.tensor in registers else old

    plain: Callable[[Node], Node] = lambda node: replace(node, streaming=False) if isinstance(node, Assign) else node  # noqa: E731
    made: list[Node] = []
    known = {registers[name]: Read(name, start.target.subscripts, types[name]) for name, start in starts.items()}
    for name in [name for name, start in starts.items() if _is_load(start)]:
        made.append(Assign(target=Place(registers[name], ()), value=known.pop(registers[name])))
    for node in map_places(loop.body, place=place, read=read):
        assigned = [n.target for n in (node.then if isinstance(node, If) else (node,)) if isinstance(n, Assign)]
        if isinstance(node, If):  # a register that has its value already keeps it
            begun = [target for target in assigned if target.variable in known]
            node = replace(node, otherwise=tuple(Assign(target=t, value=known[t.variable]) for t in begun))
        for target in assigned:
            known.pop(target.variable, None)
        made.append(plain(node))
    for name, start in starts.items():
        made.append(replace(start, value=Read(registers[name], (), types[name])))
    body = tuple(made)
    for name, register in registers.items():
        body = (Allocate(variable=Variable(name=register, dtype=types[name], shape=(), scope="register"), body=body),)
    return body


def _starts(loop: For, at_hand: Mapping[str, Assign]) -> dict[str, Assign] | None:
    """What first assigns each array that the body writes: one element per lane, with a value of its own, and all other accesses come later, to that element; of those at hand, what loads it where that is read first."""
    inner = {node.variable for node in walk_nodes(loop.body) if isinstance(node, For)}
    body = [inside for node in loop.body for inside in (node.then if _is_start(node, loop) else (node,))]
    if not inner or any(isinstance(node, If) for node in body) or not all(_is_simple(n) for n in walk_nodes(body)):
        return None
    written = {use.variable for node in walk_nodes(loop.body) for use in uses(node) if use.write}
    found: dict[str, Assign] = {}
    for node in body:
        begins = isinstance(node, Assign) and node.reduction is None and node.target.variable not in found
        for part in walk_nodes((node,)):
            for use in uses(part):
                if use.variable not in written or (begins and use.write):
                    continue
                if use.variable not in found and use.variable in at_hand:
                    found[use.variable] = at_hand[use.variable]
                if use.variable not in found or Place(use.variable, use.subscripts) != found[use.variable].target:
                    return None
        if begins and isinstance(node, Assign) and node.target.variable not in found:
            moves = subscript_variables(node.target.subscripts)
            if loop.variable not in moves or moves & inner:
                return None
            found[node.target.variable] = node
    return found


def _places_at_hand(loop: For) -> dict[str, Assign]:
    """Loads of the elements that the body only ever changes in place: of arrays that it writes, reads and writes at one place only, of each lane's own."""
    inner = {node.variable for node in walk_nodes(loop.body) if isinstance(node, For)}
    places: dict[str, set[tuple[Subscript, ...]]] = {}
    written: dict[str, Assign] = {}
    for node in walk_nodes(loop.body):
        for use in uses(node):
            places.setdefault(use.variable, set()).add(use.subscripts)
        if isinstance(node, Assign):
            load = Read(node.target.variable, node.target.subscripts, node.value.dtype)
            written[node.target.variable] = Assign(target=node.target, value=load)
    found: dict[str, Assign] = {}
    for name, change in written.items():
        moves = subscript_variables(change.target.subscripts)
        if len(places[name]) == 1 and loop.variable in moves and not moves & inner:
            found[name] = change
    return found


def _is_load(start: Assign) -> bool:
    """Whether an array's first access only loads what is in its place."""
    value = start.value
    return isinstance(value, Read) and Place(value.tensor, value.subscripts) == start.target


def _is_start(node: Node, loop: For) -> TypeGuard[If]:
    """Whether it is values for the first of several passes over the same elements, of all lanes or none."""
    if not isinstance(node, If) or node.otherwise or any(reads_of(node.condition)):
        return False
    plain = all(isinstance(n, Assign) and n.reduction is None for n in node.then)
    return plain and loop.variable not in variables_of(node.condition)


def _is_simple(node: Node) -> bool:
    """An assignment of each lane's own, a loop of these, or a condition around some of them."""
    if isinstance(node, If):
        return not node.otherwise and not any(reads_of(node.condition))
    if isinstance(node, For):
        return node.kind in ("sequential", "unroll") and not node.masked
    return isinstance(node, Assign) and not (node.across or node.atomic or node.scan or node.asynchronous)
