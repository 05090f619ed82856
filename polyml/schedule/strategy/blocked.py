"""The tree of a blocked contraction (see blocking/plan.py):

batch, blocks of the vector side, blocks of the reduction
  pack the block of the vector operand in panels
  rows of the row side (threads share them), a register tile's at a time; pack those rows, where that pays
  (or the blocks of the reduction come first, and all rows are packed ahead of the blocks of the vector side)
    panels of the block: full ones, then the rest
      jammed rows, lanes
        initialize (in the first block of the reduction), reduce, finish
    what lays finished rows out in another order (a turned plan; behind all blocks of the reduction, if there are several)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.blocking.copies import BlockedNest
from polyml.schedule.blocking.register_tile import SIDE_BY_SIDE, rows_at_once
from polyml.schedule.blocking.rest_columns import rest_name
from polyml.schedule.strategy.block_parts import BlockParts, Build, Part
from polyml.schedule.strategy.block_threads import (
    BLOCKS,
    shared_block,
    shared_loops,
    shared_row,
    shares_packing,
    shares_row_packing,
    streamed_piece,
)
from polyml.schedule.transforms import Loop, around, insert_loops

__all__ = ["build_blocked"]


TOGETHER = 8
"""Rows of the source that are packed side by side, a register tile's part of each: streams that prefetchers follow, and what a panel gets at a time are whole cache lines. Row by row, all
panels have a line in the making, which lie a panel apart and meet in a few sets of L1. Not where a register tile's part is a line, or a half: that is written at once, and the source is read from end to end."""

MADE_TOGETHER = 4
"""Vectors of a row of an operand that is made for each block: what is computed of one waits for nothing of the others'."""


def build_blocked(leaf: isl.ScheduleNode, nest: BlockedNest, *, threads: int) -> isl.ScheduleNode:
    """The whole nest in the place of a leaf that its statements and copies reach."""
    return _Builder(nest, threads).all(leaf)


