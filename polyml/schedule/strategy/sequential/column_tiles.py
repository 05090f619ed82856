"""Blocks of columns around a sequential loop that sweeps over all columns again and again.

Orthogonalization by columns: step k takes what is final of column k off all columns after it. Seen from a block of columns, all steps come one after the other, and the
block stays in cache: the loop over blocks goes above the sequential one when no dependence runs against it, every statement standing in the block of one of its own
indices (what makes column k final in the block of k). What is below keeps its order, so that its parts get lanes as ever.

Rewrite: band[k] (c) -> band[j_tile] (band[k] (c)), for `A[i, j] -= Q[i, k] * R[k, j]` over j > k.

When: the sequential loop carries a dependence, and what a step touches does not stay in cache. A block takes a quarter of L2, since more than it goes through.

Source: the left-looking order of Dongarra, Duff, Sorensen and van der Vorst, "Numerical Linear Algebra for High-Performance Computers" (1998), section 5.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

import islpy as isl

from polyml.expressions import plain_indices
from polyml.records import dataclass
from polyml.schedule.cost import StatementModel
from polyml.schedule.shared_loops import Order, assign
from polyml.schedule.strategy.bands import Band, along
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.strategy.lanes import carries_only_reductions
from polyml.schedule.transforms import Loop, insert_loops, tile_loop
from polyml.scop.scop import Scop

__all__ = ["ColumnPlan", "build_column_tiles", "column_order", "plan_column_tiles", "row_columns"]

ROW_COLUMNS = 8
"""Of which a block of columns that are rows of memory is a multiple."""


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """columns: per statement, the index whose blocks are taken; size: of a block; name: of the heaviest statement's."""

    columns: Mapping[str, str]
    size: int
    name: str

    def __str__(self) -> str:
        return f"blocks of {self.size} {self.name} around the sequential loop"

    @property
    def extents(self) -> dict[tuple[str, str], int]:
        """How far the loops inside a block run."""
        return dict.fromkeys(self.columns.items(), self.size)


def plan_column_tiles(band: Band, facts: Facts) -> ColumnPlan | None:
    """The blocks for a sequential loop, of columns that lie side by side; None when there are none, or all stays in cache anyway."""
    if not _may_have_columns(band, facts):
        return None
    core = facts.models[band.core]
    lanes = _lanes(core, band.indices[0][core.name], facts)
    return None if lanes is None else _plan(band, lanes, 4 * facts.lanes(core.name), facts)


def row_columns(band: Band, facts: Facts) -> Iterator[ColumnPlan]:
    """The same along any index of the heaviest statement, for columns that are rows of memory."""
    if _may_have_columns(band, facts):
        others = (index for index in facts.models[band.core].extents if index != band.indices[0][band.core])
        plans = (_plan(band, index, ROW_COLUMNS, facts) for index in others)
        yield from (plan for plan in plans if plan is not None)


def _may_have_columns(band: Band, facts: Facts) -> bool:
    alone = len(band.loops) == 1 and not any(band.above.values())
    # Of symbolic sizes only where arrays are laid out anew for it, in a version of its own.
    sized = not facts.scop.sizes or bool(facts.packed.copies)
    return alone and sized and not carries_only_reductions(band, 0, facts)


def _plan(band: Band, lanes: str, step: int, facts: Facts) -> ColumnPlan | None:
    """The blocks along this index of the heaviest statement, a multiple of `step`."""
    (steps,) = band.indices
    core = facts.models[band.core]
    whole = _bytes(core, {index: extent for index, extent in core.extents.items() if index != steps[core.name]})
    room = facts.target.l2_bytes // 4
    if whole <= facts.target.l2_bytes:
        return None
    column = _bytes(core, {i: e for i, e in core.extents.items() if i not in (steps[core.name], lanes)} | {lanes: 1})
    size = room // column // step * step
    if size == 0 or size >= core.extents[lanes]:
        return None
    columns = assign(_within(band, facts), column_order(band, facts), core.name, lanes)
    if columns is None or all(index == steps[name] for name, index in columns.items()):
        return None
    return ColumnPlan(columns, size, lanes)


def build_column_tiles(band: Band, plan: ColumnPlan, facts: Facts) -> isl.ScheduleNode:
    """The loop over blocks above the band. *Returns* it."""
    blocks = tile_loop(Loop(along(facts.scop, tuple(plan.columns), plan.columns)), plan.size)
    return insert_loops(band.node, [blocks])


def _within(band: Band, facts: Facts) -> Scop:
    """The scop with the band's statements only."""
    return replace(facts.scop, statements={name: facts.scop.statements[name] for name in band.statements})


def column_order(band: Band, facts: Facts) -> Order:
    """The dependences between the band's statements."""
    scop, found = _within(band, facts), facts.packed.dependences
    inside = {
        kind: getattr(found, kind).intersect_domain(scop.domain).intersect_range(scop.domain)
        for kind in ("flow", "anti", "output", "reduction")
    }
    return Order(scop, replace(found, **inside))


def _lanes(core: StatementModel, step: str, facts: Facts) -> str | None:
    """The index along which the heaviest statement's result is contiguous, when another index goes along each column."""
    target = facts.scop.statements[core.name].target
    names = plain_indices(target.subscripts)
    if not names or None in names or names[-1] == step or len(core.extents) < 3:
        return None
    out = next(access for access in core.accesses if access.write)
    last = names[-1]
    return last if last is not None and out.stride(last) == 1 else None


def _bytes(core: StatementModel, box: Mapping[str, int]) -> int:
    """Bytes of what the statement writes and reads along with its columns when it runs over the box."""
    touched = {
        access.array: core.itemsize * prod(e for index, e in box.items() if access.stride(index) != 0)
        for access in core.accesses
    }
    return max(touched.values())
