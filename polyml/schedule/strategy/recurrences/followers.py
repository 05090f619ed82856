"""Inside of lanes: loops that only go on with what a recurrence before them makes run along with it, so that its values need not go through memory.

The scheduler keeps such loops apart, since they are parallel and the recurrence is not. Where lanes run along a loop further out that is no use, and the recurrence may go the other way:
a filter's backward sweep and the sum with the forward one is the case in point.
"""

from __future__ import annotations

import islpy as isl

from polyml.schedule.schedule import Note
from polyml.schedule.strategy.bands import is_flat
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.transforms.follow import join_follower
from polyml.schedule.tree import Kind, is_coincident, kind_of, set_names

__all__ = ["join_followers"]

SPREAD = 4
"""Iterations between the first and the last use of a value, at most, for which registers keep it."""


def join_followers(node: isl.ScheduleNode, facts: Facts) -> tuple[isl.ScheduleNode, tuple[Note, ...]]:
    """The nest with loops below it joined, and what was joined. The sequence right below its bands is looked at."""
    depth = 0
    while kind_of(node) in (Kind.mark, Kind.band):
        node, depth = node.child(0), depth + 1
    notes: list[Note] = []
    position = 0
    while kind_of(node) == Kind.sequence and position + 1 < node.n_children():
        found = _along(node, position, facts)
        if found is None:
            position += 1
            continue
        names = [set_names(node.child(k).filter_get_filter()) for k in (position, position + 1)]
        notes.append(
            Note("fusion", " ".join(names[1]), f"runs along with {' '.join(names[0])}, whose values it goes on with")
        )
        count = node.n_children()
        node = join_follower(node, position, *found)
        # What is left of the follower is no follower.
        position += 1 if kind_of(node) == Kind.sequence and node.n_children() == count else 0
    return node.ancestor(depth), tuple(notes)


def _along(sequence: isl.ScheduleNode, position: int, facts: Facts) -> tuple[isl.UnionPwAff, isl.UnionSet] | None:
    """When the instances of the loop `position + 1` may run in the loop before, and which of them; None where that is no gain, or not allowed."""
    first, second = (sequence.child(k).child(0) for k in (position, position + 1))
    if not (is_flat(first) and is_flat(second)) or is_coincident(first) or not is_coincident(second):
        return None
    found = facts.packed.dependences
    outer = sequence.get_prefix_schedule_multi_union_pw_aff()
    made, reach = first.get_domain(), second.get_domain()
    local = [name for name, array in facts.scop.arrays.items() if array.kind == "local"]
    values = found.flow.intersect_domain(made).intersect_range(reach)
    writes = facts.scop.may_writes.intersect_domain(made)
    if not set(local) & set(set_names(writes.range())) or values.is_empty():
        return None
    values = _in_step(values, outer)
    rows = [band.band_get_partial_schedule().get_at(0) for band in (first, second)]
    whens = [isl.UnionMap.from_union_pw_aff(row) for row in rows]
    pairs = values.apply_domain(whens[0]).apply_range(whens[1])
    if pairs.is_empty() or not pairs.isa_map():
        return None
    for sign in (1, -1):
        shift = _shift(pairs.as_map(), sign)
        if shift is None:
            continue
        factor = isl.Val.int_from_si(rows[1].get_ctx(), sign)
        row = rows[1].scale_val(factor).add(isl.UnionPwAff.pw_aff_on_domain(reach.universe(), shift))
        return _allowed(sequence, first, row, reach, facts)
    return None


def _allowed(
    sequence: isl.ScheduleNode, first: isl.ScheduleNode, row: isl.UnionPwAff, reach: isl.UnionSet, facts: Facts
) -> tuple[isl.UnionPwAff, isl.UnionSet] | None:
    """The instances whose turn comes in an iteration of the first loop; None when one would come before something that it waits for."""
    made = first.get_domain()
    around = sequence.get_prefix_schedule_union_map()
    before = first.band_get_partial_schedule().get_at(0)
    turns = around.intersect_domain(made).range_product(isl.UnionMap.from_union_pw_aff(before)).range()
    wanted = around.intersect_domain(reach).range_product(isl.UnionMap.from_union_pw_aff(row))
    along = wanted.intersect_range(turns).domain()
    if along.is_empty():
        return None
    outer = sequence.get_prefix_schedule_multi_union_pw_aff()
    waits = facts.packed.dependences.validity.intersect_domain(made).intersect_range(along)
    together = isl.MultiUnionPwAff.from_union_pw_aff(before.union_add(row.intersect_domain(reach)))
    if not _in_step(waits, outer).lex_gt_at_multi_union_pw_aff(together).is_empty():
        return None
    return row, along


def _in_step(relation: isl.UnionMap, outer: isl.MultiUnionPwAff) -> isl.UnionMap:
    """The pairs in one iteration of the loops around."""
    return relation.eq_at_multi_union_pw_aff(outer)


def _shift(pairs: isl.Map, sign: int) -> isl.PwAff | None:
    """The least c with `t <= sign * s + c` for every pair t -> s, where the difference varies by a few iterations at most."""
    space = pairs.wrap().flatten().get_space()
    local = isl.LocalSpace.from_space(space)
    made = isl.Aff.var_on_domain(local, isl.dim_type.set, 0)
    used = isl.Aff.var_on_domain(local, isl.dim_type.set, 1)
    gap = made.sub(used) if sign > 0 else made.add(used)
    gaps = pairs.wrap().flatten().apply(isl.Map.from_aff(gap))
    if not gaps.is_bounded():
        return None
    most, least = gaps.dim_max(0), gaps.dim_min(0)
    # isl has no greatest value of quotients such as N/2 of even N.
    spread = isl.Set.from_pw_aff(most.sub(least))
    return most.coalesce() if spread.is_subset(isl.Set(f"{{ [c] : c <= {SPREAD} }}")) else None
