"""A nest: lanes along one member of a band, perhaps another member jammed, tiles around both, threads outside."""

from __future__ import annotations

from dataclasses import field, replace
from functools import partial
from math import ceil, prod

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.cost import StatementModel
from polyml.schedule.register_tiles import FEW_ROWS, TALLEST, RegisterTile, register_tile
from polyml.schedule.strategy.bands import (
    Band,
    bounds_inner_loops,
    has_inner_loops,
    near_rows,
    sums_together,
    with_extent,
)
from polyml.schedule.strategy.choices import NestChoice
from polyml.schedule.strategy.column_sums import vectors_of_columns
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.strategy.lanes import plain_vectors
from polyml.schedule.strategy.neighbours import neighbouring_rows
from polyml.schedule.strategy.recurrences.vectors import has_recurrence, recurrence_vectors
from polyml.schedule.strategy.threads import even_tile, is_heavy, most_even, wanted_iterations
from polyml.schedule.strategy.whole_windows import WholeWindows, insert_parts, whole_windows
from polyml.schedule.transforms import Loop, around, nest_loops, tile_loop

__all__ = ["NestPlan", "build_copy", "build_nest", "plan_nest"]

CHUNK = 16_384
"""Elements of a one-dimensional loop that a thread takes at once."""

MAX_ROWS = 512
"""Jammed iterations per cache tile, at most."""

FROM_L2 = 4
"""Rows of a register tile from which on L2 delivers its vectors: each is used for half a cycle a row, and L2 takes one to two cycles for it."""

TURNED = 128
"""Rows of an operand that lies side by side across the lanes: a line of each stays in L1, also where they are a power of two apart, and the address of its page where that is looked up first."""

FAR_APART = 1 << 40
"""What counts as a stride that depends on sizes, in elements."""

LEAST_BLOCK = 16
"""Lanes of a block that is transposed in registers, at most: what is left of a tile should be no less."""

LINES = 2
"""Lines of a row of unknown length that are transposed together, at least, with vectors of less than a line: to begin with a row's blocks takes as long as two thirds of one. Zen 3, f32, kernels of any size, with one, two, four lines, of the time of the kernel for the size:
301 x 203 1.4, 1.3, 1.2, 736 x 608 1.3, 1.1, 1.1, 64 x 4096 1.5, 1.2, 1.1, 4096 x 40 0.6, 0.8, 1.1 (columns that are a power of two apart share a set of L1)."""


@dataclass(slots=True)
class NestPlan:
    """Members by position. step: iterations along the lanes per register tile; tiles: iterations per cache tile. turned: along which an operand lies side by side that the lanes read
    down its columns: the loop right around the lanes. blocks: the loop right inside of them instead, so that blocks are transposed in registers. row: the member that goes through the few elements between those of neighbouring lanes: inside of these, too.
    whole: the jammed iterations that have whole windows; the others are a loop of their own, with so many vectors at once (alone)."""

    lanes: int
    jam: int | None
    tile: RegisterTile
    step: int
    tiles: dict[int, int] = field(default_factory=dict)
    parallel: int | None = None
    turned: int | None = None
    blocks: bool = False
    row: int | None = None
    whole: WholeWindows | None = None
    alone: int = 1


