"""Tiles: loops over blocks of iterations above the loops over their points, in one or several levels.

Source: Xue, "Loop Tiling for Parallelism" (2000); the tile loop counts in iterations, so that tiles of tiles and skewed tiles compose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyml.errors import TransformError
from polyml.schedule.schedule import Schedule
from polyml.schedule.transforms.loops import find_loop, whole_number
from polyml.schedule.transforms.nest import nest_of, with_tree
from polyml.schedule.transforms.nodes import insert_loops, tile_loop

__all__ = ["split", "tile"]


def tile(schedule: Schedule, statement: str, sizes: Mapping[str, int | Sequence[int]]) -> Schedule:
    """Tile loops of all named loops above the outermost of them, outer levels first.

    Rewrite: i, j -> i_tile, j_tile, i, j; with two sizes each: i_tile, j_tile, i_tile_2, j_tile_2, i, j.

    Args:
        sizes: iterations per tile and loop, >= 1; several: one per level, the outermost first.

    Raises:
        TransformError: no such loop, no perfect nest, or a size below 1.
    """
    if not sizes:
        raise TransformError("tile needs a size for at least one loop", hint='such as tile("S", i=32)')
    levels: dict[str, tuple[int, ...]] = {}
    for name, given in sizes.items():
        several = given if isinstance(given, tuple | list) and given else (given,)
        levels[name] = tuple(whole_number(size, f"the tile size of loop {name}") for size in several)
    nest = nest_of(schedule, statement, tuple(sizes))
    tiles = [
        tile_loop(loop.loop, levels[loop.name][level])
        for level in range(max(map(len, levels.values())))
        for loop in nest
        if level < len(levels.get(loop.name, ()))
    ]
    return with_tree(schedule, insert_loops(nest[0].top, tiles))


def split(schedule: Schedule, statement: str, loop: str, size: int) -> Schedule:
    """One loop as two: over blocks of `size` iterations, and inside a block (strip mining). Never changes the order.

    Rewrite: i -> i_tile, i.
    """
    found = find_loop(schedule, statement, loop)
    size = whole_number(size, f"the size of blocks of loop {loop}")
    return with_tree(schedule, insert_loops(found.top, [tile_loop(found.loop, size)]))
