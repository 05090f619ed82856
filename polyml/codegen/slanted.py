"""Domains whose indices bound each other, for the scan of boxes (`boxes.py`): taps of a window at its edges, `max(0, i - 9) <= r < min(2, i + 1)`.

What an index runs over, where those of the loops around have values, is the projection of the domain onto these indices. That is isl's to say, but of one statement at a time, in
as many dimensions as it has indices, without the schedule's: tenths of a millisecond.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import islpy as isl

from polyml.codegen.box_bands import BeyondBoxes, Range
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine, maximum, minimum, weighted_sum
from polyml.sets.tables import table_of

__all__ = ["Slanted", "slanted"]

_DIV, _SET = isl.dim_type.div, isl.dim_type.set

Box = dict[str, tuple[int, int]]
"""First and end, by index."""


@dataclass(frozen=True, slots=True)
class _Stride:
    """The sum of indices times factors and the constant is a multiple of `size`; the first factor is positive, the constant less than `size`."""

    factors: tuple[tuple[str, int], ...]
    constant: int
    size: int

    def at_least(self, low: Affine, index: str, fixed: Mapping[str, Affine]) -> Affine:
        """The first value of an index from `low` on."""
        others = weighted_sum([(fixed[name], factor) for name, factor in self.factors if name != index])
        rest = (others + self.constant) * dict(self.factors)[index]
        return _divided_up(low + rest, self.size) * self.size - rest


@dataclass(frozen=True, slots=True)
class Slanted:
    """The instances that are left of a statement: those of `points` in all `strides`. box: around them. crossing: the indices that bound others, or go in strides."""

    points: isl.BasicSet
    box: Box
    crossing: frozenset[str]
    strides: tuple[_Stride, ...] = ()

    def range_of(self, index: str, fixed: Mapping[str, Affine]) -> Range:
        """The values of an index where others have `fixed` ones."""
        names = [name for name in self.box if name == index or name in fixed]
        position = names.index(index)
        lows, ends = list[Affine](), list[Affine]()
        for row in _constraints(self.onto(names)):
            factor = row.factors[position]
            if not factor:
                continue
            if row.equality and abs(factor) > 1:
                raise BeyondBoxes
            rest = weighted_sum(
                [(affine(name), c) for name, c in zip(names, row.factors, strict=True) if name != index]
            )
            rest = rest + row.constant
            if factor > 0 or row.equality:
                lows.append(-self.divided(rest if factor > 0 else -rest, abs(factor)).substitute(fixed))
            if factor < 0 or row.equality:
                ends.append(self.divided(rest if factor < 0 else -rest, abs(factor)).substitute(fixed) + 1)
        stride = self.stride_of(index, fixed)
        if stride is not None:
            lows = [stride.at_least(low, index, fixed) for low in lows]
        return maximum(lows), minimum(ends)

    def stride_of(self, index: str, fixed: Collection[str]) -> _Stride | None:
        """What an index, the last one of a sum, is congruent to."""
        found = [stride for stride in self.strides if {name for name, _ in stride.factors} - {*fixed} == {index}]
        if len(found) > 1 or any(abs(dict(stride.factors)[index]) > 1 for stride in found):
            raise BeyondBoxes
        return found[0] if found else None

    def onto(self, indices: Collection[str]) -> isl.BasicSet:
        """What is left of the instances if only these indices are looked at."""
        found = self.points
        for position, index in reversed([*enumerate(self.box)]):
            if index not in indices:
                found = found.project_out(_SET, position, 1)
        found = found.remove_redundancies()
        if found.dim(_DIV):
            raise BeyondBoxes
        return found

    def divided(self, value: Affine, size: int) -> Affine:
        """The quotient, rounded down, as isl says it: linear of an index that has two values, and a quotient of what grows with the indices."""
        if size == 1 or not value.terms:
            return value // size
        ((index, _), *others) = value.terms
        assert isinstance(index, str), "internal: a projection has divisions"
        first, end = self.box[index]
        if not others and end - first <= 2:
            low, high = (value.evaluate({index: at}) // size for at in (first, end - 1))
            return (affine(index) - first) * (high - low) + low
        return -_divided_up(-value, size) if all(factor < 0 for _, factor in value.terms) else value // size

    def within(self, part: isl.Set) -> Slanted | None:
        """What of the instances is in a part; None where that is nothing."""
        if part.n_basic_set() != 1:
            raise BeyondBoxes
        (piece,) = part.get_basic_sets()
        if not set(strides := [*_strides(piece, tuple(self.box))]) <= set(self.strides):
            raise BeyondBoxes
        found = self.points.intersect(piece.remove_divs() if strides else piece)
        return None if found.is_empty() else _slanted(found, tuple(self.box), self.strides)


def _divided_up(value: Affine, size: int) -> Affine:
    """The quotient, rounded up: the negative of one that is rounded down where nothing of the value is positive."""
    if value.terms and all(factor < 0 for _, factor in value.terms):
        return -(-value // size)
    return (value + (size - 1)) // size


def slanted(instances: isl.Set, indices: tuple[str, ...]) -> Slanted:
    """The instances of a statement.

    Raises:
        BeyondBoxes: they are no convex piece without divisions, there are none, or they go on without end.
    """
    if instances.n_basic_set() != 1 or instances.is_empty():
        raise BeyondBoxes
    (piece,) = instances.get_basic_sets()
    strides = tuple(_strides(piece, indices))
    return _slanted(piece.remove_divs() if strides else piece, indices, strides)


def _slanted(points: isl.BasicSet, indices: tuple[str, ...], strides: tuple[_Stride, ...]) -> Slanted:
    points = points.remove_redundancies()
    if points.dim(_DIV):
        raise BeyondBoxes
    crossing = {index for stride in strides for index, _ in stride.factors}
    alone: dict[str, list[int]] = {index: [] for index in indices}
    for row in _constraints(points):
        used = [index for index, factor in zip(indices, row.factors, strict=True) if factor]
        if len(used) > 1:
            crossing.update(used)
        elif not used or abs(sum(row.factors)) > 1:
            raise BeyondBoxes
        else:
            alone[used[0]].extend([-row.constant * sum(row.factors)] * (1 + row.equality))
    box: Box = {}
    whole = points.to_set()
    for position, index in enumerate(indices):
        if index not in crossing and len(alone[index]) == 2:
            box[index] = min(alone[index]), max(alone[index]) + 1
            continue
        first, last = whole.dim_min_val(position), whole.dim_max_val(position)
        if not first.is_int() or not last.is_int():
            raise BeyondBoxes
        box[index] = first.to_python(), last.to_python() + 1
    return Slanted(points, box, frozenset(crossing), strides)


@dataclass(frozen=True, slots=True)
class _Constraint:
    """The sum of the indices times `factors` and the constant is 0, or at least 0."""

    equality: bool
    factors: list[int]
    constant: int


def _constraints(points: isl.BasicSet) -> list[_Constraint]:
    """The constraints of what has no divisions and no sizes."""
    return [_Constraint(not kind, factors, constant) for kind, *factors, constant in table_of(points).tolist()]


def _strides(points: isl.BasicSet, indices: tuple[str, ...]) -> Iterator[_Stride]:
    """The congruences among the constraints.

    Raises:
        BeyondBoxes: divisions are in others.
    """
    if not points.dim(_DIV):
        return
    count = len(indices)
    for kind, *factors, constant in table_of(points).tolist():
        quotients = [factor for factor in factors[count:] if factor]
        if not quotients:
            continue
        if kind or len(quotients) > 1:
            raise BeyondBoxes
        used = [(index, factor) for index, factor in zip(indices, factors, strict=False) if factor]
        sign, size = (1 if used[0][1] > 0 else -1), abs(quotients[0])
        yield _Stride(tuple((index, factor * sign) for index, factor in used), constant * sign % size, size)