def plan_nest(band: Band, lanes: int, facts: Facts, *, parallel: bool, in_cache: bool = False) -> NestPlan:
    """Register tile, cache tiles and threads for lanes along the member `lanes`.

    Args:
        in_cache: the band is inside of tiles already: loads are what counts.
    """
    if in_cache and not has_inner_loops(band.core, band, facts):
        member, rows = neighbouring_rows(band, lanes, facts)
        vectors = 1 if rows > 1 else plain_vectors(band, facts)
        return NestPlan(lanes, member, RegisterTile(rows, vectors, 0.0), vectors * facts.lanes(band.core))
    chosen = _jam(band, lanes, facts)
    jam, tile = chosen.member, chosen.tile
    wide = facts.panel_vectors(band.core, band.indices[lanes][band.core])
    if wide:
        tile = replace(tile, vectors=wide)
    elif jam is None:
        tile = replace(tile, vectors=max(tile.vectors, vectors_of_columns(band, lanes, facts)))
    plan = NestPlan(lanes, jam, tile, tile.vectors * facts.lanes(band.core), whole=chosen.whole, alone=chosen.alone)
    if jam is not None and chosen.whole is not None:
        band = with_extent(band, jam, chosen.whole.extent)
    if jam is not None:
        plan.tiles = _cache_tiles(band, jam, plan, facts, panels=bool(wide))
    if wide:
        # A tile along the lanes is one panel, so that subscripts within it are plain.
        plan.tiles[lanes] = plan.step
    elif jam is None and (row := _row(band, lanes, facts)) is not None:
        plan.row = row
    elif jam is None and facts.options.tile_sizes is None and (turned := _transposed(band, lanes, facts)) is not None:
        plan.turned, plan.blocks = turned, True
        line = facts.target.line_bytes // facts.models[band.core].itemsize
        columns = max(line, LEAST_BLOCK) * (1 if _is_known(band, turned, facts) else LINES)
        for k, size in ((lanes, TURNED), (turned, columns)):
            if size < band.extents[k]:
                plan.tiles[k] = _whole_tile(band.extents[k], size)
    elif jam is None and facts.options.tile_sizes is None and band.extents[lanes] > TURNED:
        plan.turned = _turned(band, lanes, facts)
        if plan.turned is not None:
            plan.tiles[lanes] = TURNED
    if parallel and is_heavy(band, facts):
        _share(band, plan, facts)
    return plan


def _is_known(band: Band, member: int, facts: Facts) -> bool:
    """Whether the member's length is no size; or it does not matter, since a vector is a line."""
    statement, index = facts.scop.statements[band.core], band.indices[member][band.core]
    narrow = facts.target.vector_bytes < facts.target.line_bytes
    return not narrow or bool(statement.domain.dim_max_val(statement.indices.index(index)).is_int())


def _transposed(band: Band, lanes: int, facts: Facts) -> int | None:
    """The member along which operands of an elementwise statement have rows, where it has lanes across them; None where there are none."""
    model, index = facts.models[band.core], band.indices[lanes][band.core]
    target = next(access for access in model.accesses if access.write)
    across = [access for access in model.accesses if access.stride(index) not in (0, 1)]
    rows = {model.row_across(access, index) for access in across}
    if len(rows) != 1 or None in rows or len(band.statements) > 1 or target.stride(index) != 1:
        return None
    # Blocks have as many rows as columns, each in a register.
    if has_inner_loops(band.core, band, facts) or not (model.copies or facts.lanes(band.core) <= LEAST_BLOCK):
        return None
    return next((k for k, own in enumerate(band.indices) if own[band.core] in rows), None)


def _row(band: Band, lanes: int, facts: Facts) -> int | None:
    """The member along which the lanes have short rows that they touch whole; None where there are none."""
    model, index = facts.models[band.core], band.indices[lanes][band.core]
    rows = {model.row_between(access, index) for access in model.accesses} - {None}
    if not rows or len(band.statements) > 1 or has_inner_loops(band.core, band, facts):
        return None
    return next((k for k, own in enumerate(band.indices) if own[band.core] in rows), None)


def _whole_tile(extent: int, size: int) -> int:
    """A tile of about `size` iterations of which the last one is whole, or long enough for blocks that overlap."""
    sizes = range(size, size + 4 * LEAST_BLOCK, LEAST_BLOCK)
    return next((s for s in sizes if extent % s == 0 or extent % s >= LEAST_BLOCK), size)


