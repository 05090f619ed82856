"""The copies of a blocked contraction (blocked.py): blocks of its operands packed in panels, in the order in which register tiles read them; and blocks of operands that are made rather than copied."""

from __future__ import annotations

from math import ceil

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.strategy.contractions.parts import Part
from polyml.schedule.strategy.contractions.threads import BLOCKS, shares_packing, shares_row_packing
from polyml.schedule.strategy.contractions.tiles import BlockTiles
from polyml.schedule.transforms import Loop, around, insert_loops

__all__ = ["BlockPacking"]

TOGETHER = 8
"""Rows of the source that are packed side by side, a register tile's part of each: streams that prefetchers follow, and what a panel gets at a time are whole cache lines. Row by row, all
panels have a line in the making, which lie a panel apart and meet in a few sets of L1. Not where a register tile's part is a line, or a half: that is written at once, and the source is read from end to end."""

MADE_TOGETHER = 4
"""Vectors of a row of an operand that is made for each block: what is computed of one waits for nothing of the others'."""


@dataclass(frozen=True, slots=True)
class BlockPacking(BlockTiles):
    """Builds the loops of the copies, and of what makes a block of an operand. threads: that may share them."""

    threads: int

    def make(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """What makes a block of an operand, row by row; where the block is summed up, a few vectors of all rows at a time, with the sums in registers."""
        plan, makers, names = self.nest.plan, self.nest.makers, self.made
        assert makers is not None, "internal: no operand is made"
        own = makers.indices[makers.steps[0]]
        sums = [self.loop(i, makers.steps) for i in plan.reduced if i != makers.lanes]
        outer = [self.loop(i, names) for i in own if i not in (*plan.batch, *plan.reduced, makers.lanes)]
        vectors = ceil(plan.sizes.get(makers.lanes, plan.extents[makers.lanes]) * plan.tile.vectors / plan.width)
        lanes = self.loop(makers.lanes, names).marked(f"vector:{min(MADE_TOGETHER, vectors)}")
        steps: list[Part] = [((name,), "", lambda n: n) for name in makers.steps]
        if not makers.begins:
            return around(leaf, [*outer, *sums, lanes], lambda n: self.sequence(n, steps))
        parts: list[Part] = [((name,), "", lambda n: n) for name in makers.begins]
        parts.append((makers.steps, "", lambda n: around(n, sums, lambda inner: self.sequence(inner, steps))))
        return around(leaf, [*outer, lanes], lambda n: self.sequence(n, parts))

    def pack(self, leaf: isl.ScheduleNode, name: str, shared: str | None) -> isl.ScheduleNode:
        """The copy `name` of a block of the vector operand in panels as wide as the register tile, in the order of its source."""
        plan, copy = self.nest.plan, (name,)

        def panels(node: isl.ScheduleNode, *, full: bool = True) -> isl.ScheduleNode:
            loops: list[Loop] = []
            for index in plan.source_order:
                if index == plan.lanes:
                    loops.append(self.loop(index, copy, tile=plan.width))
                loops.append(self.loop(index, copy))
            if shared in ("rows", "row side") and full and shares_packing(plan, self.threads):
                loops[0] = loops[0].marked("parallel")
            behind = len(plan.source_order) - 1 - plan.source_order.index(plan.lanes)
            at, vectors = -1 - behind, 1 if behind else self.vectors(full)
            loops[at] = loops[at].marked(f"vector:{vectors}")
            return insert_loops(node, loops)

        if plan.lanes in plan.ends and plan.source_order[-1] != plan.lanes:
            return panels(leaf)
        # Apart from the rest, full panels have rows of a constant number of vectors.
        return self.split(leaf, plan.lanes, plan.width, copy, panels, rest=lambda n: panels(n, full=False))

    def pack_rows(self, leaf: isl.ScheduleNode, shared: str | None) -> isl.ScheduleNode:
        """The copy of a block of the row operand in panels as high as the register tile."""
        plan = self.nest.plan
        assert self.nest.copies.row_copy is not None, "internal: no rows are packed"
        copy = (self.nest.copies.row_copy,)
        whole = plan.result_order or plan.rows_ahead
        loops = [self.loop(i, copy) for i in plan.row_side] if whole else []
        *outer, last = plan.reduced
        parallel = shared in ("rows", "row side", BLOCKS) and shares_row_packing(plan, self.threads)
        tile, lanes = self.loop(plan.rows, copy, tile=plan.tile.rows), self.loop(plan.rows, copy).marked("vector:1")
        loops += [self.loop(i, copy) for i in outer]
        if plan.rows_along:
            # Rows that are contiguous along the sum are read from end to end, and transposed in registers.
            tiles = [tile, lanes, self.loop(last, copy)]
        else:
            # Threads take several rows at a time, too: each asks for the ones to come.
            together = 1 if plan.row_lines and not parallel else TOGETHER
            loops.append(self.loop(last, copy, tile=together))
            tiles = [tile, self.loop(last, copy), lanes] if together > 1 else [tile, lanes]
        if parallel:
            first = loops if loops else tiles
            first[0] = first[0].marked("parallel")
        # Apart from the rest, full panels have rows of a constant number of lanes.
        return around(
            leaf,
            loops,
            lambda n: self.split(n, plan.rows, plan.tile.rows, copy, lambda inner: insert_loops(inner, tiles)),
        )

    def pack_rest(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """The copy of the columns that are left: neighbours in the operand, rows of their own in the copy."""
        plan, copy = self.nest.plan, self.nest.copies.rest_copy
        assert copy is not None, "internal: no columns are left"
        loops = [self.loop(i, (copy,)) for i in (*plan.reduced, plan.lanes)]
        return insert_loops(leaf, loops)
