"""Sums of columns whose rows meet in L1: a multiple of a page apart, and more of them than a set of L1 has lines.

A tile of four vectors takes two lines of every row. What the hardware fetches beside them, since rows are read from end to end, is gone before the next tile comes to it, and is fetched again. The longer
the pieces that a tile takes at once, the fewer there are: as long as registers allow.
"""

from __future__ import annotations

from polyml.schedule.strategy.bands import Band
from polyml.schedule.strategy.facts import Facts

__all__ = ["vectors_of_meeting_rows"]

PAGE = 4096
"""Bytes after which the sets of L1 begin anew."""

OTHERS = 4
"""Registers that are no sums: what is in flight, and products."""

PIECE = 6
"""Lines of a piece: Zen 3, 128 rows of 48 KiB in f32, with two, four, six lines at a time 670, 211, 144 us (NumPy 170); where rows do not meet, as fast as each other."""

CHEAP = 2
"""Operations of a term, at most: more of them hide what is loaded."""


def vectors_of_meeting_rows(band: Band, lanes: int, facts: Facts) -> int:
    """Vectors at once of a band's core with lanes along this member and one loop inside, over such rows; 0 where they do not meet."""
    model, target = facts.models[band.core], facts.target
    index = band.indices[lanes][band.core]
    inside = set(model.extents) - band.own(band.core) - band.above[band.core]
    if len(inside) != 1 or not model.is_update or model.registers > 1 or model.operations > CHEAP:
        return 0
    (term,) = inside
    reads = [access for access in model.accesses if not access.write]
    steps = {abs(access.stride(term) or 0) * model.itemsize for access in reads if access.stride(index) == 1}
    if not steps or any(step == 0 or step % PAGE for step in steps) or model.extents[term] <= target.l1_bytes // PAGE:
        return 0
    vectors = min(target.vector_registers - OTHERS, PIECE * target.line_bytes // target.vector_bytes)
    return min(vectors, band.extents[lanes] // facts.lanes(band.core))