def _turned(band: Band, lanes: int, facts: Facts) -> int | None:
    """The member along which an operand lies side by side that elementwise lanes read down its columns: line by line, each of which the following iterations of that member read again."""
    model = facts.models[band.core]
    if has_inner_loops(band.core, band, facts):
        return None
    columns = [access for access in model.accesses if access.stride(band.indices[lanes][band.core]) not in (0, 1)]
    if any(access.write for access in columns):
        return None
    members = (k for k in range(len(band.loops)) if k != lanes and band.extents[k] > 1)
    return next((k for k in members if any(a.stride(band.indices[k][band.core]) == 1 for a in columns)), None)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The register tile, and the member that its rows are iterations of; whole: those that can be, where not all can; alone: vectors of a row by itself."""

    member: int | None
    tile: RegisterTile
    alone: int
    whole: WholeWindows | None = None


def _jam(band: Band, lanes: int, facts: Facts) -> _Rows:
    """The member to unroll and jam and the register tile; no member when the core has no loop inside to keep a tile over."""
    model, vector = band.sized(facts.models[band.core]), band.indices[lanes][band.core]
    if not has_inner_loops(band.core, band, facts):
        vectors = plain_vectors(band, facts)
        return _Rows(None, RegisterTile(1, vectors, 0.0), vectors)
    if has_recurrence(band.core, band, facts):
        vectors = recurrence_vectors(band, lanes, facts)
        return _Rows(None, _asked(RegisterTile(1, vectors, 0.0), model, facts), vectors)
    # Where windows of a few filters are left to this version, most of their tiles are rests: lower ones, of more vectors, are no slower.
    most = FEW_ROWS if model.overlapping and not facts.options.large else TALLEST
    tile_of = partial(
        register_tile,
        vector=vector,
        target=facts.target,
        wide=facts.panel_vectors(band.core, vector),
        sums=sums_together(band, facts),
    )
    alone = tile_of(model, None)
    best = _Rows(None, alone, alone.vectors)
    # Of equals the rows of windows come first, since each reads most of what the one before did; then those that lie closest.
    ordered = sorted(near_rows(band, band.core, facts), key=lambda k: _apart(model, band.indices[k][band.core]))
    shared = any(
        k != lanes and band.extents[k] > 1 and _shares_vectors(model, band.indices[k][band.core], vector)
        for k in ordered
    )
    pieces = vectors_of_columns(band, lanes, facts)
    for k in ordered:
        if k == lanes or band.extents[k] < 2:
            continue
        index, whole = band.indices[k][band.core], None
        if pieces and _share_nothing(model, index):
            continue
        tile = tile_of(model, index, max_rows=most)
        if tile.rows < 2 or tile.cost >= best.tile.cost * 0.98:
            continue
        if bounds_inner_loops(band, band.core, index, facts):
            if shared and index in model.overlapping and vector in model.overlapping:
                # Lanes are cut at other edges, which rows of the other index share: there they are a tile as well.
                continue
            whole = whole_windows(band, k, facts)
            if whole is not None:
                inside = replace(model, extents={**model.extents, index: whole.extent})
                tile = tile_of(inside, index, max_rows=most)
                tile = replace(tile, cost=whole.part * tile.cost + (1 - whole.part) * alone.cost)
            elif shared and index in model.overlapping:
                # A tile of such rows would be taken apart again, and share nothing.
                continue
        if tile.rows > 1 and tile.cost < best.tile.cost * 0.98:
            best = _Rows(k, tile, alone.vectors, whole)
    return replace(best, tile=_asked(best.tile, model, facts))


def _shares_vectors(model: StatementModel, index: str, vector: str) -> bool:
    """Whether rows along the index, as filters of a convolution, have a vector in common that is loaded."""
    return any(not a.write and a.stride(index) == 0 and a.stride(vector) != 0 for a in model.accesses)


def _share_nothing(model: StatementModel, index: str) -> bool:
    """Whether each row along the index reads elements of its own."""
    return index not in model.overlapping and all(a.stride(index) != 0 for a in model.accesses if not a.write)


def _apart(model: StatementModel, index: str) -> tuple[bool, int]:
    """Whether rows along the index share nothing, and how far apart they lie at most: what depends on sizes is far."""
    strides = [access.stride(index) for access in model.accesses]
    return index not in model.overlapping, max(FAR_APART if stride is None else abs(stride) for stride in strides)


def _asked(tile: RegisterTile, model: StatementModel, facts: Facts) -> RegisterTile:
    """The caller's register tile where one was given: rows, then iterations along the lanes."""
    asked = facts.options.register_tile
    if not asked:
        return tile
    vectors = max(1, ceil(asked[-1] / facts.target.lanes(model.itemsize)))
    return replace(tile, rows=min(tile.rows, asked[0]) if len(asked) > 1 else 1, vectors=vectors)


