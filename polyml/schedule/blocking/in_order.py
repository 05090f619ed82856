"""Contractions that wait for memory: few rows, for which a large vector operand is read once, in order, and added to sums in a nearer cache.

Nothing is copied, so that numbers may be narrower than those computed with (weights in bytes, half precision), and a row may be made in the same region.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyml.schedule.blocking.blocks import Blocking, blocks_of
from polyml.schedule.blocking.register_tile import contraction_tile
from polyml.schedule.blocking.sides import Sides
from polyml.schedule.blocking.sizes import rows_meet_in_l1, streamed_rows, streamed_sizes
from polyml.schedule.blocking.strips import LEAST_ROW, WAY
from polyml.schedule.blocking.symbolic import Contraction, at_large
from polyml.schedule.blocking.worth import MIN_DEPTH, MIN_REUSE
from polyml.schedule.cost import StatementModel
from polyml.schedule.register_tiles import FEW_ROWS, RegisterTile
from polyml.schedule.schedule import Product
from polyml.scop.scop import Scop
from polyml.target import Target

__all__ = ["comes_again", "in_order_worth", "plan_few_rows", "reads_in_order", "tile_of_all_rows"]


def plan_few_rows(scop: Scop, model: StatementModel, target: Target) -> Blocking | None:
    """What few rows of symbolic number ask for, all other symbolic extents being large: the vector operand read once, in order, where no cache holds it; None where rows are of known number, or there is no such operand."""
    given = at_large(scop, model)
    if given is None:
        return None
    model, sides, ends = given.model, given.sides, given.ends
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
    sizes = streamed_sizes(half, sides, rows, tile, width, target)
    near = target.l1_bytes // 2
    worth = (Product((ends[rows],), most=most), *in_order_worth(given, width, near))
    return replace(blocks_of(model, sides, rows, tile, width, sizes, packed=False), ends=ends, worth=worth)


def reads_in_order(model: StatementModel, sides: Sides, tile: RegisterTile, target: Target) -> bool:
    """Whether memory is what it waits for: a contiguous operand that no private cache holds (of narrow numbers one that would not be held as wide ones: tiles that go down its rows have a line of each, a page apart), each element read a few times at once, in rows that are longer than a register tile."""
    operand = sides.operand
    if model.extents[sides.lanes] <= tile.vectors * target.lanes(model.itemsize):
        return False
    size = model.itemsize * prod(e for i, e in model.extents.items() if operand.stride(i) != 0)
    few = model.instances * model.itemsize < MIN_REUSE * size
    plain = operand.stride(sides.lanes) == 1 and len(sides.reduced) == 1 and not sides.columns
    return few and plain and size > target.l2_bytes


def comes_again(model: StatementModel, sides: Sides, tile: RegisterTile, target: Target) -> bool:
    """Whether what is read in order would come to L1 several times: its rows lie a multiple of a page apart and meet in one set, with those of the result, and several register tiles, one after the other, use a line or so of each. Packed, they do not
    meet. Either more rows are read at a time than L1 has ways, or they come from memory, for which there is no line buffer left then.

    Zen 3, 12 rows times 1024 x 1024, 2048 x 2048, 4096 x 4096: 0.76, 2.4, 13.8 ms, packed 0.43, 1.9, 8.4, in f64 27.9 and 17.1 (4096); 8 rows, eight at a time, times 1024 x 1024 and 4096 x 4096 0.31 and 11.3, packed 0.40 and 8.8; one tile: four rows 3.7 and 7.5 (4096)."""
    again = prod(model.extents[i] for i in sides.rows) > tile.rows
    if not (again and rows_meet_in_l1(model, sides) and _is_in_narrow_tiles(model, sides, tile, target)):
        return False
    return streamed_rows(model, sides, tile, target) > target.l1_bytes // WAY or _is_from_memory(model, sides, target)


def tile_of_all_rows(given: Contraction, tile: RegisterTile, target: Target) -> RegisterTile:
    """The tile, or one of all rows of the result and one vector, where several tiles would have what is read in order come again (`comes_again`), and the sums have memory of their own, in which they do not meet with it (graph/rules/layouts/sums_apart.py)."""
    model, sides = given.model, given.sides
    count = prod(model.extents[i] for i in sides.rows)
    local = given.scop.arrays[given.statement.target.array].kind == "local"
    if not local or len(sides.rows) != 1 or not tile.rows < count <= target.l1_bytes // WAY:
        return tile
    if not (rows_meet_in_l1(model, sides) and _is_in_narrow_tiles(model, sides, tile, target)):
        return tile
    return replace(tile, rows=count, vectors=1) if _is_from_memory(model, sides, target) else tile


def _is_from_memory(model: StatementModel, sides: Sides, target: Target) -> bool:
    """Whether the last cache does not keep it from call to call."""
    size = model.itemsize * prod(e for i, e in model.extents.items() if sides.operand.stride(i) != 0)
    return size >= target.l3_bytes // 2


def _is_in_narrow_tiles(model: StatementModel, sides: Sides, tile: RegisterTile, target: Target) -> bool:
    """Whether it is read in order, a line or so at a time."""
    narrow = tile.vectors * target.vector_bytes < LEAST_ROW * target.line_bytes
    return narrow and reads_in_order(model, sides, tile, target)


def in_order_worth(given: Contraction, width: int, cache: int) -> tuple[Product, ...]:
    """What `reads_in_order` asks of numbers, of symbolic extents at a call: more than `cache` bytes."""
    sides, ends = given.sides, given.ends
    array = given.scop.arrays[sides.operand.array]
    single = [Product((ends[sides.lanes],), width + 1)] if sides.lanes in ends else []
    single += [Product((ends[i],), MIN_DEPTH) for i in sides.reduced if i in ends]
    return (Product(array.shape, cache // array.dtype.itemsize + 1), *single)