@dataclass(frozen=True, slots=True)
class _Builder(BlockParts):
    """finishing: the blocks of columns are loops around."""

    threads: int
    finishing: bool = False

    # Levels, outermost first.

    def all(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
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
            loops += self.tiles(sums, everything, shared)
            parts: list[Part] = [((rows,), "", lambda n: self.pack_rows(n, shared))]
            names = tuple(name for name in everything if name != rows)
            parts.append((names, "", lambda n: self.columns(n, [], names, shared)))
            return around(leaf, loops, self.within(array, lambda n: self.sequence(n, parts)))
        if plan.streams and self.nest.after:
            return around(leaf, loops, lambda n: self.streamed(n, sums, shared))
        return around(leaf, loops, lambda n: self.columns(n, sums, everything, shared))

    def streamed(self, leaf: isl.ScheduleNode, sums: Sequence[str], shared: str | None) -> isl.ScheduleNode:
        """The sums of the whole result, then what reads them."""
        plan, own = self.nest.plan, self.nest.statements
        parts: list[Part] = [(own, "", lambda n: self.columns(n, sums, own, shared))]
        for name in self.nest.after:
            outer = [self.loop(i, (name,)) for i in (*plan.row_side, *self.rows_index)]
            loops = [*outer, self.loop(plan.lanes, (name,)).marked("vector:2")]
            parts.append(((name,), "", lambda n, loops=loops: insert_loops(n, loops)))  # type: ignore[misc]
        return self.sequence(leaf, parts)

    @property
    def rows_index(self) -> tuple[str, ...]:
        """The index of the register tile's rows, where there is one."""
        return (self.nest.plan.rows,) if self.nest.plan.rows else ()

    def in_turns(self, leaf: isl.ScheduleNode, across: str) -> isl.ScheduleNode:
        """Blocks of the vector side, a vector's length along `across` at a time: one value of it after the other, then all of the block's result is laid out."""
        plan, after = self.nest.plan, self.nest.after
        own = tuple(name for name in self.everything if name not in after)
        others = [i for i in (*plan.vector_side, plan.lanes) if plan.blocked(i) and i != across]
        loops = [self.loop(across, self.everything, tile=plan.together)]
        loops += [self.loop(index, self.everything, tile=plan.sizes[index]) for index in others]
        if self.threads > 1:
            counts = [-(-plan.extents[across] // plan.together)]
            counts += [-(-plan.extents[index] // plan.sizes[index]) for index in others]
            shared = counts.index(max(counts))
            loops[shared] = loops[shared].marked("parallel")
        sums = [i for i in plan.reduced if plan.blocked(i)]

        def one(node: isl.ScheduleNode) -> isl.ScheduleNode:
            if plan.strips:
                return self.strips(node, None)
            return around(node, [self.loop(across, own)], lambda n: self.columns(n, sums, own, None))

        def inside(node: isl.ScheduleNode) -> isl.ScheduleNode:
            parts: list[Part] = [(own, "", one)]
            parts += [((name,), "", lambda n, name=name: self.turn_across(n, name, across)) for name in after]  # type: ignore[misc]
            return self.sequence(node, parts)

        return around(leaf, loops, inside)

    def turn_across(self, leaf: isl.ScheduleNode, name: str, across: str) -> isl.ScheduleNode:
        plan = self.nest.plan
        outer = [self.loop(i, (name,)) for i in (*plan.vector_side, *plan.row_side, plan.rows) if i != across]
        inner = [self.loop(across, (name,)).marked("vector:1"), self.loop(plan.lanes, (name,))]
        lanes = plan.width // plan.tile.vectors
        if plan.together > lanes:
            # One piece of a row of the result after the other: stores to lines side by side follow each other.
            inner.insert(0, self.loop(plan.lanes, (name,), tile=lanes))
        return insert_loops(leaf, [*outer, *inner])

    def strips(self, leaf: isl.ScheduleNode, shared: str | None) -> isl.ScheduleNode:
        """Strips of the vector operand, where it lies, and for each all rows; of one part of the sum, and one turn, after the other."""
        plan, names = self.nest.plan, self.nest.statements
        turns = () if plan.across is None else (plan.across,)
        indices = (*plan.batch, *turns, *(i for i in plan.vector_side if i not in turns))
        sums = self.tiles([i for i in plan.reduced if plan.blocked(i)], self.everything, None)
        loops = [self.loop(i, names if turns else self.everything) for i in indices]
        if shared in ("batch", "vector side"):
            at = next(k for k, i in enumerate(indices) if (i in plan.batch) == (shared == "batch"))
            loops[at] = loops[at].marked("parallel")
        loops = [*sums, *loops]

        outer = self.loop(plan.lanes, names, tile=plan.width)

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

    def rest_rows(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """All rows of the columns that are left."""
        if self.nest.plan.rest_lanes == self.nest.plan.rows:
            return self.rest_across(leaf)
        return around(leaf, [self.loop(i, self.nest.rest) for i in self.nest.plan.row_side], self.rest_columns)

    def tiles(self, indices: Sequence[str], names: Sequence[str], shared: str | None) -> list[Loop]:
        """The loops over blocks."""
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
        """The blocks of the vector side, and within each those of the reduction that are left."""
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
        """The sums of a block of columns, one block of the reduction after the other, then what lays them out."""
        plan, after = self.nest.plan, self.nest.after
        own = tuple(name for name in names if name not in after)
        part = replace(self, nest=replace(self.nest, after=()), finishing=True)
        parts: list[Part] = [(own, "", lambda n: part.columns(n, sums, own, shared))]
        for name in after:
            rows = [self.loop(i, (name,)) for i in plan.row_side]
            parts.append(((name,), "", lambda n, name=name, rows=rows: around(n, rows, lambda m: self.turn(m, name))))  # type: ignore[misc]
        return self.sequence(leaf, parts)

    def some_rows(
        self, leaf: isl.ScheduleNode, sums: Sequence[str], names: Sequence[str], shared: str | None
    ) -> isl.ScheduleNode:
        """A few rows of the vector operand at a time, as many in all blocks but the last."""
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

    def in_result_order(self, leaf: isl.ScheduleNode, shared: str | None) -> isl.ScheduleNode:
        """Register tiles one after the other as C lies in memory."""
        plan, names = self.nest.plan, self.nest.statements
        loops = [self.loop(i, names) for i in plan.result_order]
        if shared == "row side":
            loops[0] = loops[0].marked("parallel")

        def rows(node: isl.ScheduleNode) -> isl.ScheduleNode:
            tile = self.loop(plan.rows, names, tile=plan.tile.rows)
            tile = tile.marked("parallel" if shared == "rows" else None)
            return around(node, [tile], lambda n: self.panels(n, jam_inside=True))

        return around(leaf, loops, lambda n: self.split(n, plan.rows, plan.tile.rows, names, rows))

    def make(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """A block of an operand, row by row; where it is summed up, a few vectors of all rows at a time, with the sums in registers."""
        plan, makers, names = self.nest.plan, self.nest.makers, self.made
        assert makers is not None, "internal: no operand is made"
        sums = [self.loop(i, makers.steps) for i in plan.reduced if i != makers.lanes]
        outer = [
            self.loop(i, names)
            for i in makers.indices[makers.steps[0]]
            if i not in (*plan.batch, *plan.reduced, makers.lanes)
        ]
        width = ceil(plan.sizes.get(makers.lanes, plan.extents[makers.lanes]) * plan.tile.vectors / plan.width)
        lanes = self.loop(makers.lanes, names).marked(f"vector:{min(MADE_TOGETHER, width)}")
        steps: list[Part] = [((name,), "", lambda n: n) for name in makers.steps]
        if not makers.begins:
            return around(leaf, [*outer, *sums, lanes], lambda n: self.sequence(n, steps))
        parts: list[Part] = [((name,), "", lambda n: n) for name in makers.begins]
        parts.append((makers.steps, "", lambda n: around(n, sums, lambda inner: self.sequence(inner, steps))))
        return around(leaf, [*outer, lanes], lambda n: self.sequence(n, parts))

    def pack(self, leaf: isl.ScheduleNode, name: str, shared: str | None) -> isl.ScheduleNode:
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

        # Apart from the rest, full panels have rows of a constant number of vectors.
        return self.split(leaf, plan.lanes, plan.width, copy, panels, rest=lambda n: panels(n, full=False))

    def pack_rest(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """The columns that are left, side by side in the operand and apart in the copy."""
        plan, copy = self.nest.plan, self.nest.copies.rest_copy
        assert copy is not None, "internal: no columns are left"
        loops = [self.loop(i, (copy,)) for i in (*plan.reduced, plan.lanes)]
        return insert_loops(leaf, loops)

    def rows(self, leaf: isl.ScheduleNode, shared: str | None) -> isl.ScheduleNode:
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
        """Loops over the row side, of which the threads share one."""
        plan = self.nest.plan
        index = None
        if shared == "row side":
            index = plan.row_side[0] if plan.ends else shared_row(plan, self.threads)
        return [self.loop(i, names).marked("parallel" if i == index else None) for i in plan.row_side]

    def turned_rows(self, leaf: isl.ScheduleNode, shared: str | None) -> isl.ScheduleNode:
        """A row of the result at a time, or a register tile's rows; when it is finished, what follows lays it out in another order."""
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

    def turn(self, leaf: isl.ScheduleNode, name: str) -> isl.ScheduleNode:
        """A statement with lanes along the rows: inside, it walks along what were lanes, so that blocks are transposed in registers."""
        plan = self.nest.plan
        outer = [self.loop(i, (name,)) for i in plan.vector_side]
        inner = [self.loop(plan.rows, (name,)).marked("vector:1"), self.loop(plan.lanes, (name,))]
        return insert_loops(leaf, [*outer, *inner])

    def row_tiles(self, leaf: isl.ScheduleNode, shared: str | None) -> isl.ScheduleNode:
        """A register tile's rows at a time."""
        plan, packed = self.nest.plan, self.nest.copies.row_copy is not None
        tile = self.loop(plan.rows, self.statements, tile=plan.tile.rows)
        tile = tile.marked("parallel" if shared == "rows" else None)
        if not plan.rest:
            return around(leaf, [tile], lambda n: self.panels(n, jam_inside=packed))
        parts: list[Part] = [(self.nest.statements, "", lambda n: self.panels(n, jam_inside=packed))]
        parts.append((self.nest.rest, "", self.rest_columns))
        return around(leaf, [tile], lambda n: self.sequence(n, parts))

    def packed_rows(self, leaf: isl.ScheduleNode, shared: str | None) -> isl.ScheduleNode:
        """A block of rows at a time, packed in panels as high as the register tile."""
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

    def pack_rows(self, leaf: isl.ScheduleNode, shared: str | None) -> isl.ScheduleNode:
        """A block of the row operand in panels as high as the register tile."""
        plan = self.nest.plan
        assert self.nest.copies.row_copy is not None, "internal: no rows are packed"
        copy = (self.nest.copies.row_copy,)
        whole = plan.result_order or plan.rows_ahead
        loops = [self.loop(i, copy) for i in plan.row_side] if whole else []
        *outer, last = plan.reduced
        parallel = shared in ("rows", "row side", BLOCKS) and shares_row_packing(plan, self.threads)
        # Threads take several rows at a time, too: each asks for the ones to come.
        together = 1 if plan.row_lines and not parallel else TOGETHER
        loops += [*(self.loop(i, copy) for i in outer), self.loop(last, copy, tile=together)]
        if parallel:
            loops[0] = loops[0].marked("parallel")
        # Rows that are contiguous along the sum are transposed in registers.
        inner = [self.loop(plan.rows, copy).marked("vector:1")]
        if together > 1:
            inner.insert(0, self.loop(last, copy))
        tiles = [self.loop(plan.rows, copy, tile=plan.tile.rows), *(inner[::-1] if plan.rows_along else inner)]
        # Apart from the rest, full panels have rows of a constant number of lanes.
        return around(
            leaf,
            loops,
            lambda n: self.split(n, plan.rows, plan.tile.rows, copy, lambda inner: insert_loops(inner, tiles)),
        )

    def panels(self, leaf: isl.ScheduleNode, *, jam_inside: bool) -> isl.ScheduleNode:
        plan, names = self.nest.plan, self.nest.statements
        jam = [self.loop(i, names).marked(f"jam:{plan.tile.rows}") for i in self.rows_index]
        loops = [] if jam_inside else jam[:]
        if not plan.result_order:
            loops += [self.loop(i, names) for i in plan.vector_side]

        def tile(node: isl.ScheduleNode, vectors: int = plan.tile.vectors) -> isl.ScheduleNode:
            inner = [self.loop(plan.lanes, names, tile=plan.width)] + (jam if jam_inside else [])
            inner.append(self.loop(plan.lanes, names).marked(f"vector:{vectors}"))
            return around(node, inner, self.kernel)

        def rest(node: isl.ScheduleNode) -> isl.ScheduleNode:
            # Of long rows that are read in order what is left is little, whatever it takes.
            return tile(node, self.vectors(full=False) if plan.streams else plan.tile.vectors)

        def last(node: isl.ScheduleNode, vectors: int) -> isl.ScheduleNode:
            lanes = self.loop(plan.lanes, names).marked(f"vector:{vectors}")
            return around(node, [*(jam if jam_inside else []), lanes], self.kernel)

        def split(node: isl.ScheduleNode) -> isl.ScheduleNode:
            if not plan.last:
                return self.split(node, plan.lanes, plan.width, names, tile, rest=rest)
            columns, width = plan.extents[plan.lanes], plan.width // plan.tile.vectors
            begin = columns - width * sum(plan.last)
            end = begin + width * plan.last[0]
            pair: list[Part] = [
                (names, f"{plan.lanes} < {end}", lambda n: last(n, plan.last[0])),
                (names, f"{plan.lanes} >= {end}", lambda n: last(n, plan.last[1])),
            ]
            parts: list[Part] = [(names, f"{plan.lanes} < {begin}", tile)] if begin else []
            parts.append((names, f"{plan.lanes} >= {begin}", lambda n: self.sequence(n, pair)))
            return self.sequence(node, parts)

        return around(leaf, loops, split)

    def rest_across(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """The columns that are left, lanes along the rows, a few vectors of these at a time."""
        plan, names = self.nest.plan, self.nest.rest
        vectors = max(1, min(4, SIDE_BY_SIDE // plan.rest))
        width = vectors * plan.width // plan.tile.vectors
        part = _Builder(
            replace(self.nest, statements=names, plan=replace(plan, statement=rest_name(plan.statement))), 1
        )

        def tile(node: isl.ScheduleNode) -> isl.ScheduleNode:
            loops = [self.loop(plan.rows, names, tile=width), self.loop(plan.lanes, names).marked(f"jam:{plan.rest}")]
            return around(node, [*loops, self.loop(plan.rows, names).marked(f"vector:{vectors}")], part.kernel)

        return self.split(leaf, plan.rows, width, names, tile)

    def rest_columns(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """The columns that are left, lanes along the sum: elements side by side share what they load."""
        plan, names = self.nest.plan, self.nest.rest
        *outer, last = plan.reduced
        sums = [*(self.loop(i, names) for i in outer), self.loop(last, names).marked("vector:1")]
        parts: list[Part] = []
        for name in names:
            own = name == rest_name(plan.statement)
            parts.append(((name,), "", (lambda n: insert_loops(n, sums)) if own else (lambda n: n)))
        jam = self.loop(plan.rows, names).marked(f"jam:{rows_at_once(plan.tile.rows, plan.rest)}")
        columns = self.loop(plan.lanes, names).marked(f"jam:{plan.rest}")
        return around(leaf, [jam, columns], lambda n: self.sequence(n, parts))

    def vectors(self, full: bool) -> int:
        """How many run at once: all of a panel's, but where the panel is a rest of unknown length, one: each number of vectors is code of its own."""
        plan = self.nest.plan
        return plan.tile.vectors if full or plan.lanes not in plan.ends else 1

    def kernel(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        own = (self.nest.plan.statement,)
        reduce = [self.loop(i, own) for i in self.nest.plan.reduced]
        parts: list[Part] = []
        for name in self.nest.statements:
            parts.append(((name,), "", (lambda n: insert_loops(n, reduce)) if name == own[0] else (lambda n: n)))
        return self.sequence(leaf, parts)
