"""Code of schedule trees over boxes, by arithmetic.

Most schedules run over boxes of known sizes, in bands that are an index or its tiles (`16*(j//16)`), and in sequences of statements or of parts of a box: what isl would
find out with sets of twenty dimensions, several milliseconds a statement, is a comparison of numbers here. Loops, conditions and names are those that isl's code has
(isl user manual, "AST Generation"); iterators of tiles count them, as in `quotients.py`. A tree with anything else is left to isl as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import islpy as isl

from polyml.codegen.box_bands import BeyondBoxes, Descent, Range, tile_of
from polyml.codegen.scanned import Choice, Code, Loop, Together
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Expr, IndexValue
from polyml.records import dataclass, replace
from polyml.schedule.schedule import Schedule, Storage
from polyml.schedule.tree import Kind, kind_of
from polyml.scop.scop import Statement
from polyml.sets.affine import Affine, affine, minimum, operands
from polyml.sets.spaces import sets_of

__all__ = ["scan_boxes"]

_OUT, _SET = isl.dim_type.out, isl.dim_type.set


@dataclass(frozen=True, slots=True)
class _Guard:
    """A statement runs for values from `first` to `end` of an iterator that goes from `low` to `high`."""

    iterator: str
    first: int
    end: int
    low: int
    high: int

    @property
    def condition(self) -> Expr:
        if self.end - self.first == 1:
            return _compare("eq", self.iterator, self.first)
        if self.first == self.low:
            return _compare("le", self.iterator, self.end - 1)
        raise BeyondBoxes

    def is_rest_of(self, other: _Guard) -> bool:
        """Whether it holds where the other one does not."""
        return self.iterator == other.iterator and (
            (other.first == other.low and other.end == self.first and self.end == self.high)
            or (self.first == self.low and self.end == other.first and other.end == other.high)
        )


@dataclass(frozen=True, slots=True)
class _Reaching:
    """A statement on its way down. domain, ranges: of its indices, all and where iterators say so; fixed: the indices that have one value; quotients: by index and divisor;
    counts: of its iterators that count tiles; guards: what is still to be asked."""

    statement: Statement
    domain: Mapping[str, tuple[int, int]]
    ranges: Mapping[str, Range]
    fixed: Mapping[str, Affine]
    quotients: Mapping[tuple[str, int], Affine]
    counts: Mapping[str, int]
    guards: tuple[_Guard, ...] = ()

    def known(self, iterator: str, value: int) -> _Reaching:
        """Where an iterator has a value."""
        values = {iterator: value}
        return replace(
            self,
            ranges={i: (_folded(a, values), _folded(b, values)) for i, (a, b) in self.ranges.items()},
            fixed={i: a.substitute(values) for i, a in self.fixed.items()},
            quotients={key: a.substitute(values) for key, a in self.quotients.items()},
        )


_All = dict[str, _Reaching]
_Spans = Mapping[str, tuple[int, int]]
"""Of iterators whose bounds are numbers."""


def scan_boxes(schedule: Schedule) -> Code | None:
    """The code of the schedule; None where it is for isl."""
    root = schedule.tree.get_root()
    if schedule.scop.sizes or kind_of(root) != Kind.domain:
        return None
    try:
        reaching = {str(s.get_tuple_name()): _all_of(schedule, s) for s in sets_of(root.domain_get_domain())}
        return _Scan(schedule).below(root.child(0), reaching, 0, {})
    except BeyondBoxes:
        return None


def _all_of(schedule: Schedule, instances: isl.Set) -> _Reaching:
    statement = schedule.scop.statements[str(instances.get_tuple_name())]
    domain = dict(zip(statement.indices, _box(instances), strict=True))
    ranges = {index: (affine(first), affine(end)) for index, (first, end) in domain.items()}
    return _Reaching(statement, domain, ranges, {}, {}, {})


def _box(points: isl.Set) -> list[tuple[int, int]]:
    """First and end of each dimension."""
    if points.n_basic_set() != 1 or not points.is_box():
        raise BeyondBoxes
    found = []
    for position in range(points.dim(_SET)):
        first, last = points.dim_min_val(position), points.dim_max_val(position)
        if not first.is_int() or not last.is_int():
            raise BeyondBoxes
        found.append((first.to_python(), last.to_python() + 1))
    return found


@dataclass(frozen=True, slots=True)
class _Scan(Descent[_Reaching, tuple[int, int]]):
    schedule: Schedule

    @property
    def storage(self) -> Mapping[str, Storage]:
        return self.schedule.storage

    def loop(
        self, node: isl.ScheduleNode, members: Sequence[Mapping[str, Affine]], reaching: _All, depth: int, spans: _Spans, marked: bool
    ) -> Code:  # fmt: skip
        rows, iterator = members[0], f"c{depth}"
        count = max((tile_of(row)[1] for row in rows.values() if row.terms), default=1)
        first, end = self.range_of(rows, reaching, count)
        trips = end - first
        degenerate = trips.is_constant and trips.constant == 1
        value = first if degenerate else affine(iterator)
        if not degenerate and first.is_constant and end.is_constant:
            if trips.constant < 1:
                raise BeyondBoxes
            spans = {**spans, iterator: (first.constant, end.constant)}
        inside = {
            name: _at(reached, rows[name], iterator, value, count, spans.get(iterator))
            for name, reached in reaching.items()
        }
        body = self.band(node, members[1:], inside, depth + 1, spans, marked)
        return Loop(iterator, first, first + 1 if degenerate else end, 1, degenerate, body)

    def sequence(self, node: isl.ScheduleNode, reaching: _All, depth: int, spans: _Spans) -> Code:
        parts: list[tuple[_Guard | None, Code]] = []
        for position in range(node.n_children()):
            child = node.child(position)
            inside = _filtered(child.filter_get_filter(), reaching, spans)
            if not inside:
                continue
            guards = set[_Guard].intersection(*(set(reached.guards) for reached in inside.values()))
            if len(guards) > 1:
                raise BeyondBoxes
            guard = next(iter(guards), None)
            here = spans
            if guard is not None:
                inside = {
                    name: replace(r, guards=tuple(g for g in r.guards if g != guard)) for name, r in inside.items()
                }
                here = {**spans, guard.iterator: (guard.first, guard.end)}
            parts.append((guard, self.below(child.child(0), inside, depth, here)))
        return _in_order(parts)

    def divided(self, value: Affine, size: int) -> Affine:
        if any(coefficient % size for _, coefficient in value.terms):
            raise BeyondBoxes
        return value // size


def _at(
    reached: _Reaching, row: Affine, iterator: str, value: Affine, count: int, span: tuple[int, int] | None
) -> _Reaching:
    """The statement in an iteration: value: in tiles of `count`."""
    counts = {**reached.counts, iterator: count} if count > 1 else reached.counts
    if not row.terms:
        one = row.constant // count
        if value.is_constant:
            return replace(reached, counts=counts)
        if span is None or not span[0] <= one < span[1]:
            raise BeyondBoxes
        return replace(reached, counts=counts, guards=(*reached.guards, _Guard(iterator, one, one + 1, *span)))
    index, size, tiled = tile_of(row)
    if not tiled:
        return replace(reached, counts=counts, fixed={**reached.fixed, index: value})
    first, end = reached.ranges[index]
    begin = value * size
    if not _is_multiple(first, size):
        if not first.is_constant or not begin.is_constant:
            raise BeyondBoxes
        begin = affine(max(first.constant, begin.constant))
    ends = [one for one in operands(end, "min") if not _is_multiple(one, size)]
    ranges = {**reached.ranges, index: (begin, _least([value * size + size, *ends]))}
    return replace(reached, counts=counts, ranges=ranges, quotients={**reached.quotients, (index, size): value})


def _is_multiple(value: Affine, size: int) -> bool:
    return value.constant % size == 0 and all(coefficient % size == 0 for _, coefficient in value.terms)


def _least(values: Sequence[Affine]) -> Affine:
    constants = [one.constant for one in values if one.is_constant]
    rest = [one for one in values if not one.is_constant]
    return minimum([*rest, affine(min(constants))] if constants else rest)


def _folded(value: Affine, values: Mapping[str, int]) -> Affine:
    return _least([one.substitute(values) for one in operands(value, "min")])


def _filtered(instances: isl.UnionSet, reaching: _All, spans: _Spans) -> _All:
    """The statements that a filter lets through."""
    inside: _All = {}
    for part in sets_of(instances):
        reached = reaching.get(str(part.get_tuple_name()))
        if reached is None:
            continue
        found: _Reaching | None = reached
        if not part.plain_is_universe():
            box = _box(part.intersect(reached.statement.domain))
            for (index, whole), wanted in zip(reached.domain.items(), box, strict=True):
                if found is not None and wanted != whole:
                    found = _within(found, index, wanted, spans)
        if found is not None:
            inside[reached.statement.name] = found
    return {name: inside[name] for name in reaching if name in inside}


def _within(reached: _Reaching, index: str, wanted: tuple[int, int], spans: _Spans) -> _Reaching | None:
    """Where an index is within bounds; None where it never is."""
    first, end = reached.ranges[index]
    if index in reached.fixed:
        raise BeyondBoxes
    if first.is_constant and end.is_constant:
        low, high = max(first.constant, wanted[0]), min(end.constant, wanted[1])
        return replace(reached, ranges={**reached.ranges, index: (affine(low), affine(high))}) if low < high else None
    iterators = first.variables() | end.variables()
    iterator = next(iter(iterators))
    if len(iterators) > 1 or iterator not in spans:
        raise BeyondBoxes
    low, high = spans[iterator]
    # Of a tile something is left where it begins before the end and ends behind the beginning.
    begin, stop = low, high
    for one in operands(end, "min"):
        if one.is_constant:
            begin = begin if one.constant > wanted[0] else high
        else:
            begin = max(begin, (wanted[0] - one.constant) // _factor(one) + 1)
    if first.is_constant:
        stop = stop if first.constant < wanted[1] else low
    else:
        stop = min(stop, -((first.constant - wanted[1]) // _factor(first)))
    if begin >= stop:
        return None
    if stop - begin == 1:
        value = {iterator: begin}
        range_ = affine(max(first.evaluate(value), wanted[0])), affine(min(end.evaluate(value), wanted[1]))
        reached = reached.known(iterator, begin)
    else:
        range_ = _larger(first, wanted[0], iterator, begin, stop), _smaller(end, wanted[1], iterator, begin, stop)
    guards = reached.guards
    if (begin, stop) != (low, high):
        guards = (*guards, _Guard(iterator, begin, stop, low, high))
    return replace(reached, ranges={**reached.ranges, index: range_}, guards=guards)


def _factor(value: Affine) -> int:
    ((_, factor),) = value.terms
    if factor <= 0:
        raise BeyondBoxes
    return factor


def _larger(value: Affine, number: int, iterator: str, begin: int, stop: int) -> Affine:
    if value.evaluate({iterator: begin}) >= number:
        return value
    if value.evaluate({iterator: stop - 1}) <= number:
        return affine(number)
    raise BeyondBoxes


def _smaller(value: Affine, number: int, iterator: str, begin: int, stop: int) -> Affine:
    always, sometimes = list[Affine](), list[Affine]()
    for one in operands(value, "min"):
        if one.evaluate({iterator: stop - 1}) <= number:
            always.append(one)
        elif one.evaluate({iterator: begin}) < number:
            sometimes.append(one)
    return _least([*always, *sometimes] if always else [*sometimes, affine(number)])


def _in_order(parts: list[tuple[_Guard | None, Code]]) -> Code:
    """The parts one after the other; neighbours under one condition, or one where the other is not, are one choice."""
    made: list[Code] = []
    position = 0
    while position < len(parts):
        guard, code = parts[position]
        position += 1
        if guard is None:
            made.append(code)
            continue
        together = [code]
        while position < len(parts) and parts[position][0] == guard:
            together.append(parts[position][1])
            position += 1
        then = together[0] if len(together) == 1 else Together(tuple(together))
        otherwise: Code | None = None
        following = parts[position][0] if position < len(parts) else None
        if following is not None and following.is_rest_of(guard):
            otherwise = parts[position][1]
            position += 1
            if following.end - following.first > 1 and following.first > following.low:
                raise BeyondBoxes  # loops that are empty there need no condition
        elif following is not None and following.iterator == guard.iterator:
            raise BeyondBoxes
        made.append(Choice(guard.condition, then, otherwise))
    return made[0] if len(made) == 1 else Together(tuple(made))


def _compare(op: str, iterator: str, number: int) -> Expr:
    return Apply(op, (IndexValue(affine(iterator), i64), IndexValue(affine(number), i64)), boolean)
