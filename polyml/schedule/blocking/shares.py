"""How evenly threads share a blocked contraction: what decides about its register tile, its blocks, and which of its loops is shared.

Threads that share blocks of the vector operand pack each into an L2 of their own, and meet once. Threads that share the rows of each block meet twice for each, when it is packed and when it is used, wait for the last of them, and
read what others have packed: 256 x 256 x 256 in four blocks took 1.8 times the FMAs' time of two threads so, and 1.03 as two blocks for each. So blocks come out even for the threads, at the cost of narrower ones, or of another register
tile, whose cost differs by less than a thread that waits.
"""

from __future__ import annotations

from math import ceil, prod

from polyml.schedule.blocking.sides import Sides
from polyml.schedule.cost import StatementModel
from polyml.target import Target

__all__ = [
    "MEETING",
    "PARALLEL_CYCLES",
    "PIECES",
    "even_for_threads",
    "most_pieces",
    "most_work",
    "parts_for_threads",
    "sharing_threads",
    "unevenness",
]

MEETING = 15_000
"""Cycles that it takes until all threads have met and have begun anew, with what each then reads from the others' caches. Measured on Zen 5: 2 to 6.5 us."""

NARROW = 0.05
"""What a block of a single panel costs: a register tile's rows come from L2 for each block."""

PIECES = 4
"""Blocks for each thread, where more of them cost nothing but that the other operand comes from the last cache for each."""

LAST_PIECE = 0.15
"""The part of a piece of work that others wait for at the end. Threads are not of one speed: one on a core that something else uses, too (another program, a thread of another virtual machine), takes up to half as long again for
each piece; of two pieces for two threads such a one makes all take half as long again, of 32 hardly."""

PARALLEL_CYCLES = 20_000
"""Estimated cycles below which waking threads costs more than it saves."""


def sharing_threads(model: StatementModel, sides: Sides, target: Target) -> int:
    """How many threads may share the columns of a contraction, each of which sweeps over the other operand: 1 where there is too little work, or there are other indices to share, or the last cache does not hold that operand."""
    if sides.batch or sides.columns or len(sides.others) != 1:
        return 1
    swept = model.itemsize * prod(n for i, n in model.extents.items() if sides.others[0].stride(i) != 0)
    work = model.instances / target.lanes(model.itemsize) / 2
    return 1 if work < PARALLEL_CYCLES or swept > max(target.l2_bytes, target.l3_bytes) else target.cores


def most_pieces(model: StatementModel, target: Target) -> int:
    """Into how many pieces threads should share a contraction at most: 1 for a single thread, and none that are not worth waking one."""
    cycles = model.instances / target.lanes(model.itemsize) / 2
    return 1 if target.cores < 2 else max(1, int(cycles / PARALLEL_CYCLES))


def parts_for_threads(extent: int, least: int, most: int, blocks: int, points: int, threads: int) -> int:
    """Into how many parts to cut a loop, at least so many and at most so many, so that threads that share them and so many blocks around are done soonest.

    points: of all parts, that use a block's panels one after the other. Each part brings them from L2 anew, a vector a cycle, and does each of its multiply-adds in half of one for each point.
    """

    def cycles(parts: int) -> float:
        rows = ceil(extent / parts)
        pieces = blocks * ceil(extent / rows)
        waiting = LAST_PIECE * threads / pieces
        return unevenness(extent * blocks, rows, threads) + waiting + 2 * ceil(extent / rows) / points

    return min(range(least, max(least, most) + 1), key=cycles)


def most_work(extent: int, size: int, threads: int) -> int:
    """Iterations of the thread that has most, when pieces of this size are dealt out; the last piece is what is left."""
    whole, rest = divmod(extent, size)
    each, over = divmod(whole, threads)
    return each * size + (size if over else rest)


def unevenness(extent: int, size: int, threads: int) -> float:
    """The same, of what it would be if pieces came out even."""
    return most_work(extent, size, threads) * threads / extent


def even_for_threads(extent: int, most: int, step: int, threads: int) -> int:
    """A block size, a multiple of the step and no more than `most`, for which threads that share blocks are done soonest."""

    def cycles(size: int) -> float:
        busiest = unevenness(extent, size, threads)
        return busiest * (1 + NARROW * step / size) + LAST_PIECE * threads * min(size, extent) / extent

    count = max(most // step, 1)
    return min((step * k for k in range(count, max(count - ceil(extent / step), 0), -1)), key=cycles)
