"""What both scans of boxes (`boxes.py`, `any_boxes.py`) have in common: the way down a schedule tree, bands that are indices or tiles of them, and functions of indices whose quotients are known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import islpy as isl

from polyml.codegen.scanned import BAND_END, Code, Instance, Marked, Variant
from polyml.records import dataclass
from polyml.schedule.schedule import Storage
from polyml.schedule.tree import Kind, kind_of, mark_name
from polyml.scop.scop import Statement
from polyml.sets.affine import Affine, FloorDiv, affine, minimum, operands
from polyml.sets.callbacks import pieces_of
from polyml.sets.from_isl import affine_of

__all__ = ["MARKS", "BeyondBoxes", "Descent", "Range", "Tile", "rows_of", "tile_of", "value_of"]

MARKS = ("parallel", "vector", "jam", "unroll", "allocate")
"""Marks that say nothing about other loops than the one below."""


Range = tuple[Affine, Affine]
"""First and end."""


class BeyondBoxes(Exception):
    """The tree has something else."""


@dataclass(frozen=True, slots=True)
class Tile:
    """What a member runs along: an index, in steps of `size`; where `tiled`, over tiles of it, the first of which (tile 0) begins at `start`."""

    index: str
    size: int
    tiled: bool
    start: int = 0


class Reached(Protocol):
    """A statement on its way down: ranges (first and end) of its indices, those that have one value, quotients by index and divisor, its iterators that count tiles, and what is still to be asked."""

    @property
    def statement(self) -> Statement: ...
    @property
    def ranges(self) -> Mapping[str, Range]: ...
    @property
    def fixed(self) -> Mapping[str, Affine]: ...
    @property
    def quotients(self) -> Mapping[tuple[str, int], Affine]: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def guards(self) -> tuple[object, ...]: ...


R = TypeVar("R", bound=Reached)
S = TypeVar("S")


class Descent(ABC, Generic[R, S]):
    """A scan on its way down a tree. R: what it knows of a statement; S: of an iterator's values."""

    __slots__ = ()

    @property
    @abstractmethod
    def storage(self) -> Mapping[str, Storage]:
        """The schedule's, by array."""

    def below(
        self, node: isl.ScheduleNode, reaching: dict[str, R], depth: int, spans: Mapping[str, S], marked: bool = False
    ) -> Code:
        """The code of a subtree. depth: of its first loop. marked: the band's loop has a mark."""
        kind = kind_of(node)
        if kind == Kind.leaf:
            if len(reaching) != 1:
                raise BeyondBoxes
            return self.instance(next(iter(reaching.values())))
        if kind == Kind.band:
            rows = node.band_get_partial_schedule()
            indices = {name: reached.statement.indices for name, reached in reaching.items()}
            members = [rows_of(rows.get_at(k), indices) for k in range(node.band_n_member())]
            return self.band(node, members, reaching, depth, spans, marked)
        if kind == Kind.mark:
            text, child = mark_name(node), node.child(0)
            if text.partition(":")[0] not in MARKS:
                raise BeyondBoxes
            above_band = kind_of(child) == Kind.band and not text.startswith("allocate")
            return Marked(text, self.below(child, reaching, depth, spans, above_band))
        if kind == Kind.sequence:
            return self.sequence(node, reaching, depth, spans)
        raise BeyondBoxes

    def band(
        self, node: isl.ScheduleNode, members: Sequence[Mapping[str, Affine]], reaching: dict[str, R], depth: int, spans: Mapping[str, S], marked: bool
    ) -> Code:  # fmt: skip
        """The loops of the members that are left of a band, outermost first."""
        if members:
            return self.loop(node, members, reaching, depth, spans, marked)
        body = self.below(node.child(0), reaching, depth, spans)
        return Marked(BAND_END, body) if marked else body

    @abstractmethod
    def loop(
        self, node: isl.ScheduleNode, members: Sequence[Mapping[str, Affine]], reaching: dict[str, R], depth: int, spans: Mapping[str, S], marked: bool
    ) -> Code:  # fmt: skip
        """The same, of one member at least."""

    @abstractmethod
    def sequence(self, node: isl.ScheduleNode, reaching: dict[str, R], depth: int, spans: Mapping[str, S]) -> Code:
        """The children one after the other."""

    @abstractmethod
    def divided(self, value: Affine, size: int) -> Affine:
        """The quotient, rounded down, where that is exact in iterators."""

    def range_of(self, rows: Mapping[str, Affine], reaching: Mapping[str, R], count: int) -> Range:
        """The values that a loop has, in tiles of `count`, the same for all statements but those with one value among them."""
        found: set[Range] = set()
        for name, row in rows.items():
            if row.terms:
                tile = tile_of(row)
                if tile.size != count:
                    raise BeyondBoxes
                found.add(self.in_tiles(reaching[name], tile))
        constants = {row.constant for row in rows.values() if not row.terms}
        if any(constant % count for constant in constants) or len(found) + (not found) * len(constants) != 1:
            raise BeyondBoxes
        if not found:
            only = affine(constants.pop())
            return only, only + 1
        return found.pop()

    def in_tiles(self, reached: R, tile: Tile) -> Range:
        """The values or tiles of an index that are left."""
        value = reached.fixed.get(tile.index)
        if value is not None:
            if tile.tiled:
                raise BeyondBoxes
            return value, value + 1
        first, end = self.left_of(reached, tile)
        if not tile.tiled:
            return first, end
        ends = (self.divided(one + (tile.size - 1 - tile.start), tile.size) for one in operands(end, "min"))
        return self.divided(first - tile.start, tile.size), minimum(ends)

    def left_of(self, reached: R, tile: Tile) -> Range:
        """The values of an index that are left."""
        return reached.ranges[tile.index]

    def instance(self, reached: R) -> Code:
        """The statement where all of its indices are known."""
        statement = reached.statement
        if reached.guards or len(reached.fixed) < len(statement.indices):
            raise BeyondBoxes
        offsets: dict[str, tuple[Affine, ...]] = {}
        for array in sorted(statement.touched):
            found = self.storage[array].offsets.get(statement.name) if array in self.storage else None
            if found is not None:
                places = (found.get_at(k) for k in range(found.dim(isl.dim_type.out)))
                offsets[array] = tuple(
                    value_of(affine_of(place, statement.indices), reached.fixed, reached.quotients) for place in places
                )
        indices = {index: reached.fixed[index] for index in statement.indices}
        return Instance(statement, (Variant(None, indices, offsets),), reached.counts)


