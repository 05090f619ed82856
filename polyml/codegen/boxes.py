"""Code of schedule trees over boxes, by arithmetic.

Most schedules run over boxes of known sizes, in bands that are an index or its tiles (`16*(j//16)`), and in sequences of statements or of parts of a box: what isl would
find out with sets of twenty dimensions, several milliseconds a statement, is a comparison of numbers here. Where indices of a statement bound each other (`slanted.py`), loops over them
end where the loops around say. Loops, conditions and names are those that isl's code has
(isl user manual, "AST Generation"); iterators of tiles count them, as in `quotients.py`. A tree with anything else is left to isl as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import islpy as isl

from polyml.codegen.box_bands import BeyondBoxes, Descent, Range, Tile, rows_of, tile_of
from polyml.codegen.scanned import Choice, Code, Loop, Together
from polyml.codegen.slanted import Slanted, slanted
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Expr, IndexValue
from polyml.records import dataclass, replace
from polyml.schedule.schedule import Schedule, Storage
from polyml.schedule.tree import Kind, kind_of
from polyml.scop.scop import Statement
from polyml.sets.affine import Affine, affine, maximum, minimum, operands
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
        if self.end == self.high:
            return _compare("ge", self.iterator, self.first)
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
    counts: of its iterators that count tiles; guards: what is still to be asked; slanted: its instances that are left, where they are no box."""

    statement: Statement
    domain: Mapping[str, tuple[int, int]]
    ranges: Mapping[str, Range]
    fixed: Mapping[str, Affine]
    quotients: Mapping[tuple[str, int], Affine]
    counts: Mapping[str, int]
    guards: tuple[_Guard, ...] = ()
    slanted: Slanted | None = None

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
_Guards = tuple[_Guard, ...]
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
    slant = None if instances.is_box() else slanted(instances, statement.indices)
    domain = dict(zip(statement.indices, _box(instances), strict=True)) if slant is None else slant.box
    ranges = {index: (affine(first), affine(end)) for index, (first, end) in domain.items()}
    return _Reaching(statement, domain, ranges, {}, {}, {}, slanted=slant)


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
        rows, iterator = {name: _known(row, reaching[name]) for name, row in members[0].items()}, f"c{depth}"
        count = max((tile_of(row).size for row in rows.values() if row.terms), default=1)
        first, end = self.range_of(rows, reaching, count)
        step = _step_of(rows, reaching)
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
        return Loop(iterator, first, first + 1 if degenerate else end, step, degenerate, body)

    def left_of(self, reached: _Reaching, tile: Tile) -> Range:
        """Where indices bound each other, those that have no value yet have none of their tiles either: what they leave to the others is what the box around them does."""
        index, slant = tile.index, reached.slanted
        if slant is None or index not in slant.crossing:
            return reached.ranges[index]
        others = (reached.ranges[name] for name in slant.crossing if name != index and name not in reached.fixed)
        if not all(first.is_constant and end.is_constant for first, end in others):
            raise BeyondBoxes
        own, found = reached.ranges[index], slant.range_of(index, reached.fixed)
        if own[0].is_constant and own[1].is_constant and not tile.tiled:
            return found
        if not all(one.is_constant for one in found) or slant.box[index] != (found[0].constant, found[1].constant):
            raise BeyondBoxes
        return own

    def instance(self, reached: _Reaching) -> Code:
        """An index that has one value needs no loop."""
        if len(reached.fixed) == len(reached.statement.indices):
            return Descent.instance(self, reached)
        alone = {i: first for i, (first, end) in reached.ranges.items() if i not in reached.fixed and end == first + 1}
        strides = () if reached.slanted is None else reached.slanted.strides
        if any(name in alone for stride in strides for name, _ in stride.factors):
            raise BeyondBoxes
        return Descent.instance(self, replace(reached, fixed={**reached.fixed, **alone}))

    def sequence(self, node: isl.ScheduleNode, reaching: _All, depth: int, spans: _Spans) -> Code:
        parts: list[tuple[_Guards, Code]] = []
        for position in range(node.n_children()):
            child = node.child(position)
            for instances in _apart(child, reaching):
                inside = _filtered(instances, reaching, spans)
                if not inside:
                    continue
                common = set[_Guard].intersection(*(set(reached.guards) for reached in inside.values()))
                guards = tuple(sorted(common, key=lambda guard: int(guard.iterator[1:])))
                here = spans
                if guards:
                    here = {**spans, **{guard.iterator: (guard.first, guard.end) for guard in guards}}
                    inside = {
                        name: replace(r, guards=tuple(g for g in r.guards if g not in common))
                        for name, r in inside.items()
                    }
                parts.append((guards, self.below(child.child(0), inside, depth, here)))
        return _in_order(parts)

    def divided(self, value: Affine, size: int) -> Affine:
        if len(value.terms) > 1 and any(coefficient % size for _, coefficient in value.terms):
            raise BeyondBoxes
        return value // size


