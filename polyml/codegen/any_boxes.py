"""Code of schedule trees over boxes of symbolic sizes, by arithmetic: `boxes.py` for sizes that are not known.

Bounds are expressions in sizes, and what is asked about them is whether one is sure to be at most another one (`size_facts.py`). What decides is how parts of a box end:
`j < 16*floor(M/16)`, where tiles are whole, and from there on to M, where the one tile lies that is not. Within blocks of 128 the latter begins in the last block, and where that
is said (`j_block + 127 >= M`) nothing else is left to ask. The end of a range may be the least of several, and a range empty for some sizes. Where neither is sure the tree is left to isl, as is one that has anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

import islpy as isl

from polyml.codegen.box_bands import BeyondBoxes, Descent, Range, tile_of
from polyml.codegen.scanned import Choice, Code, Loop, Together
from polyml.codegen.size_facts import SizeFacts, facts_of
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Expr, IndexValue
from polyml.records import dataclass, replace
from polyml.schedule.schedule import Schedule, Storage
from polyml.schedule.tree import Kind, kind_of
from polyml.scop.scop import Statement
from polyml.sets.affine import Affine, FloorDiv, affine, operands
from polyml.sets.from_isl import constraints_of
from polyml.sets.spaces import sets_of

__all__ = ["scan_any_boxes"]


@dataclass(frozen=True, slots=True)
class _Reaching:
    """A statement on its way down. domain, ranges: of its indices, all and where iterators and filters say so; fixed: the indices that have one value; quotients: by index and
    divisor; counts: of its iterators that count tiles; guards: what is still to be asked."""

    statement: Statement
    domain: Mapping[str, Range]
    ranges: Mapping[str, Range]
    fixed: Mapping[str, Affine]
    quotients: Mapping[tuple[str, int], Affine]
    counts: Mapping[str, int]
    guards: tuple[Expr, ...] = ()


_All = dict[str, _Reaching]
_Spans = Mapping[str, Range]
"""Of iterators."""


def scan_any_boxes(schedule: Schedule) -> Code | None:
    """The code of the schedule; None where it is for isl."""
    root, scop = schedule.tree.get_root(), schedule.scop
    if not scop.sizes or kind_of(root) != Kind.domain or any(_is_iterator(size) for size in scop.sizes):
        return None
    try:
        scan = _Scan(schedule, facts_of(scop.context, scop.sizes))
        reaching = {str(s.get_tuple_name()): scan.all_of(s) for s in sets_of(root.domain_get_domain())}
        return scan.below(root.child(0), reaching, 0, {})
    except BeyondBoxes:
        return None


@dataclass(frozen=True, slots=True)
class _Scan(Descent[_Reaching, Range]):
    schedule: Schedule
    facts: SizeFacts

    @property
    def storage(self) -> Mapping[str, Storage]:
        return self.schedule.storage

    def all_of(self, instances: isl.Set) -> _Reaching:
        statement = self.schedule.scop.statements[str(instances.get_tuple_name())]
        lows, ends = self.bounds(instances, statement.indices)
        if lows.keys() != set(statement.indices) or ends.keys() != set(statement.indices):
            raise BeyondBoxes
        domain = {index: (lows[index], ends[index]) for index in statement.indices}
        return _Reaching(statement, domain, domain, {}, {}, {})

    def bounds(self, points: isl.Set, indices: Sequence[str]) -> tuple[dict[str, Affine], dict[str, Affine]]:
        """First values and ends of the indices that have some."""
        pieces = points.compute_divs().get_basic_sets()  # one piece may become several
        if len(pieces) != 1:
            raise BeyondBoxes
        (piece,) = pieces
        lows: dict[str, Affine] = {}
        ends: dict[str, list[Affine]] = {}
        for constraint in constraints_of(piece, indices):
            value = self.facts.of(constraint.value)
            used = value.variables() & set(indices)
            if constraint.equality or len(used) > 1:
                raise BeyondBoxes
            if not used:
                if not self.facts.at_most(affine(0), value):
                    raise BeyondBoxes
                continue
            (index,) = used
            factor = dict(value.terms).get(index, 0)
            rest = value - affine(index) * factor
            if not factor or index in rest.variables() or (factor > 0 and (factor > 1 or index in lows)):
                raise BeyondBoxes
            if factor > 0:
                lows[index] = -rest
            else:
                ends.setdefault(index, []).append(rest // -factor + 1)
        return lows, {index: self.facts.smallest(found) for index, found in ends.items()}

    def loop(
        self, node: isl.ScheduleNode, members: Sequence[Mapping[str, Affine]], reaching: _All, depth: int, spans: _Spans, marked: bool
    ) -> Code:  # fmt: skip
        rows, iterator = members[0], f"c{depth}"
        tiles = {name: tile_of(row) for name, row in rows.items() if row.terms}
        if any(tile.start for tile in tiles.values()):
            raise BeyondBoxes
        count = max((tile.size for tile in tiles.values()), default=1)
        first, end = self.range_of(rows, reaching, count)
        once = first + 1 == end
        # A tile that may have nothing: the loops inside are over what it has.
        once = once or (
            len(tiles) == len(rows)
            and all(tile.tiled for tile in tiles.values())
            and self.facts.at_most(end, first + 1)
        )
        value = first if once else affine(iterator)
        if not once:
            spans = {**spans, iterator: (first, end)}
        inside = {
            name: self.at(reached, rows[name], iterator, value, count, spans) for name, reached in reaching.items()
        }
        body = self.band(node, members[1:], inside, depth + 1, spans, marked)
        return Loop(iterator, first, first + 1 if once else end, 1, once, body)

    def range_of(self, rows: Mapping[str, Affine], reaching: Mapping[str, _Reaching], count: int) -> Range:
        first, end = Descent.range_of(self, rows, reaching, count)
        for place in {row.constant // count for row in rows.values() if not row.terms}:
            among = self.facts.at_most(first, affine(place))
            if not among or not all(self.facts.at_most(affine(place + 1), one) for one in operands(end, "min")):
                raise BeyondBoxes
        return first, end

    def at(self, reached: _Reaching, row: Affine, iterator: str, value: Affine, count: int, spans: _Spans) -> _Reaching:
        """The statement in an iteration: value: in tiles of `count`."""
        counts = {**reached.counts, iterator: count} if count > 1 else reached.counts
        if not row.terms:
            one = affine(row.constant // count)
            if value == one:
                return replace(reached, counts=counts)
            if iterator not in spans:
                raise BeyondBoxes
            equal = Apply("eq", (IndexValue(affine(iterator), i64), IndexValue(one, i64)), boolean)
            return replace(reached, counts=counts, guards=(*reached.guards, equal))
        tile = tile_of(row)
        index, size = tile.index, tile.size
        if not tile.tiled:
            return replace(reached, counts=counts, fixed={**reached.fixed, index: value})
        first, end = reached.ranges[index]
        begin = value * size
        if not first.is_multiple(size) or iterator not in spans:
            if iterator in spans or not self.facts.at_most(begin, first):
                raise BeyondBoxes
            begin = first
        ends = [one for one in operands(end, "min") if iterator not in spans or not one.is_multiple(size)]
        ranges = {**reached.ranges, index: (begin, self.facts.smallest([value * size + size, *ends]))}
        return replace(reached, counts=counts, ranges=ranges, quotients={**reached.quotients, (index, size): value})

    def sequence(self, node: isl.ScheduleNode, reaching: _All, depth: int, spans: _Spans) -> Code:
        parts: list[tuple[Expr | None, Code]] = []
        for position in range(node.n_children()):
            child = node.child(position)
            inside = self.filtered(child.filter_get_filter(), reaching, spans)
            if not inside:
                continue
            common = set[Expr].intersection(*(set(reached.guards) for reached in inside.values()))
            guard = _all([one for one in next(iter(inside.values())).guards if one in common])
            if guard is not None:
                inside = {
                    name: replace(r, guards=tuple(g for g in r.guards if g not in common)) for name, r in inside.items()
                }
            parts.append((guard, self.below(child.child(0), inside, depth, spans)))
        return _in_order(parts)

    def filtered(self, instances: isl.UnionSet, reaching: _All, spans: _Spans) -> _All:
        """The statements that a filter lets through."""
        inside: _All = {}
        for part in sets_of(instances):
            reached = reaching.get(str(part.get_tuple_name()))
            if reached is None:
                continue
            found: _Reaching | None = reached
            if not part.plain_is_universe():
                lows, ends = self.bounds(part, reached.statement.indices)
                for index in reached.statement.indices:
                    whole, low, end = reached.domain[index], lows.get(index), ends.get(index)
                    low = None if low is None or self.facts.at_most(low, whole[0]) else low
                    end = None if end is None or self.facts.at_most(whole[1], end) else end
                    if found is not None and (low is not None or end is not None):
                        found = self.within(found, index, low, end, spans)
            if found is not None:
                inside[reached.statement.name] = found
        return {name: inside[name] for name in reaching if name in inside}

    def within(
        self, reached: _Reaching, index: str, low: Affine | None, stop: Affine | None, spans: _Spans
    ) -> _Reaching | None:
        """Where an index is within bounds (None: those that it has); None where it never is."""
        if index in reached.fixed:
            raise BeyondBoxes
        first, end = reached.ranges[index]
        if stop is not None:
            if any(name in spans and stop.is_multiple(size) for name, size in first.terms if isinstance(name, str)):
                # One tile or none: a condition, not a loop, which prefetches take for one with a next tile.
                end, guard = _whole_tile(first, end, stop)
                reached = replace(reached, guards=(*reached.guards, guard))
            else:
                end = self.facts.smallest([end, stop])
        if low is not None and not self.facts.at_most(low, first):
            if self.facts.at_most(first, low):
                first = low
            else:
                found = self.in_last_tile(first, end, low, spans)
                if found is None:
                    raise BeyondBoxes
                first, end, guard = found
                reached = replace(reached, guards=(*reached.guards, guard))
        if any(self.facts.at_most(one, first) for one in operands(end, "min")):
            return None
        return replace(reached, ranges={**reached.ranges, index: (first, end)})

    def in_last_tile(
        self, first: Affine, end: Affine, low: Affine, spans: _Spans
    ) -> tuple[Affine, Affine, Expr] | None:
        """Bounds from `low` on within the tile from `first` to `end`, and the condition under which that has something: where `low` lies in the last tile."""
        if len(first.terms) != 1 or first.constant:
            return None
        ((iterator, size),) = first.terms
        ends = operands(end, "min")
        rest = [one for one in ends if one != first + size]
        if not isinstance(iterator, str) or iterator not in spans or len(rest) != 1 or len(ends) != 2:
            return None
        (last,) = rest
        common = gcd(size, low.constant, *(factor for _, factor in low.terms))
        # The tile begins before `last`, and so, with multiples of `common`, not behind `low`; it ends behind `low`, and so not before `last`.
        before = any(self.facts.at_most(one * size, last + (size - 1)) for one in operands(spans[iterator][1], "min"))
        if last.variables() & spans.keys() or not before or not self.facts.at_most(last + 1, low + common):
            return None
        reaches = Apply("ge", (IndexValue(first + (size - 1), i64), IndexValue(last, i64)), boolean)
        return first if low.is_multiple(size) else low, last, reaches

    def divided(self, value: Affine, size: int) -> Affine:
        """Quotients of quotients are one."""
        if any(coefficient % size for name, coefficient in value.terms if isinstance(name, str) and _is_iterator(name)):
            raise BeyondBoxes
        found = value // size
        for atom, _ in found.terms:
            match atom:
                case FloorDiv(numerator=Affine(terms=((FloorDiv() as inner, 1),), constant=more)):
                    whole = inner.numerator + more * inner.denominator
                    return found.replace(atom, whole // (inner.denominator * atom.denominator))
                case _:
                    pass
        return found


def _whole_tile(first: Affine, end: Affine, stop: Affine) -> tuple[Affine, Expr]:
    """The end of the tile from `first` on, a multiple of its size as `stop` is, and the condition under which it begins, and so ends, before `stop`."""
    match first.terms, stop.terms:
        case ((_, size),), ((FloorDiv(numerator, denominator), factor),) if (
            not first.constant and not stop.constant and size == factor == denominator
        ):
            if first + size in operands(end, "min"):
                reaches = Apply("ge", (IndexValue(numerator, i64), IndexValue(first + size, i64)), boolean)
                return first + size, reaches
    raise BeyondBoxes


def _in_order(parts: list[tuple[Expr | None, Code]]) -> Code:
    """The parts one after the other; neighbours under one condition are one choice, and so are those under a condition and its opposite."""
    made: list[Code] = []
    under: list[tuple[Expr | None, list[Code]]] = []
    for guard, code in parts:
        if under and guard is not None and under[-1][0] == guard:
            under[-1][1].append(code)
        else:
            under.append((guard, [code]))
    position = 0
    while position < len(under):
        guard, together = under[position]
        code, position = _together(together), position + 1
        if guard is None:
            made.append(code)
        elif position < len(under) and _is_opposite(under[position][0], guard):
            made.append(Choice(guard, code, _together(under[position][1])))
            position += 1
        else:
            made.append(Choice(guard, code))
    return _together(made)


def _is_opposite(one: Expr | None, other: Expr) -> bool:
    """Whether they are `a >= b` and `b - 1 >= a`."""
    match one, other:
        case Apply(op="ge", args=(IndexValue(first), IndexValue(second))), Apply(
            op="ge", args=(IndexValue(third), IndexValue(fourth))
        ):
            return first == fourth - 1 and second == third
        case _:
            return False


def _all(conditions: Sequence[Expr]) -> Expr | None:
    """Whether all of them hold; None where there are none."""
    found: Expr | None = None
    for condition in conditions:
        found = condition if found is None else Apply("and", (found, condition), boolean)
    return found


def _together(parts: Sequence[Code]) -> Code:
    return parts[0] if len(parts) == 1 else Together(tuple(parts))


def _is_iterator(name: str) -> bool:
    return name[0] == "c" and name[1:].isdecimal()
