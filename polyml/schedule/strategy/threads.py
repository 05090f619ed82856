"""Which loop the threads share, and whether it is worth waking them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod

from polyml.schedule.blocking.shares import PARALLEL_CYCLES, most_work
from polyml.schedule.cost import AccessModel, StatementModel
from polyml.schedule.strategy.bands import Band
from polyml.schedule.strategy.facts import Facts

__all__ = ["even_tile", "is_heavy", "most_even", "wanted_iterations"]


BEYOND_L2 = 10
"""Bytes that a core moves in a cycle where L2 does not hold what a loop goes through."""


def is_heavy(band: Band, facts: Facts) -> bool:
    """Whether one execution of the band (the loops above it stand still) is enough work for several threads."""
    cycles = moved = 0.0
    for name in band.statements:
        model = facts.models[name]
        times = prod(model.extents[index] for index in band.above[name])
        cycles += model.work / times / facts.lanes(name) / 2
        inside = model.extents.keys() - set(band.above[name])
        moved += sum(_bytes(access, model, inside, facts.target.line_bytes) for access in model.accesses)
    if moved > facts.target.l2_bytes:
        cycles = max(cycles, moved / BEYOND_L2)
    return cycles >= PARALLEL_CYCLES


def _bytes(access: AccessModel, model: StatementModel, indices: Collection[str], line: int) -> float:
    """Those of the lines that an access reaches as these indices move."""
    steps = {i: abs(access.stride(i) or 0) for i in indices}
    moving = [i for i in indices if steps[i]]
    gap = min((steps[i] for i in moving), default=1)
    return prod(model.extents[i] for i in moving) * min(gap * model.itemsize, line)


def wanted_iterations(facts: Facts) -> int:
    """Iterations that a parallel loop should have, so that threads finish together."""
    return 2 * facts.options.threads


def even_tile(extent: int, step: int, threads: int) -> int:
    """Iterations in a piece of a loop, a multiple of step: of the sizes that make some four to eight pieces per thread the one that leaves the busiest thread least, and of such the largest."""
    most = max(step, extent // (4 * threads) // step * step)
    least = max(step, most // 2 // step * step)
    return min(_candidates(extent, step, least, most), key=lambda size: most_work(extent, size, threads))


def _candidates(extent: int, step: int, least: int, most: int) -> Iterator[int]:
    """Multiples of step in least .. most, the largest first, with the best of them among: for each number of whole pieces the largest and the smallest size, between which work grows or falls."""
    size = most
    while size >= least:
        yield size
        smallest = max(least, -(-(extent // (extent // size + 1) + 1) // step) * step)
        if smallest < size:
            yield smallest
        size = min(size, smallest) - step


def most_even(counts: Mapping[int, int], facts: Facts) -> int | None:
    """Of loops (iterations per key, outermost first), the one to share: the outermost with enough, else the longest; None when none has two."""
    enough = [k for k, count in counts.items() if count >= wanted_iterations(facts)]
    if enough:
        return enough[0]
    best = max(counts, key=lambda k: counts[k], default=None)
    return best if best is not None and counts[best] > 1 else None
