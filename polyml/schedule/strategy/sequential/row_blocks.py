"""Blocks of steps around a sequential loop, the steps' own rows first: the tree of a `RowBlocks` plan (schedule/sweeps/row_blocks.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyml.schedule.register_tiles import RegisterTile
from polyml.schedule.strategy.bands import Band, along
from polyml.schedule.sweeps.row_blocks import RowBlocks
from polyml.schedule.transforms import Loop, insert_loops, insert_sequence, tile_loop
from polyml.scop.scop import Scop

__all__ = ["build_row_blocks"]


def build_row_blocks(band: Band, plan: RowBlocks, *, parallel: bool) -> tuple[isl.ScheduleNode, int]:
    """The loop over blocks in the band's place, above a sequence of two: the steps' own rows, and all others in tiles. Below the second, the band over steps (where columns are apart,
    a sequence of it and of the core's register tiles) stands as deep as the number says. parallel: threads share the other rows."""
    scop, near, rest = plan.scop, isl.UnionSet("{ }"), isl.UnionSet("{ }")
    for name in band.statements:
        inside = _in_block(scop, name, plan, plan.rows)
        near = near.union(inside.to_union_set())
        rest = rest.union(scop.statements[name].domain.subtract(inside).to_union_set())
    node = insert_loops(band.node, [tile_loop(band.loops[0], plan.size)])
    node = insert_sequence(node.child(0), [near, rest]).parent()
    far = node.child(0).child(1).child(0)
    names = [name for name in band.statements if plan.rows[name] != plan.steps[name]]
    if plan.columns is not None and plan.tile is not None:
        far = _with_columns(far, names, plan, plan.columns, plan.tile)
    rows = tile_loop(Loop(along(scop, names, plan.rows), True), plan.height)
    far = insert_loops(far, [rows.marked("parallel" if parallel else None)])
    return far.ancestor(3), 2 if parallel else 1


def _with_columns(
    band: isl.ScheduleNode, names: Sequence[str], plan: RowBlocks, columns: Mapping[str, str], tile: RegisterTile
) -> isl.ScheduleNode:
    """The band over steps for the steps' own columns, and then the core in register tiles."""
    core, near, domain = plan.core, isl.UnionSet("{ }"), plan.scop.statements[plan.core].domain
    for name in names:
        near = near.union(_in_block(plan.scop, name, plan, columns).to_union_set())
    rest = domain.subtract(_in_block(plan.scop, core, plan, columns)).to_union_set()
    node = insert_sequence(band, [near, rest])
    rows, lanes, steps = (Loop(along(plan.scop, [core], index), True) for index in (plan.rows, columns, plan.steps))
    loops = [rows.marked(f"jam:{tile.rows}"), lanes.marked(f"vector:{tile.vectors}"), replace(steps, coincident=False)]
    if plan.width:  # vectors as they lie in panels
        loops.insert(0, tile_loop(lanes, plan.width))
    return insert_loops(node.child(1).child(0).cut(), loops).ancestor(2)


def _in_block(scop: Scop, name: str, plan: RowBlocks, index: Mapping[str, str]) -> isl.Set:
    """The statement's instances on rows (columns) whose numbers are those of the block's steps."""
    statement = scop.statements[name]
    where, step, size = index[name], plan.steps[name], plan.size
    tile = f"{size}*floor({step}/{size})"
    head = f"{name}[{', '.join(statement.indices)}]"
    return statement.domain.intersect(isl.Set(f"{{ {head} : {tile} <= {where} < {tile} + {size} }}"))
