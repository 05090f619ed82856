"""Time tiling: a sequential loop that sweeps over large arrays again and again runs several of its steps on a part of them that stays in cache.

Rewrite: band[t] (c) -> band[t_tile] (band[i_tile] (.. (band[t] (c)))), the tiles taken from loops that no dependence runs against (ilp/skewing.py), such as t and i + 2*t.
What is below keeps its order, so that its parts get lanes as ever: within a tile one step runs over fewer rows.

When: the loop carries a dependence, one step touches more than twice L1 (a stencil has few operations per element, and L2 gives it a line in the time of several), and the dependences
are short (a stencil's, not a broadcast's).

Sizes (the model): at one step a tile touches a block of rows in all arrays, a strip of each along the lanes. Strips begin and end where vectors do: they move by whole
vectors from step to step; a row along which a recurrence runs is not cut. Blocks fit in L1 where that leaves at least `LEAST_ROWS` rows in each direction, else in a fraction of L2, fewer rows
innermost, so that the rows which the next ones read again are still in L1; then as many steps as shift the block by twice its own
height (six times where rows are cut into strips), about as many in each tile, and in each thread's.

Threads: the tile loop over time is pipelined. Threads take its iterations in turns, and each tile along i waits for the one of the iteration before (and so for all below that); nobody waits for the end of a
wavefront of tiles, t_tile/T + i_tile/I, whose tiles are few where i is short, and no loop bound has a sum of tile numbers in it. Where the time loop alone is tiled, one thread runs its tiles.

Source: Wonnacott, "Achieving scalable locality with time skewing" (IJPP 2002); Bondhugula et al. (PLDI 2008), section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod

import islpy as isl

from polyml.expressions import reads_of
from polyml.records import dataclass
from polyml.schedule.cost import StatementModel
from polyml.schedule.ilp.skewing import SkewedLoop, skewed_band, skewed_by
from polyml.schedule.large_enough import at_least, extents_of
from polyml.schedule.layouts.relaid import trips_of
from polyml.schedule.schedule import Product
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.transforms import Loop, insert_loops, tile_loop
from polyml.schedule.tree import Kind, is_coincident, kind_of, members, nodes, statements_below
from polyml.sets.affine import Affine

__all__ = ["TIME_TILES", "TimePlan", "build_time_tiles", "plan_time_tiles"]

TIME_TILES = "time tiles"
"""What notes of such plans begin with."""

LEAST_STEPS = 4
"""A time loop of fewer steps stays as it is."""

STEPS_OF_ANY = 8
"""Steps of a tile at least where calls may have any number of them: the first one may have few."""

STRIP_VECTORS = 16
"""Vectors in a strip along the lanes."""

LEAST_STRIPS = 4
"""Steps in which a strip that moves by vectors has moved by its own length: what it leaves in L1 is worth more than ends at lines."""

CALLERS = 16
"""Bytes behind a line at which a caller's large array begins most of the time: malloc's do, and NumPy's with them. Results and scratch memory begin at a line."""

STEPS_OF_STRIPS = 6
"""Heights by which the steps of a tile shift a block of strips, along whose one direction the next tile finds most of what it touches in L2, but by no more than half of all rows; other blocks twice their own."""

UNKNOWN = 1 << 20
"""What an extent that is symbolic is taken for: more than any tile has. Whether a step is large enough is asked at each call."""

LEAST_ROWS = 8
"""Rows of a block in each direction: less, and its border is as large as itself."""


@dataclass(frozen=True, slots=True)
class TimePlan:
    """loops: of the band, time first, lanes last. sizes: iterations per tile, None: not tiled. extents: of point loops, by statement and index.
    names: what the tiled loops are called in notes. worth: what must hold at a call for it to pay, of extents that are symbolic."""

    loops: tuple[SkewedLoop, ...]
    sizes: tuple[int | None, ...]
    extents: Mapping[tuple[str, str], int]
    names: tuple[str, ...]
    worth: tuple[Product, ...] = ()

    @property
    def is_pipelined(self) -> bool:
        """Whether threads can share the tiles; else one runs them in order."""
        return sum(size is not None for size in self.sizes) > 1

    def __str__(self) -> str:
        parts = (f"{name} by {size}" for name, size in zip(self.names, self.sizes, strict=True) if size is not None)
        return f"{TIME_TILES}: {', '.join(parts)}"


