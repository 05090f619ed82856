"""Which loops of a blocked contraction the threads share."""

from __future__ import annotations

from math import ceil, prod

from polyml.schedule.blocking.blocks import Blocking
from polyml.schedule.blocking.sizes import even
from polyml.schedule.strategy.threads import PARALLEL_CYCLES

__all__ = ["BLOCKS", "shared_block", "shared_loops", "streamed_piece"]

BLOCKS = "blocks"
"""Each thread has blocks of the vector side of its own."""

EVEN = 4
"""Blocks for each thread, at least, if threads are to share them: then the last ones do not wait for long."""

MORE = 2
"""Times as many blocks as rows of points (of windows, 7 or 14) that are shared in any case."""

PIECE = 1024
"""Columns of rows that are read from end to end that a thread gets at least: a page of floats, within which prefetchers follow."""


def shared_loops(plan: Blocking, threads: int) -> str | None:
    """Which loops the threads share: the batch, blocks of the vector side, the vector side's or the row side's outermost, lanes, or the rows themselves in chunks; None: too little work."""
    least = 2 * threads
    if threads < 2 or prod(plan.extents.values()) / plan.width * plan.tile.vectors / 2 < PARALLEL_CYCLES:
        return None
    if plan.strips:
        several = [i for i in (*plan.batch, *plan.vector_side) if plan.extents[i] >= least][:1]
        return "batch" if several and several[0] in plan.batch else "vector side" if several else "lanes"
    if plan.batch and plan.extents[plan.batch[0]] >= least:
        return "batch"
    if plan.streams:
        return "lanes" if streamed_piece(plan, threads) < plan.extents[plan.lanes] else None
    if shared_block(plan, threads) is not None:
        return BLOCKS
    outer = plan.result_order or plan.row_side
    if outer and plan.extents[outer[0]] >= least:
        return "row side"
    return "rows" if plan.extents[plan.rows] >= threads * plan.tile.rows else None


def streamed_piece(plan: Blocking, threads: int) -> int:
    """Columns of the vector operand that a thread reads from end to end: as even as can be, but no fewer than memory delivers fast."""
    whole = plan.sizes[plan.lanes]
    return min(whole, even(plan.extents[plan.lanes], max(ceil(plan.extents[plan.lanes] / threads), PIECE), plan.width))


def shared_block(plan: Blocking, threads: int) -> str | None:
    """The index with enough blocks of the vector side for all threads, the outermost one. Each then packs what it multiplies with into an L2 of its own, and meets the others once; loops inside a block
    have fewer iterations than their index has values."""
    if plan.rows_ahead or plan.in_place:
        return None
    least = min(EVEN * threads, MORE * _rows(plan)) if plan.turned else EVEN * threads
    if plan.turned and any(plan.blocked(i) for i in plan.reduced):
        least = threads  # else they would meet after each block of the sum
    found = (
        i
        for i in (*plan.vector_side, plan.lanes)
        if ceil(plan.extents[i] / plan.sizes.get(i, plan.extents[i])) >= least
    )
    return next(found, None)


def _rows(plan: Blocking) -> int:
    """Iterations of the loop over rows that threads share else."""
    return plan.extents[plan.row_side[0]] if plan.row_side else ceil(plan.extents[plan.rows] / plan.tile.rows)