def _step_of(rows: Mapping[str, Affine], reaching: _All) -> int:
    """By how much a loop's values differ."""
    if all(reached.slanted is None for reached in reaching.values()):
        return 1
    found: set[int] = set()
    for name, row in rows.items():
        slant, stride = reaching[name].slanted, None
        if row.terms and slant is not None and (index := tile_of(row).index) not in reaching[name].fixed:
            stride = slant.stride_of(index, reaching[name].fixed.keys())
            if stride is not None and (tile_of(row).size > 1 or tile_of(row).tiled):
                raise BeyondBoxes
        found.add(1 if stride is None else stride.size)
    if len(found) > 1:
        raise BeyondBoxes
    return found.pop()


def _known(row: Affine, reached: _Reaching) -> Affine:
    """The value of a member where it is a quotient of indices that have one value each."""
    if row.is_linear or not row.variables() <= reached.fixed.keys():
        return row
    values = {index: reached.fixed[index] for index in row.variables()}
    return row.substitute(values) if all(value.is_constant for value in values.values()) else row


def _apart(child: isl.ScheduleNode, reaching: _All) -> list[isl.UnionSet]:
    """The instances of a part; where these are several ranges of the index that the first loop runs along, range by range."""
    instances, loop = child.filter_get_filter(), child.child(0)
    if all(reached.slanted is None for reached in reaching.values()):
        return [instances]
    parts = {str(part.get_tuple_name()): part for part in sets_of(instances)}
    parts = {name: part for name, part in parts.items() if name in reaching}
    if all(part.n_basic_set() == 1 or reaching[name].slanted is None for name, part in parts.items()):
        return [instances]
    if kind_of(loop) != Kind.band:
        raise BeyondBoxes
    rows = rows_of(
        loop.band_get_partial_schedule().get_at(0), {name: reaching[name].statement.indices for name in parts}
    )
    found: dict[tuple[int, int], isl.UnionSet] = {}
    for name, part in parts.items():
        indices = reaching[name].statement.indices
        if rows[name].name not in indices:
            raise BeyondBoxes
        position = indices.index(str(rows[name].name))
        for piece in part.intersect(reaching[name].statement.domain).get_basic_sets():
            first, last = (of(position) for of in (piece.to_set().dim_min_val, piece.to_set().dim_max_val))
            if not first.is_int() or not last.is_int():
                raise BeyondBoxes
            place = first.to_python(), last.to_python() + 1
            own = piece.to_set().to_union_set()
            found[place] = found[place].union(own) if place in found else own
    places = sorted(found)
    if any(end > first for (_, end), (first, _) in pairwise(places)):
        raise BeyondBoxes
    return [found[place] for place in places]


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
    tile = tile_of(row)
    index, size = tile.index, tile.size
    if not tile.tiled:
        return replace(reached, counts=counts, fixed={**reached.fixed, index: value})
    first, end = reached.ranges[index]
    begin = value * size + tile.start
    stop = begin + size
    if not (first - tile.start).is_multiple(size):
        begin = maximum([first, begin])
    ends = [one for one in operands(end, "min") if not (one - tile.start).is_multiple(size)]
    ranges = {**reached.ranges, index: (begin, _least([stop, *ends]))}
    quotients = reached.quotients if tile.start else {**reached.quotients, (index, size): value}
    return replace(reached, counts=counts, ranges=ranges, quotients=quotients)


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
        if reached.slanted is not None:
            found = reached if part.plain_is_universe() else _cut(reached, reached.slanted, part, spans)
        elif not part.plain_is_universe():
            box = _box(part.intersect(reached.statement.domain))
            for (index, whole), wanted in zip(reached.domain.items(), box, strict=True):
                if found is not None and wanted != whole:
                    found = _within(found, index, wanted, spans)
        if found is not None:
            inside[reached.statement.name] = found
    return {name: inside[name] for name in reaching if name in inside}


