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

Every `block` and `thread` loop is proved free of dependences by legality.py; between two thread loops of a block stands a barrier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import prod

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.cost import StatementModel
from polyml.schedule.matching import Matcher
from polyml.schedule.schedule import Note
from polyml.schedule.transforms import (
    Loop,
    loops_of,
    merge_with_child,
    nest_loops,
    remainder_loop,
    split_band,
    tile_loop,
)
from polyml.schedule.tree import Kind, kind_of, mark_name, members, nodes, statements_below
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine
from polyml.target import Target

__all__ = ["MAX_LOCAL_BYTES", "MAX_SHARED_BYTES", "CudaStrategy", "SharedRoom", "apply_cuda_strategy"]

WARP, ROW_THREADS, LINE_THREADS = 32, 8, 256
"""Threads of a block: ROW_THREADS rows of a WARP for two loops, LINE_THREADS for one."""

REGISTER_TILES = ((8, 4), (4, 4), (4, 2), (2, 2))
"""Elements of a thread along y and x, the largest first: the more, the fewer loads per operation, and the fewer blocks."""

ONE_BLOCK = 8192
"""Iterations of the loops inside a time loop up to which one block is faster than launching again for each step."""

COMBINE_COST, BARRIER_COST = 100.0, 10.0
"""Of a reduction across a block, and of a phase of its own, in the units of cost.py."""

MAX_SHARED_BYTES = 40 * 1024
"""Of a block's scratch arrays; what 48 KiB leave beside the room that reductions need."""

MAX_LOCAL_BYTES = 1024
"""Of one scratch array of a thread: beyond this it is better in device memory."""


def apply_cuda_strategy(
    tree: isl.Schedule,
    scop: Scop,
    matcher: Matcher,
    models: Mapping[str, StatementModel],
    target: Target,
) -> tuple[isl.Schedule, tuple[Note, ...]]:
    """The ordered tree with its loops mapped, and what was decided."""
    worker = CudaStrategy(scop, matcher, models, target)
    node = worker.visit(tree.get_root().child(0))
    return node.get_schedule(), tuple(worker.notes)


