"""Contractions whose vector operand is taken a strip at a time: as wide as the register tile, over the whole reduction or a long part of it, while all rows of the other operand, which L2 holds, are
multiplied with it.

Packing a block of many panels moves every element from the last cache to L2 while nothing is computed. A strip needs no such block: its lines are asked for from inside the tiles of
the strip before (codegen/prefetch/strips.py). It is read where it lies if L1 holds it there (rows a multiple of a page apart would meet in a few of its sets), or if L2 does and few tiles read it. Else it is packed, from L2,
as it is where lanes run across rows that are contiguous along the sum, and where its rows are more pages than first-level TLBs reach and the tile's steps are short.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from math import ceil, prod
from typing import Literal

import numpy as np

from polyml.expressions import reads_of
from polyml.schedule.blocking.blocks import Blocking, blocks_of
from polyml.schedule.blocking.sides import Sides, is_plain
from polyml.schedule.blocking.sizes import WAY, even
from polyml.schedule.cache_sets import L2_WAYS, lines_in_set, places_of
from polyml.schedule.cost import AccessModel, StatementModel
from polyml.schedule.register_tiles import RegisterTile
from polyml.scop.scop import Scop
from polyml.target import Target

__all__ = [
    "LEAST_ROW",
    "LEAST_TILES",
    "MOST_ROWS",
    "PACKED_TILES",
    "WAY",
    "in_strips",
    "is_narrow",
    "narrow_strips_stay",
    "strip_depth",
    "strip_in_set",
    "strips_of",
    "waits_for_pages",
]

MOST_ROWS = 1024
"""Rows of a strip, at most: each may lie in a page of its own, and second-level TLBs have some 1500 entries."""

LEAST_TILES = 2
"""Register tiles that share a strip, at least. GFLOP/s of a core that has 118, f32, strips of 48 columns out of memory, 384 terms: two tiles 83, with blocks 59; three 113 and 72; eight 114 and 92."""

LEAST_STRIPS = 4
"""Whole strips, at least: nobody asks for the first one's lines."""

PACKED_TILES = 8
"""The same where the strip is packed: a step of that costs as much as a third of one of a tile."""

PACKED_APART = 3
"""The same where L2 would not hold it, either, where it lies, or lanes run across its rows; or these are narrow and L1 holds no two strips: the first tile packs what the others would reach in L2 line by line. Zen 3, where they lie, packed: 24 rows times
384 x 4000 1.03, 0.87 ms, 1000 x 4000 2.84, 2.44, 42 times 512 x 3000 1.49, 1.41, f64 40 times 160 x 20160 8.0, 6.1; 42 times 250 x 4032, of which L1 holds two, 0.89, 0.96."""

MOST_USES, LEAST_DEPTH = 256, 32
"""Rows of the result, and terms, for strips across rows (and rows for parts of a sum, and where they are neighbours): with more, transposing a block takes little beside what is computed, and with fewer terms pieces of the result's rows as wide as a strip are what memory waits for.
4,100 columns: 1,000 rows of 64 terms 105 GFLOP/s with blocks, 97 with strips, 4,000 of 16 terms 92 and 65."""

FAR_USES = 192
"""Rows of the result, at most, for packed strips over parts of the sum where the last cache is far (`Target.near_l3`). Ice Lake, f32, GFLOP/s where strips lie, packed, with blocks: 32 rows times 768 x 3072, of which 19 lines meet, 46, 56, 57, 1024 x 4096 43,
57, 57, 128 rows in parts 62, 90, 91 and 70, 101, 104, 192 rows times 768 x 3072 72, 106, 104, 256 rows 81, 94, 101; 32 rows times 768 x 2304, of which five meet, 83, 75, 56, 128 rows 98, 105, 93. Short sums are better where they lie: 24 rows times
128 x 4096, 200 x 4096, 256 x 3072 (f64), 400 x 3072, packed, of the time 1.25, 1.18, 0.93, 0.97."""

LEAST_PART = 256
"""Terms of a part of a sum, at least, for which the result is read and written."""

MOST_IN_SET = 96
"""Lines of a strip for one set of L2 that the next cache makes good for. Rows 80 KiB apart, of which 48 meet, have 79 to 112 GFLOP/s as above with two to eight tiles; 64 KiB apart, of which 192 meet, 58 to 105, and 81 with 32 tiles, packed 105."""

MOST_IN_SET_IN_PARTS = 256
"""The same where the sum is made in parts: blocks, whose rows meet as well, are what there is beside strips. 16 rows times 4096 x 4096 in f64, of which 250 meet, take 20 ms with blocks and 13.7, 120 rows 83 and 90."""

