"""Scalars of a region's own that each iteration of a loop makes anew get an element per iteration: the order in which iterations take turns in one
element binds no schedule any more. Storage contraction (schedule/storage.py) makes them small again once there is an order.

Source: Feautrier, "Dataflow analysis of array and scalar references" (IJPP 1991), section 6; scalar expansion in Allen and Kennedy, "Optimizing compilers
for modern architectures" (2001), section 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

import islpy as isl

from polyml.expressions import Read, map_reads
from polyml.scop.dependences import values_of
from polyml.scop.relations import rebuilt
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.callbacks import pieces_of
from polyml.sets.from_isl import affine_of
from polyml.sets.shapes import element_count, is_known
from polyml.sets.spaces import maps_of

__all__ = ["common_loops", "expanded", "expanded_along_loops", "with_a_place_ahead"]

MAX_BYTES = 1 << 28
"""Of an expanded array: should no order let it be contracted, it exists in full."""

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out


def expanded(scop: Scop) -> Scop:
    """The scop with local scalars expanded along the loops that no value of theirs crosses; the same object when there are none. Where loops have symbolic lengths, as long as what
    comes of it has no more elements than one of the caller's arrays."""
    scalars = [array.name for array in scop.arrays.values() if array.kind == "local" and not array.shape]
    made = expanded_along_loops(scop, scalars, MAX_BYTES)
    if not scop.sizes:
        return made
    for name in (name for name in scalars if name in made.arrays and not made.arrays[name].shape):
        longer = expanded_along_loops(made, (name,), None)
        if any(_holds(array, longer.arrays[name]) for array in scop.arrays.values() if array.kind != "local"):
            made = longer
    return made


def _holds(array: Array, other: Array) -> bool:
    """Whether the array certainly has room for the elements of the other, dimension by dimension."""
    gaps = [a - b for a, b in zip(array.shape, other.shape, strict=False)]
    same = len(array.shape) == len(other.shape) and array.dtype.itemsize >= other.dtype.itemsize
    return same and all(gap.is_constant and gap.constant >= 0 for gap in gaps)


def expanded_along_loops(scop: Scop, names: Iterable[str], most: int | None) -> Scop:
    """The same for these local arrays, those of at most so many bytes afterwards (None: of any size, symbolic or not): they get dimensions in front of their own."""
    changed: dict[str, tuple[tuple[Affine, ...], Array]] = {}
    for array in (scop.arrays[name] for name in names):
        found = _loops(array, scop, most)
        if found:
            subscripts = tuple(affine(index) - first for index, first, _ in found)
            extents = tuple(extent for _, _, extent in found)
            changed[array.name] = subscripts, replace(array, shape=(*extents, *array.shape))
    return _widened(scop, changed) if changed else scop


def with_a_place_ahead(scop: Scop, names: Iterable[str]) -> Scop:
    """The scop whose local arrays of these names have a dimension of one element in front of their own: room for a storage map that cuts one of these in two."""
    arrays = [scop.arrays[name] for name in names]
    return _widened(scop, {a.name: ((affine(0),), replace(a, shape=(affine(1), *a.shape))) for a in arrays})


def _widened(scop: Scop, changed: Mapping[str, tuple[tuple[Affine, ...], Array]]) -> Scop:
    """The scop with these arrays, whose accesses get the subscripts in front of their own."""
    places = {name: subscripts for name, (subscripts, _) in changed.items()}
    statements = {name: _with_places(statement, places) for name, statement in scop.statements.items()}
    return rebuilt(scop, statements, {**scop.arrays, **{name: array for name, (_, array) in changed.items()}})


def _loops(array: Array, scop: Scop, most: int | None) -> list[tuple[str, Affine, Affine]]:
    """The outer loops of all accesses that no value of the array crosses: variable, first value and number of values."""
    if most is not None and not is_known(array.shape):
        return []
    users = [s for s in scop.statements.values() if array.name in s.touched]
    shared = _shared(users)
    if not shared:
        return []
    flow, from_before = values_of(scop, array.name)
    if not from_before.is_empty():
        return []
    found: list[tuple[str, Affine, Affine]] = []
    if most is None:
        for position, (index, first, last) in enumerate(common_loops(users)):
            if _crosses(flow, position):
                break
            found.append((index, first, last - first + 1))
        return found
    ranges = [_range(users, position) for position in range(len(shared))]
    total = array.dtype.itemsize * element_count(array.shape)
    for position, index in enumerate(shared):
        known = ranges[position]
        if known is None or total * (known[1] - known[0] + 1) > most or _crosses(flow, position):
            break
        extent = known[1] - known[0] + 1
        total *= extent
        found.append((index, affine(known[0]), affine(extent)))
    return found


def common_loops(statements: Sequence[Statement]) -> Iterator[tuple[str, Affine, Affine]]:
    """The sequential loops around all of the statements, outermost first: variable, first and last value in terms of the sizes; as far as these are affine functions."""
    for position, index in enumerate(_shared(statements)):
        ends = _ends(statements, position)
        if ends is None:
            return
        yield index, ends[0], ends[1]


def _shared(statements: Sequence[Statement]) -> list[str]:
    """The loops' variables, which all statements have first."""
    prefixes = [s.indices[: s.loop_depth] for s in statements]
    return [names[0] for names in takewhile(lambda names: len(set(names)) == 1, zip(*prefixes, strict=False))]


def _range(users: list[Statement], position: int) -> tuple[int, int] | None:
    """The least and the greatest value of a loop's variable; None when they depend on sizes."""
    ends = [(s.domain.dim_min_val(position), s.domain.dim_max_val(position)) for s in users if not s.domain.is_empty()]
    if not ends or not all(low.is_int() and high.is_int() for low, high in ends):
        return None
    return min(low.to_python() for low, _ in ends), max(high.to_python() for _, high in ends)


def _ends(users: Sequence[Statement], position: int) -> tuple[Affine, Affine] | None:
    """The same in terms of sizes; None where the statements differ in them by more than numbers, or they are no affine functions."""
    lows, highs = list[Affine](), list[Affine]()
    for statement in users:
        some = statement.domain.params()
        for end, found in ((statement.domain.dim_min, lows), (statement.domain.dim_max, highs)):
            pieces = pieces_of(end(position).coalesce().gist_params(some))
            if len(pieces) != 1:
                return None
            found.append(affine_of(pieces[0][1], ()))
    if not all((end - ends[0]).is_constant for ends in (lows, highs) for end in ends):
        return None
    return min(lows, key=lambda end: end.constant), max(highs, key=lambda end: end.constant)


def _crosses(flow: isl.UnionMap, position: int) -> bool:
    """Whether a value comes from another iteration of the loop at that position."""
    return any(
        not piece.is_subset(isl.Map.universe(piece.get_space()).equate(_IN, position, _OUT, position))
        for piece in maps_of(flow)
    )


def _with_places(statement: Statement, places: dict[str, tuple[Affine, ...]]) -> Statement:
    def read(old: Read) -> Read:
        before = places.get(old.tensor, ())
        return Read(old.tensor, (*before, *old.subscripts), old.dtype) if before else old

    def written(old: Access) -> Access:
        subscripts = tuple(s if isinstance(s, Affine) else map_reads(s, read) for s in old.subscripts)
        return Access(old.array, (*places.get(old.array, ()), *subscripts))

    argument = None if statement.argument is None else written(statement.argument)
    value = map_reads(statement.value, read)
    return replace(statement, target=written(statement.target), argument=argument, value=value)