def plan_time_tiles(node: isl.ScheduleNode, facts: Facts) -> TimePlan | None:
    """Tiles around the sequential band `node`, or None when they are not possible or not worth it."""
    steps = _steps(node, facts)
    if steps is None or not _is_outermost(node):
        return None
    sweep = _Sweep(facts, steps)
    if not sweep.is_large:
        return None
    band = skewed_band(facts.scop, facts.matcher.cones, tuple(steps))
    found = sweep.plan(band, node)
    return None if found is None or (found.worth and not facts.options.large) else found


def build_time_tiles(node: isl.ScheduleNode, plan: TimePlan, *, threads: bool) -> tuple[isl.ScheduleNode, int]:
    """The band under its tile loops, and how far below the node in its place it stands."""
    tiled = [(tile_loop(Loop(loop.row), size), size) for loop, size in zip(plan.loops, plan.sizes, strict=True) if size]
    loops = [loop for loop, _ in tiled]
    if threads and plan.is_pipelined:
        loops[:2] = [loops[0].marked("pipelined"), loops[1].marked("stage")]
    return insert_loops(node, loops), len(loops) + sum(loop.mark is not None for loop in loops)


def _steps(node: isl.ScheduleNode, facts: Facts) -> dict[str, str] | None:
    """Per statement the index that the band runs along, of a sequential band with one member and loops below."""
    if kind_of(node) != Kind.band or node.band_n_member() != 1 or is_coincident(node):
        return None
    names = statements_below(node)
    (member,) = members(node, facts.scop)
    found = {name: index for name in names if (index := member.index(name)) is not None}
    return found if len(found) == len(names) else None


def _is_carried(node: isl.ScheduleNode, name: str, index: str, facts: Facts) -> bool:
    """Whether the statement's loop along the index, inside of one time step, carries a dependence: its iterations wait for each other, however near their data is."""
    for inner in nodes(node):
        if kind_of(inner) == Kind.band and name in statements_below(inner):
            for member in members(inner, facts.scop):
                if member.index(name) == index:
                    return not member.coincident
    return False


def _is_outermost(node: isl.ScheduleNode) -> bool:
    """Whether no loop is around the node."""
    while node.has_parent():
        node = node.parent()
        if kind_of(node) == Kind.band:
            return False
    return True


