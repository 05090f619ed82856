"""Blocks of a contraction of symbolic extents as the numbers of the call at hand ask for them: a version beside the one for large sizes.

Of sizes at large nobody knows how long a reduction is, so it runs in blocks, rows are packed anew for each block of columns, and the result is met again and again. In many calls a reduction is short:
one block, for which tiles follow the order of the result, and operands are packed once (blocking/order.py). And where few columns are left beside whole register tiles depends on numbers, too.

Extents stay symbolic. What the plan takes for granted is asked of sizes at each call (`Blocking.worth`): that what is packed is little larger, that results are large; and where the call has whole tiles, that the others
have whole tiles as well, so that there is no code for the rest.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import prod

from polyml.schedule.blocking.blocks import Blocking
from polyml.schedule.blocking.plan import plan_blocks
from polyml.schedule.blocking.small import plan_small, small_limits
from polyml.schedule.blocking.strips import LEAST_TILES, MOST_ROWS, PACKED_TILES
from polyml.schedule.blocking.symbolic import Contraction, at_hand
from polyml.schedule.blocking.worth import MIN_DEPTH, MIN_REUSE
from polyml.schedule.cost import AccessModel, StatementModel
from polyml.schedule.large_enough import holds, within
from polyml.schedule.schedule import Product
from polyml.scop.scop import Scop
from polyml.target import Target

__all__ = ["plan_at_hand"]

MORE = 1.25
"""How many times as large as in the call at hand packed operands may be, of which the plan knows that a cache holds them."""


def plan_at_hand(scop: Scop, model: StatementModel, target: Target) -> Blocking | None:
    """The plan for the numbers of the call at hand, for symbolic extents; None where these are not known, or ask for nothing else than large sizes do."""
    call = at_hand(scop, model)
    if call is None:
        return None
    plan = plan_blocks(replace(call, ends={}), target, at_hand=True)
    if plan is None or not (plan.result_order or plan.across or (plan.strips and _strips_pay(call, plan, target))):
        return None
    if _is_small(scop, model, plan, target):
        return None
    return replace(plan, ends=call.ends, worth=_limits(call, plan, target))


def _is_small(scop: Scop, model: StatementModel, plan: Blocking, target: Target) -> bool:
    """Whether the call at hand takes the version for small operands (blocking/small.py), with strips and tiles like these."""
    small = plan_small(scop, model, target) if plan.strips and not plan.across else None
    if small is None or not small.strips or (small.lanes, small.rows) != (plan.lanes, plan.rows):
        return False
    alike = (small.tile.rows, small.width) == (plan.tile.rows, plan.width)
    return alike and all(holds(product, scop.examples) for product in small_limits(scop, model, target))


def _strips_pay(call: Contraction, plan: Blocking, target: Target) -> bool:
    """Of an operand that L2 holds; of a larger one where whole tiles are stored past the caches: else the result is in the way of its strips."""
    size = call.model.itemsize * prod(call.model.extents[i] for i in _moving(call, call.sides.operand))
    return size <= target.l2_bytes or call.model.extents[plan.lanes] % plan.width == 0


def _limits(call: Contraction, plan: Blocking, target: Target) -> tuple[Product, ...]:
    """What sizes must have in common with the numbers of the call at hand for its plan to suit them."""
    sides, size = call.sides, call.model.itemsize
    l1, l2 = target.l1_bytes // size, target.l2_bytes // size
    operand, reduced = _moving(call, sides.operand), call.extents(sides.reduced)
    found: list[Product] = []
    if plan.strips:
        near = prod(call.model.extents[i] for i in operand) <= l2
        found += within(call.extents(operand), *((0, l2) if near else (l2 + 1,)))
        found += within(call.extents([*sides.rows, *sides.reduced]), most=l2 // 4)
        in_l1 = 2 * l1 // (3 * plan.width)
        short = prod(call.model.extents[i] for i in sides.reduced) <= in_l1
        found += within(reduced, MIN_DEPTH, in_l1 if short else min(MOST_ROWS, l2 // 4 // plan.width))
        if not short:
            found += within(call.extents(sides.rows), most=(PACKED_TILES - 1) * plan.tile.rows)
    else:
        found += within(reduced, MIN_DEPTH, None if plan.across else l1 // 2 // plan.width)
        found += _little_more(call, [i for i in operand if not plan.blocked(i)])
        if plan.row_operand is not None:
            found += _little_more(call, _moving(call, sides.others[0]))
    if plan.across:
        found += _little_more(call, sides.rows)
    if plan.result_order or prod(call.model.extents[i] for i in _moving(call, sides.out)) > l2:
        found += within(call.extents(_moving(call, sides.out)), l2 + 1)
    found += within(call.extents(sides.rows), MIN_REUSE)
    least = LEAST_TILES if plan.strips else 1
    found += _whole_tiles(call, plan.rows, plan.tile.rows, least)
    found += _whole_tiles(call, plan.lanes, plan.width)
    return tuple(dict.fromkeys(found))


def _moving(call: Contraction, access: AccessModel) -> list[str]:
    """The indices that an access moves with."""
    return [index for index in call.model.extents if access.stride(index) != 0]


def _little_more(call: Contraction, indices: Collection[str]) -> tuple[Product, ...]:
    return within(call.extents(indices), most=int(MORE * prod(call.model.extents[i] for i in indices)))


def _whole_tiles(call: Contraction, index: str, size: int, least: int = 1) -> tuple[Product, ...]:
    """At least so many tiles along the index, and nothing else where that is so in the call at hand."""
    if index not in call.ends:
        return ()
    extent = call.model.extents[index]
    return (Product((call.ends[index],), min(least * size, extent), multiple=size if extent % size == 0 else 1),)
