"""Products with as few rows as the call at hand has, of symbolic extents: all rows in one register tile, or in even ones.

Few rows of unknown number are tiles of 4, 2 and 1, each of which reads the vector operand, and of which the small ones wait for their loads. What is called with few rows (a batch, a window) is mostly called with
as many again: a version for multiples of the tile that suits these has no other tiles. All other extents stay symbolic.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyml.schedule.blocking.blocks import Blocking, blocks_of
from polyml.schedule.blocking.in_order import reads_in_order
from polyml.schedule.blocking.register_tile import contraction_tile
from polyml.schedule.blocking.sides import Sides, is_turned
from polyml.schedule.blocking.sizes import streamed_sizes
from polyml.schedule.blocking.symbolic import Contraction, at_hand
from polyml.schedule.blocking.tile_limits import REST_AT_HAND
from polyml.schedule.blocking.worth import MIN_DEPTH, MIN_REUSE
from polyml.schedule.cost import StatementModel
from polyml.schedule.large_enough import within
from polyml.schedule.register_tiles import RegisterTile
from polyml.schedule.schedule import Product
from polyml.scop.scop import Scop
from polyml.target import Target

__all__ = ["plan_rows_at_hand"]

LEAST_VECTORS = 2
"""Of a tile of all rows: with one, each step loads as many elements of the rows as it has sums."""


def plan_rows_at_hand(scop: Scop, model: StatementModel, target: Target) -> Blocking | None:
    """The plan for few rows of symbolic number, of which the call at hand has two or more; None where it has many, or where these are no numbers."""
    call = at_hand(scop, model)
    if call is None or len(call.sides.rows) != 1 or call.sides.rows[0] not in call.ends:
        return None
    numbers, sides, (rows,) = call.model, call.sides, call.sides.rows
    contiguous = sides.operand.stride(sides.lanes) == 1 and not call.is_constant
    if call.reads_windows or not contiguous or sides.columns or len(sides.others) != 1:
        return None
    if is_turned(scop, call.statement, sides.lanes):
        return None
    if numbers.extents[rows] >= MIN_REUSE or prod(numbers.extents[i] for i in sides.reduced) < MIN_DEPTH:
        return None
    tile = _tile(numbers, sides, rows, target)
    if tile is None:
        return None
    width = tile.vectors * target.lanes(numbers.itemsize)
    streams = reads_in_order(numbers, sides, tile, target)
    if streams:
        sizes = streamed_sizes(numbers, sides, rows, tile, width, target)
    else:
        sizes = {index: numbers.extents[index] for index in (*sides.reduced, rows)}
    plan = replace(blocks_of(numbers, sides, rows, tile, width, sizes, packed=False), strips=not streams)
    return replace(plan, ends=call.ends, worth=_limits(call, plan, target))


def _tile(model: StatementModel, sides: Sides, rows: str, target: Target) -> RegisterTile | None:
    """All rows, where strips of the operand are too much for L1 to keep them for the next tile, and two vectors have registers; else an even part of them. None where that is one row of several."""
    count = model.extents[rows]
    _, tile = contraction_tile(model, sides.lanes, [rows], 1, target, most=4, rest=REST_AT_HAND)
    depth = prod(model.extents[i] for i in sides.reduced)
    again = tile.rows < count and 3 * depth * tile.vectors * target.vector_bytes > 2 * target.l1_bytes
    vectors = min(
        4, (target.vector_registers - 3) // (count + 1), -(-model.extents[sides.lanes] // target.lanes(model.itemsize))
    )
    if again and vectors >= LEAST_VECTORS:
        return replace(tile, rows=count, vectors=vectors)
    return None if count % tile.rows else tile


def _limits(call: Contraction, plan: Blocking, target: Target) -> tuple[Product, ...]:
    """Whole tiles of rows, few of them; an operand that L2 holds or does not, as at hand; at least one whole tile of lanes."""
    l2 = target.l2_bytes // call.model.itemsize
    held = call.extents(i for i in call.model.extents if call.sides.operand.stride(i) != 0)
    found = [Product((call.ends[plan.rows],), plan.tile.rows, MIN_REUSE - 1, multiple=plan.tile.rows)]
    found += within(held, l2 + 1) if plan.streams else within(held, most=l2)
    found += within(call.extents([plan.lanes]), plan.width)
    found += within(call.extents(plan.reduced[-1:]), MIN_DEPTH)
    if plan.streams and not plan.blocked(plan.lanes):
        # Rows of the result stay in L2 from one block of the reduction to the next.
        found += within(call.extents([plan.lanes]), most=l2 // (2 * MIN_REUSE))
    return tuple(found)
