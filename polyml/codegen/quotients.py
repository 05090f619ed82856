"""Schedule trees for isl's scan in which no band divides.

A loop over tiles has the value `48 * floor(j / 48)`. isl writes such a division as an existential variable of every set that it makes, and half of its
time goes into those. So instances get the quotients as further dimensions, `S[i, j] -> S[i, j, q]` with `48 q <= j <= 48 q + 47`, and bands become
sums of indices and quotients. A band whose values are all multiples of one number counts (`q` in place of `48 q`), so that no set has strides either:
the loops are the same, and whoever reads them multiplies (`counts.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from math import gcd

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.tree import Kind, kind_of, set_names
from polyml.sets.callbacks import pieces_of
from polyml.sets.spaces import sets_of

__all__ = ["Quotients", "without_divisions"]

_IN, _DIV, _PARAM, _SET = isl.dim_type.in_, isl.dim_type.div, isl.dim_type.param, isl.dim_type.set
_Row = dict[str, isl.PwAff]
"""One member of a band: its value by statement."""


@dataclass(frozen=True, slots=True)
class _Extended:
    """A statement with its quotients. extend: instances -> instances with quotients; forget: back; places: of each division (its text) among the dimensions."""

    extend: isl.MultiAff
    forget: isl.MultiAff
    places: dict[str, int]


@dataclass(frozen=True, slots=True)
class Quotients:
    """tree: the schedule of instances with quotients. counts: by statement and schedule dimension, what one step of the loop there stands for (left out: 1)."""

    tree: isl.Schedule
    statements: dict[str, _Extended]
    counts: dict[tuple[str, int], int]

    def by_iterator(self) -> dict[str, dict[str, int]]:
        """The counts by statement and isl's name of the iterator."""
        found: dict[str, dict[str, int]] = {}
        for (name, depth), count in self.counts.items():
            found.setdefault(name, {})[f"c{depth}"] = count
        return found

    def of_instances(self, values: isl.MultiAff, name: str) -> isl.MultiAff:
        """Functions of a statement's instances as those of its instances with quotients."""
        statement = self.statements[name]
        values = values.align_params(statement.forget.get_space())
        found = isl.MultiAff.from_aff(_linear(values.get_at(0), statement)) if values.dim(isl.dim_type.out) else None
        if found is None:
            return values.pullback_multi_aff(statement.forget)
        for position in range(1, values.dim(isl.dim_type.out)):
            found = found.flat_range_product(isl.MultiAff.from_aff(_linear(values.get_at(position), statement)))
        return found


def without_divisions(tree: isl.Schedule) -> Quotients | None:
    """The tree with quotients as dimensions; None where its bands have no divisions (or it has nodes that this does not know).

    Also None where statements that share a loop divide by different numbers: of `2 t` and `2 t + 1` in tiles of 4 the first takes `floor(t / 2)`, and isl
    sees that the two take turns only as long as it knows the remainders.
    """
    root = tree.get_root()
    if kind_of(root) != Kind.domain or root.n_children() != 1:
        return None
    domain = tree.get_domain()
    instances = {s.get_tuple_name(): s for s in sets_of(domain)}
    space = domain.get_space()
    bands = list(_bands(root.child(0), 0, frozenset(instances)))
    for row in (row for _, rows in bands for row in rows):
        for value in row.values():
            space = space.align_params(value.get_space())
    for row in (row for _, rows in bands for row in rows):
        row.update({name: value.align_params(space) for name, value in row.items()})
    divisions: dict[str, dict[str, isl.Aff]] = {}
    for _, rows in bands:
        for row in rows:
            for name, value in row.items():
                for _, piece in pieces_of(value):
                    for k in range(piece.dim(_DIV)):
                        division = piece.get_div(k)
                        divisions.setdefault(name, {}).setdefault(str(division), division)
    alike = all(len(_denominators(row)) <= 1 for _, rows in bands for row in rows)
    if not divisions or not alike or any(kind not in _KNOWN for kind in _kinds(root.child(0))):
        return None
    statements = {name: _extended(s.align_params(space), divisions.get(name, {})) for name, s in instances.items()}
    counts = _counts(bands)
    extended = isl.UnionSet.empty(space)
    for name, instance in instances.items():
        extended = extended.union(instance.apply(isl.Map.from_multi_aff(statements[name].extend)))
    node = isl.Schedule.from_domain(extended).get_root().child(0)
    made = _Rebuild(space, statements, counts, iter(bands)).below(root.child(0), node)
    return Quotients(made.get_schedule(), statements, {key: count for key, count in counts.items() if count > 1})


