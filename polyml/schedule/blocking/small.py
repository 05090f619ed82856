"""Blocks of a contraction of symbolic extents for calls whose operands caches hold: rows are read where they lie, and so is a vector operand that is contiguous along the lanes.

For sizes at large both operands are packed, since nobody knows how far apart their rows are. Of a product of 20 to 300 rows and columns that is a large part of the time: elements are used a few times. So there is
a version without, which those calls take that have little to fear of rows as they are (`small_limits`); and calls for which packing does not pay, however large they are.

Zen 3, f32, one thread, time of the packed version relative to this one: 33 x 20 x 150 1.6, 20 x 20 x 20 1.3, 150 x 7 x 150 1.9; 20 x 200 x 100 1.2. Of batches: 300 of 33 x 35 x 37 1.05, 50 of 100 x 64 x 96 0.86, 30 of 130 x 130 x 130 0.76,
7 of 250 x 255 x 251 0.65.
"""

from __future__ import annotations

from dataclasses import replace

from polyml.schedule.blocking.blocks import Blocking
from polyml.schedule.blocking.plan import plan_blocks
from polyml.schedule.blocking.sides import is_turned
from polyml.schedule.blocking.strips import WAY, in_strips
from polyml.schedule.blocking.symbolic import Contraction, at_large
from polyml.schedule.blocking.tile_limits import UNKNOWN_VECTORS, chosen_tile, tile_limits
from polyml.schedule.blocking.worth import panels_worth
from polyml.schedule.cost import StatementModel
from polyml.schedule.large_enough import within
from polyml.schedule.schedule import Product
from polyml.scop.scop import Scop
from polyml.target import Target

__all__ = ["plan_small", "small_limits"]


def plan_small(scop: Scop, model: StatementModel, target: Target) -> Blocking | None:
    """The plan of the contraction without packed rows; None where its extents are numbers, where rows are not packed anyway, or it is none of two operands that lie in memory, with rows along one index. `worth` says where lanes along the sum are no better."""
    given = _given(scop, model)
    if given is None:
        return None
    model, sides = given.model, given.sides
    if not _is_in_place(given):
        plan = plan_blocks(given, target)
        if plan is None or plan.row_operand is None:
            return None
        bare = replace(plan, row_operand=None, rows_ahead=False, rows_in_l2=0, one_kind=False)
        return replace(bare, worth=panels_worth(given))
    rows, tile, _ = chosen_tile(given, tile_limits(given, target, turned=False, at_hand=False), target, turned=False)
    width = tile.vectors * target.lanes(model.itemsize)
    return replace(in_strips(model, sides, rows, tile, width, packed=False), ends=given.ends)


def small_limits(scop: Scop, model: StatementModel, target: Target) -> tuple[Product, ...]:
    """At which sizes `plan_small` is better than packed rows, for a contraction that it has a plan for.

    L2 holds the vector operand, and the rows that all panels read. Of a batch L1 does: its operands come from beyond L2, end to end where they are so small. Where a strip is read where it lies, L1 has room for most of it (it stays in
    L2 else), and for a tile's rows where each term has a line of its own; and what has a line for each term is no part of few sets of L1."""
    given = _given(scop, model)
    assert given is not None, "internal: there is no such plan"
    model, sides = given.model, given.sides
    (rows,), (other,) = sides.rows, sides.others
    l2, in_place = target.l2_bytes // model.itemsize, _is_in_place(given)
    moving = [i for i in model.extents if sides.operand.stride(i) != 0 and i not in sides.batch]
    found = [*within(given.extents(moving), most=target.l1_bytes // model.itemsize if in_place and sides.batch else l2)]
    along = other.stride(sides.reduced[-1]) == 1
    found += within(given.extents([rows, *sides.reduced]), most=l2 // 2 if in_place else l2)
    if in_place:
        strip = UNKNOWN_VECTORS * target.vector_bytes
        # A strip's rows, and those of the other operand, are parts of two lines most of the time.
        bytes_of_term = strip // 2 if along else 2 * (strip + target.line_bytes)
        found += within(given.extents(sides.reduced), most=target.l1_bytes // bytes_of_term)
    neighbours = [*([sides.lanes] if in_place else []), *([] if along else [rows])]
    found += [Product((given.ends[i],), no_multiple=WAY // 8 // model.itemsize) for i in neighbours if i in given.ends]
    return tuple(found)


def _given(scop: Scop, model: StatementModel) -> Contraction | None:
    """The contraction at large, where there may be such a plan."""
    given = at_large(scop, model)
    if given is None or not given.ends or given.is_constant or given.is_read_in_place or given.reads_windows:
        return None
    sides = given.sides
    alone = len(sides.others) == 1 and len(sides.rows) == 1 and not sides.columns
    return given if alone and not is_turned(scop, given.statement, sides.lanes) else None


def _is_in_place(given: Contraction) -> bool:
    return given.sides.operand.stride(given.sides.lanes) == 1
