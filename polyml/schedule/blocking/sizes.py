"""Sizes of the blocks of a contraction: how much of each operand L1 and L2 hold at a time.

Source: Low et al., "Analytical Modeling Is Enough for High-Performance BLIS" (TOMS 2016), with the roles of the operands swapped (see blocking/plan.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from polyml.expressions import reads_of
from polyml.schedule.blocking.sides import Sides
from polyml.schedule.cost import AccessModel, StatementModel
from polyml.schedule.register_tiles import RegisterTile
from polyml.scop.scop import Scop, Statement
from polyml.target import Target

__all__ = [
    "RUN",
    "SWEPT_DEPTH",
    "TOGETHER",
    "WAY",
    "by_stride",
    "depths",
    "even",
    "is_short",
    "rows_along",
    "rows_at_a_time",
    "rows_fit",
    "rows_in_l2",
    "rows_meet_in_l1",
    "rows_pass",
    "shares",
    "streamed_rows",
    "streamed_sizes",
    "whole_sizes",
    "widths",
]

STREAMS = 8
"""Rows of an operand that are read side by side when each is read once: hardware prefetchers follow that many, and a row of the result is loaded and stored once for all of them. Several rows of the
result take twice as many as they are, so that loads and stores of it are no more than loads of the operand. Zen 3, two matrices of 2048 x 2048, f32, eight and four rows of each side by side: 1.84, 1.04 ms."""

WAY = 4096
"""Bytes of L1 that one line of each set makes: a page, since addresses within one select the set."""

SWEPT_DEPTH = 128
"""Terms per element of the result for which it may come from memory and go there again: 8 bytes beside 128 multiply-adds are a tenth of what memory delivers meanwhile."""

RUN = 512
"""Bytes of the vector operand, one after the other, up to which longer pieces come from memory notably faster."""

PANELS = 4
"""Panels of a block of the vector operand, at least, for deeper ones to gain: along them tiles fetch the rows that come next."""

FEWEST_PANELS = 2
"""The same where L1 holds neither a panel nor a tile's rows from one tile to the next."""

LONG_PANEL = 256
"""Terms of a panel that half of L1 holds, at least, for rows to pass by it: shorter blocks of the sum would mean more sweeps over C than they save."""

MUCH_READ = 0.4
"""Vectors for each cycle of multiply-adds, from L2, from which on a sum that is finished by other statements is made in blocks, whose results are loaded and stored once each. Tiles of 16 registers read more (f32 0.46, f64 0.58), those of
32 less (0.29, 0.33). Zen 3, 512 rows times K x 768 and a bias, f32, of the limit, whole and in blocks: K = 768 1.05, 1.07; 1024 1.28, 1.10; 2000 1.05, 1.06; 2048 1.41, 1.09; 3072 1.40, 1.09."""

FEW_USES = 64
"""Multiply-adds with each element of an operand up to which reading it takes as long as they do: blocks are larger then, since what decides is how long the pieces are that memory is asked for."""

TOGETHER = 2
"""Neighbouring cache lines that memory delivers for little more than one: L2 asks for the pair."""


def depths(
    scop: Scop,
    statement: Statement,
    model: StatementModel,
    sides: Sides,
    tile: RegisterTile,
    target: Target,
    *,
    parts: bool,
) -> dict[str, int]:
    """Block of the reduction: a tile's rows of the broadcast operand take a quarter of L1, and up to three eighths where they are contiguous along it:
    whole lines, and each block fewer is a sweep over C less. Of several blocks none is longer than a panel in half of L1, where that is long, nor shorter where rows pass by panels; where it is not and a panel takes more even so, the rows take two thirds of L1, since they are pushed out by panels then.

    Whole where something else follows in the region that puts other values in its place, or needs the finished sum, which is in registers then; unless it may come in parts (`parts`), which wait in memory,
    and L1 does not hold what a tile reads.
    """
    out = statement.target.array
    names = list(scop.statements)
    others = {name: s for name, s in scop.statements.items() if name != statement.name}
    overwritten = any(others[name].target.array == out for name in names[names.index(statement.name) + 1 :])
    is_read = any(read.tensor == out for s in others.values() for read in reads_of(s.value))
    if overwritten or (is_read and not (parts and _sums_wait(model, sides, tile, target))):
        return {i: model.extents[i] for i in sides.reduced}
    return shares(model, sides, tile, target)