_KNOWN = (Kind.band, Kind.mark, Kind.sequence, Kind.set, Kind.filter, Kind.leaf)


def _kinds(node: isl.ScheduleNode) -> Iterator[isl.schedule_node_type]:
    yield kind_of(node)
    if kind_of(node) != Kind.leaf:
        for position in range(node.n_children()):
            yield from _kinds(node.child(position))


def _bands(node: isl.ScheduleNode, depth: int, names: Set[str]) -> Iterator[tuple[int, list[_Row]]]:
    """The bands below a node that `names` reach, parents first, each with its first schedule dimension."""
    kind = kind_of(node)
    if kind == Kind.leaf:
        return
    if kind == Kind.band:
        partial = node.band_get_partial_schedule()
        yield depth, [_row(partial.get_at(k), names) for k in range(node.band_n_member())]
        depth += node.band_n_member()
    elif kind == Kind.filter:
        names = names & set(set_names(node.filter_get_filter()))
    for position in range(node.n_children()):
        yield from _bands(node.child(position), depth, names)


def _row(values: isl.UnionPwAff, names: Set[str]) -> _Row:
    """By statement; a band may tell values of others, which do not reach it."""
    found = values.get_pw_aff_list()
    named = ((p.get_space().get_tuple_name(_IN), p) for p in (found.get_at(k) for k in range(found.n_pw_aff())))
    return {name: value for name, value in named if name in names}


def _denominators(row: _Row) -> set[int]:
    """The numbers that a member's values divide by."""
    found: set[int] = set()
    for value in row.values():
        for _, piece in pieces_of(value):
            used = (k for k in range(piece.dim(_DIV)) if not piece.get_coefficient_val(_DIV, k).is_zero())
            found |= {piece.get_div(k).get_denominator_val().to_python() for k in used}
    return found


def _extended(instances: isl.Set, divisions: dict[str, isl.Aff]) -> _Extended:
    space, rank = instances.get_space(), instances.dim(_SET)
    wide = space.add_dims(_SET, len(divisions)).set_tuple_name(_SET, instances.get_tuple_name())
    here, there = isl.LocalSpace.from_space(space), isl.LocalSpace.from_space(wide)
    values = isl.AffList.alloc(space.get_ctx(), rank + len(divisions))
    indices = isl.AffList.alloc(space.get_ctx(), rank)
    for position in range(rank):
        values = values.add(isl.Aff.var_on_domain(here, _SET, position))
        indices = indices.add(isl.Aff.var_on_domain(there, _SET, position))
    for division in divisions.values():
        values = values.add(division.floor())
    extend = isl.MultiAff.from_aff_list(space.map_from_domain_and_range(wide), values)
    forget = isl.MultiAff.from_aff_list(wide.map_from_domain_and_range(space), indices)
    return _Extended(extend, forget, {text: rank + k for k, text in enumerate(divisions)})


def _linear(value: isl.Aff, statement: _Extended) -> isl.Aff:
    """A function of instances as one of instances with quotients: divisions that are dimensions become these."""
    found = value.pullback_multi_aff(statement.forget)
    for k in range(value.dim(_DIV)):
        coefficient = value.get_coefficient_val(_DIV, k)
        place = statement.places.get(str(value.get_div(k)))
        if place is None or coefficient.is_zero():
            continue
        space = isl.LocalSpace.from_space(found.get_domain_space())
        quotient = isl.Aff.var_on_domain(space, _SET, place)
        division = value.get_div(k).floor().pullback_multi_aff(statement.forget)
        found = found.add(quotient.sub(division).scale_val(coefficient))
    return found


def _extended_set(instances: isl.Set, statement: _Extended) -> isl.Set:
    """Conditions on instances as those on instances with quotients."""
    if not statement.places:
        return instances.preimage_multi_aff(statement.forget)
    instances = instances.align_params(statement.forget.get_space())  # a condition names the sizes that it needs
    pieces = instances.compute_divs().get_basic_set_list()
    found: isl.Set | None = None
    for piece in (pieces.get_at(k) for k in range(pieces.n_basic_set())):
        if piece.dim(_DIV) == 0:
            made = piece.preimage_multi_aff(statement.forget)
        else:
            made = isl.BasicSet.universe(statement.forget.get_domain_space())
            for constraint in piece.get_constraints():
                value = _linear(constraint.get_aff(), statement)
                equal = isl.Constraint.equality_from_aff(value) if constraint.is_equality() else None
                made = made.add_constraint(equal or isl.Constraint.inequality_from_aff(value))
        found = isl.Set.from_basic_set(made) if found is None else found.union(isl.Set.from_basic_set(made))
    return isl.Set.empty(statement.forget.get_domain_space()) if found is None else found


