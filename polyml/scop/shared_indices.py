"""Indices that all accesses of an array share, left out of its dataflow and put back into what it finds.

Where every access is x[.., i, ..], with an index i that no other subscript has and whose range is the same everywhere and depends on no other index, elements of different i have
nothing to do with each other, and what holds of one i holds of all. isl computes dataflow of the rest in fewer dimensions: three in place of eleven for a gate on two of eight indices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import islpy as isl

from polyml.expressions import Subscript
from polyml.records import dataclass
from polyml.scop.scop import Statement
from polyml.sets.affine import Affine
from polyml.sets.callbacks import pieces_of
from polyml.sets.spaces import maps_of
from polyml.sets.tables import table_of

__all__ = ["Range", "SharedIndices", "Times", "ranges_of", "shared_indices", "times_of"]

Range = frozenset[tuple[int, ...]]
"""The constraints of one index: 0 for an equality, its factor, those of the sizes, the constant."""

Times = tuple[int | tuple[int, ...], ...]
"""For each dimension of time its number, or the factors of a statement's indices."""

_IN, _OUT, _SET, _PARAM, _DIV = (
    isl.dim_type.in_,
    isl.dim_type.out,
    isl.dim_type.set,
    isl.dim_type.param,
    isl.dim_type.div,
)


@dataclass(frozen=True, slots=True)
class SharedIndices:
    """What is left out of the dataflow of one array.

    dimensions: of the array, in order. positions: by statement, of its index in each of them. domains: of these statements.
    """

    dimensions: tuple[int, ...]
    positions: Mapping[str, tuple[int, ...]]
    domains: Mapping[str, isl.Set]

    def without(self, accesses: isl.UnionMap) -> isl.UnionMap:
        """`{ S[i] -> A[e] }` without them."""
        return _mapped(accesses, lambda m: _without(_without(m, _IN, self._of(m, _IN)), _OUT, self.dimensions))

    def time(self, written: isl.Map) -> isl.Map:
        """A statement's place in the written order, the same for all values of them."""
        for position in self._of(written, _IN):
            written = written.fix_val(_IN, position, isl.Val(0))
        return _without(written, _IN, self._of(written, _IN))

    def dependence(self, found: isl.UnionMap) -> isl.UnionMap:
        """`{ S[i] -> T[j] }` with them, the same on both sides."""
        return _mapped(found, lambda m: self._named(self._with(m, self._of(m, _OUT)), _OUT))

    def accesses(self, found: isl.UnionMap) -> isl.UnionMap:
        """`{ S[i] -> A[e] }` with them."""
        return _mapped(found, lambda m: self._with(m, self.dimensions))

    def _of(self, m: isl.Map, side: isl.dim_type) -> tuple[int, ...]:
        return self.positions[str(m.get_tuple_name(side))]

    def _with(self, m: isl.Map, targets: tuple[int, ...]) -> isl.Map:
        name = str(m.get_tuple_name(_IN))
        sources = self.positions[name]
        m = _with(_with(m, _IN, sources), _OUT, targets)
        for source, target in zip(sources, targets, strict=True):
            m = m.equate(_IN, source, _OUT, target)
        return self._named(m.intersect_domain(self._box(name)), _IN)

    def _named(self, m: isl.Map, side: isl.dim_type) -> isl.Map:
        """With the indices' own names, for who reads it."""
        statement = str(m.get_tuple_name(side))
        for position in self.positions[statement]:
            name = self.domains[statement].get_dim_name(_SET, position)
            m = m if name is None else m.set_dim_name(side, position, name)
        return m

    def _box(self, name: str) -> isl.Set:
        """The values of the statement's shared indices."""
        box = self.domains[name]
        for position in range(box.dim(_SET)):
            if position not in self.positions[name]:
                box = box.eliminate(_SET, position, 1)
        return box


def shared_indices(
    accesses: Sequence[tuple[Statement, tuple[Subscript, ...]]],
    ranges: Callable[[Statement], Sequence[Range | None]],
    times: Callable[[str], Times | None],
) -> SharedIndices | None:
    """What all accesses of one array share; None where that is nothing.

    Args:
        ranges: those of a statement's indices that depend on no other index (`ranges_of`). times: of a statement that has instances (`times_of`).
    """
    statements = {statement.name: statement for statement, _ in accesses}
    places: dict[str, dict[int, int]] = {name: {} for name in statements}
    kept = set(range(len(accesses[0][1])))
    for statement, subscripts in accesses:
        found = places[statement.name]
        for dimension in sorted(kept):
            position = _own_index(statement, subscripts, dimension)
            if position is None or found.setdefault(dimension, position) != position:
                kept.discard(dimension)
    kept = _in_one_place(accesses, places, kept)
    for dimension in sorted(kept):
        values = {ranges(statements[name])[found[dimension]] for name, found in places.items()}
        if None in values or len(values) > 1:
            kept.discard(dimension)
    if kept:
        kept = _in_the_same_order({name: times(name) for name in statements}, places, kept)
    if not kept:
        return None
    dimensions = tuple(sorted(kept))
    positions = {name: tuple(found[d] for d in dimensions) for name, found in places.items()}
    return SharedIndices(dimensions, positions, {name: s.domain for name, s in statements.items()})


