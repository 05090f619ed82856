"""How a blocked contraction reaches its operands: which rows of the broadcast operand are packed, and where the vector operand is as good where it lies as in panels."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, gcd, prod

from polyml.schedule.blocking.order import rows_to_l1
from polyml.schedule.blocking.sides import Sides
from polyml.schedule.blocking.sizes import MUCH_READ, even, rows_pass
from polyml.schedule.blocking.strips import WAY
from polyml.schedule.cost import StatementModel
from polyml.schedule.register_tiles import RegisterTile
from polyml.scop.scop import Scop
from polyml.sets.shapes import element_count
from polyml.target import Target

__all__ = [
    "has_panels",
    "is_held",
    "is_near",
    "is_read_once",
    "lines_fit",
    "lines_meet",
    "packed_rows",
    "pages_apart",
    "panel_by_panel",
    "rows_meet",
    "terms_in_l1",
    "waits_in_l1",
]

NEAR = 8
"""Cache lines of a row of the vector operand up to which blocks of its rows are read where they lie, one after the other."""

FEW_USES = 128
"""Uses of an element of the vector operand below which its copy would show."""

FEW_USES_IN_L2 = 80
"""The same for one that L2 holds: with more uses what lies across two lines costs as much as the copy."""

FEW_ROW_USES = 256
"""Uses of an element of the broadcast operand below which its copy shows, where its rows are contiguous along the tile's."""

MANY_VECTORS = 20
"""Vectors of the vector operand that an element of the broadcast operand is multiplied with, at least, for a copy of it, a cycle, to be less than what reading its line from L2 for each panel takes: Zen 3, per cent of the peak, f32 256 tn, tt 82, 85 -> 90, 91, 160 83, 90 -> 86.5, 85."""

FEW_PANELS = 16
"""Panels of the vector operand up to which rows that L2 holds are read from there, however far apart their elements are. One panel reads each element once: 60 x 4 rows of 200 terms, every fourth element of x, times 32 columns 52 us packed, 27 where they lie."""

FEWEST_TERMS = 32
"""Terms of a block that L1 holds, at least: to load and to store a sum takes as long as some four of them."""

USES_OF_STRIPS = 64
"""Uses of an element of the vector operand, at least, for strips of it, packed, over a whole sum that L1 has room for."""

MEETINGS = 4
"""Panels that rows which meet in L1 are multiplied with, at least, for packing these rows to pay."""


def panel_by_panel(scop: Scop, sides: Sides, target: Target) -> bool:
    """Whether each panel of the vector operand is a block. Panels of constants are made once and lie one after the other, so that larger blocks gain nothing but fewer sweeps over the other operand, from L2; and nobody asks
    ahead for the first block, for which the first sweep waits."""
    if not has_panels(scop, sides) or not scop.arrays[sides.operand.array].constant:
        return False
    other = scop.arrays[sides.others[0].array]
    return other.dtype.itemsize * element_count(other.shape) <= target.l2_bytes


def has_panels(scop: Scop, sides: Sides) -> bool:
    """Whether panels of the vector operand follow each other along one index, and there is one other operand, of known size."""
    if sides.columns or len(sides.others) != 1:
        return False
    return all(extent.is_constant for extent in scop.arrays[sides.others[0].array].shape)


