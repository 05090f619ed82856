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

from polyml.expressions import reads_of
from polyml.schedule.block_operands import (
    is_held,
    is_near,
    is_read_once,
    packed_rows,
    panel_by_panel,
    rows_meet,
    waits_in_l1,
)
from polyml.schedule.block_order import columns_in_l1, tile_order
from polyml.schedule.block_sizes import (
    by_stride,
    depths,
    even,
    is_short,
    rows_along,
    rows_fit,
    shares,
    streamed_sizes,
    whole_sizes,
    widths,
)
from polyml.schedule.block_strips import WAY, strip_depth, strips_of
from polyml.schedule.block_sums import sums_in_blocks
from polyml.schedule.contraction_blocks import Blocking
from polyml.schedule.contraction_sides import (
    UNBOUNDED,
    Sides,
    at_large,
    is_plain,
    is_turned,
    sides_of,
    symbolic_ends,
    turned_column,
)
from polyml.schedule.contraction_tiles import contraction_tile, last_tiles, rest_lanes, tile_across, tile_and_rest
from polyml.schedule.cost import FEW_ROWS, TALLEST, AccessModel, RegisterTile, StatementModel
from polyml.schedule.schedule import Product
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine
from polyml.target import Target

__all__ = ["MIN_DEPTH", "MIN_REUSE", "REST_AT_HAND", "blocks_of", "plan_blocking", "plan_blocks", "reads_in_order"]

MIN_REUSE = 16
"""Times that an element of the vector operand must be read for packing to pay."""

LEAST_CONSTANT = 2
"""The same for an operand that never changes, whose panels are made once."""


MIN_DEPTH = 16
"""Length of the reduction below which the tile of C is all that matters."""


IDLE = 1.2
"""Lanes for each column from which on sums along lanes are better. 24 rows of 400 terms times 11, 12, 13 and 14 columns: 0.66, 0.71, 0.77 and 0.81 of the time, 300 rows 0.71, 0.77, 0.85 and 0.93."""

LEAST_PANEL = 256
"""Elements of a vector operand of symbolic size below which it is read where it lies. Where numbers say that L1 holds it, tiles are made for it; of sizes that are not known packed tiles are the ones that know how
their rows lie."""

PIECE = 4
"""Cache lines of a row of the result that are laid out one after the other, at most: single lines, each in a page of its own, are stored at a quarter of what memory takes."""

SMALLER = 4
"""The operand's size over that of the result up to which this is worth shorter pieces of the operand."""

UNKNOWN_DEPTH = 1024
"""What stands for a reduction of symbolic length that has to be finished while its sums are in registers."""

UNKNOWN_VECTORS = 2
"""Of a panel over a reduction of symbolic length: 512 channels of 3 x 3 fit in 1 MiB so. Of a register tile whose columns are of unknown number, too: the fewer it has, the fewer are left at the end, and two
keep the units as busy as three."""

TALLEST_TURNED = 28
"""Rows of a register tile at most, where they are points of windows, whose addresses are one and constants."""


FEW_POINTS = 4
"""Rows of a turned result that are neighbours, below which a register tile may have others: a filter's gradient has three places in a row, and as many rows of each channel as there are channels."""

UNKNOWN_ROWS = 8
"""Of a register tile whose rows are of unknown number: rests have four, then one."""

REST = 0.02
"""Cost of one more kind of register tile at the edges of a turned result: code that is compiled, and a row that is laid out in more pieces."""

REST_AT_HAND = 0.06
"""The same for numbers of one call, which others need not share: rests of any length are loops over smaller and smaller tiles, each compiled, and their rows and columns are finished by the slowest."""


def plan_blocking(scop: Scop, model: StatementModel, target: Target, *, few_rows: bool = False) -> Blocking | None:
    """The blocks of one update; None where it is no contraction of two or more operands, or packing would cost more than it saves.

    few_rows: symbolic extents are large, but that of the rows.
    """
    statement = scop.statements[model.name]
    ends = symbolic_ends(scop, statement, model)
    if ends is None:
        return None
    if ends:
        model = at_large(scop, statement, model, ends)
    sides = sides_of(model)
    if sides is None:
        return None
    if few_rows:
        return _in_order(scop, model, sides, ends, target)
    across = None if ends or not _is_alone(scop, statement) else tile_across(model, sides, target)
    if across is not None:
        other, tile = across
        width = tile.vectors * target.lanes(model.itemsize)
        return _in_strips(model, other, other.rows[0], tile, width, packed=False)
    return plan_blocks(scop, model, sides, ends, target)