def _cut(reached: _Reaching, slant: Slanted, part: isl.Set, spans: _Spans) -> _Reaching | None:
    """What of a statement whose indices bound each other is in a part; None where that is nothing."""
    left = slant.within(part)
    if left is None:
        return None
    around = reached.fixed.keys()
    for index, wanted in left.box.items():
        if wanted == slant.box[index]:
            continue
        if index in around:
            iterator = reached.fixed[index].name
            if iterator is None or spans.get(iterator) != slant.box[index]:
                raise BeyondBoxes
            guard = _Guard(iterator, *wanted, *slant.box[index])
            reached = replace(reached, guards=(*reached.guards, guard))
            if wanted[1] - wanted[0] == 1:
                reached = reached.known(iterator, wanted[0])
        elif index not in slant.crossing:
            found = _within(reached, index, wanted, spans)
            if found is None:
                return None
            reached = found
        elif reached.ranges[index][0].is_constant and reached.ranges[index][1].is_constant:
            reached = replace(reached, ranges={**reached.ranges, index: (affine(wanted[0]), affine(wanted[1]))})
        else:
            raise BeyondBoxes
    # Indices of the loops around have been bounded by each other as far as all instances are; a part may ask for more than a guard of one of them says.
    before = slant.onto(around).to_set()
    for position, index in enumerate(index for index in slant.box if index in around):
        first, end = left.box[index]
        before = before.lower_bound_val(_SET, position, first).upper_bound_val(_SET, position, end - 1)
    if not before.is_equal(left.onto(around).to_set()):
        raise BeyondBoxes
    return replace(reached, slanted=left)


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
    ((atom, factor),) = value.terms
    if factor <= 0 or not isinstance(atom, str):
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


def _in_order(parts: list[tuple[_Guards, Code]]) -> Code:
    """The parts one after the other; neighbours under the same conditions, or one where the other is not, are one choice."""
    made: list[Code] = []
    position = 0
    while position < len(parts):
        guards, code = parts[position]
        position += 1
        if not guards:
            made.append(code)
            continue
        together = [code]
        while position < len(parts) and parts[position][0] == guards:
            together.append(parts[position][1])
            position += 1
        then = together[0] if len(together) == 1 else Together(tuple(together))
        otherwise: Code | None = None
        following = parts[position][0] if position < len(parts) else ()
        if len(guards) == 1 and len(following) == 1 and following[0].is_rest_of(guards[0]):
            otherwise = parts[position][1]
            position += 1
            if following[0].end - following[0].first > 1 and following[0].first > following[0].low:
                raise BeyondBoxes  # loops that are empty there need no condition
        elif {guard.iterator for guard in following} & {guard.iterator for guard in guards}:
            raise BeyondBoxes
        made.append(Choice(_all_hold(guards), then, otherwise))
    return made[0] if len(made) == 1 else Together(tuple(made))


def _all_hold(guards: _Guards) -> Expr:
    first, *others = (guard.condition for guard in guards)
    for condition in others:
        first = Apply("and", (first, condition), boolean)
    return first


def _compare(op: str, iterator: str, number: int) -> Expr:
    return Apply(op, (IndexValue(affine(iterator), i64), IndexValue(affine(number), i64)), boolean)
