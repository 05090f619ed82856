"""Which loops of a blocked contraction the threads share."""

from __future__ import annotations

from math import ceil, inf, prod

from polyml.schedule.blocking.blocks import Blocking
from polyml.schedule.blocking.shares import MEETING, PARALLEL_CYCLES, unevenness
from polyml.schedule.blocking.sizes import even

__all__ = [
    "BLOCKS",
    "shared_block",
    "shared_loops",
    "shared_row",
    "shares_packing",
    "shares_row_packing",
    "streamed_piece",
]

BLOCKS = "blocks"
"""Each thread has blocks of the vector side of its own."""

EVEN = 4
"""Blocks for each thread, at least, if threads are to share them: then the last ones do not wait for long."""

MORE = 2
"""Times as many blocks as rows of points (of windows, 7 or 14) that are shared in any case."""

LAST_PIECE = 0.02
"""The part of a piece that others wait for at the end, as the choice of a loop to share counts it: pieces come out even there, as far as they can (blocking/shares.py chose their size)."""

PACKING = 0.5
"""Cycles to pack an element."""

PIECE = 1024
"""Columns of rows that are read from end to end that a thread gets at least: a page of floats, within which prefetchers follow."""


def shared_loops(plan: Blocking, threads: int) -> str | None:
    """Which loops the threads share: the batch, blocks of the vector side, the vector side's or the row side's outermost, lanes, or the rows themselves in chunks; None: too little work."""
    least = 2 * threads
    if threads < 2 or _work(plan) < PARALLEL_CYCLES:
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
    if plan.result_order or plan.ends:
        outer = plan.result_order or plan.row_side
        if outer and plan.extents[outer[0]] >= least:
            return "row side"
        return "rows" if plan.extents[plan.rows] >= threads * plan.tile.rows else None
    index = shared_row(plan, threads)
    return None if index is None else "rows" if index == plan.rows else "row side"


def streamed_piece(plan: Blocking, threads: int) -> int:
    """Columns of the vector operand that a thread reads from end to end: as even as can be, but no fewer than memory delivers fast."""
    whole, columns = plan.sizes[plan.lanes], plan.extents[plan.lanes]
    # A piece for each thread, not a small one more for what whole tiles leave.
    share = ceil(columns / threads / plan.width) * plan.width
    return min(whole, even(columns, max(share, PIECE), plan.width))


def shared_block(plan: Blocking, threads: int) -> str | None:
    """The index of the vector side whose blocks threads share: the outermost one with enough for all of them, or of few blocks those that are done sooner than shared rows; None where rows are. Each thread then packs what it multiplies with into an L2 of its own, and meets the others once; loops inside a block
    have fewer iterations than their index has values."""
    least = min(EVEN * threads, MORE * _rows(plan)) if plan.turned else EVEN * threads
    if plan.turned and any(plan.blocked(i) for i in plan.reduced):
        least = threads  # else they would meet after each block of the sum
    sides = (*plan.vector_side, plan.lanes)
    found = None
    if not (plan.rows_ahead or plan.in_place):
        found = next((i for i in sides if _blocks(plan, i) >= least), None)
    if found is not None or plan.result_order or plan.ends:
        return found
    apart = plan.rows_ahead or plan.in_place or plan.turned
    some = [i for i in ((plan.lanes,) if apart else sides) if _blocks(plan, i) > 1]
    best = min(some, key=lambda i: _of_blocks(plan, i, threads), default=None)
    return None if best is None or _of_blocks(plan, best, threads) > _of_rows(plan, threads)[0] else best


def shared_row(plan: Blocking, threads: int) -> str | None:
    """The index of the row side, or of the register tile's rows, that threads share where they have no blocks of their own; None where sharing any takes longer than one thread does."""
    cycles, index = _of_rows(plan, threads)
    return index if cycles < _work(plan) else None


def _blocks(plan: Blocking, index: str) -> int:
    return ceil(plan.extents[index] / plan.sizes.get(index, plan.extents[index]))


def shares_packing(plan: Blocking, threads: int) -> bool:
    """Whether threads that share rows pack a block of the vector operand together: one of them does it while they would meet, where it is small."""
    return _packing(plan, threads) > MEETING


def _packing(plan: Blocking, threads: int) -> float:
    """Cycles that threads save by it."""
    block = prod(plan.sizes.get(i, plan.extents[i]) for i in (*plan.vector_side, plan.lanes, *plan.reduced))
    return _saved(block, threads) if plan.packed and not plan.in_place else 0.0


def shares_row_packing(plan: Blocking, threads: int) -> bool:
    """The same of all rows of a block of the sum."""
    rows = prod(plan.extents[i] for i in (*plan.row_side, plan.rows))
    return _saved(rows * prod(plan.sizes.get(i, plan.extents[i]) for i in plan.reduced), threads) > MEETING


def _saved(elements: int, threads: int) -> float:
    return elements * PACKING * (1 - 1 / threads)


def _work(plan: Blocking) -> float:
    """Cycles of all register tiles, on one core."""
    return prod(plan.extents.values()) / plan.width * plan.tile.vectors / 2


def _of_blocks(plan: Blocking, index: str, threads: int) -> float:
    """Cycles until threads are done that share blocks of the vector operand; where rows are packed ahead, they share that, too, and meet behind both."""
    each = 1 + shares_row_packing(plan, threads)
    meetings = each * prod(_blocks(plan, i) for i in plan.reduced) if plan.rows_ahead else 1
    sides = (*plan.vector_side, plan.lanes)
    meetings *= prod(_blocks(plan, i) for i in sides[: sides.index(index)])
    size = plan.sizes.get(index, plan.extents[index])
    shared = unevenness(plan.extents[index], size, threads) / threads + LAST_PIECE / _blocks(plan, index)
    return _work(plan) * shared + meetings * MEETING


def _of_rows(plan: Blocking, threads: int) -> tuple[float, str | None]:
    """The same of threads that share the rows of each block, and the index that is best shared. Of the register tile's rows those that fill none are left to one thread."""
    blocks = prod(_blocks(plan, i) for i in (*plan.vector_side, plan.lanes, *plan.reduced))
    packing = blocks * min(_packing(plan, threads), MEETING)
    best: tuple[float, str | None] = (inf, None)
    for position, index in enumerate((*plan.row_side, plan.rows) if plan.rows else plan.row_side):
        size = 1 if index != plan.rows else plan.tile.rows
        if index == plan.rows and plan.row_operand is not None and not plan.rows_ahead:
            size = plan.sizes[index]
        extent = plan.extents[index]
        tiles = extent // size
        alone = 1 - tiles * size / extent
        shared = (unevenness(tiles, 1, threads) / threads + LAST_PIECE / tiles) * (1 - alone) if tiles else 0.0
        meetings = blocks * prod(plan.extents[i] for i in plan.row_side[:position])
        cycles = _work(plan) * (shared + alone) + meetings * MEETING + packing
        if cycles < best[0]:
            best = cycles, index
    return best


def _rows(plan: Blocking) -> int:
    """Iterations of the loop over rows that threads share else."""
    return plan.extents[plan.row_side[0]] if plan.row_side else ceil(plan.extents[plan.rows] / plan.tile.rows)
