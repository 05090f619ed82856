"""The model of a blocked contraction: which operand the lanes run over, register tile, blocks of the reduction and of the vector side, and what is packed.

Goto's scheme for any contraction: C[n.., m..] (+)= f(R[n.., k..], V[m.., k..]). A block of V, at most KC x NC, is packed into panels as wide as the register tile and
stays in L2; a register tile's rows of R stay in L1 (packed too where they are not contiguous along the reduction) while the tile goes over the panels of V.
All sizes follow from the target's caches and registers.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (TOMS 2008); Low et al., "Analytical Modeling Is Enough for High-Performance
BLIS" (TOMS 2016), with the roles of the operands swapped: the broadcast operand in L1, the vector operand in L2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, prod

from polyml.schedule.blocking.blocks import Blocking, blocks_of
from polyml.schedule.blocking.in_order import comes_again, in_order_worth, reads_in_order, tile_of_all_rows
from polyml.schedule.blocking.laid_out import lines_at_a_time
from polyml.schedule.blocking.operands import (
    is_held,
    is_near,
    is_read_once,
    lines_fit,
    lines_meet,
    packed_rows,
    panel_by_panel,
    rows_meet,
    terms_in_l1,
)
from polyml.schedule.blocking.order import columns_in_l1, tile_order
from polyml.schedule.blocking.register_tile import last_tiles, rest_lanes, side_by_side, tile_across, tile_and_rest
from polyml.schedule.blocking.shares import PIECES, even_for_threads, sharing_threads
from polyml.schedule.blocking.sides import Sides, is_turned, turned_column
from polyml.schedule.blocking.sizes import (
    SWEPT_DEPTH,
    depths,
    even,
    is_short,
    rows_along,
    rows_at_a_time,
    rows_fit,
    rows_in_l2,
    rows_pass,
    shares,
    streamed_sizes,
    whole_sizes,
    widths,
)
from polyml.schedule.blocking.strips import in_strips, narrow_strips_stay, strip_depth, strips_of, waits_for_pages
from polyml.schedule.blocking.strips_in_l1 import parts_in_l1, waits_in_l2
from polyml.schedule.blocking.symbolic import UNBOUNDED, Contraction, at_large
from polyml.schedule.blocking.tile_limits import UNKNOWN_ROWS, chosen_tile, tile_limits
from polyml.schedule.blocking.turned import turned_blocks
from polyml.schedule.blocking.worth import (
    LEAST_CONSTANT,
    MIN_REUSE,
    copy_for_few_rows,
    packing_pays,
    packing_worth,
    result_in_pieces,
    suits_lanes_along_sum,
)
from polyml.schedule.cost import StatementModel
from polyml.schedule.register_tiles import RegisterTile
from polyml.schedule.schedule import Product
from polyml.scop.scop import Scop
from polyml.target import FEW_REGISTERS, Target

__all__ = ["plan_blocking", "plan_blocks"]

UNKNOWN_DEPTH = 1024
"""What stands for a reduction of symbolic length that has to be finished while its sums are in registers."""


def plan_blocking(
    scop: Scop, model: StatementModel, target: Target, *, made: frozenset[str] = frozenset()
) -> Blocking | None:
    """The blocks of one update; None where it is no contraction of two or more operands, or packing would cost more than it saves. made: operands that are made a block at a time."""
    given = at_large(scop, model)
    if given is None:
        return None
    given = replace(given, made=made)
    across = (
        None
        if given.ends or not given.is_alone or given.is_read_in_place
        else tile_across(given.model, given.sides, target)
    )
    if across is not None:
        sides, tile = across
        width = tile.vectors * target.lanes(model.itemsize)
        return in_strips(given.model, sides, sides.rows[0], tile, width, packed=False)
    return plan_blocks(given, target)


def plan_blocks(given: Contraction, target: Target, *, at_hand: bool = False) -> Blocking | None:
    """The blocks of a contraction; None as above. at_hand: numbers are those of one call, for which a kernel of any sizes has a version."""
    model, sides, ends = given.model, given.sides, given.ends
    column = turned_column(given.scop, given.statement, sides)
    if column is not None:
        return turned_blocks(given, column, target)
    turned = is_turned(given.scop, given.statement, sides.lanes)
    limits = tile_limits(given, target, turned=turned, at_hand=at_hand)
    # Panels of constants are made once, columns that are left of them would be copied in each call.
    if not (ends or at_hand or turned or given.is_constant or given.is_read_in_place):
        rows, tile, left = tile_and_rest(model, sides, limits.rows, target, most=limits.widest)
        made = _beside_rest(given, rows, tile, left, target) if left else None
        if made is not None:
            return made
    rows, tile, blocks = chosen_tile(given, limits, target, turned=turned)
    least = LEAST_CONSTANT if given.is_constant else MIN_REUSE
    packed = packing_pays(model, sides.operand, sides, target, turned=turned, least=least)
    if not (turned or ends or at_hand):
        packed = packed or copy_for_few_rows(model, sides, target) or result_in_pieces(model, sides, target)
    if not (packed or turned or ends or at_hand) and waits_in_l2(model, sides, target):
        strips = _strips_in_l1(given, rows, tile, target)
        if strips is not None:
            return strips
    if not (packed or turned or ends or given.is_read_in_place):
        tile = tile_of_all_rows(given, tile, target)
        packed = comes_again(model, sides, tile, target)
    if packed and not (ends or turned) and suits_lanes_along_sum(given, target):
        return None
    if given.is_read_in_place and (packed or turned):
        return None
    made = _with_tile(given, rows, tile, target, packed=packed, turned=turned, at_hand=at_hand)
    return made if made is None or not blocks else replace(made, sizes={**made.sizes, **blocks})


def _beside_rest(given: Contraction, rows: str, tile: RegisterTile, left: int, target: Target) -> Blocking | None:
    """Blocks of whole vectors beside columns that are left, which have lanes along the sum or the rows; None where the other operand would have to be packed, or the result is written in an order of its own."""
    model, sides = given.model, given.sides
    whole = replace(model, extents={**model.extents, sides.lanes: model.extents[sides.lanes] - left})
    made = _with_tile(replace(given, model=whole), rows, tile, target, packed=True, turned=False, at_hand=False)
    if made is None or made.row_operand is not None or made.result_order:
        return None
    along = rest_lanes(model, sides, target) or ""
    # Partial sums of lanes across the rows would be gathered.
    if along == rows and any(made.blocked(i) for i in made.reduced):
        return None
    return replace(made, rest=left, rest_lanes=along, side_by_side=side_by_side(target))


def _with_tile(
    given: Contraction, rows: str, tile: RegisterTile, target: Target, *, packed: bool, turned: bool, at_hand: bool
) -> Blocking | None:
    """The blocks of a contraction with this register tile."""
    scop, model, sides, ends = given.scop, given.model, given.sides, given.ends
    width = tile.vectors * target.lanes(model.itemsize)
    near = is_near(model, sides, {}, target)
    if near and narrow_strips_stay(model, sides, tile, target):
        # Tiles of few registers read faster than all of the operand comes from L2, for each of them.
        near = terms_in_l1(scop, model, sides, rows, tile, target) is not None
    walked = packed and not (turned or ends or near)
    if packed and not (turned or at_hand):
        strips = _strips_in_l1(given, rows, tile, target)
        if strips is not None:
            return strips
    if walked and not lines_meet(model, sides, rows, tile, shares(model, sides, tile, target), target):
        walk = _walk(given, rows, tile, target)
        if walk is not None:
            return walk
    if not packed and (turned or not reads_in_order(model, sides, tile, target)):
        return None
    depth, finished = _depth(given, rows, tile, target, parts=packed and not (turned or ends or given.reads_windows))
    short = packed and not turned and is_short(model, sides.out, depth, width, target)
    sizes = _sizes(model, sides, rows, tile, depth, target, packed=packed, short=short, turned=turned)
    order = tuple(tile_order(model, sides, rows, target)) if short else ()
    if packed and not (turned or order or ends) and sharing_threads(model, sides, target) > 1:
        even_size = even_for_threads(model.extents[sides.lanes], sizes[sides.lanes], width, target.cores)
        # Where L2 holds all columns of a short sum, threads share rows without a meeting for each block.
        several = sizes[sides.lanes] < model.extents[sides.lanes]
        if not short or (several and ceil(model.extents[sides.lanes] / even_size) >= PIECES * target.cores):
            sizes[sides.lanes] = even_size
    if turned and panel_by_panel(scop, sides, target):
        sizes[sides.lanes] = width
    packs_rows = packed and not given.reads_windows and not turned
    tall = at_hand and tile.rows > UNKNOWN_ROWS
    row_operand = _row_operand(given, rows, tile, depth, target, short=short, tall=tall) if packs_rows else None
    if short and row_operand is not None and target.vector_registers <= FEW_REGISTERS:
        # Each block of columns would pack all rows again, a cycle and a half for what a panel in L1 saves of one.
        whole = _sizes(model, sides, rows, tile, depth, target, packed=packed, short=short, turned=turned, near=False)
        sizes |= {i: whole[i] for i in sides.columns}
    endless = set(ends) - set(sides.reduced if turned or (finished and row_operand is None) else ())
    held = [i for i in model.extents if sides.operand.stride(i) != 0 and i not in sides.batch]
    held += [rows, *sides.reduced] if row_operand is not None else []
    if any(i in endless and sizes.get(i, 1) >= model.extents[i] for i in held):
        return None
    tall_panels = row_operand is not None and not short and rows_pass(model, sides, tile, depth, target)
    several = any(sizes[index] < model.extents[index] for index in (*sides.columns, sides.lanes))
    ahead = _rows_ahead(given, rows, tile, depth, target) if several and not short and row_operand is not None else {}
    return replace(
        blocks_of(model, sides, rows, tile, width, sizes | ahead, packed=packed),
        row_operand=row_operand,
        turned=turned,
        lines_first=turned and lines_at_a_time(scop, given.statement, sides.lanes, sizes[sides.lanes], target),
        result_order=order,
        rows_ahead=bool(ahead),
        rows_along=rows_along(sides),
        row_lines=not rows_along(sides) and 2 * tile.rows * model.itemsize % target.line_bytes == 0,
        in_place=packs_rows
        and not (ends or short or row_operand)
        and (is_near(model, sides, sizes, target) or is_held(scop, model, sides, target)),
        rows_in_l2=rows_in_l2(model, rows, tile, depth, target) if tall_panels else 0,
        last=_last_tiles(model, sides, tile, sizes, target) if packed and not (turned or ends) else (),
        ends=ends,
        worth=_worth(given, width, target, packed=packed, turned=turned, bare=row_operand is None),
        one_kind=row_operand is not None and not turned and sides.lanes in ends,
    )


def _rows_ahead(
    given: Contraction, rows: str, tile: RegisterTile, depth: Mapping[str, int], target: Target
) -> dict[str, int]:
    """How many rows are packed ahead of all columns, by index: all, or a block of those whose number is not known; none where rows are packed for each block of columns again."""
    model, sides = given.model, given.sides
    if not given.ends.keys().isdisjoint(sides.rows):
        deep = prod(depth.values()) >= SWEPT_DEPTH
        return rows_at_a_time(model, sides, rows, tile, depth, target) if deep else {}
    fit = rows_fit(model, sides.out, sides.others[0], depth, target)
    return {index: model.extents[index] for index in sides.rows} if fit else {}


def _depth(
    given: Contraction, rows: str, tile: RegisterTile, target: Target, *, parts: bool
) -> tuple[dict[str, int], bool]:
    """Terms of a block, by index, and whether its sums have to be finished: panels go over the whole reduction then, however long that is. parts: whether a block may be what L1 holds."""
    scop, model, sides = given.scop, given.model, given.sides
    depth = depths(scop, given.statement, model, sides, tile, target, parts=parts)
    finished = depth != shares(model, sides, tile, target)
    if parts and not finished:
        depth = terms_in_l1(scop, model, sides, rows, tile, target) or depth
    return depth, finished


def _worth(
    given: Contraction, width: int, target: Target, *, packed: bool, turned: bool, bare: bool
) -> tuple[Product, ...]:
    """What is asked of symbolic sizes at each call; nothing where all are numbers. width: of a tile in elements; bare: rows are read where they lie."""
    if not given.ends:
        return ()
    if not packed:
        return in_order_worth(given, width, target.l2_bytes)
    return packing_worth(given, target, turned=turned, bare=bare)


def _strips_in_l1(given: Contraction, rows: str, tile: RegisterTile, target: Target) -> Blocking | None:
    """Strips of the vector operand over parts of the sum, where they lie; None where that is no better than anything else."""
    model, sides = given.model, given.sides
    if given.ends or given.is_constant or given.is_read_in_place or given.reads_windows or not given.is_alone:
        return None
    parts = parts_in_l1(model, sides, rows, tile, target)
    if parts is None:
        return None
    width = tile.vectors * target.lanes(model.itemsize)
    made = in_strips(model, sides, rows, tile, width, packed=False)
    return replace(made, sizes={**made.sizes, **parts})


def _walk(given: Contraction, rows: str, tile: RegisterTile, target: Target) -> Blocking | None:
    """The vector operand strip by strip; None where blocks of it are better."""
    model, sides = given.model, given.sides
    width = tile.vectors * target.lanes(model.itemsize)
    strips = strips_of(given.scop, model, sides, rows, tile, target, parts=given.is_alone)
    if strips is None:
        return None
    deep = strip_depth(model, sides, width, target)
    packed = strips == "packed" or waits_for_pages(model, sides, rows, tile, deep, target)
    made = in_strips(model, sides, rows, tile, width, packed=packed)
    made = replace(made, sizes={**made.sizes, **deep})
    return replace(made, parts_first=packed and any(made.blocked(i) for i in made.reduced))


def _row_operand(
    given: Contraction,
    rows: str,
    tile: RegisterTile,
    depth: Mapping[str, int],
    target: Target,
    *,
    short: bool,
    tall: bool,
) -> str | None:
    """The operand whose rows are packed, a tile's together; None where none is."""
    model, sides = given.model, given.sides
    # Nobody knows whether rows of unknown length lie a multiple of a page apart, as the number does that stands for it. Zen 3, f32, the second operand transposed, where they lie, of the time packed: 300 x 310 x 333 0.85,
    # 512 x 512 x 512 0.82, 1000 x 31 x 500 0.75, 1000 x 1000 x 1000 0.97, 1024 x 1024 x 1024, whose rows do meet, 0.91, in f64 1.03.
    meet = not given.ends and rows_meet(model, sides, rows, tile, depth, target)
    meet = meet or lines_meet(model, sides, rows, tile, depth, target)
    made = any(other.array in given.made for other in sides.others)
    fit = made or lines_fit(model, sides, tile, depth, target)
    once = fit and is_read_once(given.scop, model, sides, rows)
    meet = meet or (not fit and sides.others[0].stride(rows) == 1)
    return packed_rows(model, sides, rows, tile, target, short=short, tall=tall, meet=meet, once=once)