def _counts(bands: list[tuple[int, list[_Row]]]) -> dict[tuple[str, int], int]:
    """What divides all values of a band's member, wherever a statement meets one at that depth; 1 where no quotient takes part."""
    own: list[tuple[int, _Row, int]] = []
    for depth, rows in bands:
        own += [(depth + k, row, _divisor(row)) for k, row in enumerate(rows)]
    found: dict[tuple[str, int], int] = {}
    for depth, row, divisor in own:
        for name in row:
            found[name, depth] = gcd(found.get((name, depth), 0), divisor)
    changed = True
    while changed:  # a statement in several parts of the tree ties their bands to one number
        changed = False
        for depth, row, _ in own:
            common = gcd(*(found[name, depth] for name in row))
            for name in row:
                changed = changed or found[name, depth] != common
                found[name, depth] = common
    return found


def _divisor(row: _Row) -> int:
    """The largest number that divides a member's values, as sums of indices and quotients; 1 where none of these is a quotient."""
    divisor, quotient = 0, False
    for value in row.values():
        for _, piece in pieces_of(value):
            if piece.get_denominator_val().to_python() != 1:
                return 1
            numbers = [piece.get_constant_val()]
            numbers += [piece.get_coefficient_val(_IN, k) for k in range(piece.dim(_IN))]
            numbers += [piece.get_coefficient_val(_PARAM, k) for k in range(piece.dim(_PARAM))]
            parts = [piece.get_coefficient_val(_DIV, k) for k in range(piece.dim(_DIV))]
            quotient = quotient or any(not part.is_zero() for part in parts)
            divisor = gcd(divisor, *(number.to_python() for number in (*numbers, *parts)))
    return divisor if quotient else 1


@dataclass(frozen=True, slots=True)
class _Rebuild:
    """Builds the tree anew. space: of the parameters. bands: those that are still to come."""

    space: isl.Space
    statements: dict[str, _Extended]
    counts: dict[tuple[str, int], int]
    bands: Iterator[tuple[int, list[_Row]]]

    def below(self, old: isl.ScheduleNode, new: isl.ScheduleNode) -> isl.ScheduleNode:
        """The position `new`, a leaf, with what the tree has at `old`."""
        kind = kind_of(old)
        if kind == Kind.leaf:
            return new
        if kind == Kind.band:
            depth, rows = next(self.bands)
            band = isl.MultiUnionPwAff.from_union_pw_aff(self.member(rows[0], depth))
            for k, row in enumerate(rows[1:], 1):
                more = isl.MultiUnionPwAff.from_union_pw_aff(self.member(row, depth + k))
                band = band.flat_range_product(more)
            new = new.insert_partial_schedule(band)
        elif kind == Kind.mark:
            new = new.insert_mark(old.mark_get_id())
        else:
            parts = [self.filter(old.child(k).filter_get_filter()) for k in range(old.n_children())]
            filters = isl.UnionSetList.alloc(parts[0].get_ctx(), len(parts))
            for part in parts:
                filters = filters.add(part)
            new = new.insert_sequence(filters) if kind == Kind.sequence else new.insert_set(filters)
            for k in range(old.n_children()):
                new = self.below(old.child(k).child(0), new.child(k).child(0)).parent().parent()
            return new
        return self.below(old.child(0), new.child(0)).parent()

    def member(self, row: _Row, depth: int) -> isl.UnionPwAff:
        found = isl.UnionPwAff.empty(self.space)
        for name, value in row.items():
            made = self.value(value, self.statements[name], self.counts[name, depth])
            found = found.union_add(isl.UnionPwAff.from_pw_aff(made))
        return found

    def value(self, value: isl.PwAff, statement: _Extended, count: int) -> isl.PwAff:
        made: isl.PwAff | None = None
        pieces = pieces_of(value)
        for domain, piece in pieces:
            counted = isl.PwAff.from_aff(_linear(piece, statement).scale_down_val(isl.Val(count)))
            if len(pieces) > 1:
                counted = counted.intersect_domain(_extended_set(domain, statement))
            made = counted if made is None else made.union_add(counted)
        assert made is not None, "internal: a band without a value"
        return made

    def filter(self, instances: isl.UnionSet) -> isl.UnionSet:
        found = isl.UnionSet.empty(instances.get_space())
        for s in sets_of(instances):
            if s.get_tuple_name() in self.statements:
                found = found.union(_extended_set(s, self.statements[s.get_tuple_name()]))
        return found
