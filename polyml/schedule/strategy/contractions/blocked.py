"""The tree of a blocked contraction (see blocking/plan.py):

batch, blocks of the vector side, blocks of the reduction
  make a block of an operand, where that is part of the nest
  pack the block of the vector operand in panels
  rows of the row side (threads share them), a register tile's at a time; pack those rows, where that pays
  (or the blocks of the reduction come first, and all rows are packed ahead of the blocks of the vector side; of rows of unknown number a block, whose loops are around all of these)
    panels of the block: full ones, then the rest
      jammed rows, lanes
        initialize (in the first block of the reduction), reduce, finish
    what lays finished rows out in another order (a turned plan; behind all blocks of the reduction, if there are several)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.blocking.copies import BlockedNest
from polyml.schedule.strategy.contractions.parts import Build, Part
from polyml.schedule.strategy.contractions.rows import BlockRows
from polyml.schedule.strategy.contractions.threads import BLOCKS, shared_block, shared_loops, streamed_piece
from polyml.schedule.transforms import Loop, around, insert_loops

__all__ = ["build_blocked"]


def build_blocked(leaf: isl.ScheduleNode, nest: BlockedNest, *, threads: int) -> isl.ScheduleNode:
    """The tree with the whole nest in the place of a leaf, which all of its statements and copies reach. threads: that share it."""
    return _Builder(nest, threads).all(leaf)


@dataclass(frozen=True, slots=True)
class _Builder(BlockRows):
    """Builds the loops over blocks of the vector side and of the reduction, around the rows (BlockRows). finishing: the blocks of the vector side are loops around already."""

    finishing: bool = False

    def all(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """The whole tree: the batch, then what the plan says of the order of blocks."""
        plan, copies = self.nest.plan, self.nest.copies
        everything = self.everything
        loops = [self.loop(i, everything) for i in plan.batch]
        shared = shared_loops(plan, self.threads)
        if plan.across is not None:
            return self.in_turns(leaf, plan.across)
        if plan.strips:
            return self.strips(leaf, shared)
        if plan.batch and shared == "batch":
            loops[0] = loops[0].marked("parallel")
        sums = [i for i in plan.reduced if plan.blocked(i)]
        if plan.rows_ahead and copies.row_copy is not None and copies.row_array is not None:
            rows, array = copies.row_copy, copies.row_array
            blocks = [i for i in (*plan.row_side, plan.rows) if plan.blocked(i)]
            loops += self.tiles([*blocks, *sums], everything, shared)
            parts: list[Part] = [((rows,), "", lambda n: self.pack_rows(n, shared))]
            names = tuple(name for name in everything if name != rows)
            parts.append((names, "", lambda n: self.columns(n, [], names, shared)))
            return around(leaf, loops, self.within(array, lambda n: self.sequence(n, parts)))
        if plan.streams and self.nest.after:
            return around(leaf, loops, lambda n: self.streamed(n, sums, shared))
        if plan.parts_first:
            loops += self.tiles(sums, everything, None)
            sums = []
        return around(leaf, loops, lambda n: self.columns(n, sums, everything, shared))

    def streamed(self, leaf: isl.ScheduleNode, sums: Sequence[str], shared: str | None) -> isl.ScheduleNode:
        """First the sums of the whole result, then the statements that read them."""
        plan, own = self.nest.plan, self.nest.statements
        parts: list[Part] = [(own, "", lambda n: self.columns(n, sums, own, shared))]
        for name in self.nest.after:
            outer = [self.loop(i, (name,)) for i in (*plan.row_side, *self.rows_index)]
            loops = [*outer, self.loop(plan.lanes, (name,)).marked("vector:2")]
            parts.append(((name,), "", lambda n, loops=loops: insert_loops(n, loops)))  # type: ignore[misc]
        return self.sequence(leaf, parts)

    def in_turns(self, leaf: isl.ScheduleNode, across: str) -> isl.ScheduleNode:
        """Blocks of the vector side that have a vector's length of the index `across`: the contraction for one value of it after the other, then the block's result is transposed."""
        plan, after = self.nest.plan, self.nest.after
        own = tuple(name for name in self.everything if name not in after)
        blocks = {**plan.sizes, **({plan.lanes: plan.beside} if plan.beside else {})}
        others = [i for i in (*plan.vector_side, plan.lanes) if blocks[i] < plan.extents[i] and i != across]
        loops = [self.loop(across, self.everything, tile=plan.together)]
        loops += [self.loop(index, self.everything, tile=blocks[index]) for index in others]
        if self.threads > 1:
            counts = [-(-plan.extents[across] // plan.together)]
            counts += [-(-plan.extents[index] // blocks[index]) for index in others]
            shared = counts.index(max(counts))
            loops[shared] = loops[shared].marked("parallel")
        sums = [i for i in plan.reduced if plan.blocked(i)]

        def one(node: isl.ScheduleNode) -> isl.ScheduleNode:
            if plan.strips:
                return self.strips(node, None)
            inner = [self.loop(across, own)]
            inner += [self.loop(plan.lanes, own, tile=plan.width)] if plan.beside > plan.width else []
            return around(node, inner, lambda n: self.columns(n, sums, own, None))

        def inside(node: isl.ScheduleNode) -> isl.ScheduleNode:
            parts: list[Part] = [(own, "", one)]
            parts += [((name,), "", lambda n, name=name: self.turn_across(n, name, across)) for name in after]  # type: ignore[misc]
            return self.sequence(node, parts)

        return around(leaf, loops, inside)

    def strips(self, leaf: isl.ScheduleNode, shared: str | None) -> isl.ScheduleNode:
        """A strip of the vector operand after the other, read where it lies, and inside all rows; around that the parts of the sum, and the values of `across`, if any."""
        plan, names = self.nest.plan, self.nest.statements
        turns = () if plan.across is None else (plan.across,)
        indices = (*plan.batch, *turns, *(i for i in plan.vector_side if i not in turns))
        sums = self.tiles([i for i in plan.reduced if plan.blocked(i)], self.everything, None)
        loops = [self.loop(i, names if turns else self.everything) for i in indices]
        if shared in ("batch", "vector side"):
            at = next(k for k, i in enumerate(indices) if (i in plan.batch) == (shared == "batch"))
            loops[at] = loops[at].marked("parallel")
        outer = self.loop(plan.lanes, names, tile=plan.width)
        # Blocks of the columns are threads' own, for all parts of the sum.
        blocks = self.tiles([plan.lanes] if plan.blocked(plan.lanes) else [], self.everything, shared)
        if blocks and shared == "lanes":
            shared = None
        loops = [*blocks, *sums, *loops]

        def tiles(node: isl.ScheduleNode) -> isl.ScheduleNode:
            rows = [self.loop(i, names) for i in plan.row_side]
            jam = self.loop(plan.rows, names).marked(f"jam:{plan.tile.rows}")
            lanes = self.loop(plan.lanes, names).marked(f"vector:{plan.tile.vectors}")
            return around(node, [*rows, jam, lanes], self.kernel)

        def strip(node: isl.ScheduleNode) -> isl.ScheduleNode:
            return around(node, [outer], tiles)

        def split(node: isl.ScheduleNode) -> isl.ScheduleNode:
            if shared != "lanes":
                return self.split(node, plan.lanes, plan.width, names, strip)
            # What is left is a strip like others to threads: one of them has it while others have theirs.
            return around(
                node,
                [outer.marked("parallel")],
                lambda n: self.split(n, plan.lanes, plan.width, names, tiles),
            )

        rest, array = self.nest.copies.rest_copy, self.nest.copies.rest_array
        parts: list[Part] = [(self.made, "", self.make)] if self.made else []
        parts.append((names, "", split))
        if not plan.rest:
            return around(leaf, loops, lambda n: self.sequence(n, parts))
        parts.append((self.nest.rest, "", self.rest_rows))
        if rest is None or array is None:
            return around(leaf, loops, lambda n: self.sequence(n, parts))
        parts.insert(0, ((rest,), "", self.pack_rest))
        return around(leaf, loops, lambda n: self.allocated(n, array, lambda inner: self.sequence(inner, parts)))

    def tiles(self, indices: Sequence[str], names: Sequence[str], shared: str | None) -> list[Loop]:
        """The loops over blocks along these indices; one of them is parallel if threads share it."""
        plan = self.nest.plan
        sizes = dict(plan.sizes)
        if plan.streams and shared == "lanes":
            sizes[plan.lanes] = streamed_piece(plan, self.threads)
        loops = [self.loop(index, names, tile=sizes[index]) for index in indices]
        dealt = plan.lanes if shared == "lanes" else shared_block(plan, self.threads) if shared == BLOCKS else None
        return [loop.marked("parallel") if index == dealt else loop for index, loop in zip(indices, loops, strict=True)]

    def columns(
        self, leaf: isl.ScheduleNode, sums: Sequence[str], names: Sequence[str], shared: str | None
    ) -> isl.ScheduleNode:
        """The blocks of the vector side, and within each the blocks of the reduction `sums`; their copies are packed inside, then the rows follow."""
        plan, copies = self.nest.plan, self.nest.copies
        sides = [i for i in (*plan.vector_side, plan.lanes) if plan.blocked(i) and plan.across is None]
        if plan.streams and shared == "lanes" and plan.lanes not in sides:
            sides.append(plan.lanes)
        vector_copy, array = copies.vector_copy, copies.vector_array
        if plan.streams:
            return around(leaf, self.tiles(sides, names, shared), lambda n: self.some_rows(n, sums, names, shared))
        if sums and self.nest.after and plan.turned and plan.across is None:
            return around(leaf, self.tiles(sides, names, shared), lambda n: self.finished(n, sums, names, shared))
        loops = self.tiles(sums if self.finishing else [*sides, *sums], names, shared)
        parts: list[Part] = [(self.made, "", self.make)] if self.made else []
        arrays: list[str] = []
        if vector_copy is not None and array is not None:
            parts.append(((vector_copy,), "", lambda n: self.pack(n, vector_copy, shared)))
            if not plan.in_parts:
                arrays.append(array)
        if copies.rest_copy is not None and copies.rest_array is not None:
            parts.append(((copies.rest_copy,), "", self.pack_rest))
            arrays.append(copies.rest_array)
        if not plan.result_order:
            inner = tuple(name for name in names if name not in (*self.made, vector_copy, copies.rest_copy))
            parts.append((inner, "", lambda n: self.rows(n, shared)))
        else:
            if copies.row_copy is not None and copies.row_array is not None:
                parts.append(((copies.row_copy,), "", lambda n: self.pack_rows(n, None)))
                arrays.append(copies.row_array)
            parts.append((self.nest.statements, "", lambda n: self.in_result_order(n, shared)))

        def inside(node: isl.ScheduleNode) -> isl.ScheduleNode:
            return self.sequence(node, parts)

        build: Build = inside
        for name in arrays:
            build = self.within(name, build)
        return around(leaf, loops, build)

    def finished(
        self, leaf: isl.ScheduleNode, sums: Sequence[str], names: Sequence[str], shared: str | None
    ) -> isl.ScheduleNode:
        """Per block of the vector side, and of the rows where not all of their sums can wait, its sums, one block of the reduction after the other, then the statements that lay the result out in another order."""
        plan, after = self.nest.plan, self.nest.after
        own = tuple(name for name in names if name not in after)
        part = replace(self, nest=replace(self.nest, after=()), finishing=True)
        copies = self.nest.copies
        if plan.in_parts and copies.vector_copy is not None and copies.vector_array is not None:
            copy, array = copies.vector_copy, copies.vector_array
            own = tuple(name for name in own if name != copy)
            unpacked = replace(copies, vector_copy=None, vector_array=None)
            inner = replace(part, nest=replace(part.nest, copies=unpacked))
            ahead: list[Part] = [((copy,), "", lambda n: self.pack(n, copy, None))]
            rest = (*own, *after)
            ahead.append((rest, "", lambda n: self.parts(n, inner, sums, own, shared)))
            return self.allocated(leaf, array, lambda n: self.sequence(n, ahead))
        return self.parts(leaf, part, sums, own, shared)

    def parts(
        self, leaf: isl.ScheduleNode, part: _Builder, sums: Sequence[str], own: Sequence[str], shared: str | None
    ) -> isl.ScheduleNode:
        """Part after part of the rows: the sums, then what lays them out. Nothing but constants is packed ahead of them, which leaves the calls, so that threads share parts along with blocks."""
        plan, after = self.nest.plan, self.nest.after
        parts: list[Part] = [(own, "", lambda n: part.columns(n, sums, own, shared))]
        for name in after:
            rows = [self.loop(i, (name,)) for i in plan.row_side]
            parts.append(((name,), "", lambda n, name=name, rows=rows: around(n, rows, lambda m: self.turn(m, name))))  # type: ignore[misc]
        outer = [self.loop(i, (*own, *after), tile=plan.sizes[i]) for i in plan.row_side if plan.blocked(i)]
        if shared == BLOCKS:
            outer = [loop.marked("parallel:2") for loop in outer]
        return around(leaf, outer, lambda n: self.sequence(n, parts))

    def some_rows(
        self, leaf: isl.ScheduleNode, sums: Sequence[str], names: Sequence[str], shared: str | None
    ) -> isl.ScheduleNode:
        """A block of the reduction is a few rows of the vector operand, read in order of memory; the last block, which may have fewer, is a part of its own."""
        plan = self.nest.plan

        def blocks(part: _Builder, statements: Sequence[str]) -> Build:
            return lambda n: around(n, part.tiles(sums, statements, shared), lambda inner: part.rows(inner, shared))

        if len(sums) != 1 or sums[0] in plan.ends or plan.extents[sums[0]] % plan.sizes[sums[0]] == 0:
            return blocks(self, names)(leaf)
        (index,) = sums
        whole = plan.extents[index] // plan.sizes[index] * plan.sizes[index]
        later = tuple(name for name in names if self.own(name, index) is not None)
        last = replace(self, nest=replace(self.nest, statements=later))
        parts: list[Part] = [
            (names, f"{index} < {whole}", blocks(self, names)),
            (later, f"{index} >= {whole}", blocks(last, later)),
        ]
        return self.sequence(leaf, parts)

    def within(self, array: str, inside: Build) -> Build:
        return lambda node: self.allocated(node, array, inside)
