"""Blocks of a contraction of symbolic extents as the numbers of the call at hand ask for them: a version beside the one for large sizes.

Of sizes at large nobody knows how long a reduction is, so it runs in blocks, rows are packed anew for each block of columns, and the result is met again and again. In many calls a reduction is short:
one block, for which tiles follow the order of the result, and operands are packed once (block_order.py). And where few columns are left beside whole register tiles depends on numbers, too.

Extents stay symbolic. What the plan takes for granted is asked of sizes at each call (`Blocking.worth`): that what is packed is little larger, that results are large; and where the call has whole tiles, that the others
have whole tiles as well, so that there is no code for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from math import prod

from polyml.schedule.blocking import MIN_DEPTH, MIN_REUSE, plan_blocks
from polyml.schedule.contraction_blocks import Blocking
from polyml.schedule.contraction_sides import Sides, at_hand, sides_of, symbolic_ends
from polyml.schedule.cost import StatementModel
from polyml.schedule.schedule import Product
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine
from polyml.target import Target

__all__ = ["plan_at_hand"]

MORE = 1.25
"""How many times as large as in the call at hand packed operands may be, of which the plan knows that a cache holds them."""


def plan_at_hand(scop: Scop, model: StatementModel, target: Target) -> Blocking | None:
    """The plan for the numbers of the call at hand, for symbolic extents; None where these are not known, or ask for nothing else than large sizes do."""
    statement = scop.statements[model.name]
    ends = symbolic_ends(scop, statement, model)
    numbers = at_hand(scop, statement, model, ends) if ends else None
    sides = None if numbers is None else sides_of(numbers)
    if not ends or numbers is None or sides is None:
        return None
    plan = plan_blocks(scop, numbers, sides, {}, target, at_hand=True)
    # Strips that come from further away than L2 are asked for ahead, which takes numbers.
    near = _product(numbers, _indices(numbers, sides.operand.stride)) * numbers.itemsize <= target.l2_bytes
    if plan is None or not (plan.result_order or (plan.strips and near)):
        return None
    return replace(plan, ends=ends, worth=_Limits(numbers, sides, plan, ends, target).all())


class _Limits:
    """What sizes must have in common with the numbers of the call at hand for its plan to suit them."""

    def __init__(
        self, model: StatementModel, sides: Sides, plan: Blocking, ends: Mapping[str, Affine], target: Target
    ) -> None:
        self.model, self.sides, self.plan, self.ends, self.target = model, sides, plan, ends, target
        self.found: list[Product] = []

    def all(self) -> tuple[Product, ...]:
        model, sides, plan, size = self.model, self.sides, self.plan, self.model.itemsize
        l1, l2 = self.target.l1_bytes // size, self.target.l2_bytes // size
        operand = _indices(model, sides.operand.stride)
        if plan.strips:
            self.limit(operand, most=l2)
            self.limit([*sides.rows, *sides.reduced], most=l2 // 4)
            self.limit(sides.reduced, MIN_DEPTH, 2 * l1 // (3 * plan.width))
        else:
            self.limit(sides.reduced, MIN_DEPTH, l1 // 2 // plan.width)
            self.little_more([i for i in operand if not plan.blocked(i)])
            if plan.row_operand is not None:
                self.little_more(_indices(model, sides.others[0].stride))
            self.limit(_indices(model, sides.out.stride), l2 + 1)
        self.limit(sides.rows, MIN_REUSE)
        self.whole_tiles(plan.rows, plan.tile.rows)
        self.whole_tiles(plan.lanes, plan.width)
        return tuple(dict.fromkeys(self.found))

    def limit(self, indices: Collection[str], least: int = 0, most: int | None = None) -> None:
        """Limits of how many values these indices have together."""
        symbolic = tuple(self.ends[i] for i in indices if i in self.ends)
        known = _product(self.model, [i for i in indices if i not in self.ends])
        if symbolic:
            self.found.append(Product(symbolic, -(-least // known), None if most is None else most // known))

    def little_more(self, indices: Collection[str]) -> None:
        self.limit(indices, most=int(MORE * _product(self.model, indices)))

    def whole_tiles(self, index: str, size: int) -> None:
        """At least one tile along the index, and nothing else where that is so in the call at hand."""
        if index in self.ends:
            extent = self.model.extents[index]
            whole = size if extent % size == 0 else 1
            self.found.append(Product((self.ends[index],), min(size, extent), multiple=whole))


def _indices(model: StatementModel, stride: Callable[[str], int | None]) -> list[str]:
    """Those that an access moves with."""
    return [index for index in model.extents if stride(index) != 0]


def _product(model: StatementModel, indices: Collection[str]) -> int:
    return prod(model.extents[index] for index in indices)
