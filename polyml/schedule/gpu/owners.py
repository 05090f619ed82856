"""Which thread of its block runs an instance, by the `thread` marks of a mapped tree."""

from __future__ import annotations

import islpy as isl

from polyml.schedule.tree import Kind, kind_of, mark_name
from polyml.sets.spaces import sets_of

__all__ = ["threads_of"]

AXES = "xyz"


def threads_of(node: isl.ScheduleNode) -> isl.UnionMap:
    """`{ S[i] -> [x, y, z] }` of the instances that reach the node: along an axis that no loop around an instance names, thread 0."""
    return _visit(node, {})


def _visit(node: isl.ScheduleNode, rows: dict[str, isl.UnionPwAff]) -> isl.UnionMap:
    if kind_of(node) == Kind.leaf:
        return _at(node.get_domain(), rows)
    if kind_of(node) == Kind.mark and mark_name(node).startswith("thread."):
        axis, _, factor = mark_name(node).removeprefix("thread.").partition(":")
        row = node.child(0).band_get_partial_schedule().get_at(0)
        rows = {**rows, axis: row.mod_val(isl.Val.int_from_si(row.get_ctx(), int(factor)))}
    total = isl.UnionMap.empty(node.get_universe_domain().get_space())
    for position in range(node.n_children()):
        total = total.union(_visit(node.child(position), rows))
    return total


def _at(domain: isl.UnionSet, rows: dict[str, isl.UnionPwAff]) -> isl.UnionMap:
    total = isl.UnionMap.empty(domain.get_space())
    for instances in sets_of(domain):
        own = instances.to_union_set()
        threads: isl.UnionMap | None = None
        for axis in AXES:
            zero = isl.Map.from_domain_and_range(instances, isl.Set("{ [0] }")).to_union_map()
            row = zero if axis not in rows else isl.UnionMap.from_union_pw_aff(rows[axis]).intersect_domain(own)
            threads = row if threads is None else threads.flat_range_product(row)
        assert threads is not None, "internal: no axes"
        total = total.union(threads)
    return total