def _sums_wait(model: StatementModel, sides: Sides, tile: RegisterTile, target: Target) -> bool:
    """Whether a tile's rows over the whole sum take more of L1 than a block's ever do, and what it reads of them and of the panel, from L2 then, is much for the time of its multiply-adds."""
    row = tile.rows * model.itemsize
    read = tile.vectors + row / target.vector_bytes
    whole = row * prod(model.extents[i] for i in sides.reduced)
    return whole > 2 * target.l1_bytes // 3 and read >= MUCH_READ * tile.rows * tile.vectors / 2


def shares(model: StatementModel, sides: Sides, tile: RegisterTile, target: Target) -> dict[str, int]:
    """The same, whatever follows."""
    reduced = sides.reduced
    room = target.l1_bytes // 4 // (tile.rows * model.itemsize)
    if rows_along(sides):
        step, row = tile.vectors * target.vector_bytes, tile.rows * model.itemsize
        room = max(room, min(3 * target.l1_bytes // 8 // row, _room(model, sides, target) // (PANELS * step)))
        held = target.l1_bytes // 2 // step
        if len(reduced) == 1 and held >= LONG_PANEL:
            room = room if model.extents[reduced[0]] <= room else min(room, held)
        elif len(reduced) == 1 and 2 * room * step > target.l1_bytes:
            room = max(
                room, min(2 * target.l1_bytes // 3 // row, _room(model, sides, target) // (FEWEST_PANELS * step))
            )
    elif len(reduced) == 1:
        # Rows that pass by panels come from L2.
        held = target.l1_bytes // 2 // (tile.vectors * target.vector_bytes)
        room = max(room, held) if rows_pass(model, sides, tile, {reduced[0]: held}, target) else room
    room = max(room, 1)
    sizes: dict[str, int] = {}
    for position, index in reversed(list(enumerate(reduced))):
        # Whole vectors of the innermost one: their elements can be packed through registers, and loops over them unrolled without a rest.
        step = target.lanes(model.itemsize) if index == reduced[-1] else 1
        sizes[index] = _shared(model, index, reduced[:position], even(model.extents[index], room, step), step)
        room = max(1, room // sizes[index])
    return {i: sizes[i] for i in reduced}


def rows_along(sides: Sides) -> bool:
    """Whether the broadcast operands are contiguous along the innermost index of the reduction."""
    return all(abs(operand.stride(sides.reduced[-1]) or 0) == 1 for operand in sides.others)


def _room(model: StatementModel, sides: Sides, target: Target) -> int:
    """Bytes of a block of the vector operand: a quarter of L2, or three eighths where its elements are used a few times only."""
    uses = prod(model.extents[index] for index in sides.rows)
    return target.l2_bytes // 4 if uses > FEW_USES else 3 * target.l2_bytes // 8


def widths(
    model: StatementModel,
    sides: Sides,
    vector_side: list[str],
    width: int,
    depth: int,
    target: Target,
    *,
    first: str,
    along: bool = False,
    swept: bool = False,
) -> dict[str, int]:
    """Block of the vector side. Pairs of cache lines along the operand's contiguous index `first` before anything else.

    along: the rows are contiguous along the reduction. Then it has half as much room again (three eighths of L2 or nine sixteenths) where that keeps rows of the vector operand whole: memory delivers longer pieces, and
    the other operand is swept once. swept: the other operand is read where it lies, along one index, by each block. Of deep ones, with fewer panels in each, it would be swept more often than that saves sweeps over C.
    """
    lanes, out = sides.lanes, sides.out
    bytes_of_block = _room(model, sides, target)
    if swept and PANELS * width * depth * model.itemsize > bytes_of_block:
        bytes_of_block += bytes_of_block // 4
    room = max(width, bytes_of_block // (depth * model.itemsize))
    whole = ceil(model.extents[lanes] / width) * width
    if along and whole <= 3 * bytes_of_block // 2 // (depth * model.itemsize):
        room = max(room, whole)
    sizes: dict[str, int] = {}
    if first in vector_side:
        sizes[first] = _lines(model, first, target)
        room = max(width, room // sizes[first])
    others = [i for i in by_stride(vector_side, out) if i != first]
    size = even(model.extents[lanes], room, width)
    if not others:
        size = _without_sliver(model.extents[lanes], size, width, target.lanes(model.itemsize))
    sizes[lanes] = _shared(model, lanes, others, size, width)
    room //= ceil(sizes[lanes] / width) * width
    for position, index in reversed(list(enumerate(others))):
        sizes[index] = _shared(model, index, others[:position], even(model.extents[index], max(room, 1), 1), 1)
        room //= sizes[index]
    return sizes


def _without_sliver(extent: int, size: int, width: int, vector: int) -> int:
    """A panel more or less in a block, where the last one would be a vector at most, for which all rows are read once more."""

    def sliver(block: int) -> bool:
        return (extent - 1) % block < vector

    if size >= extent or not sliver(size):
        return size
    return next((s for s in (size + width, size - width) if 0 < s <= 3 * size // 2 and not sliver(s)), size)


def _shared(model: StatementModel, index: str, others: list[str], size: int, step: int) -> int:
    """The index's part of a block that it has to share with others, of which it leaves them what it is unlikely to have values for."""
    known = model.likely.get(index)
    return size if known is None or not others else min(size, ceil(known / step) * step)


def is_short(model: StatementModel, out: AccessModel, depth: Mapping[str, int], width: int, target: Target) -> bool:
    """Whether the whole reduction is one block, for which a panel of the vector operand takes no more than half of L1, and C is too large for L2."""
    whole = all(size == model.extents[index] for index, size in depth.items())
    result = model.itemsize * prod(e for i, e in model.extents.items() if out.stride(i) != 0)
    return whole and prod(depth.values()) * width * model.itemsize <= target.l1_bytes // 2 and result > target.l2_bytes


def rows_fit(
    model: StatementModel, out: AccessModel, operand: AccessModel, depth: Mapping[str, int], target: Target
) -> bool:
    """Whether all rows of one block of the reduction take little of the last cache. The result is swept once per such block then: either the last cache holds it, too, or the block is so deep that the tiles'
    prefetches bring it from memory in time."""
    room = max(target.l2_bytes, target.l3_bytes // 4)
    rows = prod(depth.get(i, e) for i, e in model.extents.items() if operand.stride(i) != 0)
    result = prod(e for i, e in model.extents.items() if out.stride(i) != 0)
    deep = prod(depth.values()) >= SWEPT_DEPTH
    return rows * model.itemsize <= room and (deep or result * model.itemsize <= room)


def rows_at_a_time(
    model: StatementModel, sides: Sides, rows: str, tile: RegisterTile, depth: Mapping[str, int], target: Target
) -> dict[str, int]:
    """How many rows of unknown number are packed ahead of all columns, by index: a sixteenth of the last cache, which other cores use, or L2's size. The vector operand is packed again for each block of them, once for some
    thousand multiply-adds with each of its elements."""
    room = max(target.l2_bytes, target.l3_bytes // 16) // (prod(depth.values()) * model.itemsize)
    others = [i for i in by_stride(sides.rows, sides.out) if i != rows]
    sizes = {rows: _shared(model, rows, others, even(model.extents[rows], max(room, tile.rows), tile.rows), tile.rows)}
    room //= sizes[rows]
    for position, index in reversed(list(enumerate(others))):
        sizes[index] = _shared(model, index, others[:position], even(model.extents[index], max(room, 1), 1), 1)
        room //= sizes[index]
    return sizes


def rows_pass(
    model: StatementModel, sides: Sides, tile: RegisterTile, depth: Mapping[str, int], target: Target
) -> bool:
    """Whether packed rows had better pass by panels that stay in L1 than panels by rows: a panel takes no more than half of L1, and what a step reads of the rows is less than what it reads of the panel.
    Rows of C are whole lines: panels side by side share lines otherwise, which are in L1 for the second one only if it follows."""
    step, row = tile.vectors * target.vector_bytes, tile.rows * model.itemsize
    panel = prod(depth.values()) * step
    if any((sides.out.stride(i) or 0) * model.itemsize % target.line_bytes for i in sides.rows):
        return False
    return target.l1_bytes // 2 >= LONG_PANEL * step and row < step and panel <= target.l1_bytes // 2


def rows_in_l2(model: StatementModel, rows: str, tile: RegisterTile, depth: Mapping[str, int], target: Target) -> int:
    """Rows that pass by a block's panels, one after the other: an eighth of L2, beside the block."""
    room = target.l2_bytes // 8 // (prod(depth.values()) * model.itemsize)
    return even(model.extents[rows], max(room, tile.rows), tile.rows)


def whole_sizes(
    model: StatementModel, sides: Sides, width: int, depth: int, target: Target, *, near: Mapping[str, int]
) -> dict[str, int]:
    """Blocks of the vector side that half of L2 holds: pieces of the operand's memory that are worth a journey to it, then cut along the indices that are outermost in C. near: the most of some indices, for
    L1's sake."""
    room = max(width, target.l2_bytes // 2 // (depth * model.itemsize))
    pair = _lines(model, sides.first, target) if sides.first in sides.columns else 1
    lanes = even(model.extents[sides.lanes], max(room // pair, width), width)
    room //= ceil(lanes / width) * width
    least = _pieces(model, sides, lanes, room, target, near=near)
    sizes = {sides.lanes: lanes}
    for index in reversed(by_stride(sides.columns, sides.out)):
        rest = prod(count for other, count in least.items() if other not in sizes and other != index)
        most = max(min(room // rest, near.get(index, model.extents[index])), least.get(index, 1))
        step = max(1, target.line_bytes // model.itemsize) if index == sides.first else 1
        sizes[index] = even(model.extents[index], most, step)
        room //= sizes[index]
    return sizes


def _pieces(
    model: StatementModel, sides: Sides, lanes: int, room: int, target: Target, *, near: Mapping[str, int]
) -> dict[str, int]:
    """How many of the columns' indices a piece of the operand's memory of RUN bytes has, as far as there is room; of its contiguous index two cache lines at least. Reductions are whole, and of the lanes' index there
    are `lanes`."""
    found: dict[str, int] = {}
    run = 1
    for index in reversed(by_stride([*sides.columns, *sides.reduced, sides.lanes], sides.operand)):
        extent = model.extents[index]
        if abs(sides.operand.stride(index) or 0) != run or run * model.itemsize >= RUN:
            break
        count = lanes if index == sides.lanes else extent
        if index in sides.columns:
            wanted = ceil(RUN / (run * model.itemsize))
            wanted = extent if extent < 2 * wanted else wanted
            count = min(wanted, near.get(index, extent), max(room, 1))
            count = max(count, _lines(model, index, target)) if index == sides.first else count
            found[index] = count
            room //= count
        if count < extent:
            break
        run *= extent
    return found


def _lines(model: StatementModel, first: str, target: Target) -> int:
    """Elements of the contiguous index that are packed together."""
    return min(model.extents[first], TOGETHER * target.line_bytes // model.itemsize)


def streamed_sizes(
    model: StatementModel, sides: Sides, rows: str, tile: RegisterTile, width: int, target: Target
) -> dict[str, int]:
    """A few rows of the operand at a time, or so many of all matrices that lie alike, from end to end, added to elements of C that stay in L2. rows: "" where there are none."""
    lanes, reduced = sides.lanes, sides.reduced[-1]
    room = target.l2_bytes // 4 // (model.itemsize * model.extents.get(rows, 1))
    depth = min(ceil(streamed_rows(model, sides, tile, target) / sides.matrices), model.extents[reduced])
    sizes = {reduced: depth, lanes: even(model.extents[lanes], max(room, width), width)}
    return sizes | ({rows: tile.rows} if rows else {})


def streamed_rows(model: StatementModel, sides: Sides, tile: RegisterTile, target: Target) -> int:
    """Rows of an operand that are read side by side, from end to end. Those that meet in one set of L1 are no more than it has ways where all rows of the result use a line of theirs at once."""
    found = max(STREAMS, 2 * tile.rows)
    at_once = tile.rows >= prod(model.extents[i] for i in sides.rows)
    a_line = tile.vectors * target.vector_bytes <= target.line_bytes
    ways = max(STREAMS, target.l1_bytes // WAY)
    return min(found, ways) if at_once and a_line and rows_meet_in_l1(model, sides) else found


def rows_meet_in_l1(model: StatementModel, sides: Sides) -> bool:
    """Whether rows of the vector operand lie a multiple of a page apart."""
    apart = abs(sides.operand.stride(sides.reduced[-1]) or 0) * model.itemsize
    return apart > 0 and apart % WAY == 0


def even(extent: int, most: int, step: int) -> int:
    """A block size, a multiple of the step, so that blocks of at most about `most` are even."""
    if extent <= most:
        return extent
    count = ceil(extent / max(most // step * step, step))
    return min(extent, ceil(ceil(extent / count) / step) * step)


def by_stride(indices: list[str], access: AccessModel) -> list[str]:
    return sorted(indices, key=lambda index: -abs(access.stride(index) or 0))