@dataclass(slots=True)
class CudaStrategy:
    """One run over one tree."""

    scop: Scop
    matcher: Matcher
    models: Mapping[str, StatementModel]
    target: Target
    notes: list[Note] = field(default_factory=list)

    # -- the top: kernels ---------------------------------------------------------------------------------------------------------

    def visit(self, node: isl.ScheduleNode) -> isl.ScheduleNode:
        """The node with everything below it mapped; it stands at the top, where nothing is mapped yet."""
        match kind_of(node):
            case Kind.leaf:
                return node
            case Kind.sequence:
                for k in range(node.n_children()):
                    node = self.visit(node.child(k).child(0)).parent().parent()
                return node
            case Kind.band:
                return self._band(node)
            case _:
                return self.visit(node.child(0)).parent()

    def _band(self, node: isl.ScheduleNode) -> isl.ScheduleNode:
        node = _uniform(node)
        if _is_coincident(node):
            here, inside = self._costs(node)
            return self._points(node) if here <= inside else self._rows(node)
        if self._is_reduction(node) or self._parallel_work(node) <= ONE_BLOCK:
            return self.inside_block(node)
        self._note(node, "a loop of launches")
        return self.visit(node.child(0)).parent()

    def _points(self, node: isl.ScheduleNode) -> isl.ScheduleNode:
        """2a: tiles to blocks, points to threads."""
        loops, extents = loops_of(node), self._extents(node)
        x = self._best(node)
        others = sorted((k for k in range(len(loops)) if k != x), key=lambda k: -extents[k])
        y = next((k for k in others if extents[k] > 1), None)
        z = next((k for k in others if k != y and extents[k] > 1), None)
        tile = None if y is None else self._register_tile(node, x, y)
        if y is not None and tile is not None:
            return self._tiled_points(node, x, y, z, tile)
        width = WARP if y is not None else min(LINE_THREADS, _round_up(extents[x], WARP))
        made: list[Loop] = []
        if z is not None:
            made.append(loops[z].marked("block.z"))
        if y is not None:
            made.append(tile_loop(loops[y], ROW_THREADS).marked(f"block.y:{ROW_THREADS}"))
        made.append(tile_loop(loops[x], width).marked(f"block.x:{width}"))
        if y is not None:
            made.append(loops[y].marked(f"thread.y:{ROW_THREADS}"))
        made.append(loops[x].marked(f"thread.x:{width}"))
        made += [loops[k] for k in others if k not in (y, z)]
        rows = "" if y is None else f" of {ROW_THREADS} x {self._name(node, y)}"
        self._note(node, f"threads {width} x {self._name(node, x)}{rows}, one element each")
        return nest_loops(node, made)

    def _register_tile(self, node: isl.ScheduleNode, x: int, y: int) -> tuple[int, int] | None:
        """Elements per thread along y and x where that saves loads: a reduction inside reads something that does not move along the one, and something that
        does not move along the other; None where there is no such reduction, or too few elements to occupy the device."""
        found, extents = members(node, self.scop), self._extents(node)
        for name in statements_below(node):
            model, along_x, along_y = self.models[name], found[x].index(name), found[y].index(name)
            if not model.is_update or along_x is None or along_y is None:
                continue
            reads = [access for access in model.accesses if not access.write]
            inner = set(model.extents) - {member.index(name) for member in found}
            shares = any(a.stride(along_x) == 0 for a in reads) and any(a.stride(along_y) == 0 for a in reads)
            if not (inner and shares and all(a.stride(along_x) in (0, 1) for a in reads)):
                continue
            for rows, columns in REGISTER_TILES:
                if extents[y] >= rows * ROW_THREADS and extents[x] >= columns * WARP:
                    blocks = prod(extents) // (rows * ROW_THREADS * columns * WARP)
                    if blocks >= self.target.cores // 2:
                        return rows, columns
        return None

    def _tiled_points(
        self, node: isl.ScheduleNode, x: int, y: int, z: int | None, tile: tuple[int, int]
    ) -> isl.ScheduleNode:
        """2a with several elements per thread: those a block's width apart, so that neighbouring threads still take neighbouring elements."""
        loops, (rows, columns) = loops_of(node), tile
        made = [] if z is None else [loops[z].marked("block.z")]
        made += [
            tile_loop(loops[y], rows * ROW_THREADS).marked(f"block.y:{rows * ROW_THREADS}"),
            tile_loop(loops[x], columns * WARP).marked(f"block.x:{columns * WARP}"),
            remainder_loop(loops[y], ROW_THREADS).marked(f"thread.y:{ROW_THREADS}"),
            remainder_loop(loops[x], WARP).marked(f"thread.x:{WARP}"),
            *(loop for k, loop in enumerate(loops) if k not in (x, y, z)),
            loops[y].marked(f"jam:{rows}"),
            loops[x].marked(f"jam:{columns}"),
        ]
        names = f"{rows} x {self._name(node, y)} and {columns} x {self._name(node, x)}"
        self._note(node, f"threads {WARP} x {ROW_THREADS}, each with a register tile of {names}")
        return nest_loops(node, made)

    def _rows(self, node: isl.ScheduleNode) -> isl.ScheduleNode:
        """2b: a block per iteration."""
        loops, extents = loops_of(node), self._extents(node)
        order = sorted(range(len(loops)), key=lambda k: -extents[k])
        mapped = order[:3]
        made = [loops[k].marked(f"block.{axis}") for k, axis in reversed(list(zip(mapped, "xyz", strict=False)))]
        made += [loops[k] for k in order[3:]]
        self._note(node, f"a block per {', '.join(self._name(node, k) for k in mapped)}")
        depth = len(made) + len(mapped)
        node = nest_loops(node, made)
        for _ in range(depth):
            node = node.child(0)
        return self.inside_block(node).ancestor(depth)

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
                if _is_coincident(node) or self._is_reduction(node):
                    return self._threads(node)
                return self.inside_block(node.child(0)).parent()
            case _:
                return self.inside_block(node.child(0)).parent()

    def _threads(self, node: isl.ScheduleNode) -> isl.ScheduleNode:
        """The band shared by threads along its best loop; its other loops run inside each thread."""
        loops, x = loops_of(node), self._best(node)
        width = min(LINE_THREADS, _round_up(self._extents(node)[x], WARP))
        self._note(node, f"threads of a block share {self._name(node, x)}, {width} at a time")
        rest = [loop for k, loop in enumerate(loops) if k != x]
        return nest_loops(node, [loops[x].marked(f"thread.x:{width}"), *rest])

    def _is_reduction(self, node: isl.ScheduleNode) -> bool:
        """Whether all that the band carries are reductions, each into elements that no loop of it moves, and no band is below."""
        if any(kind_of(below) == Kind.band for below in nodes(node.child(0))):
            return False
        for member in members(node, self.scop):
            positions: dict[str, int] = {}
            for name in statements_below(node):
                statement, index = self.scop.statements[name], member.index(name)
                if index is None:
                    return False
                moves = any(a.stride(index) != 0 for a in self.models[name].accesses if a.write)
                indirect = not all(isinstance(s, Affine) for s in statement.target.subscripts)
                if statement.kind == "update" and (moves or indirect):
                    return False
                positions[name] = statement.indices.index(index)
            if not self.matcher.carries_nothing(positions):
                return False
        return True

    # -- costs --------------------------------------------------------------------------------------------------------------------

    def _costs(self, node: isl.ScheduleNode) -> tuple[float, float]:
        """Of all instances when threads run along the band's best loop, and when they run along the best one inside."""
        found = members(node, self.scop)
        here = self._cost(node, self._best(node))
        inside = 0.0
        for name in statements_below(node):
            model = self.models[name]
            mine = {member.index(name) for member in found}
            outer = mine | _indices_above(node, name, self.scop)
            inner = [
                self._cost_inside(model, index)
                for position, index in enumerate(self.scop.statements[name].indices)
                if index not in outer and self.matcher.carries_nothing({name: position})
            ]
            own = [model.lane_cost(index, self.target) for index in model.extents if index in mine]
            inside += model.instances * min(inner, default=min(own, default=model.scalar_cost()))
        return here, inside

    def _cost_inside(self, model: StatementModel, index: str) -> float:
        """Per instance, when the threads of a block share that loop; a reduction has to be combined in the end."""
        extent = model.extents[index]
        reduces = model.is_update and all(a.stride(index) == 0 for a in model.accesses if a.write)
        return model.lane_cost(index, self.target) + (COMBINE_COST if reduces else BARRIER_COST) / extent

    def _best(self, node: isl.ScheduleNode) -> int:
        """The loop along which neighbouring threads read and write neighbouring elements; the last of equals."""
        count = node.band_n_member()
        return min(range(count), key=lambda k: (self._cost(node, k), -k))

    def _cost(self, node: isl.ScheduleNode, k: int) -> float:
        member, total = members(node, self.scop)[k], 0.0
        for name in statements_below(node):
            model, index = self.models[name], member.index(name)
            total += model.instances * (model.scalar_cost() if index is None else model.lane_cost(index, self.target))
        return total

    def _extents(self, node: isl.ScheduleNode) -> list[int]:
        """Iterations per loop; of a skewed one, those of its statements."""
        found = []
        for member in members(node, self.scop):
            sizes = []
            for name in statements_below(node):
                index = member.index(name)
                sizes.append(self.models[name].instances if index is None else self.models[name].extents[index])
            found.append(max(sizes, default=1))
        return found

    def _parallel_work(self, node: isl.ScheduleNode) -> int:
        """Iterations of the largest coincident band below; 0 when there is none."""
        bands = [below for below in nodes(node.child(0)) if kind_of(below) == Kind.band and _is_coincident(below)]
        return max((prod(self._extents(band)) for band in bands), default=0)

    def _name(self, node: isl.ScheduleNode, k: int) -> str:
        indices = (members(node, self.scop)[k].index(name) for name in statements_below(node))
        return next((index for index in indices if index is not None), "?")

    def _note(self, node: isl.ScheduleNode, text: str) -> None:
        self.notes.append(Note("mapping", " ".join(statements_below(node)), text))


