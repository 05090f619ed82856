"""The row side of a blocked contraction (blocked.py): which rows follow each other within a block, which of their loops threads share, and where rows are packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.strategy.contractions.packing import BlockPacking
from polyml.schedule.strategy.contractions.parts import Part
from polyml.schedule.strategy.contractions.threads import shared_row
from polyml.schedule.transforms import Loop, around

__all__ = ["BlockRows"]


@dataclass(frozen=True, slots=True)
class BlockRows(BlockPacking):
    """Builds the loops over rows, for the panels of one block."""

    def rows(self, leaf: isl.ScheduleNode, shared: str | None) -> isl.ScheduleNode:
        """All rows for one block of the vector operand. shared: which loops the threads share (threads.py)."""
        plan = self.nest.plan
        if plan.rest and plan.rest_lanes == plan.rows:
            # The columns that are left take more rows at a time than a register tile has.
            whole = replace(self, nest=replace(self.nest, plan=replace(plan, rest=0), rest=()))
            parts: list[Part] = [(self.nest.statements, "", lambda n: whole.rows(n, shared))]
            return self.sequence(leaf, [*parts, (self.nest.rest, "", self.rest_across)])
        if self.nest.after and plan.turned and plan.across is None:
            return self.turned_rows(leaf, shared)
        packed, inside = self.nest.copies.row_copy is not None, not plan.rows_ahead
        names = self.without_vector_copy if inside else self.statements
        loops = self.row_loops(names, shared)
        if not packed and shared != "rows" and not plan.rest:
            # What memory brings is used by all rows while more of it comes.
            return around(leaf, loops, lambda n: self.panels(n, jam_inside=plan.streams))
        part = self.packed_rows if packed and inside else self.row_tiles
        return around(
            leaf, loops, lambda n: self.split(n, plan.rows, plan.tile.rows, names, lambda inner: part(inner, shared))
        )

    def row_loops(self, names: Sequence[str], shared: str | None) -> list[Loop]:
        """Loops over the row side's outer indices, of which the threads may share one."""
        plan = self.nest.plan
        index = None
        if shared == "row side":
            index = plan.row_side[0] if plan.ends else shared_row(plan, self.threads)
        return [self.loop(i, names).marked("parallel" if i == index else None) for i in plan.row_side]

    def row_tiles(self, leaf: isl.ScheduleNode, shared: str | None) -> isl.ScheduleNode:
        """As many rows at a time as a register tile has, and all panels for these."""
        plan, packed = self.nest.plan, self.nest.copies.row_copy is not None
        tile = self.loop(plan.rows, self.statements, tile=plan.tile.rows)
        tile = tile.marked("parallel" if shared == "rows" else None)
        if plan.rows_in_l2 and shared != "rows":
            blocks = [self.loop(plan.rows, self.statements, tile=plan.rows_in_l2)] if plan.rows_ahead else []
            return around(leaf, blocks, lambda n: self.panels(n, jam_inside=True, along=True))
        if not plan.rest:
            return around(leaf, [tile], lambda n: self.panels(n, jam_inside=packed))
        parts: list[Part] = [(self.nest.statements, "", lambda n: self.panels(n, jam_inside=packed))]
        parts.append((self.nest.rest, "", self.rest_columns))
        return around(leaf, [tile], lambda n: self.sequence(n, parts))

    def packed_rows(self, leaf: isl.ScheduleNode, shared: str | None) -> isl.ScheduleNode:
        """A block of rows at a time: packed in panels as high as the register tile, then used."""
        plan, copies = self.nest.plan, self.nest.copies
        assert copies.row_copy is not None, "internal: no rows are packed"
        assert copies.row_array is not None, "internal: no rows are packed"
        copy, array = (copies.row_copy,), copies.row_array

        def inside(node: isl.ScheduleNode) -> isl.ScheduleNode:
            return self.sequence(
                node,
                [
                    (copy, "", lambda n: self.pack_rows(n, None)),
                    (self.nest.statements, "", lambda n: self.row_tiles(n, None)),
                ],
            )

        block = self.loop(plan.rows, self.without_vector_copy, tile=plan.sizes[plan.rows])
        block = block.marked("parallel" if shared == "rows" else None)
        return around(leaf, [block], lambda n: self.allocated(n, array, inside))

    def turned_rows(self, leaf: isl.ScheduleNode, shared: str | None) -> isl.ScheduleNode:
        """A row of the result at a time, or a register tile's rows; as soon as it is finished, while it is in L1, it is transposed to where it belongs."""
        plan, statements, after = self.nest.plan, self.nest.statements, self.nest.after
        names = (*statements, *after)
        loops = self.row_loops(names, shared)

        def inside(node: isl.ScheduleNode) -> isl.ScheduleNode:
            parts: list[Part] = [(statements, "", lambda n: self.panels(n, jam_inside=False))]
            parts += [((name,), "", lambda n, name=name: self.turn(n, name)) for name in after]  # type: ignore[misc]
            return self.sequence(node, parts)

        def tiles(node: isl.ScheduleNode) -> isl.ScheduleNode:
            tile = self.loop(plan.rows, names, tile=plan.tile.rows)
            return around(node, [tile.marked("parallel" if shared == "rows" else None)], inside)

        if loops and shared != "rows":
            return around(leaf, loops, inside)
        return around(leaf, loops, lambda n: self.split(n, plan.rows, plan.tile.rows, names, tiles))

    def in_result_order(self, leaf: isl.ScheduleNode, shared: str | None) -> isl.ScheduleNode:
        """Register tiles in the order in which the result lies in memory."""
        plan, names = self.nest.plan, self.nest.statements
        loops = [self.loop(i, names) for i in plan.result_order]
        if shared == "row side":
            loops[0] = loops[0].marked("parallel")

        def rows(node: isl.ScheduleNode) -> isl.ScheduleNode:
            tile = self.loop(plan.rows, names, tile=plan.tile.rows)
            tile = tile.marked("parallel" if shared == "rows" else None)
            return around(node, [tile], lambda n: self.panels(n, jam_inside=True))

        return around(leaf, loops, lambda n: self.split(n, plan.rows, plan.tile.rows, names, rows))
