"""Copies whose rows are short on both sides (batches of small matrices, heads and channels of a few elements, pixels that change places): blocks that are runs of neighbours in the result are put together by shuffles of
the vectors that hold their elements (codegen/llvm/memory/shuffled.py), where lanes along any one index would be few, or would each reach for an element of its own."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.cost import AccessModel
from polyml.schedule.strategy.bands import Band, has_inner_loops
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.strategy.lanes import lane_cost
from polyml.schedule.strategy.threads import is_heavy, most_even, wanted_iterations
from polyml.schedule.transforms import nest_loops, tile_loop
from polyml.scop.joining import box_extents
from polyml.sets.picked import LARGEST, places_of_parts, places_of_run, vectors_of_run, windows_of
from polyml.target import Target

__all__ = ["ShuffledCopy", "build_shuffled", "plan_shuffled"]

MOST_VECTORS = 16
"""Vectors of a block."""

MOST_WINDOWS = 8
"""Vectors that one of the result is picked from."""

MOST_ORDERS = 24
"""Orders of lanes that registers hold; those of a larger block come from memory each time."""

GAIN = 0.85
"""A block should take no more than so much of the time of lanes along an index."""

ROW = 1.0
"""Instructions around a block, or a row that is one vector or less: the loop's, and those of addresses."""


@dataclass(frozen=True, slots=True)
class ShuffledCopy:
    """Members by position. block: those of a block, outermost first, of whose first one it has `count` iterations. order: the others, outermost first. tile: iterations of the first one after which the others go on, None: all of them. parallel: what threads share."""

    block: tuple[int, ...]
    count: int
    order: tuple[int, ...]
    tile: int | None
    parallel: int | None

    def text(self, band: Band) -> str:
        """For notes."""
        names = [member[band.core] for member in band.indices]
        inner = "".join(f" x {names[k]}" for k in self.block[1:])
        return f"blocks of {self.count} {names[self.block[0]]}{inner} by shuffles"


def plan_shuffled(band: Band, facts: Facts, *, parallel: bool) -> ShuffledCopy | None:
    """How the band's copy goes in blocks; None where it is none, or where lanes along an index are as good."""
    model = facts.models[band.core]
    if (
        not model.copies
        or facts.scop.statements[band.core].reduction is not None  # the last block goes over elements again
        or len(band.statements) > 1
        or len(model.accesses) != 2
        or has_inner_loops(band.core, band, facts)
    ):
        return None
    if band.above[band.core] or facts.options.tile_sizes is not None or facts.scop.sizes:
        return None
    read, write = sorted(model.accesses, key=lambda access: access.write)
    size = facts.scop.arrays[write.array].dtype.itemsize
    price = _price(size, facts.target)
    if price is None or not _is_plain(band, read, write, facts):
        return None
    members = [k for k, extent in enumerate(band.extents) if extent > 1]
    loops = {k: (band.extents[k], _stride(write, band, k), _stride(read, band, k)) for k in members}
    found = _block(loops, size, price, facts)
    if found is None:
        return None
    cost, block, count = found
    if cost * model.instances > GAIN * min(_usual(band, k, (write, read), facts) for k in range(len(band.loops))):
        return None
    rest = sorted((k for k in range(len(band.loops)) if k not in block), key=lambda k: -abs(_stride(read, band, k)))
    first = block[0]
    tile = _tile(first, count, rest, read, size, band, facts)
    shared = None
    if parallel and is_heavy(band, facts):
        counts = {k: band.extents[k] for k in rest}
        shared = most_even(counts, facts)
        if shared is None or counts[shared] < wanted_iterations(facts):
            tile = _even(band.extents[first], count, tile, facts)
            shared = first if tile is not None else shared
    return ShuffledCopy(block, count, tuple(rest), tile, shared)


def build_shuffled(band: Band, plan: ShuffledCopy) -> isl.ScheduleNode:
    """The band's loops: the parallel one, others, tiles, and a block's."""
    first, *inner = plan.block
    outer = [(k, band.loops[k]) for k in plan.order]
    if plan.tile is not None:
        outer.insert(0, (first, tile_loop(band.loops[first], plan.tile)))
    outer.sort(key=lambda item: item[0] != plan.parallel)
    loops = [loop.marked("parallel") if k == plan.parallel else loop for k, loop in outer]
    return nest_loops(
        band.node, [*loops, band.loops[first].marked(f"shuffle:{plan.count}"), *(band.loops[k] for k in inner)]
    )


