"""Splitting a domain: a loop's iterations in two pieces (index-set split), and full tiles apart from partial ones.

Source: Griebl, Feautrier and Lengauer, "Index set splitting" (IJPP 2000); tile separation as in the AST option `isolate` (isl manual, "AST Generation Options").
"""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from polyml.errors import TransformError
from polyml.schedule.schedule import Schedule
from polyml.schedule.transforms.loops import LoopNode, find_loop, loops_around, rows_of, tile_of
from polyml.schedule.transforms.nest import with_tree
from polyml.schedule.transforms.nodes import Loop, insert_loops, insert_sequence, spliced
from polyml.schedule.tree import statements_below
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine
from polyml.sets.spaces import parameters_text

__all__ = ["index_set_split", "separate"]


def index_set_split(schedule: Schedule, statement: str, loop: str, at: int | str) -> Schedule:
    """The iterations of the loop below `at` in a loop of their own, the others in a second one; from then on the statements have parts, `S@0` and `S@1`.

    Rewrite: i -> sequence(i where i < at, i where i >= at).

    Args:
        at: a value of the loop, or text affine in the sizes ("N - 1").

    Raises:
        TransformError: one side has no iterations, or `at` is not affine in the sizes.
    """
    found = find_loop(schedule, statement, loop)
    try:
        below = isl.UnionSet(f"{parameters_text(schedule.scop.sizes)}{{ [x'] : x' < {at} }}")
    except isl.Error as fault:
        raise TransformError(
            f'"{at}" is not affine in the sizes', hint=f"sizes: {', '.join(schedule.scop.sizes) or 'none are symbolic'}"
        ) from fault
    domain = found.top.get_domain()
    values = isl.UnionMap.from_union_pw_aff(found.loop.row)
    lower = domain.intersect(values.intersect_range(below).domain())
    upper = domain.subtract(lower)
    if lower.is_empty() or upper.is_empty():
        raise TransformError(f"splitting loop {loop} of {statement} at {at} leaves no iterations on one side")
    made = insert_sequence(found.top, [lower.coalesce(), upper.coalesce()])
    return with_tree(schedule, spliced(made.get_schedule()).get_root())


def separate(schedule: Schedule, statement: str, *names: str) -> Schedule:
    """Inside the named tile loops (all of the statement's when none is named) the full tiles get code of their own, without conditions at the edges: part 0, the
    partial tiles part 1. Every tile is one or the other, so that no order changes; a schedule whose tiles are all full stays as it is.

    Rewrite: i_tile: i -> i_tile: sequence(i where the tile is full, i where it is partial).

    Raises:
        TransformError: no such loops, or not tile loops.
    """
    around = loops_around(schedule, statement)
    for name in names:
        find_loop(schedule, statement, name)
    tiles = [k for k, loop in enumerate(around) if (loop.name in names if names else tile_of(loop.row) is not None)]
    if not tiles or any(tile_of(around[k].row) is None for k in tiles):
        raise TransformError(f"full tiles of {statement} need its tile loops", hint="tile first")
    # Of the levels over one loop the innermost decides: a tile is full when its points are all there.
    tiles = sorted({_base(around[k]): k for k in tiles}.values())
    inner = around[tiles[-1]].node.child(0)
    domain, visits = inner.get_domain(), inner.get_prefix_schedule_union_map()
    partial: isl.Set | None = None
    for name in statements_below(inner):
        found = _partial_tiles(schedule.scop, name, around, tiles, visits.intersect_domain(domain))
        partial = found if partial is None else partial.union(found)
    assert partial is not None, "internal: tiles without statements"
    edges = domain.intersect(visits.intersect_range(partial.to_union_set()).domain())
    full = domain.subtract(edges)
    if edges.is_empty() or full.is_empty():
        return schedule
    parts = insert_sequence(inner, [full.coalesce(), edges.coalesce()])
    # The tile loops once more inside the full tiles: there isl tests that the tile is full, and the loops below need no test.
    again = insert_loops(parts.child(0).child(0), [Loop(around[k].loop.row) for k in tiles])
    return with_tree(schedule, spliced(again.get_schedule()).get_root())


def _base(loop: LoopNode) -> Affine | None:
    """What a tile loop's tiles are of, whatever the levels."""
    row = loop.row
    while (tile := tile_of(row)) is not None:
        row = tile[0]
    return row


def _partial_tiles(
    scop: Scop, name: str, around: Sequence[LoopNode], tiles: Sequence[int], visits: isl.UnionMap
) -> isl.Set:
    """The visits in which some point of the tile's box is no instance of the statement."""
    statement = scop.statements[name]
    domain = statement.domain.to_union_set()
    visit = visits.intersect_domain(domain).as_map()
    depth = visit.dim(isl.dim_type.out)
    points, box = [f"p{d}'" for d in range(depth)], []
    targets = [f"p{d}'" for d in range(depth)]
    conditions: list[str] = []
    for k in tiles:
        tile = tile_of(rows_of(around[k].node, scop)[name])
        if tile is None:
            raise TransformError(f"loop {around[k].name} is no tile loop of {name}")
        base, size = tile
        points[k], targets[k] = f"x{k}'", f"q{k}'"
        conditions.append(f"x{k}' = {base.isl_text()}")
        box.append(f"p{k}' <= q{k}' < p{k}' + {size}")
    head, plain = parameters_text(scop.sizes), ", ".join(f"p{d}'" for d in range(depth))
    indices = ", ".join(statement.indices)
    # { S[i] -> [p with x in the place of the tile] } and { [p] -> [p with q anywhere in the tile] }
    inside = isl.Map(
        f"{head}{{ [{name}[{indices}] -> [{plain}]] -> [{', '.join(points)}] : {' and '.join(conditions)} }}"
    )
    reached = inside.intersect_domain(visit.wrap()).range()
    boxes = isl.Map(f"{head}{{ [{plain}] -> [{', '.join(targets)}] : {' and '.join(box)} }}")
    return boxes.intersect_domain(visit.range()).subtract_range(reached).domain()