@dataclass(slots=True)
class SharedRoom:
    """Says where a scratch array may live in a mapped tree, and keeps count of shared memory."""

    used: int = 0

    def __call__(self, node: isl.ScheduleNode, size: int) -> bool:
        """Whether an array of `size` bytes may live at the node: in a thread, in a block's shared memory, or in device memory."""
        above = _marks_above(node)
        below = {mark_name(n).partition(".")[0] for n in nodes(node) if kind_of(n) == Kind.mark}
        if "thread" in above:
            return "thread" not in below and size <= MAX_LOCAL_BYTES
        if "block" in above:
            if "block" in below or self.used + size > MAX_SHARED_BYTES:
                return False
            self.used += -(-size // 16) * 16
        return True


def _indices_above(node: isl.ScheduleNode, name: str, scop: Scop) -> set[str | None]:
    """The statement's indices that are loops above the node."""
    found: set[str | None] = set()
    while node.has_parent():
        node = node.parent()
        if kind_of(node) == Kind.band:
            found |= {member.index(name) for member in members(node, scop)}
    return found


def _marks_above(node: isl.ScheduleNode) -> set[str]:
    found = set()
    while node.has_parent():
        node = node.parent()
        if kind_of(node) == Kind.mark:
            found.add(mark_name(node).partition(".")[0])
    return found


def _uniform(node: isl.ScheduleNode) -> isl.ScheduleNode:
    """A band whose loops are all coincident, joined with such bands right below, or all not: the first such part of a mixed one."""
    flags = [node.band_member_get_coincident(k) for k in range(node.band_n_member())]
    change = next((k for k, flag in enumerate(flags) if flag != flags[0]), None)
    if change is not None:
        return split_band(node, change)
    while _is_coincident(node) and kind_of(node.child(0)) == Kind.band and _is_coincident(node.child(0)):
        node = merge_with_child(node)
    return node


def _is_coincident(band: isl.ScheduleNode) -> bool:
    return all(band.band_member_get_coincident(k) for k in range(band.band_n_member()))


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