CROWDED = 112
"""Lines of a packed narrow strip, and of the result beside it, for one set of L2 that the next cache makes good for. Zen 3, f32, strips over blocks: 48 and 64 rows times 384 x 20480 (108, 112 lines) 0.96 and 0.99, 200 times 32 x 8192 (116) 1.16, 64 x 8192 (132) 1.24, 48
times 384 x 8192 (204) 1.13, 64 times 384 x 24576 (224) 1.23. Where all rows meet in one set fewer do: 64 times 64 x 16384, x 32768, x 65536, x 262144 1.05, 1.30, 1.37, 1.6; times 64 x 60000, which do not, 1.0."""

LEAST_ROW = 2
"""Lines of a strip's row, at least, for the next cache to make good for what L2 has no room for: a tile of 16 registers takes one from each page. Zen 3, f32, strips where they lie, blocks: 16 rows times 4096 x 4096 24.8, 9.8 ms, times
2048 x 2048 6.1, 2.2; strips packed, blocks: times 1024 x 4096 2.9, 2.1. And for many tiles to take parts of the sum's from L2: 64, 120 rows times 2304 x 768 3.9, 6.8 ms in strips, 2.6, 4.6 in blocks."""

PAGES = 64
"""Pages that a first-level TLB reaches, at least: Zen 3's has so many entries, later ones 72 to 96."""

PAGE_CYCLES = 7
"""Cycles until the second-level TLB has answered, which larger register tiles compute with what a step loads; shorter steps wait where vectors lie across lines. Zen 3 (6 x 2, six cycles), f32, 66 rows of the result, x 16 bytes behind
a line, of the limit where strips lie and packed: 48, 64, 96, 128 terms 12,544 bytes apart 1.23 and 1.14, 1.33 and 1.11, 1.30 and 1.09, 1.35 and 1.09, 3136 bytes apart (64 terms are 49 pages) 1.15 and 1.16, 1.14 and 1.13, 1.15 and
1.10, 1.13 and 1.08; x at a line 1.05 to 1.14 either way."""

PACKED_FAR = 4
"""Register tiles for such a strip to be packed, at least: 4 tiles of 300 terms 1.31 and 1.21 of the limit, 3 of 100 terms 1.17 and 1.21."""


def is_narrow(tile: RegisterTile, target: Target) -> bool:
    """Whether a row of a strip is little more than a line: of tiles of 16 registers."""
    return tile.vectors * target.vector_bytes < LEAST_ROW * target.line_bytes


def narrow_strips_stay(model: StatementModel, sides: Sides, tile: RegisterTile, target: Target) -> bool:
    """Whether strips are narrow, and L1 holds one, packed, over the whole sum beside a tile's rows: of neighbours a line for each term."""
    depth = prod(model.extents[i] for i in sides.reduced)
    along = all(abs(operand.stride(sides.reduced[-1]) or 0) == 1 for operand in sides.others)
    row = tile.rows * model.itemsize if along else target.line_bytes
    return is_narrow(tile, target) and depth * (tile.vectors * target.vector_bytes + row) <= target.l1_bytes


