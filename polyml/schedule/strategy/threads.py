"""Which loop the threads share, and whether it is worth waking them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from polyml.schedule.strategy.bands import Band
from polyml.schedule.strategy.facts import Facts

__all__ = ["even_tile", "is_heavy", "most_even", "wanted_iterations"]

PARALLEL_CYCLES = 20_000
"""Estimated cycles below which waking threads costs more than it saves."""


def is_heavy(band: Band, facts: Facts) -> bool:
    """Whether one execution of the band (the loops above it stand still) is enough work for several threads."""
    cycles = 0.0
    for name in band.statements:
        model = facts.models[name]
        times = prod(model.extents[index] for index in band.above[name])
        cycles += model.work / times / facts.lanes(name) / 2
    return cycles >= PARALLEL_CYCLES


def wanted_iterations(facts: Facts) -> int:
    """Iterations that a parallel loop should have, so that threads finish together."""
    return 2 * facts.options.threads


def even_tile(extent: int, step: int, threads: int) -> int:
    """Iterations in a piece of a loop, a multiple of step: of the sizes that make some four to eight pieces per thread the one that leaves the busiest thread least, and of such the largest."""
    most = max(step, extent // (4 * threads) // step * step)
    least = max(step, most // 2 // step * step)
    return min(_candidates(extent, step, least, most), key=lambda size: _most_work(extent, size, threads))


def _candidates(extent: int, step: int, least: int, most: int) -> Iterator[int]:
    """Multiples of step in least .. most, the largest first, with the best of them among: for each number of whole pieces the largest and the smallest size, between which work grows or falls."""
    size = most
    while size >= least:
        yield size
        smallest = max(least, -(-(extent // (extent // size + 1) + 1) // step) * step)
        if smallest < size:
            yield smallest
        size = min(size, smallest) - step


def _most_work(extent: int, size: int, threads: int) -> int:
    """Iterations of the thread that has most, when pieces of this size are dealt out; the last piece is what is left."""
    whole, rest = divmod(extent, size)
    each, over = divmod(whole, threads)
    return each * size + (size if over else rest)


def most_even(counts: Mapping[int, int], facts: Facts) -> int | None:
    """Of loops (iterations per key, outermost first), the one to share: the outermost with enough, else the longest; None when none has two."""
    enough = [k for k, count in counts.items() if count >= wanted_iterations(facts)]
    if enough:
        return enough[0]
    best = max(counts, key=lambda k: counts[k], default=None)
    return best if best is not None and counts[best] > 1 else None
