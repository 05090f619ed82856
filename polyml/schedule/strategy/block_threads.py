"""Which loops of a blocked contraction the threads share."""

from __future__ import annotations

from math import prod

from polyml.schedule.blocking import Blocking
from polyml.schedule.strategy.threads import PARALLEL_CYCLES

__all__ = ["shared_loops"]


def shared_loops(plan: Blocking, threads: int) -> str | None:
    """Which loops the threads share: the batch, the vector side's or the row side's outermost, lanes, or the rows themselves in chunks; None: too little work."""
    least = 2 * threads
    if threads < 2 or prod(plan.extents.values()) / plan.width * plan.tile.vectors / 2 < PARALLEL_CYCLES:
        return None
    if plan.strips:
        several = [i for i in (*plan.batch, *plan.vector_side) if plan.extents[i] >= least][:1]
        return "batch" if several and several[0] in plan.batch else "vector side" if several else "lanes"
    if not plan.packed:
        return "lanes" if plan.blocked(plan.lanes) else None
    if plan.batch and plan.extents[plan.batch[0]] >= least:
        return "batch"
    outer = plan.result_order or plan.row_side
    if outer and plan.extents[outer[0]] >= least:
        return "row side"
    return "rows" if plan.extents[plan.rows] >= threads * plan.tile.rows else None