def strip_depth(model: StatementModel, sides: Sides, width: int, target: Target) -> dict[str, int]:
    """The part of the sum that strips go over at a time: as many rows as TLBs reach, and as a quarter of L2 holds of a strip, and of all rows of the other operand."""
    rows = prod(model.extents[i] for i in sides.rows)
    room = min(MOST_ROWS, target.l2_bytes // 4 // (max(rows, width) * model.itemsize))
    sizes: dict[str, int] = {}
    for index in reversed(sides.reduced):
        step = target.lanes(model.itemsize) if index == sides.reduced[-1] else 1
        sizes[index] = even(model.extents[index], max(room, 1), step)
        room //= sizes[index]
    return {i: sizes[i] for i in sides.reduced}


def strips_of(
    scop: Scop,
    model: StatementModel,
    sides: Sides,
    rows: str,
    tile: RegisterTile,
    target: Target,
    *,
    parts: bool = False,
    most_in_set: int = MOST_IN_SET,
) -> Literal["in place", "packed"] | None:
    """How strips of the vector operand are read; None where blocks of it are better. parts: of the sum may be made one after the other. most_in_set: lines of a strip read where it lies for one set of L2, over the whole sum."""
    operand, size = sides.operand, model.itemsize
    width = tile.vectors * target.lanes(size)
    statement = scop.statements[model.name]
    across = operand.stride(sides.lanes) != 1
    if across and operand.stride(sides.reduced[-1]) != 1:
        return None
    if scop.arrays[operand.array].constant or len(sides.others) != 1:
        return None
    if not all(is_plain(read.subscripts) for read in reads_of(statement.value)):
        return None
    sizes = strip_depth(model, sides, width, target)
    whole = all(sizes[i] == model.extents[i] for i in sizes)
    depth = prod(sizes.values())
    uses = prod(model.extents[i] for i in sides.rows)
    tiles = ceil(uses / tile.rows)
    columns = prod(model.extents[i] for i in sides.columns) * (model.extents[sides.lanes] // width)
    if (
        tiles < LEAST_TILES
        or columns < LEAST_STRIPS
        or not (whole or (parts and depth >= LEAST_PART and uses <= MOST_USES))
    ):
        return None
    # The broadcast operand is walked along its rows, or a few that are neighbours.
    along, beside = (abs(sides.others[0].stride(i) or 0) == 1 for i in (sides.reduced[-1], rows))
    if not (along or (beside and uses <= MOST_USES)) and uses * depth * size > target.l1_bytes // 2:
        return None
    if across:
        return "packed" if whole and tiles >= PACKED_APART and uses <= MOST_USES and depth >= LEAST_DEPTH else None
    strip, narrow = width * depth * size, is_narrow(tile, target)
    in_l1 = 3 * strip <= 2 * target.l1_bytes
    # Three quarters of each set at most.
    in_l1 = in_l1 and 4 * strip_in_set(model, sides, sizes, width, target, WAY) <= 3 * (target.l1_bytes // WAY)
    if in_l1 and narrow and 2 * _lines(model, sides, sizes, width, target) * target.line_bytes > target.l1_bytes:
        if not whole and parts_are_packed(model, sides, width, sizes, target):
            return "packed"
        in_l1 = False
    if in_l1 and (along or not narrow or _fit_beside_rows(model, sides, sizes, width, target)):
        return "in place"
    met = strip_in_set(model, sides, sizes, width, target, target.l2_bytes // L2_WAYS)
    if not (narrow or target.near_l3) and tiles > LEAST_TILES and depth >= LEAST_PART:
        return _behind_far_l3(met, tiles, uses, whole=whole)
    if narrow and not whole:
        # L2 delivers them more slowly than tiles multiply, and L1 has none where these lie (strips_in_l1.py).
        return None
    if narrow and tiles < PACKED_TILES:
        # Where strips are packed each of their lines is read once.
        most = 2 * L2_WAYS if waits_for_pages(model, sides, rows, tile, sizes, target) else L2_WAYS
        if met > most:
            return None
    elif narrow and _crowd(model, sides, met, depth, target):
        return None
    if tiles < PACKED_TILES and met <= (most_in_set if whole else MOST_IN_SET_IN_PARTS):
        # L1 has no room for a strip and what comes of the next one.
        long = narrow and whole and 2 * strip > target.l1_bytes
        return "packed" if long and tiles >= PACKED_APART else "in place"
    if not whole:
        return "in place" if met <= 2 * L2_WAYS else None
    return "packed" if tiles >= PACKED_APART else None


def _behind_far_l3(met: int, tiles: int, uses: int, *, whole: bool) -> Literal["in place", "packed"] | None:
    """How wide strips are read where the last cache does not make good for what L2 has no room for. met: lines of one for a set of L2; tiles: that share one, with so many rows (uses); whole: over the whole sum."""
    if tiles < PACKED_TILES and met <= L2_WAYS:
        return "in place"
    if whole or tiles < PACKED_TILES:
        return "packed"
    return "packed" if met <= 2 * L2_WAYS and uses <= FAR_USES else None


def parts_are_packed(model: StatementModel, sides: Sides, width: int, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether strips of parts of the sum may be packed: parts are equal, so that the first tile packs as it goes, L1 holds a panel, which the other tiles would read from L2 else, where the strip is, and L2 the part of all rows, for all strips
    (128 rows of 256 terms, 4 KB apart, fill each of their sets: 0.73 of the speed of wider blocks, which read them less often)."""
    panel = width * model.itemsize * prod(sizes[i] for i in sides.reduced)
    if any(model.extents[i] % sizes[i] for i in sides.reduced) or 3 * panel > 2 * target.l1_bytes:
        return False
    return 2 * _rows_in_set(model, sides, sizes, target) <= L2_WAYS


def waits_for_pages(
    model: StatementModel, sides: Sides, rows: str, tile: RegisterTile, sizes: Mapping[str, int], target: Target
) -> bool:
    """Whether a strip read where it lies keeps its tiles waiting for addresses, and they are enough to pack it: its rows, and those of the result that a tile writes, lie in more pages than the first-level TLB reaches, and a
    step is too short to hide that. sizes: of the sum."""
    size = model.itemsize
    if ceil(prod(model.extents[i] for i in sides.rows) / tile.rows) < PACKED_FAR:
        return False
    if tile.rows * tile.vectors / 2 >= PAGE_CYCLES:
        return False
    width = tile.vectors * target.lanes(size)
    whole = all(sizes[i] == model.extents[i] for i in sides.reduced)
    if not whole and not parts_are_packed(model, sides, width, sizes, target):
        return False
    steps = [abs(sides.operand.stride(i) or 0) * size for i in sides.reduced]
    pages = {
        sum(step * k for step, k in zip(steps, at, strict=True)) // WAY
        for at in product(*(range(sizes[i]) for i in sides.reduced))
    }
    written = tile.rows if abs(sides.out.stride(rows) or 0) * size >= WAY else 1
    return len(pages) + written > PAGES


def in_strips(
    model: StatementModel, sides: Sides, rows: str, tile: RegisterTile, width: int, *, packed: bool
) -> Blocking:
    """Strips of the vector operand, the whole reduction at a time."""
    sizes = {index: model.extents[index] for index in (*sides.reduced, rows)}
    if packed:
        sizes |= {**dict.fromkeys(sides.columns, 1), sides.lanes: width}
    return replace(blocks_of(model, sides, rows, tile, width, sizes, packed=packed), strips=not packed)


def _crowd(model: StatementModel, sides: Sides, met: int, depth: int, target: Target) -> bool:
    """Whether the lines of a packed narrow strip, and those of the result that its tiles write, push each other out of L2: some of both before all of a line has been used. met: of the strip, in one set of `depth`."""
    at = places_of(sides.out, {i: model.extents[i] for i in sides.rows}, model.itemsize)
    written = lines_in_set(at, model.itemsize, target.l2_bytes // L2_WAYS, target.line_bytes)
    return met + written > CROWDED or (met > L2_WAYS and met >= depth)


def _lines(model: StatementModel, sides: Sides, sizes: Mapping[str, int], width: int, target: Target) -> int:
    """Lines of a strip that begins where most arrays do, behind the beginning of a line: rows of a line and a half are parts of two or three."""
    line, size = target.line_bytes, model.itemsize
    steps = [(sides.operand.stride(i) or 0) * size for i in sides.reduced]
    begin, end = line // 4, line // 4 + width * size - 1
    found = 0
    for at in product(*(range(sizes[i]) for i in sides.reduced)):
        start = sum(step * k for step, k in zip(steps, at, strict=True))
        found += (start + end) // line - (start + begin) // line + 1
    return found


def _fit_beside_rows(model: StatementModel, sides: Sides, sizes: Mapping[str, int], width: int, target: Target) -> bool:
    """Whether L1 holds a strip beside a tile's rows that are neighbours, in three quarters of each set at most, wherever both begin: where most arrays do, behind the beginning of a line, a narrow strip's rows are parts of two
    lines, and what a term has of a tile's rows may be."""
    strip = strip_in_set(model, sides, sizes, width, target, WAY, begin=target.line_bytes // 4)
    anywhere = target.line_bytes - model.itemsize + 1
    rows = strip_in_set(model, sides, sizes, 1, target, WAY, operand=sides.others[0], begin=anywhere)
    return 4 * (strip + rows) <= 3 * (target.l1_bytes // WAY)


def _rows_in_set(model: StatementModel, sides: Sides, sizes: Mapping[str, int], target: Target) -> int:
    """Lines of a part of all rows of the other operand that meet in one set of L2, at most."""
    at = places_of(sides.others[0], {**{i: model.extents[i] for i in sides.rows}, **sizes}, model.itemsize)
    lines = np.unique(at // target.line_bytes) * target.line_bytes
    return lines_in_set(lines, target.line_bytes, target.l2_bytes // L2_WAYS, target.line_bytes)


def strip_in_set(
    model: StatementModel,
    sides: Sides,
    sizes: Mapping[str, int],
    width: int,
    target: Target,
    way: int,
    *,
    operand: AccessModel | None = None,
    begin: int = 0,
) -> int:
    """Lines of a strip that meet in one set of a cache, at most. way: bytes that one line of each set makes. operand: the vector operand, or another; begin: bytes of the strip's place behind the beginning of a line."""
    rows = places_of(operand or sides.operand, {i: sizes[i] for i in sides.reduced}, model.itemsize)
    return lines_in_set(rows, begin + width * model.itemsize, way, target.line_bytes)
