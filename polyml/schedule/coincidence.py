"""Which loops could run in parallel: the flags that a schedule tree shows, computed afresh from the dependences."""

from __future__ import annotations

import islpy as isl

from polyml.schedule.schedule import Schedule
from polyml.schedule.tree import Kind, kind_of

__all__ = ["with_coincidence"]


def with_coincidence(schedule: Schedule) -> isl.Schedule:
    """The tree with every band member flagged `coincident` that carries no dependence (reductions included) within one iteration of what is outside of it."""
    dependences = schedule.dependences.validity.union(schedule.dependences.reduction)
    root = schedule.tree.get_root()
    return _visit(root.child(0), dependences).get_schedule()


def _visit(node: isl.ScheduleNode, live: isl.UnionMap) -> isl.ScheduleNode:
    """The node with flags below it; `live`: dependences that nothing outside has satisfied."""
    match kind_of(node):
        case Kind.leaf:
            return node
        case Kind.band:
            for k in range(node.band_n_member()):
                row = isl.MultiUnionPwAff.from_union_pw_aff(node.band_get_partial_schedule().get_at(k))
                equal = live if live.plain_is_empty() else live.eq_at_multi_union_pw_aff(row)
                node = node.band_member_set_coincident(k, int(live.is_subset(equal)))
                live = equal
            return _visit(node.child(0), live).parent()
        case Kind.filter:
            inside = node.filter_get_filter()
            return _visit(node.child(0), live.intersect_domain(inside).intersect_range(inside)).parent()
        case _:
            for k in range(node.n_children()):
                node = _visit(node.child(k), live).parent()
            return node
