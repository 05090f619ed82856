"""Fronts of tiles that run at once: the wavefront of a tiled nest, and diamond tiles, whose front starts at full width.

Sources: Lamport, "The parallel execution of DO loops" (CACM 1974); Bandishti, Pananilath and Bondhugula, "Tiling stencil computations to maximize parallelism" (SC'12).
"""

from __future__ import annotations

import islpy as isl

from polyml.errors import TransformError
from polyml.schedule.schedule import Schedule
from polyml.schedule.transforms.loops import LoopNode, rows_of, tile_of, whole_number
from polyml.schedule.transforms.nest import nest_of, rebuilt, with_tree
from polyml.schedule.transforms.nodes import Loop, insert_loops, tile_loop

__all__ = ["diamond", "wavefront"]


def wavefront(schedule: Schedule, statement: str, *names: str) -> Schedule:
    """The outermost of the named loops becomes the sum of all of them (tile loops count in tiles): a front that sweeps diagonally. Where all of them had
    non-negative distances, none of the others carries anything any more.

    Rewrite: t_tile, i_tile -> wave = t_tile/T + i_tile/I, i_tile.

    Raises:
        TransformError: fewer than two loops, or no perfect nest.
    """
    if len(set(names)) < 2:
        raise TransformError(
            "a wavefront runs over two or more loops", hint='such as wavefront("S", "t_tile", "i_tile")'
        )
    nest = nest_of(schedule, statement, names)
    total: isl.UnionPwAff | None = None
    for loop in nest:
        if loop.name in names:
            total = _unit(loop, schedule) if total is None else total.add(_unit(loop, schedule))
    assert total is not None, "internal: a wavefront over nothing"
    return with_tree(schedule, rebuilt(nest, [Loop(total), *(loop.loop for loop in nest[1:])]))


def diamond(schedule: Schedule, statement: str, time: str, space: str, *, size: int, slope: int = 1) -> Schedule:
    """Tiles between the hyperplanes slope*t + i and slope*t - i, above the nest: all tiles of one front start at once, for the whole width of i.
    It fits dependences with |distance in i| <= slope * distance in t.

    Rewrite: t, i -> wave = (slope*t + i)//size + (slope*t - i)//size, i_tile = slope*t + i in tiles, t, i.

    Args:
        size: of a tile along both hyperplanes, in iterations of i, >= 1.

    Raises:
        TransformError: no perfect nest, or `time` is not outside of `space`.
    """
    size, slope = whole_number(size, "the size of diamonds"), whole_number(slope, "the slope of diamonds")
    nest = nest_of(schedule, statement, (time, space))
    if nest[0].name != time or nest[-1].name != space or len(nest) < 2:
        raise TransformError(f"loop {time} is not outside of loop {space}")
    steps = nest[0].loop.row.scale_val(isl.Val.int_from_si(nest[0].node.get_ctx(), slope))
    inner = nest[-1].loop.row
    rising, falling = tile_loop(Loop(steps.add(inner)), size), tile_loop(Loop(steps.add(inner.neg())), size)
    value = isl.Val.int_from_si(nest[0].node.get_ctx(), size)
    wave = rising.row.add(falling.row).scale_down_val(value)
    return with_tree(schedule, insert_loops(nest[0].top, [Loop(wave), rising]))


def _unit(loop: LoopNode, schedule: Schedule) -> isl.UnionPwAff:
    """The loop's value in its own steps: tiles for a tile loop."""
    sizes = {tile[1] if (tile := tile_of(row)) else 1 for row in rows_of(loop.node, schedule.scop).values()}
    row = loop.loop.row
    return row.scale_down_val(isl.Val.int_from_si(row.get_ctx(), sizes.pop())) if len(sizes) == 1 else row
