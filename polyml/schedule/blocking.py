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
from polyml.schedule.block_order import columns_in_l1, rows_to_l1, tile_order
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
from polyml.schedule.contraction_tiles import contraction_tile, rest_lanes, tile_across, tile_and_rest
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

NEAR = 8
"""Cache lines of a row of the vector operand up to which blocks of its rows are read where they lie, one after the other."""

FEW_USES = 128
"""Uses of such an element below which the copy would show."""

FEW_USES_IN_L2 = 80
"""The same for one that L2 holds: with more uses what lies across two lines costs as much as the copy."""

MIN_DEPTH = 16
"""Length of the reduction below which the tile of C is all that matters."""

FEW_PANELS = 16
"""Panels of the vector operand up to which rows that L2 holds are read from there, however far apart their elements are. One panel reads each element once: 60 x 4 rows of 200 terms, every fourth element of x, times 32 columns 52 us packed, 27 where they lie."""

IDLE = 1.2
"""Lanes for each column from which on sums along lanes are better. 24 rows of 400 terms times 11, 12, 13 and 14 columns: 0.66, 0.71, 0.77 and 0.81 of the time, 300 rows 0.71, 0.77, 0.85 and 0.93."""

LEAST_PANEL = 256
"""Elements of a vector operand of symbolic size below which it is read where it lies. Where numbers say that L1 holds it, tiles are made for it; of sizes that are not known packed tiles are the ones that know how
their rows lie."""

UNKNOWN_DEPTH = 1024
"""What stands for a reduction of symbolic length that has to be finished while its sums are in registers."""

UNKNOWN_VECTORS = 2
"""Of a panel over a reduction of symbolic length: 512 channels of 3 x 3 fit in 1 MiB so. Of a register tile whose columns are of unknown number, too: the fewer it has, the fewer are left at the end, and two
keep the units as busy as three."""

TALLEST_TURNED = 28
"""Rows of a register tile at most, where they are points of windows, whose addresses are one and constants."""

MEETINGS = 4
"""Panels that rows which meet in L1 are multiplied with, at least, for packing these rows to pay."""

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
    inner = inner[:1] if turned else inner
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
    if tile.rows > target.l1_bytes // WAY and not (ends or turned) and _waits_in_l1(model, sides, rows, tile, target):
        rows, tile = contraction_tile(
            model, sides.lanes, [rows], len(sides.others), target, most=most, rest=rest, tallest=target.l1_bytes // WAY
        )
    least = MIN_REUSE if not scop.arrays[sides.operand.array].constant else LEAST_CONSTANT
    packed = _pays(model, sides.operand, sides, target, turned=turned, least=least)
    if packed and not (ends or turned) and _suits_lanes_along_sum(scop, model, sides, target):
        return None
    return _blocks(scop, model, sides, ends, target, rows, tile, packed=packed, turned=turned, at_hand=at_hand)


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
    apart = packed and not turned and not ends and not _is_near(model, sides, {}, target)
    strips = strips_of(scop, model, sides, rows, tile, target, parts=_is_alone(scop, statement)) if apart else None
    if strips is not None:
        made = _in_strips(model, sides, rows, tile, width, packed=strips == "packed")
        return replace(made, sizes={**made.sizes, **strip_depth(model, sides, width, target)})
    if not packed and not reads_in_order(model, sides, tile, target):
        return None
    depth = depths(scop, statement, model, sides, tile, target)
    finished = depth != shares(model, sides, tile, target)
    short = packed and not turned and is_short(model, out, depth, width, target)
    sizes = _sizes(model, sides, rows, tile, depth, target, packed=packed, short=short)
    if turned and packed and _panel_by_panel(scop, sides, target):
        sizes[sides.lanes] = width
    windows = any(not is_plain(read.subscripts) for read in reads_of(statement.value))
    packs_rows = packed and not windows and not turned
    tall = at_hand and tile.rows > UNKNOWN_ROWS
    meet = packs_rows and _meet(model, sides, rows, tile, depth, target)
    row_operand = (
        _packed_rows(model, sides, rows, tile, target, short=short, tall=tall, meet=meet) if packs_rows else None
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
        in_place=packs_rows
        and not (ends or short or row_operand)
        and (_is_near(model, sides, sizes, target) or _is_held(scop, model, sides, target)),
        ends=ends,
        worth=() if not ends else _worth(scop, model, sides, ends, target, turned=turned) if packed else in_order,
    )


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