def _is_plain(band: Band, read: AccessModel, write: AccessModel, facts: Facts) -> bool:
    """Whether it goes through a box, from one array to another, in equal steps through memory that are known."""
    arrays = [facts.scop.arrays[access.array] for access in (read, write)]
    # Of a tile the last one may have fewer iterations than a block.
    known = facts.models[band.core].extents
    whole = all(extent == known[own[band.core]] for extent, own in zip(band.extents, band.indices, strict=True))
    steps = [access.stride(band.indices[k][band.core]) for access in (read, write) for k in range(len(band.loops))]
    return (
        whole
        and read.array != write.array
        and None not in steps
        and all(array.kind != "local" and None not in array.memory_strides for array in arrays)
        and arrays[0].dtype == arrays[1].dtype
        and box_extents(facts.scop, facts.scop.statements[band.core]) is not None
    )


def _usual(band: Band, k: int, accesses: tuple[AccessModel, AccessModel], facts: Facts) -> float:
    """Vector instructions of the copy with lanes along member k."""
    cost = lane_cost(band, k, facts)
    if band.extents[k] > facts.lanes(band.core) or any(_stride(access, band, k) != 1 for access in accesses):
        return cost
    return cost + ROW * facts.models[band.core].instances / band.extents[k]


def _stride(access: AccessModel, band: Band, k: int) -> int:
    stride = access.stride(band.indices[k][band.core])
    assert stride is not None, "internal: a copy that does not go in equal steps"
    return stride


def _price(size: int, target: Target) -> float | None:
    """Of a shuffle of two vectors, in vector instructions, its order's load among them; None where elements of so many bytes have none."""
    if target.architecture != "x86_64":
        return None
    if target.scalef:
        return None if size == 1 and "+avx512vbmi" not in target.features.split(",") else 2.0
    return 4.0 if size >= 4 and target.vector_bytes == 32 else None


def _block(
    loops: dict[int, tuple[int, int, int]], size: int, price: float, facts: Facts
) -> tuple[float, tuple[int, ...], int] | None:
    """The cost of an element, the members of the cheapest block, outermost first, and the iterations of the first one."""
    ordered = sorted(loops, key=lambda k: loops[k][1])
    parts = max(1, size // LARGEST)
    width = facts.target.vector_bytes // min(size, LARGEST)
    best: tuple[float, tuple[int, ...], int] | None = None
    whole = parts
    for position, k in enumerate(ordered):
        extent, along, _ = loops[k]
        if along * parts != whole or whole > width * MOST_VECTORS // 2:
            break
        inner = [loops[i] for i in ordered[:position]]
        for count in range(max(2, ceil(width / whole)), min(extent, width * MOST_VECTORS // whole) + 1):
            share = ceil(extent / count) / (extent * (whole // parts))
            # Each vector is loaded and stored, and its order known.
            if best is not None and (ROW + 3 * ceil(count * whole / width)) * share >= best[0] * 0.98:
                continue
            places = places_of_run([*inner, (count, *loops[k][1:])])
            assert places is not None, "internal: a run with gaps"
            cost = _cost(places_of_parts(places, size), width, price)
            if cost is None:
                continue
            cost = (ROW + cost) * share
            if best is None or cost < best[0] * 0.98:
                best = cost, tuple(reversed(ordered[: position + 1])), count
        whole *= extent
    return best


def _cost(places: Sequence[int], width: int, price: float) -> float | None:
    """Vector instructions for a run."""
    low, high = min(places), max(places)
    length = min(width, 1 << ((high - low + 1).bit_length() - 1))
    cost, orders = 0.0, 0
    for start in vectors_of_run(len(places), width):
        part = list(places[start : start + width])
        windows = windows_of(part, length, low, high)
        if len(windows) > MOST_WINDOWS:
            return None
        plain = len(windows) == 1 and part == list(range(part[0], part[0] + width))
        shuffles = 0 if plain else max(1, len(windows) - 1)
        orders += shuffles
        cost += 2 + len(windows) + shuffles * (price if len(windows) > 1 else 1.0)
    return cost + (0.5 * orders if orders > MOST_ORDERS else 0)


def _tile(
    first: int, count: int, rest: list[int], read: AccessModel, size: int, band: Band, facts: Facts
) -> int | None:
    """Iterations of the block's first member that read what L1 holds, where other loops read between them what these do."""
    step = abs(_stride(read, band, first))
    again = [k for k in rest if abs(_stride(read, band, k)) < step and band.extents[k] > 1]
    most = facts.target.l1_bytes // 4 // max(1, step * size)
    tile = max(1, most // count) * count
    return _whole(band.extents[first], count, tile) if again and tile < band.extents[first] else None


def _even(extent: int, count: int, tile: int | None, facts: Facts) -> int | None:
    """A tile for threads."""
    pieces = 2 * wanted_iterations(facts)
    size = max(count, extent // pieces // count * count)
    size = size if tile is None else min(size, tile)
    return _whole(extent, count, size) if size < extent else None


def _whole(extent: int, count: int, size: int) -> int | None:
    """A tile of about so many iterations of which the last one has a whole block; None where there is none."""
    sizes = range(size, min(extent, 2 * size), count)
    return next((s for s in sizes if extent % s == 0 or extent % s >= count), None)