def _is_alone(scop: Scop, statement: Statement) -> bool:
    """Whether nothing reads the sums in this region."""
    array = statement.target.array
    return not any(read.tensor == array for other in scop.statements.values() for read in reads_of(other.value))


def plan_blocks(
    scop: Scop,
    model: StatementModel,
    sides: Sides,
    ends: Mapping[str, Affine],
    target: Target,
    *,
    at_hand: bool = False,
) -> Blocking | None:
    """The blocks of an update with these sides, `ends` being the extents that are not known. at_hand: numbers are those of one call, for which a kernel of any sizes has a version."""
    out = sides.out
    column = turned_column(scop, scop.statements[model.name], sides)
    if column is not None:
        return None if ends or not sides.rows else _in_turns(scop, model, sides, column, target)
    turned = is_turned(scop, scop.statements[model.name], sides.lanes)
    inner = by_stride(sides.rows, out)[::-1]
    most = _vectors_in_l2(model, sides.reduced, ends, target) if turned else _columns(model, sides, ends, target)
    few = any(model.extents[i] < FEW_POINTS for i in inner[:1])
    inner = inner[:1] if turned and not few else inner
    if at_hand:  # a panel that is not whole would be one of unknown width
        most = max(1, min(most, model.extents[sides.lanes] // target.lanes(model.itemsize)))
    unknown = any(i in ends for i in inner)
    tallest = TALLEST_TURNED if turned and not unknown else UNKNOWN_ROWS if unknown and not turned else TALLEST
    rest = REST if turned else REST_AT_HAND if at_hand else 0.0
    # Panels of constants are made once, columns that are left of them would be copied in each call.
    if not (ends or at_hand or turned or scop.arrays[sides.operand.array].constant):
        rows, tile, left = tile_and_rest(model, sides, inner, target, most=most)
        made = _beside_rest(scop, model, sides, rows, tile, left, target) if left else None
        if made is not None:
            return made
    rows, tile = contraction_tile(
        model, sides.lanes, inner, len(sides.others), target, most=most, rest=rest, tallest=tallest
    )
    blocks: dict[str, int] = {}
    parted = None
    if turned and not ends:
        parted = sums_in_blocks(scop, model, sides, inner, target, tallest=tallest, rest=rest)
    if parted is not None:
        rows, tile, blocks = parted
    if tile.rows > target.l1_bytes // WAY and not (ends or turned) and waits_in_l1(model, sides, rows, tile, target):
        rows, tile = contraction_tile(
            model, sides.lanes, [rows], len(sides.others), target, most=most, rest=rest, tallest=target.l1_bytes // WAY
        )
    least = MIN_REUSE if not scop.arrays[sides.operand.array].constant else LEAST_CONSTANT
    packed = _pays(model, sides.operand, sides, target, turned=turned, least=least)
    if packed and not (ends or turned) and _suits_lanes_along_sum(scop, model, sides, target):
        return None
    made = _blocks(scop, model, sides, ends, target, rows, tile, packed=packed, turned=turned, at_hand=at_hand)
    return made if made is None or not blocks else replace(made, sizes={**made.sizes, **blocks})


def _beside_rest(
    scop: Scop, model: StatementModel, sides: Sides, rows: str, tile: RegisterTile, left: int, target: Target
) -> Blocking | None:
    """Blocks of whole vectors beside columns that are left, which have lanes along the sum or the rows; None where the other operand would have to be packed, or the result is written in an order of its own."""
    whole = replace(model, extents={**model.extents, sides.lanes: model.extents[sides.lanes] - left})
    made = _blocks(scop, whole, sides, {}, target, rows, tile, packed=True, turned=False, at_hand=False)
    if made is None or made.row_operand is not None or made.result_order:
        return None
    along = rest_lanes(model, sides, target) or ""
    # Partial sums of lanes across the rows would be gathered.
    if along == rows and any(made.blocked(i) for i in made.reduced):
        return None
    return replace(made, rest=left, rest_lanes=along)


def _blocks(
    scop: Scop,
    model: StatementModel,
    sides: Sides,
    ends: Mapping[str, Affine],
    target: Target,
    rows: str,
    tile: RegisterTile,
    *,
    packed: bool,
    turned: bool,
    at_hand: bool,
) -> Blocking | None:
    """The blocks of an update with this register tile."""
    statement = scop.statements[model.name]
    out, operand = sides.out, sides.operand
    width = tile.vectors * target.lanes(model.itemsize)
    apart = packed and not turned and not ends and not is_near(model, sides, {}, target)
    strips = strips_of(scop, model, sides, rows, tile, target, parts=_is_alone(scop, statement)) if apart else None
    if strips is not None:
        made = _in_strips(model, sides, rows, tile, width, packed=strips == "packed")
        return replace(made, sizes={**made.sizes, **strip_depth(model, sides, width, target)})
    if not packed and not reads_in_order(model, sides, tile, target):
        return None
    depth = depths(scop, statement, model, sides, tile, target)
    finished = depth != shares(model, sides, tile, target)
    short = packed and not turned and is_short(model, out, depth, width, target)
    sizes = _sizes(model, sides, rows, tile, depth, target, packed=packed, short=short, turned=turned)
    if turned and packed and panel_by_panel(scop, sides, target):
        sizes[sides.lanes] = width
    windows = any(not is_plain(read.subscripts) for read in reads_of(statement.value))
    packs_rows = packed and not windows and not turned
    tall = at_hand and tile.rows > UNKNOWN_ROWS
    meet = packs_rows and rows_meet(model, sides, rows, tile, depth, target)
    once = packs_rows and is_read_once(scop, model, sides, rows)
    row_operand = (
        packed_rows(model, sides, rows, tile, target, short=short, tall=tall, meet=meet, once=once)
        if packs_rows
        else None
    )
    held = [i for i in model.extents if operand.stride(i) != 0 and i not in sides.batch]
    held += [i for i in (rows, *sides.reduced) if row_operand is not None]
    if turned and not packed:
        return None
    # Panels go over the whole reduction, however long that is, where its sums have to be finished.
    whole = sides.reduced if turned or (finished and row_operand is None) else ()
    if any(i in ends and i not in whole and sizes.get(i, 1) >= model.extents[i] for i in held):
        return None
    several = any(sizes[index] < model.extents[index] for index in (*sides.columns, sides.lanes))
    ahead = several and not short and row_operand is not None and rows_fit(model, out, sides.others[0], depth, target)
    if ahead:
        sizes |= {index: model.extents[index] for index in sides.rows}
    in_order = _worth_in_order(scop, sides, ends, width, target.l2_bytes, target)
    return replace(
        blocks_of(model, sides, rows, tile, width, sizes, packed=packed),
        row_operand=row_operand,
        turned=turned,
        result_order=tuple(tile_order(model, sides, rows, target)) if short else (),
        rows_ahead=ahead,
        rows_along=rows_along(sides),
        row_lines=not rows_along(sides) and 2 * tile.rows * model.itemsize % target.line_bytes == 0,
        in_place=packs_rows
        and not (ends or short or row_operand)
        and (is_near(model, sides, sizes, target) or is_held(scop, model, sides, target)),
        last=_last_tiles(model, sides, tile, sizes, target) if packed and not (turned or ends) else (),
        ends=ends,
        worth=() if not ends else _worth(scop, model, sides, ends, target, turned=turned) if packed else in_order,
    )


def _last_tiles(
    model: StatementModel, sides: Sides, tile: RegisterTile, sizes: Mapping[str, int], target: Target
) -> tuple[int, ...]:
    """`last_tiles`, where the last block of columns has all of them."""
    block, width = sizes[sides.lanes], tile.vectors * target.lanes(model.itemsize)
    columns = model.extents[sides.lanes]
    if columns - (columns - 1) // block * block <= width:
        return ()
    return last_tiles(model, sides.lanes, tile, len(sides.others), target)


def _in_order(
    scop: Scop, model: StatementModel, sides: Sides, ends: Mapping[str, Affine], target: Target
) -> Blocking | None:
    """What few rows of symbolic number ask for: the vector operand read once, in order, where no cache holds it."""
    some = [i for i in sides.rows if i in ends]
    most = (MIN_REUSE - 1) // prod(model.extents[i] for i in sides.rows if i not in ends)
    if len(some) != 1 or not most:
        return None
    model = replace(model, extents={**model.extents, some[0]: most})
    low = replace(model, extents={**model.extents, some[0]: min(most, FEW_ROWS)})
    rows, tile = contraction_tile(low, sides.lanes, some, len(sides.others), target, most=4, rest=0.0)
    if not reads_in_order(model, sides, tile, target):
        return None
    width = tile.vectors * target.lanes(model.itemsize)
    half = replace(model, extents={**model.extents, rows: -(-most // 2)})
    sizes = streamed_sizes(half, sides.lanes, rows, sides.reduced[-1], tile, width, target)
    near = target.l1_bytes // 2
    worth = (Product((ends[rows],), most=most), *_worth_in_order(scop, sides, ends, width, near, target))
    return replace(blocks_of(model, sides, rows, tile, width, sizes, packed=False), ends=ends, worth=worth)


def blocks_of(
    model: StatementModel,
    sides: Sides,
    rows: str,
    tile: RegisterTile,
    width: int,
    sizes: dict[str, int],
    *,
    packed: bool,
) -> Blocking:
    """Blocks of these sizes, of which nothing but the vector operand may be packed."""
    out = sides.out
    return Blocking(
        statement=model.name,
        lanes=sides.lanes,
        rows=rows,
        tile=tile,
        width=width,
        batch=tuple(sides.batch),
        vector_side=tuple(by_stride(sides.columns, out)),
        row_side=tuple(i for i in by_stride(sides.rows, out) if i != rows),
        reduced=tuple(sides.reduced),
        extents=dict(model.extents),
        sizes=sizes,
        vector_operand=sides.operand.array,
        packed=packed,
        row_operand=None,
        source_order=tuple(_source_order(sides, model, width // tile.vectors)),
    )


def _in_strips(
    model: StatementModel, sides: Sides, rows: str, tile: RegisterTile, width: int, *, packed: bool
) -> Blocking:
    """Strips of the vector operand, the whole reduction at a time."""
    sizes = {index: model.extents[index] for index in (*sides.reduced, rows)}
    if packed:
        sizes |= {**dict.fromkeys(sides.columns, 1), sides.lanes: width}
    return replace(blocks_of(model, sides, rows, tile, width, sizes, packed=packed), strips=not packed)


def _in_turns(scop: Scop, model: StatementModel, sides: Sides, across: str, target: Target) -> Blocking | None:
    """Blocks of the vector operand for one value of `across` at a time, or strips of it, a vector of which is finished before the result is laid out along it."""
    out, operand = sides.out, sides.operand
    if sides.batch or len(sides.others) != 1 or not _pays(model, operand, sides, target, turned=False):
        return None
    inner = by_stride(sides.rows, out)[::-1]
    rows, tile = contraction_tile(model, sides.lanes, inner, 1, target, most=4, rest=0.0)
    width, few = tile.vectors * target.lanes(model.itemsize), _laid_out_together(model, sides, across, target)
    others = [i for i in sides.columns if i != across]
    waiting = few * prod(model.extents[i] for i in sides.rows)
    strips = strips_of(scop, model, sides, rows, tile, target) == "in place"
    depth = {i: model.extents[i] for i in sides.reduced} if strips else shares(model, sides, tile, target)
    # Twice as much of L2 as elsewhere: long rows of the operand are what memory delivers fast.
    deep = waiting if strips else max(prod(depth.values()), waiting)
    blocks = widths(model, sides, others, width, max(1, deep // 2), target, first=sides.lanes)
    alone = blocks[sides.lanes] < model.extents[sides.lanes] or prod(blocks[i] for i in others if i != sides.lanes) == 1
    if strips and few > target.lanes(model.itemsize) and alone:
        # Of a part of a row, or of one whose neighbour is in another block, tiles would ask for lines behind theirs, which are not the next ones.
        blocks[sides.lanes] = min(width, blocks[sides.lanes])
    sizes = {**depth, **blocks, across: 1, rows: model.extents[rows]}
    return replace(
        blocks_of(model, sides, rows, tile, width, sizes, packed=not strips),
        strips=strips,
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
) -> dict[str, int]:
    """Iterations per block. depth: those of the reduction; short: it is one block, and C is written in the order of its memory."""
    width = tile.vectors * target.lanes(model.itemsize)
    deep = prod(UNKNOWN_DEPTH if d == UNBOUNDED else d for d in depth.values())
    if not packed:
        return streamed_sizes(model, sides.lanes, rows, sides.reduced[-1], tile, width, target)
    if short:
        near = columns_in_l1(model, sides, deep, width, target)
        whole = whole_sizes(model, sides, width, deep, target, near=near)
        return {**depth, **whole, **{index: model.extents[index] for index in sides.rows}}
    along = rows_along(sides)
    swept = along and not turned and len(sides.reduced) == 1
    blocks = widths(model, sides, sides.columns, width, deep, target, first=sides.first, along=along, swept=swept)
    of_rows = even(model.extents[rows], target.l2_bytes // 8 // (deep * model.itemsize), tile.rows)
    return {**depth, **blocks, rows: of_rows}


def _source_order(sides: Sides, model: StatementModel, vector: int) -> list[str]:
    """The loops that pack a block of the vector operand. vector: elements of one."""
    order = by_stride([*sides.columns, *sides.reduced, sides.lanes], sides.operand)
    if sides.first == sides.lanes:
        return order
    # Rows of the operand along its own contiguous index, a vector of them at a time, are transposed in registers; short ones with those that follow in memory (codegen/collapse_copies.py).
    rows = [sides.first]
    before = [i for i in sides.reduced if i != sides.first]
    while sides.reduced[-1] == sides.first and before and model.extents[sides.first] < vector:
        if sides.operand.stride(before[-1]) != model.extents[rows[0]] * (sides.operand.stride(rows[0]) or 0):
            break
        rows.insert(0, before.pop())
    return [*(i for i in order if i != sides.lanes and i not in rows), sides.lanes, *rows]


def _worth(
    scop: Scop, model: StatementModel, sides: Sides, ends: Mapping[str, Affine], target: Target, *, turned: bool
) -> tuple[Product, ...]:
    """What `_pays` asks of numbers, of symbolic extents at a call, but of operands that L1 holds; of lanes that a turned plan has instead of others, a vector."""
    array = scop.arrays[sides.operand.array]
    found: list[Product] = []
    if not turned or sides.operand.stride(sides.lanes) == 1:
        in_l1 = target.l1_bytes // 2 // array.dtype.itemsize + 1
        found.append(Product(array.shape, in_l1 if _waits_for_rows(model, sides, target) else LEAST_PANEL))
    if turned and sides.lanes in ends:
        found.append(Product((ends[sides.lanes],), target.lanes(array.dtype.itemsize)))
    for indices, least in ((sides.rows, MIN_REUSE), (sides.reduced, MIN_DEPTH)):
        known = prod(model.extents[i] for i in indices if i not in ends)
        if known < least:
            found.append(Product(tuple(ends[i] for i in indices if i in ends), -(-least // known)))
    return tuple(found)


def _waits_for_rows(model: StatementModel, sides: Sides, target: Target) -> bool:
    """Whether calls like the one at hand have so few columns that rows come from memory all the time: tiles without panels fetch more of these ahead."""
    if sides.lanes not in model.likely or sides.columns:
        return False
    counts = {**model.extents, **model.likely}
    rows = prod(counts[i] for i in counts if any(other.stride(i) != 0 for other in sides.others))
    few = counts[sides.lanes] <= UNKNOWN_VECTORS * target.lanes(model.itemsize)
    return few and rows * model.itemsize > 4 * target.l2_bytes


def _worth_in_order(
    scop: Scop, sides: Sides, ends: Mapping[str, Affine], width: int, cache: int, target: Target
) -> tuple[Product, ...]:
    """What `reads_in_order` asks of numbers, of symbolic extents at a call: more than `cache` bytes."""
    array = scop.arrays[sides.operand.array]
    single = [Product((ends[sides.lanes],), width + 1)] if sides.lanes in ends else []
    single += [Product((ends[i],), MIN_DEPTH) for i in sides.reduced if i in ends]
    return (Product(array.shape, cache // array.dtype.itemsize + 1), *single)


def _pays(
    model: StatementModel,
    operand: AccessModel,
    sides: Sides,
    target: Target,
    *,
    turned: bool,
    least: int = MIN_REUSE,
) -> bool:
    reuse = prod(model.extents[i] for i in sides.rows)
    depth = prod(model.extents[i] for i in sides.reduced)
    size = model.itemsize * prod(e for i, e in model.extents.items() if operand.stride(i) != 0 and i not in sides.batch)
    large = size > target.l1_bytes // 2 or (turned and operand.stride(sides.lanes) != 1)
    return reuse >= least and depth >= MIN_DEPTH and large


def _suits_lanes_along_sum(scop: Scop, model: StatementModel, sides: Sides, target: Target) -> bool:
    """Whether fewer columns than lanes would leave many of these idle, and both operands are contiguous along the sum: lanes run along that then (strategy/side_by_side.py), and nothing is turned."""
    operand, columns = sides.operand, model.extents[sides.lanes]
    lanes = target.lanes(model.itemsize)
    idle = ceil(columns / lanes) * lanes / columns >= IDLE and columns * model.itemsize < target.line_bytes
    along = all(access.stride(sides.reduced[-1]) == 1 for access in (operand, *sides.others))
    plain = len(sides.reduced) == 1 and not sides.columns and not sides.batch and len(sides.others) == 1
    near = columns * model.extents[sides.reduced[-1]] * model.itemsize <= target.l2_bytes
    return plain and along and idle and near and not scop.arrays[operand.array].constant


def reads_in_order(model: StatementModel, sides: Sides, tile: RegisterTile, target: Target) -> bool:
    """Whether memory is what it waits for: a contiguous operand that no private cache holds, each element read a few times at once, in rows that are longer than a register tile."""
    operand = sides.operand
    if model.extents[sides.lanes] <= tile.vectors * target.lanes(model.itemsize):
        return False
    size = model.itemsize * prod(e for i, e in model.extents.items() if operand.stride(i) != 0)
    few = model.instances * model.itemsize < MIN_REUSE * size
    plain = operand.stride(sides.lanes) == 1 and len(sides.reduced) == 1 and not sides.columns
    return few and plain and size > target.l2_bytes


def _vectors_in_l2(model: StatementModel, reduced: list[str], ends: Mapping[str, Affine], target: Target) -> int:
    """Vectors of a panel over the whole reduction, of which L2 should hold two, the one in use and the next, beside the other operand."""
    if any(i in ends for i in reduced):
        return UNKNOWN_VECTORS
    one = prod(model.extents[i] for i in reduced) * target.vector_bytes
    return max(1, min(4, 3 * target.l2_bytes // 8 // one))


def _columns(model: StatementModel, sides: Sides, ends: Mapping[str, Affine], target: Target) -> int:
    """Vectors of a register tile at most. Of columns of unknown number: UNKNOWN_VECTORS, or one more where the call at hand has so few that less is left of these."""
    if sides.lanes not in ends:
        return 4
    likely, lanes = model.likely.get(sides.lanes), target.lanes(model.itemsize)

    def tiles(vectors: int) -> float:
        """How many vectors' time they take: the last vectors of a tile overlap, a single one is bound by its loads."""
        full, rest = divmod(likely or 0, vectors * lanes)
        return vectors * full + (vectors if rest > lanes else 1.25 if rest else 0)

    more = UNKNOWN_VECTORS + 1
    return more if likely is not None and tiles(more) < 0.95 * tiles(UNKNOWN_VECTORS) else UNKNOWN_VECTORS
