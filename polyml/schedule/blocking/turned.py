"""Contractions whose result another statement lays out along a column of the vector operand: one value of that index at a time, of which a few wait until they are laid out together.

The operand is read where it lies, in strips; or packed, a block at a time, or a long narrow strip after the other, by the first tile that reads it, while the tiles ask for the next one."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyml.schedule.blocking.blocks import Blocking, blocks_of
from polyml.schedule.blocking.register_tile import contraction_tile
from polyml.schedule.blocking.sides import Sides
from polyml.schedule.blocking.sizes import TOGETHER, by_stride, even, shares, widths
from polyml.schedule.blocking.strips import is_narrow, strips_of
from polyml.schedule.blocking.symbolic import Contraction
from polyml.schedule.blocking.worth import packing_pays
from polyml.schedule.cost import StatementModel
from polyml.target import Target

__all__ = ["turned_blocks"]

FEWEST_USES = 2
"""Times that an element of the operand must be read, at least. Read as the result's order has it, it comes in short pieces, each from a page of its own, however few rows it meets."""

MOST_IN_SET = 16
"""Lines of a strip that may meet in one set of L2: a row of the operand that is packed alone comes from the last cache once then, not for each tile, and what is packed stays in L1.
48 rows 384 KiB apart, 4 tiles, f64 and AVX2: 559 ms where they lie, packed 250."""

PIECE = 4
"""Cache lines of a row of the result that are laid out one after the other, at most: single lines, each in a page of its own, are stored at a quarter of what memory takes."""

SMALLER = 4
"""The operand's size over that of the result up to which this is worth shorter pieces of the operand."""


def turned_blocks(given: Contraction, across: str, target: Target) -> Blocking | None:
    """Blocks of the vector operand for one value of `across` at a time, or strips of it, a vector of which is finished before the result is laid out along it."""
    model, sides = given.model, given.sides
    out, operand = sides.out, sides.operand
    if given.ends or not sides.rows:
        return None
    if (
        sides.batch
        or len(sides.others) != 1
        or not packing_pays(model, operand, sides, target, turned=False, least=FEWEST_USES)
    ):
        return None
    inner = by_stride(sides.rows, out)[::-1]
    rows, tile = contraction_tile(model, sides.lanes, inner, 1, target, most=4, rest=0.0)
    width, few = tile.vectors * target.lanes(model.itemsize), _laid_out_together(model, sides, across, target)
    others = [i for i in sides.columns if i != across]
    waiting = few * prod(model.extents[i] for i in sides.rows)
    kind = strips_of(given.scop, model, sides, rows, tile, target, most_in_set=MOST_IN_SET)
    strips = kind == "in place"
    # Of wide ones, whose rows meet in L2, a block is packed.
    one_by_one = strips or (kind == "packed" and is_narrow(tile, target))
    depth = {i: model.extents[i] for i in sides.reduced} if one_by_one else shares(model, sides, tile, target)
    # Twice as much of L2 as elsewhere: long rows of the operand are what memory delivers fast.
    deep = waiting if one_by_one else max(prod(depth.values()), waiting)
    blocks = widths(model, sides, others, width, max(1, deep // 2), target, first=sides.lanes)
    alone = blocks[sides.lanes] < model.extents[sides.lanes] or prod(blocks[i] for i in others if i != sides.lanes) == 1
    if (
        strips
        and few > target.lanes(model.itemsize)
        and alone
        and width * model.itemsize >= TOGETHER * target.line_bytes
    ):
        # Memory delivers pairs of lines. Of a part of a row, or of one whose neighbour is in another block, tiles would ask for lines behind theirs, which are not the next ones.
        blocks[sides.lanes] = min(width, blocks[sides.lanes])
    sizes = {**depth, **blocks, across: 1, rows: model.extents[rows]}
    beside = 0
    if one_by_one and not strips:
        beside, sizes[sides.lanes] = blocks[sides.lanes], width
    return replace(
        blocks_of(model, sides, rows, tile, width, sizes, packed=not strips),
        strips=strips,
        beside=beside,
        turned=True,
        across=across,
        together=min(few, model.extents[across]),
    )


def _laid_out_together(model: StatementModel, sides: Sides, across: str, target: Target) -> int:
    """How much of the index that the result is contiguous along is laid out at a time: a vector; or some cache lines, where the result is not much smaller than the operand, whose pieces get shorter by that."""
    lanes = target.lanes(model.itemsize)
    operand, result = (
        prod(e for i, e in model.extents.items() if a.stride(i) != 0) for a in (sides.operand, sides.out)
    )
    if SMALLER * result < operand:
        return lanes
    return even(model.extents[across], PIECE * target.line_bytes // model.itemsize, lanes)
