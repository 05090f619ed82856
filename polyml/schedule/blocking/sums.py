"""Contractions whose result is laid out when it is finished, and whose panels fill L2: blocks of the sum, one after the other for all rows, whose sums wait in a block of the result.

A panel over the whole sum is read from L2 by each row of points. 512 channels 3x3 have 4608 terms, 295 KB for a single vector of filters, of which L2 should hold two beside the input; so register tiles had one vector, where seven
points are seven sums, too few to keep the units busy. A block of the sum stays in L1 for all points. It comes from memory once, at an even rate, while the block before is multiplied with, and the first one, which nobody asks
for, is small. What that costs is that sums are loaded and stored once per block.

Where L2 holds the panels, it still delivers them, and the lines of the other operand that L1 does not hold either, at a vector a cycle at best. Tiles of 16 registers compute twelve vectors in six cycles, for which they read three:
where that is more than L2 sustains (LEAST_READ), the sum is made in blocks as well, if need be for a part of the points at a time.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (TOMS 2008), on blocks of the reduction.
"""

from __future__ import annotations

from math import ceil, prod

from polyml.expressions import reads_of
from polyml.schedule.blocking.operands import has_panels
from polyml.schedule.blocking.register_tile import contraction_tile
from polyml.schedule.blocking.shares import PIECES, most_pieces, parts_for_threads
from polyml.schedule.blocking.sides import Sides, is_plain
from polyml.schedule.blocking.sizes import by_stride, even
from polyml.schedule.cost import StatementModel
from polyml.schedule.register_tiles import RegisterTile
from polyml.scop.scop import Scop
from polyml.target import Target

__all__ = ["sums_in_blocks"]

EVEN = 1.06
"""Cycles, relative to the best tile, up to which one is taken whose panels are all of one width: a second kind of tile is compiled, and a narrow last panel leaves threads without work."""

HELD = 3 / 4
"""The part of L2 that two panels over the whole sum, the one in use and the next, and the other operand may take together before blocks are better."""

FEW_PANELS = 16
"""Panels, up to which it is half of that: the first one, which nobody asks for, is much of all. 1024 -> 256 channels over 7 x 7, eight panels, after 24 MB of other data 1.31 -> 1.18 of the limit; -> 2048 1.03 either way."""

SHARE = 4
"""The part of L2 that a block's sums may take, which are swept once for each block of the reduction, and its panels."""

LEAST_READ, LEAST_READ_BY_WINDOWS = 0.5, 0.4
"""Vectors from L2 for each cycle of multiply-adds, from which on these wait; by windows, whose blocks have more terms for each load and store of a sum, that pays sooner. Tiles of 32 registers are below (f32, 7 x 2 0.48, by 3x3
windows 0.36), those of 16 above. Zen 3, multiples of the limit before and after: 512 -> 1024 channels over 7 x 7 (0.90) 1.62 and 1.13, 1024 -> 256 over 14 x 14 (0.85) 1.74 and 1.10, 64 channels 3x3 over 56 x 56 (0.65) 1.27 and
1.13, over 112 x 112 (0.49) 1.30 and 1.16, 128 with stride 2 (0.53) 1.21 and 1.17."""

LEAST_TERMS = 48
"""Terms of a block, at least: to load and to store a sum takes as long as some four of them."""