def _own_index(statement: Statement, subscripts: Sequence[Subscript], dimension: int) -> int | None:
    """The position of the index that this subscript is, and no other one has."""
    subscript = subscripts[dimension]
    name = subscript.name if isinstance(subscript, Affine) else None
    if name is None or name not in statement.indices:
        return None
    uses = sum(isinstance(s, Affine) and name in s.variables() for s in subscripts)
    return statement.indices.index(name) if uses == 1 else None


def _in_one_place(
    accesses: Iterable[tuple[Statement, tuple[Subscript, ...]]],
    places: Mapping[str, Mapping[int, int]],
    kept: Collection[int],
) -> set[int]:
    """The dimensions whose index is in no other subscript of the statement's other accesses either."""
    kept = set(kept)
    for statement, subscripts in accesses:
        for dimension in sorted(kept):
            index = statement.indices[places[statement.name][dimension]]
            if any(
                isinstance(s, Affine) and index in s.variables() for d, s in enumerate(subscripts) if d != dimension
            ):
                kept.discard(dimension)
    return kept


def _in_the_same_order(
    times: Mapping[str, Times | None], places: Mapping[str, Mapping[int, int]], kept: Collection[int]
) -> set[int]:
    """The dimensions whose index, where two instances have the same, does not matter to which of them comes first."""
    kept = set(kept)
    if any(time is None for time in times.values()):
        return set()
    names = sorted(times)
    for k, first in enumerate(names):
        for second in names[k + 1 :]:
            for a, b in zip(times[first] or (), times[second] or (), strict=True):
                if isinstance(a, int) and isinstance(b, int):
                    if a != b:
                        break  # what comes behind decides nothing
                    continue
                kept = {d for d in kept if _factor(a, places[first][d]) == _factor(b, places[second][d])}
    return kept


def _factor(time: int | tuple[int, ...], position: int) -> int:
    return 0 if isinstance(time, int) else time[position]


def ranges_of(domain: isl.Set) -> tuple[Range | None, ...]:
    """The ranges of its dimensions that depend on no other one, and have more than one value."""
    dimensions, pieces = domain.dim(_SET), domain.n_basic_set()
    nothing = (None,) * dimensions
    if pieces != 1:
        return nothing
    piece = domain.get_basic_sets()[0]
    if piece.dim(_DIV):
        return nothing
    table = table_of(piece)
    found: list[set[tuple[int, ...]] | None] = [set() for _ in range(dimensions)]
    for row in table.tolist():
        used = [position for position in range(dimensions) if row[1 + position]]
        for position in used:
            own = found[position]
            if len(used) > 1 or not row[0] or own is None:
                found[position] = None
            else:
                own.add((row[0], row[1 + position], *row[1 + dimensions :]))
    return tuple(frozenset(own) if own is not None else None for own in found)


def times_of(written: isl.Map) -> Times | None:
    """A statement's times; None where they are not linear in its indices."""
    found: list[int | tuple[int, ...]] = []
    function: isl.PwMultiAff | None = None
    for row in range(written.dim(_OUT)):
        fixed = written.plain_get_val_if_fixed(_OUT, row)
        if fixed.is_int():
            found.append(fixed.to_python())
            continue
        function = isl.PwMultiAff.from_map(written) if function is None else function
        pieces = pieces_of(function.get_pw_aff(row))
        if len(pieces) != 1 or pieces[0][1].dim(_DIV):
            return None
        value = pieces[0][1]
        factors = (value.get_coefficient_val(_IN, position) for position in range(value.dim(_IN)))
        found.append(tuple(factor.to_python() for factor in factors))
    return tuple(found)


def _mapped(union: isl.UnionMap, change: Callable[[isl.Map], isl.Map]) -> isl.UnionMap:
    result = isl.UnionMap.empty(union.get_space())
    for m in maps_of(union):
        result = result.union(change(m).to_union_map())
    return result


def _without(m: isl.Map, side: isl.dim_type, positions: tuple[int, ...]) -> isl.Map:
    name = m.get_tuple_name(side)
    for position in sorted(positions, reverse=True):
        m = m.project_out(side, position, 1)
    return m.set_tuple_name(side, name)


def _with(m: isl.Map, side: isl.dim_type, positions: tuple[int, ...]) -> isl.Map:
    name = m.get_tuple_name(side)
    for position in sorted(positions):
        m = m.insert_dims(side, position, 1)
    return m.set_tuple_name(side, name)