def _cache_tiles(band: Band, jam: int, plan: NestPlan, facts: Facts, *, panels: bool) -> dict[int, int]:
    """Where all that the rows share fits in half of L2, and enough rows use each vector for L2 to deliver them: blocks of a few rows, the lanes' loop whole, so that results are written row by row.
    Else one register tile along the lanes, whose operand then stays in cache, under as many rows as keep what they read in half of L2. panels: that operand is packed, and L1 holds it for all rows, also where L2 holds the panels of one of the iterations around."""
    lanes, rows, half = plan.lanes, plan.tile.rows, facts.target.l2_bytes // 2
    if facts.options.tile_sizes is not None:
        sizes = zip((jam, lanes), facts.options.tile_sizes, strict=False)
        return {k: size for k, size in sizes if size < band.extents[k]}
    model = band.sized(facts.models[band.core])
    row, column = band.indices[jam][band.core], band.indices[lanes][band.core]
    inside = model.extents.keys() - band.own(band.core) - (frozenset() if panels else band.above[band.core])
    reduced = model.itemsize * prod(model.extents[index] for index in inside)
    reads = [a for a in model.accesses if not a.write]
    per_row = reduced * sum(a.stride(row) != 0 for a in reads)
    shared = reduced * band.extents[lanes] * sum(a.stride(row) == 0 and a.stride(column) != 0 for a in reads)
    if sums_together(band, facts) * shared <= half and (not shared or rows >= min(FROM_L2, band.extents[jam])):
        return {jam: rows} if rows < band.extents[jam] else {}
    fitting = max(rows, min(half // max(per_row, 1), MAX_ROWS) // rows * rows)
    tiles = {jam: fitting, lanes: plan.step}
    return {k: size for k, size in tiles.items() if size < band.extents[k]}


def _share(band: Band, plan: NestPlan, facts: Facts) -> None:
    """Chooses the member whose iterations the threads share; it may get a tile, or a smaller one, so that there are enough of them."""
    rest = {k: band.extents[k] for k in _rest(band, plan) if k != plan.turned}
    enough = next((k for k, extent in rest.items() if extent >= wanted_iterations(facts)), None)
    if enough is not None:
        plan.parallel = enough
        return
    if plan.turned is not None:
        extent = band.extents[plan.turned]
        size = even_tile(extent, facts.lanes(band.core), facts.options.threads)
        size = min(size, plan.tiles.get(plan.turned, size))
        if size < extent:
            plan.tiles[plan.turned], plan.parallel = size, plan.turned
        return
    steps = [] if plan.jam is None else [(plan.jam, plan.tile.rows)]
    for k, step in [*steps, (plan.lanes, plan.step)]:
        extent = band.extents[k]
        if extent // step < wanted_iterations(facts):
            continue
        size = min(plan.tiles.get(k, extent), even_tile(extent, step, facts.options.threads))
        if plan.jam is None:
            size = max(step, min(size, CHUNK) // step * step)
        plan.tiles[k] = size
        plan.parallel = k
        return
    plan.parallel = most_even(rest, facts)


def _rest(band: Band, plan: NestPlan) -> list[int]:
    return [k for k in range(len(band.loops)) if k not in (plan.lanes, plan.jam, plan.row)]


def build_nest(band: Band, plan: NestPlan) -> tuple[isl.ScheduleNode, NestChoice]:
    """The band's loops, outermost first: the parallel one, others, tile loops, the jammed one, lanes."""
    rest = _rest(band, plan)
    outer = [(k, band.loops[k]) for k in rest if k != plan.turned]
    first = (plan.whole.first or 0) if plan.whole is not None else 0
    tiles = [(k, tile_loop(band.loops[k], size, first=first if k == plan.jam else 0)) for k, size in plan.tiles.items()]
    above = _ordered(outer if plan.whole is not None else [*outer, *tiles], plan)
    loops = _ordered(tiles, plan) if plan.whole is not None else []
    if plan.turned is not None and not plan.blocks:
        loops.append(band.loops[plan.turned])
    if plan.jam is not None:
        loops.append(band.loops[plan.jam].marked(f"jam:{plan.tile.rows}"))
    inside = plan.turned if plan.blocks else plan.row
    loops.append(band.loops[plan.lanes].marked(f"vector:{plan.tile.vectors if inside is None else 1}"))
    if inside is not None:
        loops.append(band.loops[inside])
    names = [member[band.core] for member in band.indices]
    choice = NestChoice(
        statements=band.statements,
        order=tuple(names[k] for k in rest),
        parallel=None if plan.parallel is None else names[plan.parallel],
        tiles=tuple((names[k], size) for k, size in plan.tiles.items()),
        jam=None if plan.jam is None else (names[plan.jam], plan.tile.rows),
        vector=(names[plan.lanes], plan.tile.vectors),
        edges=plan.whole is not None,
    )
    if plan.whole is None or plan.jam is None:
        return nest_loops(band.node, [*above, *loops]), choice
    whole = plan.whole
    edges, vectors = [band.loops[plan.jam]], plan.alone
    if plan.lanes in plan.tiles:
        edges.append(tile_loop(band.loops[plan.lanes], plan.tiles[plan.lanes]))
        vectors = plan.tile.vectors
    edges.append(band.loops[plan.lanes].marked(f"vector:{vectors}"))
    return around(band.node.delete(), above, lambda node: insert_parts(node, whole, edges, loops)), choice


def _ordered(loops: list[tuple[int, Loop]], plan: NestPlan) -> list[Loop]:
    """The loops, the one that threads share first."""
    loops = sorted(loops, key=lambda item: item[0] != plan.parallel)
    return [loop.marked("parallel") if k == plan.parallel else loop for k, loop in loops]


def build_copy(band: Band, lanes: int, facts: Facts, *, parallel: bool) -> isl.ScheduleNode:
    """A copy into panels goes panel by panel; one into rows, row by row. What the source has side by side comes last, so that blocks are transposed in registers."""
    panel = facts.packed.copies[band.core]
    source = next(access for access in facts.models[band.core].accesses if not access.write)
    along = {k for k, own in enumerate(band.indices) if source.stride(own[band.core]) == 1 and k != lanes}
    loops: list[Loop] = [loop for k, loop in enumerate(band.loops) if k != lanes and k not in along]
    at = 0
    if panel is not None:
        at = min(panel.position, len(loops))
        loops.insert(at, tile_loop(band.loops[lanes], panel.width))
    if parallel and is_heavy(band, facts):
        if not loops:
            width, parts = facts.lanes(band.core), 2 * wanted_iterations(facts)
            loops = [tile_loop(band.loops[lanes], max(width, band.extents[lanes] // parts // width * width))]
        loops[at] = loops[at].marked("parallel")
    vectors = 1 if along else plain_vectors(band, facts)
    return nest_loops(
        band.node, [*loops, band.loops[lanes].marked(f"vector:{vectors}"), *(band.loops[k] for k in sorted(along))]
    )
