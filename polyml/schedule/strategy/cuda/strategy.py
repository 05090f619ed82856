"""The recipe for CUDA: which loops of an ordered tree are blocks, which are threads, and what stays a loop.

1. A sequence at the top is a sequence of kernels; a loop that carries a dependence there launches what is inside it again and again, unless that is so
   little work that one block does it all, with barriers in place of launches.
2. A coincident band is a grid. Do accesses coalesce when neighbouring threads take neighbouring iterations of one of its loops (strides decide, see cost.py)?
   a. Yes: that loop is x. It and one more are tiled: tiles to blocks, points to threads, a third loop to blocks.z. Everything below runs in one thread.
      Where a reduction inside loads less that way, and there are blocks enough, a thread has a register tile of points.
   b. No, loops further inside coalesce: its loops are blocks, and the loops inside are given to the threads of the block (3).
3. Inside a block: a coincident band is shared by the threads along its best loop; a band of reductions too, with a private accumulator per thread
   that the block combines; a band that carries a dependence is a loop of the block, with barriers.
4. Whatever is left runs in one thread.
5. By option (`atomics`): an update that would leave most of the device idle is a grid over all its loops, threads update elements by atomic operations; where it is a reduction
   of rows, a block's threads share a piece of the row first.

Every `block` and `thread` loop is proved free of dependences by legality.py; barriers are put where threads exchange something (codegen/cuda/blocks/barriers.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import prod

import islpy as isl

from polyml.expressions import reads_of
from polyml.records import dataclass
from polyml.schedule.cost import StatementModel
from polyml.schedule.gpu.staged import StagedNest
from polyml.schedule.matching import Matcher
from polyml.schedule.schedule import Note
from polyml.schedule.strategy.cuda.atomics import merged, parted, row_cuts, update_of
from polyml.schedule.strategy.cuda.model import CudaModel
from polyml.schedule.strategy.cuda.nests import MARK, Staged
from polyml.schedule.strategy.cuda.stages import build_staged
from polyml.schedule.transforms import (
    Loop,
    insert_mark,
    loops_of,
    merge_with_child,
    nest_loops,
    quotient_loop,
    remainder_loop,
    split_band,
    tile_loop,
)
from polyml.schedule.tree import Kind, is_coincident, kind_of, mark_name, members, nodes, statements_below
from polyml.sets.affine import Affine
from polyml.target import Target

__all__ = ["CudaStrategy", "apply_cuda_strategy"]

WARP, ROW_THREADS, LINE_THREADS = 32, 8, 256
"""Threads of a block, where it may have so many: ROW_THREADS rows of a WARP for two loops, LINE_THREADS for one."""

REGISTER_TILES = ((8, 4), (4, 4), (4, 2), (2, 2))
"""Elements of a thread along y and x, the largest first: the more, the fewer loads per operation, and the fewer blocks."""

HALO_TILE = (4, 1)
"""The same for windows of points: rows share what they read."""

VECTOR_WORK, VECTOR_ROW = 4096, 1024
"""Elements per core of the device, and of a row that a block shares, from which on a thread takes several neighbours: 16 bytes at a time, and still threads enough."""

ONE_BLOCK = 8192
"""Iterations of the loops inside a time loop up to which one block is faster than launching again for each step."""


def apply_cuda_strategy(
    found: Staged, matcher: Matcher, models: Mapping[str, StatementModel], target: Target, *, atomics: bool = False
) -> tuple[isl.Schedule, tuple[Note, ...], frozenset[str]]:
    """The ordered tree with its loops mapped, what was decided, and which updates are atomic (none without `atomics`)."""
    model = CudaModel(found.scop, matcher, models, target)
    worker = CudaStrategy(model, {n.plan.statement: n for n in found.nests}, atomics)
    node = worker.visit(found.tree.get_root().child(0))
    return node.get_schedule(), tuple(worker.notes), frozenset(worker.atomic)


@dataclass(slots=True)
class CudaStrategy:
    """One run over one tree."""

    model: CudaModel
    nests: Mapping[str, StagedNest]
    atomics: bool
    notes: list[Note] = field(default_factory=list)
    atomic: set[str] = field(default_factory=set)
    parts: int = 0

    @property
    def row_threads(self) -> int:
        """Rows of a block, each a warp."""
        return max(1, min(ROW_THREADS, self.model.target.block_threads // WARP))

    @property
    def line_threads(self) -> int:
        """Threads of a block in one line, whole warps."""
        return max(1, min(LINE_THREADS // WARP, self.model.target.block_threads // WARP)) * WARP

    # -- the top: kernels ---------------------------------------------------------------------------------------------------------

    def visit(self, node: isl.ScheduleNode) -> isl.ScheduleNode:
        """The node with everything below it mapped; it stands at the top, where nothing is mapped yet."""
        match kind_of(node):
            case Kind.leaf:
                return node
            case Kind.sequence:
                for k in range(node.n_children()):
                    node = self._part(self.visit(node.child(k).child(0)), k).parent().parent()
                return node
            case Kind.band:
                return self._band(node)
            case Kind.mark if mark_name(node).startswith(MARK):
                nest = self.nests[mark_name(node).removeprefix(MARK)]
                return build_staged(node.delete(), nest, self.model.scop)
            case _:
                return self.visit(node.child(0)).parent()

    def _part(self, node: isl.ScheduleNode, position: int) -> isl.ScheduleNode:
        """A child of a sequence of kernels, marked so that its block loops are never taken for those of the child before, where isl leaves both out."""
        if position == 0:
            return node
        self.parts += 1
        return insert_mark(node, f"part:_{self.parts + 1}")

    def _band(self, node: isl.ScheduleNode) -> isl.ScheduleNode:
        if self.atomics:
            name = update_of(node, self.model)
            if name is not None:
                return self._atomically(node, name)
            apart = parted(node, self.model)
            if apart is not None:
                return self.visit(apart)
        node = _uniform(node)
        if _has_staged(node):
            self._note(node, "a loop of launches")
            return self.visit(node.child(0)).parent()
        if is_coincident(node):
            here, inside = self.model.costs(node)
            return self._points(node) if here <= inside else self._rows(node)
        if self.model.is_reduction(node) or self.model.parallel_work(node) <= ONE_BLOCK:
            return self.inside_block(node)
        self._note(node, "a loop of launches")
        return self.visit(node.child(0)).parent()

    def _points(self, node: isl.ScheduleNode) -> isl.ScheduleNode:
        """2a: tiles to blocks, points to threads."""
        loops, extents = loops_of(node), self.model.extents(node)
        x = self.model.best(node)
        others = sorted((k for k in range(len(loops)) if k != x), key=lambda k: -extents[k])
        y = next((k for k in others if extents[k] > 1), None)
        z = next((k for k in others if k != y and extents[k] > 1), None)
        tile = None if y is None else self._register_tile(node, x, y) or self._halo_tile(node, x, y)
        if y is not None and tile is not None:
            return self._tiled_points(node, x, y, z, tile)
        vector = self.model.vector(node, x) if prod(extents) >= VECTOR_WORK * self.model.target.cores else 1
        width = WARP if y is not None else min(self.line_threads, _round_up(extents[x] // vector, WARP))
        made: list[Loop] = []
        if z is not None:
            made.append(loops[z].marked("block.z"))
        if y is not None:
            made.append(tile_loop(loops[y], self.row_threads).marked(f"block.y:{self.row_threads}"))
        if vector == 1:
            made.append(tile_loop(loops[x], width).marked(f"block.x:{width}"))
        else:  # by number, so that the vectors of a tile begin at a multiple
            made.append(quotient_loop(loops[x], width * vector).marked("block.x"))
        if y is not None:
            made.append(loops[y].marked(f"thread.y:{self.row_threads}"))
        made.append(quotient_loop(loops[x], vector).marked(f"thread.x:{width}"))
        made += [loops[k] for k in others if k not in (y, z)]
        made += [loops[x].marked(f"jam:{vector}")] if vector > 1 else []
        rows = "" if y is None else f" of {self.row_threads} x {self.model.name(node, y)}"
        each = "one element each" if vector == 1 else f"{vector} neighbours each"
        self._note(node, f"threads {width} x {self.model.name(node, x)}{rows}, {each}")
        return nest_loops(node, made)

    def _register_tile(self, node: isl.ScheduleNode, x: int, y: int) -> tuple[int, int] | None:
        """Elements per thread along y and x where that saves loads: a reduction inside reads something that does not move along the one, and something that
        does not move along the other; None where there is no such reduction, or too few elements to occupy the device."""
        found, extents = members(node, self.model.scop), self.model.extents(node)
        for name in statements_below(node):
            model, along_x, along_y = self.model.models[name], found[x].index(name), found[y].index(name)
            if not model.is_update or along_x is None or along_y is None:
                continue
            reads = [access for access in model.accesses if not access.write]
            inner = set(model.extents) - {member.index(name) for member in found}
            shares = any(a.stride(along_x) == 0 for a in reads) and any(a.stride(along_y) == 0 for a in reads)
            if not (inner and shares and all(a.stride(along_x) in (0, 1) for a in reads)):
                continue
            for rows, columns in REGISTER_TILES:
                if 4 * rows * columns > self.model.target.vector_registers + 1:
                    continue
                if extents[y] >= rows * self.row_threads and extents[x] >= columns * WARP:
                    blocks = prod(extents) // (rows * self.row_threads * columns * WARP)
                    if blocks >= self.model.target.cores // 2:
                        return rows, columns
        return None

    def _halo_tile(self, node: isl.ScheduleNode, x: int, y: int) -> tuple[int, int] | None:
        """Several rows per thread where windows of neighbouring rows overlap: a tile in shared memory (codegen/cuda/blocks/halo.py) has less of a rim then."""
        found, extents = members(node, self.model.scop), self.model.extents(node)
        rows, columns = HALO_TILE
        blocks = prod(extents) // (rows * self.row_threads * columns * WARP)
        if blocks < 2 * self.model.target.cores or extents[y] < rows * self.row_threads or extents[x] < WARP:
            return None
        for name in statements_below(node):
            statement, along_x, along_y = self.model.scop.statements[name], found[x].index(name), found[y].index(name)
            windows: dict[str, set[int]] = {}
            for read in reads_of(statement.value) if statement.argument is None else ():
                moving = [s for s in read.subscripts if isinstance(s, Affine) and along_y in s.variables()]
                if along_x is not None and len(moving) == 1:
                    windows.setdefault(read.tensor, set()).add(moving[0].constant)
            if any(len(constants) > 2 for constants in windows.values()):
                return HALO_TILE
        return None

    def _tiled_points(
        self, node: isl.ScheduleNode, x: int, y: int, z: int | None, tile: tuple[int, int]
    ) -> isl.ScheduleNode:
        """2a with several elements per thread: those a block's width apart, so that neighbouring threads still take neighbouring elements."""
        loops, (rows, columns) = loops_of(node), tile
        made = [] if z is None else [loops[z].marked("block.z")]
        made += [
            tile_loop(loops[y], rows * self.row_threads).marked(f"block.y:{rows * self.row_threads}"),
            tile_loop(loops[x], columns * WARP).marked(f"block.x:{columns * WARP}"),
            remainder_loop(loops[y], self.row_threads).marked(f"thread.y:{self.row_threads}"),
            remainder_loop(loops[x], WARP).marked(f"thread.x:{WARP}"),
            *(loop for k, loop in enumerate(loops) if k not in (x, y, z)),
            loops[y].marked(f"jam:{rows}"),
            loops[x].marked(f"jam:{columns}"),
        ]
        names = f"{rows} x {self.model.name(node, y)} and {columns} x {self.model.name(node, x)}"
        self._note(node, f"threads {WARP} x {self.row_threads}, each with a register tile of {names}")
        return nest_loops(node, made)

    def _rows(self, node: isl.ScheduleNode) -> isl.ScheduleNode:
        """2b: a block per iteration."""
        loops, extents = loops_of(node), self.model.extents(node)
        order = sorted(range(len(loops)), key=lambda k: -extents[k])
        mapped = order[:3]
        made = [loops[k].marked(f"block.{axis}") for k, axis in reversed(list(zip(mapped, "xyz", strict=False)))]
        made += [loops[k] for k in order[3:]]
        self._note(node, f"a block per {', '.join(self.model.name(node, k) for k in mapped)}")
        depth = len(made) + len(mapped)
        node = nest_loops(node, made)
        for _ in range(depth):
            node = node.child(0)
        return self.inside_block(node).ancestor(depth)

    def _atomically(self, node: isl.ScheduleNode, name: str) -> isl.ScheduleNode:
        """5: all loops at once."""
        node = merged(node)
        self.atomic.add(name)
        self._note(node, "elements are updated by atomic operations")
        cut = row_cuts(self.model).get(name)
        if cut is None:
            return self._points(node)
        loops, statement = loops_of(node), self.model.scop.statements[name]
        indices = [member.index(name) or "" for member in members(node, self.model.scop)]
        reduced = [self.model.matcher.is_reduction(name, statement.indices.index(index)) for index in indices]
        free = [loop for loop, inside in zip(loops, reduced, strict=True) if not inside]
        made = [loop.marked(f"block.{axis}") for loop, axis in zip(free, "zy", strict=False)] + free[2:]
        made.append(tile_loop(loops[indices.index(cut[0])], cut[1]).marked(f"block.x:{cut[1]}"))
        depth = len(made) + sum(loop.mark is not None for loop in made)
        node = nest_loops(node, [*made, *(loop for loop, inside in zip(loops, reduced, strict=True) if inside)])
        for _ in range(depth):
            node = node.child(0)
        return self._threads(merged(node)).ancestor(depth)

    # -- inside a block -----------------------------------------------------------------------------------------------------------

    def inside_block(self, node: isl.ScheduleNode) -> isl.ScheduleNode:
        """3: the node with its loops given to the threads of one block."""
        match kind_of(node):
            case Kind.leaf:
                return node
            case Kind.sequence:
                for k in range(node.n_children()):
                    node = self.inside_block(node.child(k).child(0)).parent().parent()
                return node
            case Kind.band:
                node = _uniform(node)
                if is_coincident(node) or self.model.is_reduction(node):
                    return self._threads(node)
                return self.inside_block(node.child(0)).parent()
            case _:
                return self.inside_block(node.child(0)).parent()

    def _threads(self, node: isl.ScheduleNode) -> isl.ScheduleNode:
        """The band shared by threads along its best loop; its other loops run inside each thread."""
        loops, x = loops_of(node), self.model.best(node)
        extent = self.model.extents(node)[x]
        vector = self.model.vector(node, x) if extent >= VECTOR_ROW else 1
        width = min(self.line_threads, _round_up(extent // vector, WARP))
        each = "" if vector == 1 else f", {vector} neighbours each"
        self._note(node, f"threads of a block share {self.model.name(node, x)}, {width} at a time{each}")
        rest = [loop for k, loop in enumerate(loops) if k != x]
        rest += [loops[x].marked(f"neighbours:{vector}")] if vector > 1 else []
        return nest_loops(node, [quotient_loop(loops[x], vector).marked(f"thread.x:{width}"), *rest])

    def _note(self, node: isl.ScheduleNode, text: str) -> None:
        self.notes.append(Note("mapping", " ".join(statements_below(node)), text))


def _uniform(node: isl.ScheduleNode) -> isl.ScheduleNode:
    """A band whose loops are all coincident, joined with such bands right below, or all not: the first such part of a mixed one."""
    flags = [node.band_member_get_coincident(k) for k in range(node.band_n_member())]
    change = next((k for k, flag in enumerate(flags) if flag != flags[0]), None)
    if change is not None:
        return split_band(node, change)
    while is_coincident(node) and kind_of(node.child(0)) == Kind.band and is_coincident(node.child(0)):
        node = merge_with_child(node)
    return node


def _has_staged(node: isl.ScheduleNode) -> bool:
    """Whether a contraction in tiles is inside, which all blocks run."""
    return any(kind_of(below) == Kind.mark and mark_name(below).startswith(MARK) for below in nodes(node))


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