def packed_rows(
    model: StatementModel,
    sides: Sides,
    rows: str,
    tile: RegisterTile,
    target: Target,
    *,
    short: bool,
    tall: bool,
    meet: bool,
    once: bool,
) -> str | None:
    """The broadcast operand, when its elements along the reduction are apart and it does not stay close anyway (in L1, or in L2 where a tile's rows are neighbours, one or two cache lines
    per iteration, or panels are few), unless it is read `once` (`is_read_once`), or its rows or their lines `meet`. short: C is written in the order of its memory, and rows that L1 holds packed only are packed, too. tall: a tile has more rows than there are registers for their addresses, since distances of rows are no numbers."""
    operand, reduced = sides.others[0], sides.reduced
    size = model.itemsize * prod(e for i, e in model.extents.items() if operand.stride(i) != 0 and i not in sides.batch)
    apart = abs(operand.stride(reduced[-1]) or 0) != 1
    near = _panels(model, sides, tile, target) <= FEW_PANELS or abs(operand.stride(rows) or 0) == 1
    close = target.l2_bytes if near else target.l1_bytes
    needed = (apart and size > close // 2) or meet or (short and (rows_to_l1(model, sides, target) or tall))
    if once and not meet:
        return None
    held = operand.stride(rows) != 0 and all(operand.stride(i) != 0 for i in reduced)
    return operand.array if len(sides.others) == 1 and needed and held else None


def is_read_once(scop: Scop, model: StatementModel, sides: Sides, rows: str) -> bool:
    """Whether a tile reads pieces of contiguous rows of the broadcast operand, one for each term, and few tiles read them again: each takes a line or two for all of its rows, as a copy would. Those of constants are made once."""
    if len(sides.others) != 1 or scop.arrays[sides.others[0].array].constant:
        return False
    uses = prod(model.extents[i] for i in (*sides.columns, sides.lanes))
    contiguous = sides.others[0].stride(rows) == 1 and sides.rows == [rows] and len(sides.reduced) == 1
    return contiguous and uses < FEW_ROW_USES


def terms_in_l1(
    scop: Scop, model: StatementModel, sides: Sides, rows: str, tile: RegisterTile, target: Target
) -> dict[str, int] | None:
    """The block of the sum for which L1 holds all rows of the vector operand, and the lines of the other one, where both come in the order of memory and tiles of few registers read faster than L2 delivers: each tile
    reads, for each term, its vectors and a line of the other operand, of which the next tiles have the rest. None where that is no matter, or L1 has no room for enough terms, or L2 for the sums, which each block loads and stores."""
    if not is_read_once(scop, model, sides, rows) or sides.columns or not _reads_much(tile, target):
        return None
    (summed,), (other,) = sides.reduced, sides.others
    if model.extents[rows] >= USES_OF_STRIPS and _per_term(tile, target) * model.extents[summed] <= target.l1_bytes:
        return None
    step = abs(other.stride(summed) or 0) * model.itemsize
    term = model.itemsize * model.extents[sides.lanes] + min(step, 2 * target.line_bytes)
    room = 3 * target.l1_bytes // 4 // max(term, 1)
    if not FEWEST_TERMS <= room < model.extents[summed] or _ways(step, room, target) > target.l1_bytes // WAY:
        return None
    if model.itemsize * model.extents[rows] * model.extents[sides.lanes] > target.l2_bytes // 2:
        return None
    return {summed: even(model.extents[summed], room, target.lanes(model.itemsize))}


def lines_fit(
    model: StatementModel, sides: Sides, tile: RegisterTile, depth: Mapping[str, int], target: Target
) -> bool:
    """Whether L1 has room for a panel and a line of the broadcast operand for each term, or has none for packed rows either, or reads from L2 are no matter."""
    terms = prod(depth.values())
    packed = terms * (tile.vectors * target.vector_bytes + tile.rows * model.itemsize)
    fit = terms * _per_term(tile, target) <= 3 * target.l1_bytes // 4
    return fit or packed > target.l1_bytes or not _reads_much(tile, target)


def _per_term(tile: RegisterTile, target: Target) -> int:
    """Bytes of a panel, and of a line of the broadcast operand."""
    return tile.vectors * target.vector_bytes + target.line_bytes


def _reads_much(tile: RegisterTile, target: Target) -> bool:
    """Whether a tile has so few registers that its vectors and a line for each term come no faster from L2 than it multiplies."""
    read = tile.vectors + target.line_bytes / target.vector_bytes
    return read >= MUCH_READ * tile.rows * tile.vectors / 2


def _ways(step: int, terms: int, target: Target) -> int:
    """Lines in one set of L1, of so many that lie a step apart."""
    return ceil(terms * max(gcd(step, WAY), target.line_bytes) / WAY)


def rows_meet(
    model: StatementModel, sides: Sides, rows: str, tile: RegisterTile, depth: Mapping[str, int], target: Target
) -> bool:
    """Whether a tile's rows lie pages apart, so that their lines meet in sets of L1 that have no room for them beside a panel, which L1 would hold otherwise: half a line and more for each term, or any where
    packed rows pass by panels that stay in L1."""
    panel = prod(depth.values()) * tile.vectors * target.vector_bytes
    many = 2 * tile.rows * model.itemsize > target.line_bytes or rows_pass(model, sides, tile, depth, target)
    return (
        many
        and _panels(model, sides, tile, target) >= MEETINGS
        and pages_apart(model, sides, rows)
        and 2 * panel <= target.l1_bytes < WAY * (tile.rows + ceil(panel / WAY))
    )


def lines_meet(
    model: StatementModel, sides: Sides, rows: str, tile: RegisterTile, depth: Mapping[str, int], target: Target
) -> bool:
    """Whether a tile's rows are neighbours whose lines, one for each term, meet in sets of L1 that are full with them and a panel, and packed rows would pass by panels that stay there: for each panel these lines come from L2 again."""
    operand, (*outer, last) = sides.others[0], sides.reduced
    step = abs(operand.stride(last) or 0) * model.itemsize
    if outer or operand.stride(rows) != 1 or step < target.line_bytes:
        return False
    panel = depth[last] * tile.vectors * target.vector_bytes
    ways, met = target.l1_bytes // WAY, _ways(step, depth[last], target)
    vectors = prod(model.extents[i] for i in (*sides.columns, sides.lanes)) // target.lanes(model.itemsize)
    room = ways - ceil(panel / WAY)
    return vectors >= MANY_VECTORS and met >= room and rows_pass(model, sides, tile, depth, target)


def pages_apart(model: StatementModel, sides: Sides, rows: str) -> bool:
    """Whether rows of the broadcast operand lie a multiple of a page apart, so that lines at the same place of each meet in one set of L1."""
    step = abs(sides.others[0].stride(rows) or 0) * model.itemsize
    return step > 0 and step % WAY == 0


def waits_in_l1(model: StatementModel, sides: Sides, rows: str, tile: RegisterTile, target: Target) -> bool:
    """Whether a tile's rows, which meet in L1, are used too few times for packing them."""
    return bool(sides.others) and pages_apart(model, sides, rows) and _panels(model, sides, tile, target) < MEETINGS


def _panels(model: StatementModel, sides: Sides, tile: RegisterTile, target: Target) -> int:
    """Panels that each row of the broadcast operand is multiplied with."""
    width = tile.vectors * target.lanes(model.itemsize)
    return prod(model.extents[i] for i in sides.columns) * ceil(model.extents[sides.lanes] / width)


def is_near(model: StatementModel, sides: Sides, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether rows of the vector operand are short and lie one after the other, so that a block of them is contiguous and no copy would bring it closer; of few uses."""
    lanes, operand = sides.lanes, sides.operand
    row = model.extents[lanes]
    dense = operand.stride(lanes) == 1 and len(sides.reduced) == 1 and operand.stride(sides.reduced[0]) == row
    whole = not sides.columns and sizes.get(lanes, row) == row and row % target.lanes(model.itemsize) == 0
    few = prod(model.extents[i] for i in sides.rows) < FEW_USES
    return dense and whole and few and row * model.itemsize <= NEAR * target.line_bytes


def is_held(scop: Scop, model: StatementModel, sides: Sides, target: Target) -> bool:
    """Whether L2 holds all of the vector operand, of few uses: what is far apart there is as near as a copy would be. Beyond L2 a copy is read in order, which is faster."""
    operand = sides.operand
    size = model.itemsize * prod(e for i, e in model.extents.items() if operand.stride(i) != 0)
    few = prod(model.extents[i] for i in sides.rows) < FEW_USES_IN_L2 and not scop.arrays[operand.array].constant
    plain = operand.stride(sides.lanes) == 1 and len(sides.reduced) == 1 and not sides.columns
    return few and plain and size <= target.l2_bytes
