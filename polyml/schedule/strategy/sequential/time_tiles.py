"""Time tiling: a sequential loop that sweeps over large arrays again and again runs several of its steps on a part of them that stays in cache.

Rewrite: band[t] (c) -> band[t_tile] (band[i_tile] (.. (band[t] (c)))), the tiles taken from loops that no dependence runs against (ilp/skewing.py), such as t and i + 2*t.
What is below keeps its order, so that its parts get lanes as ever: within a tile one step runs over fewer rows.

When: the loop carries a dependence, one step touches more than twice L1 (a stencil has few operations per element, and L2 gives it a line in the time of several), and the dependences
are short (a stencil's, not a broadcast's).

Sizes: time_tile_sizes.py.

Threads: the tile loop over time is pipelined. Threads take its iterations in turns, and each tile along i waits for the one of the iteration before (and so for all below that); nobody waits for the end of a
wavefront of tiles, t_tile/T + i_tile/I, whose tiles are few where i is short, and no loop bound has a sum of tile numbers in it. Where the time loop alone is tiled, one thread runs its tiles.

Source: Wonnacott, "Achieving scalable locality with time skewing" (IJPP 2002); Bondhugula et al. (PLDI 2008), section 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.ilp.cones import Cone
from polyml.schedule.ilp.hyperplanes import Row, distances
from polyml.schedule.ilp.model import COEFFICIENT_BOUND
from polyml.schedule.ilp.problem import within
from polyml.schedule.ilp.skewing import SkewedLoop, skewed_band, skewed_by
from polyml.schedule.schedule import Product
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.strategy.sequential.time_tile_sizes import Sweep
from polyml.schedule.transforms import Loop, insert_loops, tile_loop
from polyml.schedule.tree import Kind, is_coincident, kind_of, members, nodes, statements_below

__all__ = ["TIME_TILES", "TimePlan", "build_time_tiles", "plan_time_tiles"]

TIME_TILES = "time tiles"
"""What notes of such plans begin with."""

LEAST_STRIPS = 4
"""Steps in which a strip that moves by vectors has moved by its own length: what it leaves in L1 is worth more than ends at lines."""

CALLERS = 16
"""Bytes behind a line at which a caller's large array begins most of the time: malloc's do, and NumPy's with them. Results and scratch memory begin at a line."""


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
    sweep = Sweep(facts, steps)
    if not sweep.is_large or not sweep.may_be_cut:
        return None
    band = skewed_band(facts.scop, facts.matcher.cones, tuple(steps), _handed_on(node, facts))
    found = _plan(sweep, band, node)
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


def _handed_on(node: isl.ScheduleNode, facts: Facts) -> list[Cone]:
    """The dependences between statements in one innermost loop by which a value is used in the iteration that makes it: it is in a register as long as tiles begin and end with both."""
    found: list[Cone] = []
    for inner in nodes(node):
        if kind_of(inner) != Kind.band or sum(kind_of(below) == Kind.band for below in nodes(inner)) > 1:
            continue
        loops = [rows for band in _bands_around(inner, node) for rows in _rows(band, facts)]
        cones = [cone for cone in within(facts.matcher.cones, statements_below(inner)) if cone.kind == "flow"]
        found += [
            cone
            for cone in cones
            if cone.source != cone.sink
            and all(cone.source in rows and cone.sink in rows and not distances(cone, rows).any() for rows in loops)
        ]
    return found


def _bands_around(inner: isl.ScheduleNode, outer: isl.ScheduleNode) -> Iterator[isl.ScheduleNode]:
    """The bands from the inner one up to the outer one."""
    while True:
        if kind_of(inner) == Kind.band:
            yield inner
        if inner.get_tree_depth() == outer.get_tree_depth():
            return
        inner = inner.parent()


