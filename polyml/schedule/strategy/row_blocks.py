"""Blocks of steps around a sequential loop, the steps' own rows first: the tree of a `RowBlocks` plan (schedule/row_blocks.py)."""

from __future__ import annotations

import islpy as isl

from polyml.schedule.row_blocks import RowBlocks
from polyml.schedule.strategy.bands import Band
from polyml.schedule.transforms import Loop, insert_loops, insert_sequence, tile_loop
from polyml.scop.scop import Scop

__all__ = ["FAR", "NEAR", "build_row_blocks"]

NEAR, FAR = (0, 0), (0, 1)
"""Child positions below the loop over blocks: of the steps' own rows, and of all others."""


def build_row_blocks(band: Band, plan: RowBlocks, *, parallel: bool) -> tuple[isl.ScheduleNode, int]:
    """The loop over blocks in the band's place, and how far below `FAR` the band over steps stands there. parallel: threads share the other rows."""
    scop = plan.scop
    own = [_rows_in_block(scop, name, plan) for name in band.statements]
    near, rest = isl.UnionSet("{ }"), isl.UnionSet("{ }")
    for name, inside in zip(band.statements, own, strict=True):
        near = near.union(inside.to_union_set())
        rest = rest.union(scop.statements[name].domain.subtract(inside).to_union_set())
    node = insert_loops(band.node, [tile_loop(band.loops[0], plan.size)])
    node = insert_sequence(node.child(0), [near, rest]).parent()
    far = node.child(0).child(1).child(0)
    text = "; ".join(
        f"{name}[{', '.join(scop.statements[name].indices)}] -> [({plan.rows[name]})]"
        for name in band.statements
        if plan.rows[name] != plan.steps[name]
    )
    rows = tile_loop(Loop(isl.UnionPwAff(f"{{ {text} }}"), True), plan.height)
    far = insert_loops(far, [rows.marked("parallel" if parallel else None)])
    depth = 2 if parallel else 1
    return far.ancestor(3), depth


def _rows_in_block(scop: Scop, name: str, plan: RowBlocks) -> isl.Set:
    """The statement's instances on rows whose numbers are those of the block's steps."""
    statement = scop.statements[name]
    row, step, size = plan.rows[name], plan.steps[name], plan.size
    tile = f"{size}*floor({step}/{size})"
    head = f"{name}[{', '.join(statement.indices)}]"
    return statement.domain.intersect(isl.Set(f"{{ {head} : {tile} <= {row} < {tile} + {size} }}"))