def _panel_by_panel(scop: Scop, sides: Sides, target: Target) -> bool:
    """Whether each panel of the vector operand is a block. Panels of constants are made once and lie one after the other, so that larger blocks gain nothing but fewer sweeps over the other operand, from L2; and nobody asks
    ahead for the first block, for which the first sweep waits."""
    if sides.columns or len(sides.others) != 1 or not scop.arrays[sides.operand.array].constant:
        return False
    other = scop.arrays[sides.others[0].array]
    known = all(extent.is_constant for extent in other.shape)
    return known and other.dtype.itemsize * prod(extent.constant for extent in other.shape) <= target.l2_bytes


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
        source_order=tuple(_source_order(sides)),
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
    width, few = tile.vectors * target.lanes(model.itemsize), target.lanes(model.itemsize)
    others = [i for i in sides.columns if i != across]
    waiting = few * prod(model.extents[i] for i in sides.rows)
    strips = strips_of(scop, model, sides, rows, tile, target) == "in place"
    depth = {i: model.extents[i] for i in sides.reduced} if strips else shares(model, sides, tile, target)
    # Twice as much of L2 as elsewhere: long rows of the operand are what memory delivers fast.
    deep = waiting if strips else max(prod(depth.values()), waiting)
    blocks = widths(model, sides, others, width, max(1, deep // 2), target, first=sides.lanes)
    sizes = {**depth, **blocks, across: 1, rows: model.extents[rows]}
    return replace(
        blocks_of(model, sides, rows, tile, width, sizes, packed=not strips),
        strips=strips,
        turned=True,
        across=across,
        together=min(few, model.extents[across]),
    )


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
    blocks = widths(model, sides, sides.columns, width, deep, target, first=sides.first, along=along)
    of_rows = even(model.extents[rows], target.l2_bytes // 8 // (deep * model.itemsize), tile.rows)
    return {**depth, **blocks, rows: of_rows}


def _source_order(sides: Sides) -> list[str]:
    """The loops that pack a block of the vector operand."""
    order = by_stride([*sides.columns, *sides.reduced, sides.lanes], sides.operand)
    if sides.first == sides.lanes:
        return order
    # Rows of the operand along its own contiguous index, a vector of them at a time, are transposed in registers.
    return [*(i for i in order if i not in (sides.lanes, sides.first)), sides.lanes, sides.first]


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


def _packed_rows(
    model: StatementModel,
    sides: Sides,
    rows: str,
    tile: RegisterTile,
    target: Target,
    *,
    short: bool,
    tall: bool,
    meet: bool,
) -> str | None:
    """The broadcast operand, when its elements along the reduction are apart and it does not stay close anyway (in L1, or in L2 where a tile's rows are neighbours, one or two cache lines
    per iteration, or panels are few), or its rows `meet`. short: C is written in the order of its memory, and rows that L1 holds packed only are packed, too. tall: a tile has more rows than there are registers for their addresses, since distances of rows are no numbers."""
    operand, reduced = sides.others[0], sides.reduced
    size = model.itemsize * prod(e for i, e in model.extents.items() if operand.stride(i) != 0 and i not in sides.batch)
    apart = abs(operand.stride(reduced[-1]) or 0) != 1
    near = _panels(model, sides, tile, target) <= FEW_PANELS or abs(operand.stride(rows) or 0) == 1
    close = target.l2_bytes if near else target.l1_bytes
    needed = (apart and size > close // 2) or meet or (short and (rows_to_l1(model, sides, target) or tall))
    held = operand.stride(rows) != 0 and all(operand.stride(i) != 0 for i in reduced)
    return operand.array if len(sides.others) == 1 and needed and held else None


def _meet(
    model: StatementModel, sides: Sides, rows: str, tile: RegisterTile, depth: Mapping[str, int], target: Target
) -> bool:
    """Whether a tile's rows lie pages apart, so that their lines, half of one and more for each term, meet in sets of L1 that have no room for them beside a panel, which L1 would hold otherwise."""
    panel = prod(depth.values()) * tile.vectors * target.vector_bytes
    many = 2 * tile.rows * model.itemsize > target.line_bytes and _panels(model, sides, tile, target) >= MEETINGS
    return (
        many
        and _pages_apart(model, sides, rows)
        and 2 * panel <= target.l1_bytes < WAY * (tile.rows + ceil(panel / WAY))
    )


def _pages_apart(model: StatementModel, sides: Sides, rows: str) -> bool:
    """Whether rows of the broadcast operand lie a multiple of a page apart, so that lines at the same place of each meet in one set of L1."""
    step = abs(sides.others[0].stride(rows) or 0) * model.itemsize
    return step > 0 and step % WAY == 0


def _waits_in_l1(model: StatementModel, sides: Sides, rows: str, tile: RegisterTile, target: Target) -> bool:
    """Whether a tile's rows, which meet in L1, are used too few times for packing them."""
    return bool(sides.others) and _pages_apart(model, sides, rows) and _panels(model, sides, tile, target) < MEETINGS


def _panels(model: StatementModel, sides: Sides, tile: RegisterTile, target: Target) -> int:
    """Panels that each row of the broadcast operand is multiplied with."""
    width = tile.vectors * target.lanes(model.itemsize)
    return prod(model.extents[i] for i in sides.columns) * ceil(model.extents[sides.lanes] / width)


def _is_near(model: StatementModel, sides: Sides, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether rows of the vector operand are short and lie one after the other, so that a block of them is contiguous and no copy would bring it closer; of few uses."""
    lanes, operand = sides.lanes, sides.operand
    row = model.extents[lanes]
    dense = operand.stride(lanes) == 1 and len(sides.reduced) == 1 and operand.stride(sides.reduced[0]) == row
    whole = not sides.columns and sizes.get(lanes, row) == row and row % target.lanes(model.itemsize) == 0
    few = prod(model.extents[i] for i in sides.rows) < FEW_USES
    return dense and whole and few and row * model.itemsize <= NEAR * target.line_bytes


def _is_held(scop: Scop, model: StatementModel, sides: Sides, target: Target) -> bool:
    """Whether L2 holds all of the vector operand, of few uses: what is far apart there is as near as a copy would be. Beyond L2 a copy is read in order, which is faster."""
    operand = sides.operand
    size = model.itemsize * prod(e for i, e in model.extents.items() if operand.stride(i) != 0)
    few = prod(model.extents[i] for i in sides.rows) < FEW_USES_IN_L2 and not scop.arrays[operand.array].constant
    plain = operand.stride(sides.lanes) == 1 and len(sides.reduced) == 1 and not sides.columns
    return few and plain and size <= target.l2_bytes