def sums_in_blocks(
    scop: Scop,
    model: StatementModel,
    sides: Sides,
    inner: list[str],
    target: Target,
    *,
    tallest: int,
    widest: int,
    rest: float,
) -> tuple[str, RegisterTile, dict[str, int]] | None:
    """The rows' index, the register tile, and the sizes of blocks of the reduction, of the columns, and of rows further out whose sums are too many to wait; None where L2 holds panels over the whole sum easily and delivers them
    in time, or has no room for the sums."""
    if not inner or not has_panels(scop, sides):
        return None
    rows, tile = _tile(model, sides, inner, target, tallest=tallest, rest=rest)
    width, terms = tile.vectors * target.lanes(model.itemsize), prod(model.extents[i] for i in sides.reduced)
    column = width * model.itemsize
    other = prod(extent.constant for extent in scop.arrays[sides.others[0].array].shape) * model.itemsize
    held = HELD if model.extents[sides.lanes] > FEW_PANELS * width else HELD / 2
    # What L2 does not hold anyway takes none of it from the panels.
    near = other if other <= target.l2_bytes else 0
    # A tile of windows reads a line in dozens of cycles. Else each term has lines of its own, which all rows should find in L1, beside the panel.
    windows = any(not is_plain(read.subscripts) for read in reads_of(scop.statements[model.name].value))
    half, most = target.l1_bytes // 2, 3 * target.l1_bytes // 4
    least = LEAST_READ_BY_WINDOWS if windows else LEAST_READ
    slow = _is_slow(model, sides, inner, target, least, tallest=tallest, widest=widest, rest=rest)
    parts: dict[str, int] = {}
    sums = column * prod(model.extents[i] for i in sides.rows)
    # Panels of a call would be packed again for each part.
    if slow and sums > target.l2_bytes // SHARE and scop.arrays[sides.operand.array].constant:
        sums, parts = _part(model, sides, rows, column, target)
    if (not slow and 2 * column * terms + near <= held * target.l2_bytes) or sums > target.l2_bytes // SHARE:
        return None
    room = half // column if windows else most // (column + other // terms)
    sizes = _terms(model, sides, room)
    if slow and prod(sizes.values()) < LEAST_TERMS:
        # What one register tile has of each term, at least, which the next one goes on with.
        room = most // (column + ceil(_lines(model, sides, rows, tile.rows, target)) * target.line_bytes)
        sizes = _terms(model, sides, room)
    block = prod(sizes.values())
    if not LEAST_TERMS <= block < terms:
        return None
    # Where L2 does not hold the other operand, it is swept as seldom as sums and panels allow.
    panels = 1 if other <= target.l2_bytes else max(1, target.l2_bytes // (SHARE * max(sums, column * block)))
    most = ceil(model.extents[sides.lanes] / (width * min(PIECES * target.cores, most_pieces(model, target))))
    filters = even(model.extents[sides.lanes], min(panels, most) * width, width)
    # Threads share parts of the rows, too, as long as the block's panels over the whole sum come from L2 for each.
    if filters * terms * model.itemsize <= target.l2_bytes // 2 and scop.arrays[sides.operand.array].constant:
        parts = _shared_parts(model, sides, rows, parts, ceil(model.extents[sides.lanes] / filters), target)
    return rows, tile, {**sizes, **parts, sides.lanes: filters}


def _shared_parts(
    model: StatementModel, sides: Sides, rows: str, parts: dict[str, int], blocks: int, target: Target
) -> dict[str, int]:
    """Sizes of parts of the rows for threads that share them and so many blocks: of the outermost indices that go around the register tile's rows, and of the next one where a single value of each is no part small enough."""
    found, pieces = dict(parts), blocks
    points = prod(model.extents[i] for i in sides.rows)
    for outer in by_stride([i for i in sides.rows if i != rows], sides.out):
        extent = model.extents[outer]
        least, most = ceil(extent / found.get(outer, extent)), min(extent, most_pieces(model, target) // pieces)
        count = parts_for_threads(extent, least, most, pieces, points, target.cores) if target.cores > 1 else least
        if count > 1:
            found[outer] = ceil(extent / count)
        if count < extent:
            break
        pieces, points = pieces * count, points // extent
    return found


def _is_slow(
    model: StatementModel,
    sides: Sides,
    inner: list[str],
    target: Target,
    least: float,
    *,
    tallest: int,
    widest: int,
    rest: float,
) -> bool:
    """Whether L1 has no room for a panel over the whole sum and the lines that the tile reads beside it, and what the tile reads from L2 in each step then, vectors of the panel and those lines, keeps its multiply-adds waiting."""
    rows, tile = contraction_tile(model, sides.lanes, inner, 1, target, most=widest, rest=rest, tallest=tallest)
    terms = prod(model.extents[i] for i in sides.reduced)
    innermost = sides.reduced[-1]
    taps = model.extents[innermost] if abs(sides.others[0].stride(innermost) or 0) == 1 else 1
    lines = _lines(model, sides, rows, tile.rows, target, taps=taps) / taps
    panel, beside = terms * tile.vectors * target.vector_bytes, terms * ceil(lines) * target.line_bytes
    if 2 * panel <= target.l1_bytes and panel + beside <= 3 * target.l1_bytes // 4:
        return False
    read = tile.vectors + lines * target.line_bytes / target.vector_bytes
    return read > least * tile.rows * tile.vectors / 2


def _lines(model: StatementModel, sides: Sides, rows: str, points: int, target: Target, *, taps: int = 1) -> float:
    """Lines that so many neighbouring points of the other operand lie in, and their taps beside them, in the mean over where they begin."""
    between = (points - 1) * abs(sides.others[0].stride(rows) or 0) + taps - 1
    return 1 + between * model.itemsize / target.line_bytes


def _part(model: StatementModel, sides: Sides, rows: str, column: int, target: Target) -> tuple[int, dict[str, int]]:
    """Bytes of the sums of a part of the rows, as many as L2 has room for, and how many values it has of the indices that go around these: of the outermost ones a single one each, such as an image of a batch, where a part of the next is enough."""
    room, sizes = max(1, target.l2_bytes // SHARE), dict[str, int]()
    one = column * prod(model.extents[i] for i in sides.rows)
    for outer in by_stride([i for i in sides.rows if i != rows], sides.out):
        one //= model.extents[outer]
        sizes[outer] = even(model.extents[outer], max(1, room // one), 1)
        if one <= room:
            return one * sizes[outer], sizes
    return one, sizes


def _tile(
    model: StatementModel, sides: Sides, inner: list[str], target: Target, *, tallest: int, rest: float
) -> tuple[str, RegisterTile]:
    found = [
        contraction_tile(model, sides.lanes, inner, 1, target, most=most, rest=rest, tallest=tallest)
        for most in (4, 3, 2, 1)
    ]
    filters, lanes = model.extents[sides.lanes], target.lanes(model.itemsize)
    best = found[0]
    even_ones = (one for one in found if filters % (one[1].vectors * lanes) == 0)
    return next((one for one in even_ones if one[1].cost <= EVEN * best[1].cost), best)


def _terms(model: StatementModel, sides: Sides, most: int) -> dict[str, int]:
    """How many of each index a block of at most so many terms has: of the outermost one that does not fit as many as divide it, so that all blocks have one known length, else blocks as even as can be."""
    sizes: dict[str, int] = {}
    room = max(most, 1)
    for index in reversed(sides.reduced):
        extent = model.extents[index]
        whole = max(size for size in range(1, min(extent, room) + 1) if extent % size == 0)
        sizes[index] = whole if 2 * whole > room or whole == extent else even(extent, room, 1)
        room = max(room // extent, 1) if sizes[index] == extent else 1
    return sizes
