"""The tree of a blocked contraction (see blocking.py):

batch, blocks of the vector side, blocks of the reduction
  pack the block of the vector operand in panels
  rows of the row side (threads share them), a register tile's at a time; pack those rows, where that pays
  (or the blocks of the reduction come first, and all rows are packed ahead of the blocks of the vector side)
    panels of the block: full ones, then the rest
      jammed rows, lanes
        initialize (in the first block of the reduction), reduce, finish
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.block_copies import BlockedNest, block_index
from polyml.schedule.strategy.block_threads import shared_loops
from polyml.schedule.transforms import Loop, insert_loops, insert_mark, insert_sequence
from polyml.scop.accesses import parameters_text

__all__ = ["build_blocked"]


CHUNK = 256
"""Elements of a row that are packed before the next row: a run that memory delivers well, into no more panels than L1 has room for lines of."""

_Build = Callable[[isl.ScheduleNode], isl.ScheduleNode]
"""From a leaf to the subtree in its place."""

_Part = tuple[Sequence[str], str, _Build]
"""Statements, a condition on them, and what is made of their leaf."""


def build_blocked(leaf: isl.ScheduleNode, nest: BlockedNest, *, threads: int) -> isl.ScheduleNode:
    """The whole nest in the place of a leaf that its statements and copies reach."""
    return _Builder(nest, threads).all(leaf)


@dataclass(frozen=True, slots=True)
class _Builder:
    nest: BlockedNest
    threads: int

    # -- levels, outermost first --------------------------------------------------------------------------------------------------

    def all(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        plan, copies = self.nest.plan, self.nest.copies
        everything = self.everything
        loops = [self.loop(i, everything) for i in plan.batch]
        shared = shared_loops(plan, self.threads)
        if plan.batch and shared == "batch":
            loops[0] = loops[0].marked("parallel")
        sums = [i for i in plan.reduced if plan.blocked(i)]
        if plan.rows_ahead and copies.row_copy is not None and copies.row_array is not None:
            rows, array = copies.row_copy, copies.row_array
            loops += self.tiles(sums, everything, shared)
            parts: list[_Part] = [((rows,), "", lambda n: self.pack_rows(n, shared))]
            names = tuple(name for name in everything if name != rows)
            parts.append((names, "", lambda n: self.columns(n, [], names, shared)))
            return self.nested(leaf, loops, self.within(array, lambda n: self.sequence(n, parts)))
        return self.nested(leaf, loops, lambda n: self.columns(n, sums, everything, shared))

    def tiles(self, indices: Sequence[str], names: Sequence[str], shared: str | None) -> list[Loop]:
        """The loops over blocks."""
        plan = self.nest.plan
        loops = [self.loop(index, names, tile=plan.sizes[index]) for index in indices]
        return [
            loop.marked("parallel") if index == plan.lanes and shared == "lanes" else loop
            for index, loop in zip(indices, loops, strict=True)
        ]

    def columns(
        self, leaf: isl.ScheduleNode, sums: Sequence[str], names: Sequence[str], shared: str | None
    ) -> isl.ScheduleNode:
        """The blocks of the vector side, and within each those of the reduction that are left."""
        plan, copies = self.nest.plan, self.nest.copies
        sides = [i for i in (*plan.vector_side, plan.lanes) if plan.blocked(i)]
        loops = self.tiles([*sides, *sums], names, shared)
        vector_copy, array = copies.vector_copy, copies.vector_array
        if vector_copy is None or array is None:
            return self.nested(leaf, loops, lambda n: self.rows(n, shared))
        parts: list[_Part] = [((vector_copy,), "", lambda n: self.pack(n, vector_copy, shared))]
        arrays = [array]
        if not plan.result_order:
            inner = tuple(name for name in names if name != vector_copy)
            parts.append((inner, "", lambda n: self.rows(n, shared)))
        else:
            if copies.row_copy is not None and copies.row_array is not None:
                parts.append(((copies.row_copy,), "", lambda n: self.pack_rows(n, None)))
                arrays.append(copies.row_array)
            parts.append((self.nest.statements, "", lambda n: self.in_result_order(n, shared)))

        def inside(node: isl.ScheduleNode) -> isl.ScheduleNode:
            return self.sequence(node, parts)

        build: _Build = inside
        for name in arrays:
            build = self.within(name, build)
        return self.nested(leaf, loops, build)

    def within(self, array: str, inside: _Build) -> _Build:
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
            return self.nested(node, [tile], lambda n: self.panels(n, jam_inside=True))

        return self.nested(leaf, loops, lambda n: self.split(n, plan.rows, plan.tile.rows, names, rows))

    def pack(self, leaf: isl.ScheduleNode, name: str, shared: str | None) -> isl.ScheduleNode:
        plan, copy = self.nest.plan, (name,)

        def panels(node: isl.ScheduleNode, *, full: bool = True) -> isl.ScheduleNode:
            loops: list[Loop] = []
            for index in plan.source_order:
                if index == plan.lanes:
                    loops.append(self.loop(index, copy, tile=plan.width))
                loops.append(self.loop(index, copy))
            if shared in ("rows", "row side") and full:
                loops[0] = loops[0].marked("parallel")
            at, vectors = (-1, plan.tile.vectors) if plan.source_order[-1] == plan.lanes else (-2, 1)
            loops[at] = loops[at].marked(f"vector:{vectors}")
            return insert_loops(node, loops)

        # Apart from the rest, full panels have rows of a constant number of vectors.
        return self.split(leaf, plan.lanes, plan.width, copy, panels, rest=lambda n: panels(n, full=False))

    def rows(self, leaf: isl.ScheduleNode, shared: str | None) -> isl.ScheduleNode:
        plan = self.nest.plan
        packed, inside = self.nest.copies.row_copy is not None, not plan.rows_ahead
        names = self.without_vector_copy if inside else self.nest.statements
        loops = [self.loop(i, names) for i in plan.row_side]
        if shared == "row side":
            loops[0] = loops[0].marked("parallel")
        if not packed and shared != "rows":
            return self.nested(leaf, loops, lambda n: self.panels(n, jam_inside=False))
        part = self.packed_rows if packed and inside else self.row_tiles
        return self.nested(
            leaf, loops, lambda n: self.split(n, plan.rows, plan.tile.rows, names, lambda inner: part(inner, shared))
        )

    def row_tiles(self, leaf: isl.ScheduleNode, shared: str | None) -> isl.ScheduleNode:
        """A register tile's rows at a time."""
        plan, packed = self.nest.plan, self.nest.copies.row_copy is not None
        tile = self.loop(plan.rows, self.nest.statements, tile=plan.tile.rows)
        tile = tile.marked("parallel" if shared == "rows" else None)
        return self.nested(leaf, [tile], lambda n: self.panels(n, jam_inside=packed))

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
        return self.nested(leaf, [block], lambda n: self.allocated(n, array, inside))

    def pack_rows(self, leaf: isl.ScheduleNode, shared: str | None) -> isl.ScheduleNode:
        """A block of the row operand in panels as high as the register tile."""
        plan = self.nest.plan
        assert self.nest.copies.row_copy is not None, "internal: no rows are packed"
        copy = (self.nest.copies.row_copy,)
        whole = plan.result_order or plan.rows_ahead
        loops = [self.loop(i, copy) for i in plan.row_side] if whole else []
        block = (plan.extents if whole else plan.sizes)[plan.rows]
        if block > CHUNK:
            loops.append(self.loop(plan.rows, copy, tile=_chunk(block, plan.tile.rows, whole=bool(whole))))
        loops += [self.loop(i, copy) for i in plan.reduced]
        if shared in ("rows", "row side"):
            loops[0] = loops[0].marked("parallel")
        loops.append(self.loop(plan.rows, copy, tile=plan.tile.rows))
        return insert_loops(leaf, [*loops, self.loop(plan.rows, copy).marked("vector:1")])

    def panels(self, leaf: isl.ScheduleNode, *, jam_inside: bool) -> isl.ScheduleNode:
        plan, names = self.nest.plan, self.nest.statements
        jam = self.loop(plan.rows, names).marked(f"jam:{plan.tile.rows}")
        loops = [] if jam_inside else [jam]
        if not plan.result_order:
            loops += [self.loop(i, names) for i in plan.vector_side]

        def tile(node: isl.ScheduleNode) -> isl.ScheduleNode:
            inner = [self.loop(plan.lanes, names, tile=plan.width)] + ([jam] if jam_inside else [])
            inner.append(self.loop(plan.lanes, names).marked(f"vector:{plan.tile.vectors}"))
            return self.nested(node, inner, self.kernel)

        return self.nested(leaf, loops, lambda n: self.split(n, plan.lanes, plan.width, names, tile))

    def kernel(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        own = (self.nest.plan.statement,)
        reduce = [self.loop(i, own) for i in self.nest.plan.reduced]
        parts: list[_Part] = []
        for name in self.nest.statements:
            parts.append(((name,), "", (lambda n: insert_loops(n, reduce)) if name == own[0] else (lambda n: n)))
        return self.sequence(leaf, parts)

    # -- parts --------------------------------------------------------------------------------------------------------------------

    @property
    def without_vector_copy(self) -> tuple[str, ...]:
        copies = self.nest.copies
        return self.nest.statements if copies.row_copy is None else (copies.row_copy, *self.nest.statements)

    @property
    def everything(self) -> tuple[str, ...]:
        copy = self.nest.copies.vector_copy
        return self.without_vector_copy if copy is None else (copy, *self.without_vector_copy)

    def loop(self, index: str, names: Sequence[str], *, tile: int | None = None) -> Loop:
        """The loop over `index`, or over its tiles (at the first iteration of each), for the statements that run along it; those of other statements stand
        at 0: they belong to the first block."""
        pieces = []
        for name in names:
            mine, repeated = self.own(name, index), block_index(index) in self.nest.domains[name]
            value = "0" if mine is None else mine if tile is None else f"{tile}*floor({mine}/{tile})"
            if mine is None and repeated:
                value = f"{tile}*{block_index(index)}"
            pieces.append(f"{name}[{', '.join(self.nest.domains[name])}] -> [({value})]")
        coincident = index not in self.nest.plan.reduced
        return Loop(isl.UnionPwAff(f"{{ {'; '.join(pieces)} }}"), coincident)

    def own(self, name: str, index: str) -> str | None:
        if name in self.nest.indices:
            return self.nest.indices[name].get(index)
        return index if index in self.nest.domains[name] else None

    def nested(self, leaf: isl.ScheduleNode, loops: Sequence[Loop], inside: _Build) -> isl.ScheduleNode:
        """The loops around what `inside` makes. *Returns* the node in the leaf's place."""
        if not loops:
            return inside(leaf)
        depth = len(loops) + sum(loop.mark is not None for loop in loops)
        node = insert_loops(leaf, loops)
        for _ in range(depth):
            node = node.child(0)
        return inside(node).ancestor(depth)

    def allocated(self, leaf: isl.ScheduleNode, array: str, inside: _Build) -> isl.ScheduleNode:
        return insert_mark(inside(leaf), f"allocate:{array}")

    def sequence(self, leaf: isl.ScheduleNode, parts: Sequence[_Part]) -> isl.ScheduleNode:
        """A sequence of parts: statements, a condition on them (by the plan's index, `%` stands for it), and what is made of the part's leaf."""
        if len(parts) == 1:
            return parts[0][2](leaf)
        node = insert_sequence(leaf, [self.filter(names, condition) for names, condition, _ in parts])
        for position, (_, _, build) in enumerate(parts):
            node = build(node.child(position).child(0)).parent().parent()
        return node

    def filter(self, names: Sequence[str], condition: str) -> isl.UnionSet:
        index, _, text = condition.partition(" ")
        pieces = []
        for name in names:
            own = self.own(name, index) if condition else None
            limit = f" : {own} {text}" if own is not None else ""
            pieces.append(f"{name}[{', '.join(self.nest.domains[name])}]{limit}")
        sizes = sorted({v for end in self.nest.plan.ends.values() for v in end.variables()})
        return isl.UnionSet(f"{parameters_text(tuple(sizes))}{{ {'; '.join(pieces)} }}")

    def split(
        self,
        leaf: isl.ScheduleNode,
        index: str,
        step: int,
        names: Sequence[str],
        inside: _Build,
        *,
        rest: _Build | None = None,
    ) -> isl.ScheduleNode:
        """Full tiles along the index, then the rest: both have a number of iterations that is known. rest: None: like full ones."""
        plan = self.nest.plan
        whole = str(plan.extents[index] // step * step)
        if index in plan.ends:
            whole = f"{step}*floor({plan.end(index)}/{step})"
        elif int(whole) in (0, plan.extents[index]):
            return inside(leaf)
        return self.sequence(
            leaf, [(names, f"{index} < {whole}", inside), (names, f"{index} >= {whole}", rest or inside)]
        )


def _chunk(block: int, step: int, *, whole: bool) -> int:
    """Elements of a row to pack before the next row's: whole tiles. Within a block of several they part it evenly, so that no chunk lies in two blocks."""
    most = CHUNK // step
    if whole:
        return most * step
    tiles = block // step
    return step * max(k for k in range(1, most + 1) if tiles % k == 0)
