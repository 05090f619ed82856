"""Memory-based dependences: what exact dataflow falls back to when its budget is spent.

Every pair of accesses to one element, of which one may write, in written order (isl manual, "Dependence Analysis"). They hold the exact ones and more, so what respects
them is right; reductions keep their order.
"""

from __future__ import annotations

import islpy as isl

from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from polyml.sets.spaces import maps_of

__all__ = ["memory_based"]


def memory_based(scop: Scop) -> Dependences:
    """Flow, anti and output dependences without dataflow; nothing is left to the reductions, everything may be live."""
    before = scop.initial.lex_lt_union_map(scop.initial)

    def ordered(sources: isl.UnionMap, sinks: isl.UnionMap) -> isl.UnionMap:
        return sources.apply_range(sinks.reverse()).intersect(before)

    reads, writes = scop.reads, scop.may_writes
    arrays = {name for name, array in scop.arrays.items() if array.kind != "local"}
    live_out = isl.UnionMap.empty(scop.context.get_space())
    for piece in maps_of(writes):
        if piece.get_tuple_name(isl.dim_type.out) in arrays:
            live_out = live_out.union(piece.to_union_map())
    return Dependences(
        flow=ordered(writes, reads),
        anti=ordered(reads, writes),
        output=ordered(writes, writes),
        reduction=isl.UnionMap.empty(scop.context.get_space()),
        live_in=reads,
        live_out=live_out,
    )