def _last_tiles(
    model: StatementModel, sides: Sides, tile: RegisterTile, sizes: Mapping[str, int], target: Target
) -> tuple[int, ...]:
    """`last_tiles`, where the last block of columns has all of them."""
    block, width = sizes[sides.lanes], tile.vectors * target.lanes(model.itemsize)
    columns = model.extents[sides.lanes]
    if columns - (columns - 1) // block * block <= width:
        return ()
    return last_tiles(model, sides.lanes, tile, len(sides.others), target)


def _sizes(
    model: StatementModel,
    sides: Sides,
    rows: str,
    tile: RegisterTile,
    depth: Mapping[str, int],
    target: Target,
    *,
    packed: bool,
    short: bool,
    turned: bool,
    near: bool = True,
) -> dict[str, int]:
    """Iterations per block. depth: those of the reduction; short: it is one block, and C is written in the order of its memory, with panels in L1 where that matters (near)."""
    width = tile.vectors * target.lanes(model.itemsize)
    deep = prod(UNKNOWN_DEPTH if d == UNBOUNDED else d for d in depth.values())
    if not packed:
        return streamed_sizes(model, sides, rows, tile, width, target)
    if short:
        in_l1 = columns_in_l1(model, sides, deep, width, target) if near else {}
        whole = whole_sizes(model, sides, width, deep, target, near=in_l1)
        return {**depth, **whole, **{index: model.extents[index] for index in sides.rows}}
    along = rows_along(sides)
    swept = along and not turned and len(sides.reduced) == 1
    blocks = widths(model, sides, sides.columns, width, deep, target, first=sides.first, along=along, swept=swept)
    of_rows = even(model.extents[rows], target.l2_bytes // 8 // (deep * model.itemsize), tile.rows)
    return {**depth, **blocks, rows: of_rows}
