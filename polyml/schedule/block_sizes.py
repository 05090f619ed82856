"""Sizes of the blocks of a contraction: how much of each operand L1 and L2 hold at a time.

Source: Low et al., "Analytical Modeling Is Enough for High-Performance BLIS" (TOMS 2016), with the roles of the operands swapped (see blocking.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from polyml.expressions import reads_of
from polyml.schedule.cost import AccessModel, RegisterTile, StatementModel
from polyml.scop.scop import Scop, Statement
from polyml.target import Target

__all__ = ["by_stride", "depths", "even", "is_short", "rows_fit", "shares", "streamed_sizes", "whole_sizes", "widths"]

STREAMS = 16
"""Rows of an operand that are read side by side when each is read once: hardware prefetchers follow that many, and the result is loaded and stored once for all of them."""

TOGETHER = 2
"""Neighbouring cache lines that memory delivers for little more than one: L2 asks for the pair."""


def depths(
    scop: Scop, statement: Statement, model: StatementModel, reduced: list[str], rows: int, target: Target
) -> dict[str, int]:
    """Block of the reduction: a tile's rows of the broadcast operand take a quarter of L1.

    Whole where something else follows in the region: it needs the finished sum while that is in registers.
    """
    out = statement.target.array
    later = (s for s in scop.statements.values() if s.name != statement.name)
    if any(read.tensor == out for s in later for read in reads_of(s.value)):
        return {i: model.extents[i] for i in reduced}
    return shares(model, reduced, rows, target)


def shares(model: StatementModel, reduced: list[str], rows: int, target: Target) -> dict[str, int]:
    """The same, whatever follows."""
    room = max(1, target.l1_bytes // 4 // (rows * model.itemsize))
    sizes: dict[str, int] = {}
    for index in reversed(reduced):
        # Whole vectors of the innermost one: their elements can be packed through registers, and loops over them unrolled without a rest.
        step = target.lanes(model.itemsize) if index == reduced[-1] else 1
        sizes[index] = even(model.extents[index], room, step)
        room = max(1, room // sizes[index])
    return {i: sizes[i] for i in reduced}


def widths(
    model: StatementModel,
    lanes: str,
    vector_side: list[str],
    out: AccessModel,
    width: int,
    depth: int,
    target: Target,
    *,
    first: str,
) -> dict[str, int]:
    """Block of the vector side: its panels take a quarter of L2. Pairs of cache lines along the operand's contiguous index `first` before anything else."""
    room = max(width, target.l2_bytes // 4 // (depth * model.itemsize))
    sizes: dict[str, int] = {}
    if first in vector_side:
        sizes[first] = _lines(model, first, target)
        room = max(width, room // sizes[first])
    sizes[lanes] = even(model.extents[lanes], room, width)
    room //= ceil(sizes[lanes] / width) * width
    for index in reversed(by_stride(vector_side, out)):
        if index != first:
            sizes[index] = even(model.extents[index], max(room, 1), 1)
            room //= sizes[index]
    return sizes


def is_short(model: StatementModel, out: AccessModel, depth: Mapping[str, int], width: int, target: Target) -> bool:
    """Whether the whole reduction is one block, for which a panel of the vector operand takes no more than half of L1, and C is too large for L2."""
    whole = all(size == model.extents[index] for index, size in depth.items())
    result = model.itemsize * prod(e for i, e in model.extents.items() if out.stride(i) != 0)
    return whole and prod(depth.values()) * width * model.itemsize <= target.l1_bytes // 2 and result > target.l2_bytes


def rows_fit(
    model: StatementModel, out: AccessModel, operand: AccessModel, depth: Mapping[str, int], target: Target
) -> bool:
    """Whether all rows of one block of the reduction, and the result, which is then swept once per such block, take little of the last cache."""
    room = max(target.l2_bytes, target.l3_bytes // 4)
    rows = prod(depth.get(i, e) for i, e in model.extents.items() if operand.stride(i) != 0)
    result = prod(e for i, e in model.extents.items() if out.stride(i) != 0)
    return max(rows, result) * model.itemsize <= room


def whole_sizes(
    model: StatementModel,
    lanes: str,
    vector_side: list[str],
    out: AccessModel,
    width: int,
    depth: int,
    target: Target,
    *,
    first: str,
    near: Mapping[str, int],
) -> dict[str, int]:
    """Blocks of the vector side that half of L2 holds, cut along the indices that are outermost in C; pairs of cache lines along the operand's contiguous index `first`. near: the most of
    some indices, for L1's sake."""
    room = max(width, target.l2_bytes // 2 // (depth * model.itemsize))
    line = _lines(model, first, target) if first in vector_side else 1
    sizes = {lanes: even(model.extents[lanes], max(room // line, width), width)}
    room //= ceil(sizes[lanes] / width) * width
    for index in reversed(by_stride(vector_side, out)):
        least = line if index == first else 1
        rest = 1 if index == first or first in sizes else line
        most = near.get(index, model.extents[index])
        sizes[index] = even(model.extents[index], max(min(room // rest, most), least), least)
        room //= sizes[index]
    return sizes


def _lines(model: StatementModel, first: str, target: Target) -> int:
    """Elements of the contiguous index that are packed together."""
    return min(model.extents[first], TOGETHER * target.line_bytes // model.itemsize)


def streamed_sizes(
    model: StatementModel, lanes: str, rows: str, reduced: str, tile: RegisterTile, width: int, target: Target
) -> dict[str, int]:
    """A few rows of the operand at a time, from end to end, added to elements of C that stay in L2. rows: "" where there are none."""
    room = target.l2_bytes // 4 // (model.itemsize * model.extents.get(rows, 1))
    depth = min(STREAMS, model.extents[reduced])
    sizes = {reduced: depth, lanes: even(model.extents[lanes], max(room, width), width)}
    return sizes | ({rows: tile.rows} if rows else {})


def even(extent: int, most: int, step: int) -> int:
    """A block size, a multiple of the step, so that blocks of at most about `most` are even."""
    if extent <= most:
        return extent
    count = ceil(extent / max(most // step * step, step))
    return min(extent, ceil(ceil(extent / count) / step) * step)


def by_stride(indices: list[str], access: AccessModel) -> list[str]:
    return sorted(indices, key=lambda index: -abs(access.stride(index) or 0))
