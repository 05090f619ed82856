"""Contractions whose result is laid out when it is finished, and whose panels fill L2: blocks of the sum, one after the other for all rows, whose sums wait in a block of the result.

A panel over the whole sum is read from L2 by each row of points. 512 channels 3x3 have 4608 terms, 295 KB for a single vector of filters, of which L2 should hold two beside the input; so register tiles had one vector, where seven
points are seven sums, too few to keep the units busy. A block of the sum stays in L1 for all points. It comes from memory once, at an even rate, while the block before is multiplied with, and the first one, which nobody asks
for, is small. What that costs is that sums are loaded and stored once per block.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (TOMS 2008), on blocks of the reduction.
"""

from __future__ import annotations

from math import prod

from polyml.expressions import reads_of
from polyml.schedule.blocking.operands import has_panels
from polyml.schedule.blocking.register_tile import contraction_tile
from polyml.schedule.blocking.sides import Sides, is_plain
from polyml.schedule.blocking.sizes import even
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

LEAST_TERMS = 48
"""Terms of a block, at least: to load and to store a sum takes as long as some four of them."""


def sums_in_blocks(
    scop: Scop, model: StatementModel, sides: Sides, inner: list[str], target: Target, *, tallest: int, rest: float
) -> tuple[str, RegisterTile, dict[str, int]] | None:
    """The rows' index, the register tile, and the sizes of blocks of the reduction and of the columns; None where L2 holds panels over the whole sum easily, or has no room for the sums of all rows."""
    if not inner or not has_panels(scop, sides):
        return None
    rows, tile = _tile(model, sides, inner, target, tallest=tallest, rest=rest)
    width, terms = tile.vectors * target.lanes(model.itemsize), prod(model.extents[i] for i in sides.reduced)
    column = width * model.itemsize
    other = prod(extent.constant for extent in scop.arrays[sides.others[0].array].shape) * model.itemsize
    sums = column * prod(model.extents[i] for i in sides.rows)
    held = HELD if model.extents[sides.lanes] > FEW_PANELS * width else HELD / 2
    # What L2 does not hold anyway takes none of it from the panels.
    near = other if other <= target.l2_bytes else 0
    if 2 * column * terms + near <= held * target.l2_bytes or sums > target.l2_bytes // SHARE:
        return None
    # A tile of windows reads a line in dozens of cycles. Else each term has lines of its own, which all rows should find in L1, beside the panel.
    windows = any(not is_plain(read.subscripts) for read in reads_of(scop.statements[model.name].value))
    half, most = target.l1_bytes // 2, 3 * target.l1_bytes // 4
    sizes = _terms(model, sides, half // column if windows else most // (column + other // terms))
    block = prod(sizes.values())
    if not LEAST_TERMS <= block < terms:
        return None
    # Where L2 does not hold the other operand, it is swept as seldom as sums and panels allow.
    panels = 1 if other <= target.l2_bytes else max(1, target.l2_bytes // (SHARE * max(sums, column * block)))
    return rows, tile, {**sizes, sides.lanes: even(model.extents[sides.lanes], panels * width, width)}


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
