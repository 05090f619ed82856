"""Sums of columns: how much of each row a tile takes at once.

A tile of four vectors of AVX2 takes two lines of every row, and the hardware fetches what is beside. Twice as long pieces are as many accumulators as two rows of an outer index would have, which share nothing. Where rows meet in L1, a
multiple of a page apart and more of them than a set has lines, what is beside is gone before the next tile comes to it, and is fetched again: there pieces are as long as registers allow.
"""

from __future__ import annotations

from polyml.schedule.strategy.bands import Band
from polyml.schedule.strategy.facts import Facts

__all__ = ["vectors_of_columns"]

PAGE = 4096
"""Bytes after which the sets of L1 begin anew."""

OTHERS = 4
"""Registers that are no sums: what is in flight, and products."""

PIECE, LONG_PIECE = 4, 6
"""Lines of a piece, and of one where rows meet: Zen 3, 128 rows of 48 KiB in f32, with two, four, six lines at a time 670, 211, 144 us (NumPy 170); where rows do not meet, as fast as each other."""

CHEAP = 2
"""Operations of a term, at most: more of them hide what is loaded."""


def vectors_of_columns(band: Band, lanes: int, facts: Facts) -> int:
    """Vectors at once of a band's core with lanes along this member, one loop inside, and columns for that many; 0 where it is no such sum."""
    model, target = facts.models[band.core], facts.target
    index = band.indices[lanes][band.core]
    inside = set(model.extents) - band.own(band.core) - band.above[band.core]
    if len(inside) != 1 or not model.is_update or model.registers > 1 or model.operations > CHEAP:
        return 0
    (term,) = inside
    reads = [access for access in model.accesses if not access.write]
    if any(access.stride(index) != 1 or access.stride(term) in (0, None) for access in reads):
        return 0
    steps = [abs(access.stride(term) or 0) * model.itemsize for access in reads]
    meet = not any(step % PAGE for step in steps) and model.extents[term] > target.l1_bytes // PAGE
    vectors = min(
        target.vector_registers - OTHERS, (LONG_PIECE if meet else PIECE) * target.line_bytes // target.vector_bytes
    )
    return vectors if vectors * facts.lanes(band.core) <= band.extents[lanes] else 0