def rows_of(member: isl.UnionPwAff, indices: Mapping[str, Sequence[str]]) -> dict[str, Affine]:
    """The values of a band's member by statement. indices: of the statements that reach it."""
    found = member.get_pw_aff_list()
    rows: dict[str, Affine] = {}
    for value in (found.get_at(k) for k in range(found.n_pw_aff())):
        name = str(value.get_space().get_tuple_name(isl.dim_type.in_))
        if name not in indices:
            continue
        pieces = pieces_of(value)
        if len(pieces) != 1 or name in rows:
            raise BeyondBoxes
        rows[name] = row = affine_of(pieces[0][1], indices[name])
        if not row.variables() <= set(indices[name]):  # a place behind all of a loop of symbolic size
            raise BeyondBoxes
    if rows.keys() != indices.keys():
        raise BeyondBoxes
    return rows


def tile_of(row: Affine) -> Tile:
    """What a member runs along: an index (`2*i`), or tiles of it (`16*(j//16)`; `3*((i + 2)//3) - 3`, which begin at 1)."""
    match row.terms:
        case ((str() as index, factor),) if factor > 0 and not row.constant:
            return Tile(index, factor, False)
        case (
            (FloorDiv(numerator=Affine(terms=((str() as index, 1),), constant=ahead), denominator=size), factor),
        ) if size == factor and row.constant % size == 0:
            return Tile(index, size, True, -ahead - row.constant)
        case _:
            raise BeyondBoxes


def value_of(offset: Affine, fixed: Mapping[str, Affine], quotients: Mapping[tuple[str, int], Affine]) -> Affine:
    """A function of indices in what these are. quotients: by index and divisor."""
    total = affine(offset.constant)
    for atom, coefficient in offset.terms:
        match atom:
            case str() if atom in fixed:
                total = total + fixed[atom] * coefficient
            case FloorDiv(numerator=Affine(name=str() as index)) if (index, atom.denominator) in quotients:
                total = total + quotients[index, atom.denominator] * coefficient
            case FloorDiv(numerator=Affine(terms=((str() as index, -1),), constant=more), denominator=size) if (
                more + 1
            ) % size == 0 and (index, size) in quotients:  # floor((-1 - i) / d) is -1 - floor(i / d)
                total = total + ((more + 1) // size - 1 - quotients[index, size]) * coefficient
            case _:
                raise BeyondBoxes
    return total