def _rows(band: isl.ScheduleNode, facts: Facts) -> Iterator[dict[str, Row]]:
    """Per loop of the band the statements' rows; those without quotients."""
    scop = facts.scop
    for member in members(band, scop):
        rows: dict[str, Row] = {}
        for name, affine in member.rows.items():
            if affine is not None and affine.is_linear:
                indices = tuple(affine.stride(index) or 0 for index in scop.statements[name].indices)
                rows[name] = Row(indices, tuple(affine.stride(size) or 0 for size in scop.sizes), affine.constant)
        yield rows


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


def _plan(sweep: Sweep, band: tuple[SkewedLoop, ...], node: isl.ScheduleNode) -> TimePlan | None:
    """Sizes for a band of the form time, then one loop per direction."""
    core = sweep.core
    indices = sweep.facts.scop.statements[core.name].indices
    time = indices.index(sweep.steps[core.name])
    space = sweep.space(core)
    if not space or len(band) != len(indices):
        return None
    lanes = min(space, key=lambda index: (core.lane_cost(index, sweep.facts.target), -indices.index(index)))
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
    # Steps one after the other, such as the colors of a red-black sweep, are as good a direction as time.
    short = {index for index in sweep.short(lanes) if not _is_carried(node, core.name, index, sweep.facts)}
    sweep = replace(sweep, directions=_aligned(sweep, along), whole=frozenset(short))
    rows = sweep.rows(lanes)
    skew = max(along[index].coefficients[core.name][time] for index in (*rows, lanes))
    if skew > COEFFICIENT_BOUND and sweep.hides_l3:
        return None  # the wide border of a high order is not worth it then
    whole = _is_carried(node, core.name, lanes, sweep.facts)
    found = sweep.sizes(rows, lanes, max(1, skew), whole=whole)
    if found is None:
        return None
    first = next(loop for loop in band if loop not in along.values())
    along[lanes] = _by_vectors(sweep, along[lanes], lanes, found[-1])
    sizes = dict(zip([*rows, lanes], found[1:], strict=True))
    worth = sweep.worth(sizes, lanes, whole=whole)
    if worth is None:
        return None
    # Blocks are narrow along the first direction where rows are jammed, and the next one along it comes next.
    order = [*rows, lanes] if whole else [*rows[1:], *rows[:1], lanes]
    return TimePlan(
        loops=(first, *(along[index] for index in order)),
        sizes=(found[0], *(sizes[index] for index in order)),
        extents=sweep.point_extents(sizes),
        names=(indices[time], *order),
        worth=worth,
    )


def _by_vectors(sweep: Sweep, loop: SkewedLoop, lanes: str, strip: int | None) -> SkewedLoop:
    """The loop along the lanes skewed by whole vectors, so that strips begin and end where vectors do: a part of one at either end of each costs as much as two."""
    target, scop = sweep.facts.target, sweep.facts.scop
    width = target.lanes(sweep.core.itemsize)
    if strip is None or strip % width:
        return loop
    own: dict[str, int] = {}
    for name, row in loop.rows.items():
        for k, (index, c) in enumerate(zip(scop.statements[name].indices, row.indices, strict=True)):
            if c and sweep.directions.get((name, index)) == lanes:
                own[name] = k
            elif c and (index != sweep.steps[name] or abs(c) * width * LEAST_STRIPS > strip):
                return loop
    written = scop.arrays[scop.statements[sweep.core.name].target.array]
    first = 0 if written.kind in ("local", "output") else CALLERS % target.vector_bytes // sweep.core.itemsize
    return skewed_by(loop, width, own, scop, sweep.facts.matcher.cones).shifted(first, scop)


def _aligned(sweep: Sweep, along: Mapping[str, SkewedLoop]) -> dict[tuple[str, str], str]:
    """The directions of a band. along: its loops by index of the core statement."""
    found: dict[tuple[str, str], str] = {}
    for direction, loop in along.items():
        for model in sweep.models:
            for index, c in zip(
                sweep.facts.scop.statements[model.name].indices, loop.coefficients[model.name], strict=True
            ):
                if c and index != sweep.steps[model.name] and (model.name, index) not in found:
                    found[model.name, index] = direction
                    break
    return found