@dataclass(slots=True)
class _Sweep:
    """One step of the time loop. steps: per statement its time index. directions: per statement and index, the index of the core statement that runs with it in the band."""

    facts: Facts
    steps: Mapping[str, str]
    directions: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def models(self) -> list[StatementModel]:
        return [self.facts.models[name] for name in self.steps]

    @property
    def core(self) -> StatementModel:
        """The statement that does most of the work."""
        return max(self.models, key=lambda model: model.work)

    def space(self, model: StatementModel) -> dict[str, int]:
        """The statement's indices apart from time, and their extents, symbolic ones as a large number."""
        indices = self.facts.scop.statements[model.name].indices
        known = {index: self.facts.matcher.extent(model.name, k) for k, index in enumerate(indices)}
        return {index: known[index] or UNKNOWN for index in model.extents if index != self.steps[model.name]}

    @property
    def is_large(self) -> bool:
        """Whether a step touches more than stays in L1 until the next one, and there are enough steps."""
        matcher, statements = self.facts.matcher, self.facts.scop.statements
        for model in self.models:
            indices = statements[model.name].indices
            steps = matcher.extent(model.name, indices.index(self.steps[model.name]))
            if steps is not None and steps < LEAST_STEPS:
                return False
        boxes = {model.name: self.space(model) for model in self.models}
        return self.bytes_of(boxes) > self.room

    @property
    def room(self) -> int:
        """Bytes of a step that stay in L1 until the next one, or near it."""
        return min(2 * self.facts.target.l1_bytes, self.facts.target.l2_bytes // 2)

    def worth(self, sizes: Mapping[str, int | None], lanes: str, *, whole: bool) -> tuple[Product, ...] | None:
        """What must hold for a step to be as large as `is_large` asks, where its extents are symbolic, and each direction longer than a tile or two; None where there are extents that
        are those of no array. sizes: per index of the core, iterations per tile. whole: rows are not cut."""
        core, scop = self.core, self.facts.scop
        statement, space = scop.statements[core.name], self.space(core)
        extents = extents_of(scop, statement)
        if all(extent < UNKNOWN for extent in space.values()):
            return ()
        if not space.keys() <= extents.keys():
            return None
        one = self.bytes_of({model.name: dict.fromkeys(self.space(model), 1) for model in self.models})
        rows = [index for index in space if index != lanes]
        # A strip is as good as a row of its length; a few rows alone are no tiles.
        least = {
            index: size if rows and index == lanes else 2 * size for index, size in sizes.items() if size is not None
        }
        long = at_least(scop, statement, least)
        most = 2 * STRIP_VECTORS * self.facts.target.lanes(core.itemsize)
        most = self.longest(rows, lanes) if whole else most
        limited = (whole and space[lanes] == UNKNOWN) or self.are_short(rows, lanes)
        short = (Product((extents[lanes],), most=most),) if limited else ()
        return (Product(tuple(extents[index] for index in space), self.room // one + 1), *long, *short)

    def are_short(self, rows: Sequence[str], lanes: str) -> bool:
        """Whether rows of unknown length are taken for short ones: where there are several directions beside them, cutting each costs its border."""
        return len(rows) > 1 and self.space(self.core)[lanes] == UNKNOWN

    def bytes_of(self, boxes: Mapping[str, Mapping[str, int]]) -> int:
        """Bytes that one step touches when each statement runs over its box."""
        arrays: dict[str, int] = {}
        for name, box in boxes.items():
            for access in self.facts.models[name].accesses:
                itemsize = self.facts.scop.arrays[access.array].dtype.itemsize
                touched = itemsize * prod(extent for index, extent in box.items() if access.stride(index) != 0)
                arrays[access.array] = max(arrays.get(access.array, 0), touched)
        return sum(arrays.values())

    def plan(self, band: tuple[SkewedLoop, ...], node: isl.ScheduleNode) -> TimePlan | None:
        """Sizes for a band of the form time, then one loop per direction."""
        core = self.core
        indices = self.facts.scop.statements[core.name].indices
        time = indices.index(self.steps[core.name])
        space = self.space(core)
        if not space or len(band) != len(indices):
            return None
        lanes = min(space, key=lambda index: (core.lane_cost(index, self.facts.target), -indices.index(index)))
        # Of a loop along several indices the innermost: the others are those of loops before it.
        along: dict[str, SkewedLoop] = {}
        for loop in band:
            used = [k for k, c in enumerate(loop.coefficients[core.name]) if c and k != time]
            fresh = [k for k in used if indices[k] not in along]
            if not used:
                along[indices[time]] = loop
            elif len(fresh) == 1:
                along[indices[fresh[0]]] = loop
        if set(along) != set(indices):
            return None
        step = along.pop(indices[time]).coefficients[core.name][time]
        if step != 1:
            return None
        self.directions = self.aligned(along)
        rows = [index for index in space if index != lanes]
        skew = max(loop.coefficients[core.name][time] for loop in along.values())
        whole = _is_carried(node, core.name, lanes, self.facts)
        found = self.sizes(rows, lanes, max(1, skew), whole=whole)
        if found is None:
            return None
        first = next(loop for loop in band if loop not in along.values())
        along[lanes] = self.by_vectors(along[lanes], lanes, found[-1])
        order = [*rows, lanes]
        worth = self.worth(dict(zip(order, found[1:], strict=True)), lanes, whole=whole)
        if worth is None:
            return None
        return TimePlan(
            loops=(first, *(along[index] for index in order)),
            sizes=found,
            extents=self.point_extents(dict(zip(order, found[1:], strict=True))),
            names=(indices[time], *order),
            worth=worth,
        )

    def by_vectors(self, loop: SkewedLoop, lanes: str, strip: int | None) -> SkewedLoop:
        """The loop along the lanes skewed by whole vectors, so that strips begin and end where vectors do: a part of one at either end of each costs as much as two."""
        target, scop = self.facts.target, self.facts.scop
        width = target.lanes(self.core.itemsize)
        if strip is None or strip % width:
            return loop
        own: dict[str, int] = {}
        for name, row in loop.rows.items():
            for k, (index, c) in enumerate(zip(scop.statements[name].indices, row.indices, strict=True)):
                if c and self.directions.get((name, index)) == lanes:
                    own[name] = k
                elif c and (index != self.steps[name] or abs(c) * width * LEAST_STRIPS > strip):
                    return loop
        written = scop.arrays[scop.statements[self.core.name].target.array]
        first = 0 if written.kind in ("local", "output") else CALLERS % target.vector_bytes // self.core.itemsize
        return skewed_by(loop, width, own, scop, self.facts.matcher.cones).shifted(first, scop)

    def aligned(self, along: Mapping[str, SkewedLoop]) -> dict[tuple[str, str], str]:
        """The directions of a band. along: its loops by index of the core statement."""
        found: dict[tuple[str, str], str] = {}
        for direction, loop in along.items():
            for model in self.models:
                for index, c in zip(
                    self.facts.scop.statements[model.name].indices, loop.coefficients[model.name], strict=True
                ):
                    if c and index != self.steps[model.name] and (model.name, index) not in found:
                        found[model.name, index] = direction
                        break
        return found

    def sizes(self, rows: list[str], lanes: str, skew: int, *, whole: bool) -> tuple[int | None, ...] | None:
        """Steps per tile, rows in each direction, and the length of a strip: None where a direction is not cut. whole: rows are not cut into strips."""
        target, core = self.facts.target, self.core
        space = self.space(core)
        asked = self.facts.options.tile_sizes
        if asked is not None:
            padded = (*asked, *[None] * (len(rows) + 2))
            return padded[: len(rows) + 2]
        strip = STRIP_VECTORS * target.lanes(core.itemsize)
        if not rows:
            strip = max(strip, 2 * target.l1_bytes // 3 // self.block_bytes({}, 1))
            return self.steps_of([], strip if strip < space[lanes] else None, lanes, skew)
        short = self.are_short(rows, lanes) and not whole
        cut = strip if 2 * strip < space[lanes] and not whole and not short else None
        length = self.longest(rows, lanes) if whole and space[lanes] == UNKNOWN else space[lanes]
        far = target.l2_bytes // 8
        # Rows of two strips are not cut, and blocks of them may take twice as much where there are several directions.
        for room in (2 * target.l1_bytes // 3, target.l1_bytes if cut else 0, far, 2 * far if len(rows) > 1 else 0):
            heights = self.heights(rows, lanes, strip if short else cut or length, room)
            if min(heights) >= LEAST_ROWS:
                break
        else:
            return None
        highest = max(space[index] for index in rows)
        return self.steps_of([min(height, highest) for height in heights], cut, lanes, skew)

    def longest(self, rows: Sequence[str], lanes: str) -> int:
        """Elements of a row of unknown length, at most, where rows are not cut: those of the smallest blocks stay near."""
        one = self.block_bytes(dict.fromkeys(rows, LEAST_ROWS), 1)
        return self.facts.target.l2_bytes // 8 // one

    def block_bytes(self, heights: Mapping[str, int], strip: int) -> int:
        """Bytes of a block of rows and strips."""
        boxes = {}
        for model in self.models:
            boxes[model.name] = {
                index: min(extent, heights.get(self.directions.get((model.name, index), ""), strip))
                for index, extent in self.space(model).items()
            }
        return self.bytes_of(boxes)

    def heights(self, rows: list[str], lanes: str, strip: int, room: int) -> list[int]:
        """The sides of the largest block of rows in the room, multiples of 4, which are jammed: the same in all directions, but fewer along the first one, which is swept innermost,
        where a sweep's window would not stay in L1 from one iteration of the loop around it to the next."""
        one = self.block_bytes(dict.fromkeys(rows, 1), strip)
        count = len(rows)
        side = _in_fours((room / one) ** (1 / count))
        if count == 1:
            return [side]
        inner = side
        while inner > LEAST_ROWS and self.window_bytes(rows, strip, inner) > self.facts.target.l1_bytes:
            inner -= 4
        if inner == side:
            return [side] * count
        return [inner, *[_in_fours((room / one / inner) ** (1 / (count - 1)))] * (count - 1)]

    def window_bytes(self, rows: list[str], strip: int, inner: int) -> int:
        """Bytes of the strips that a sweep over `inner` rows of the core statement touches until the loop around has gone on by as much as neighbours are apart."""
        core = self.facts.scop.statements[self.core.name]
        spans: dict[str, dict[str, list[int]]] = {}
        for read in reads_of(core.value):
            own = spans.setdefault(read.tensor, {})
            for subscript in read.subscripts:
                for index in rows[:2]:
                    if isinstance(subscript, Affine) and subscript.stride(index) == 1:
                        own.setdefault(index, []).append(subscript.constant)
        touched = inner  # what is written
        for own in spans.values():
            along, around = (1 + max(own.get(index, [0])) - min(own.get(index, [0])) for index in rows[:2])
            touched += around * (inner + along - 1)
        return touched * strip * self.core.itemsize

    def steps_of(self, heights: list[int], strip: int | None, lanes: str, skew: int) -> tuple[int | None, ...] | None:
        """The sizes with steps; None when nothing would be cut."""
        space = self.space(self.core)
        extents = [extent for index, extent in space.items() if index != lanes]
        if strip is None and all(height >= extent for height, extent in zip(heights, extents, strict=True)):
            return None
        shortest = min(heights, default=(strip or 0) // 8)
        far = 2 * shortest
        if len(heights) == 1 and strip is not None:
            far = max(far, min(STEPS_OF_STRIPS * shortest, extents[0] // 2))
        return (self.even(max(LEAST_STEPS, far // skew)), *heights, strip)

    def even(self, steps: int) -> int:
        """About so many steps, such that tiles over time have as many each, and threads as many tiles."""
        options, statement = self.facts.options, self.facts.scop.statements[self.core.name]
        threads = options.threads if options.parallel else 1
        least = LEAST_STEPS
        total = self.facts.matcher.extent(self.core.name, statement.indices.index(self.steps[self.core.name]))
        if total is None and threads > 1:
            total, least = self.steps_at_hand(), STEPS_OF_ANY
        if total is None:
            return steps
        tiles = max(1, round(total / steps))
        if total >= least * threads:
            tiles = -(-tiles // threads) * threads
        return max(least, -(-total // tiles))

    def steps_at_hand(self) -> int | None:
        """How many steps the call has that the scop is made for; None where it does not say."""
        scop = self.facts.scop
        trips = trips_of(scop.statements[self.core.name])
        return trips.evaluate(scop.examples) if trips and trips.variables() <= scop.examples.keys() else None

    def point_extents(self, sizes: Mapping[str, int | None]) -> dict[tuple[str, str], int]:
        """How far the point loops run: as far as a tile."""
        found = {}
        for model in self.models:
            for index, extent in self.space(model).items():
                size = sizes.get(self.directions.get((model.name, index), ""))
                if size is not None:
                    found[model.name, index] = min(size, extent)
        return found


def _in_fours(rows: float) -> int:
    return max(1, round(rows) // 4 * 4)
