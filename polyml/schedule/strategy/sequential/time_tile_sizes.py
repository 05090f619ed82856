"""Sizes of time tiles (time_tiles.py): how many steps, rows and vectors of a strip, so that what they touch stays in L1 or L2.

At one step a tile touches a block of rows in all arrays, a strip of each along the lanes. Strips begin and end where vectors do: they move by whole
vectors from step to step; a row along which a recurrence runs is not cut. Blocks fit in L1 where that leaves at least `LEAST_ROWS` rows in each direction, else in a fraction of L2, fewer rows
innermost, so that the rows which the next ones read again are still in L1; then as many steps as shift the block by twice its own
height (six times where rows are cut into strips), about as many in each tile, and in each thread's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod

from polyml.expressions import reads_of
from polyml.records import dataclass
from polyml.schedule.cost import StatementModel
from polyml.schedule.large_enough import at_least, extents_of
from polyml.schedule.layouts.relaid import trips_of
from polyml.schedule.schedule import Product
from polyml.schedule.strategy.facts import Facts
from polyml.sets.affine import Affine

__all__ = ["Sweep"]

LEAST_STEPS = 4
"""A time loop of fewer steps stays as it is."""

STEPS_OF_ANY = 8
"""Steps of a tile at least where calls may have any number of them: the first one may have few."""

STRIP_VECTORS = 16
"""Vectors in a strip along the lanes."""

STEPS_OF_STRIPS = 6
"""Heights by which the steps of a tile shift a block of strips, along whose one direction the next tile finds most of what it touches in L2, but by no more than half of all rows; other blocks twice their own."""

UNKNOWN = 1 << 20
"""What an extent that is symbolic is taken for: more than any tile has. Whether a step is large enough is asked at each call."""

LEAST_ROWS = 8
"""Rows of a block in each direction: less, and its border is as large as itself."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One step of the time loop, in which statements sweep over arrays. steps: per statement its time index. directions: per statement and index, the index of the core statement (the one with most work) that runs with it in the band."""

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
        most = self.longest(rows) if whole else most
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
        length = self.longest(rows) if whole and space[lanes] == UNKNOWN else space[lanes]
        far = target.l2_bytes // 8
        # Rows of two strips are not cut, and blocks of them may take twice as much where there are several directions.
        for room in (2 * target.l1_bytes // 3, target.l1_bytes if cut else 0, far, 2 * far if len(rows) > 1 else 0):
            heights = self.heights(rows, strip if short else cut or length, room)
            if min(heights) >= LEAST_ROWS:
                break
        else:
            return None
        highest = max(space[index] for index in rows)
        return self.steps_of([min(height, highest) for height in heights], cut, lanes, skew)

    def longest(self, rows: Sequence[str]) -> int:
        """Elements of a row of unknown length, at most, where rows are not cut: those of the smallest blocks stay near."""
        one = self.block_bytes(dict.fromkeys(rows, LEAST_ROWS), 1)
        return max(1, self.facts.target.l2_bytes // 8 // one)

    def block_bytes(self, heights: Mapping[str, int], strip: int) -> int:
        """Bytes of a block of rows and strips."""
        boxes = {}
        for model in self.models:
            boxes[model.name] = {
                index: min(extent, heights.get(self.directions.get((model.name, index), ""), strip))
                for index, extent in self.space(model).items()
            }
        return self.bytes_of(boxes)

    def heights(self, rows: list[str], strip: int, room: int) -> list[int]:
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
        """Iterations of the loops inside a tile, by statement and index: no more than the tile has."""
        found = {}
        for model in self.models:
            for index, extent in self.space(model).items():
                size = sizes.get(self.directions.get((model.name, index), ""))
                if size is not None:
                    found[model.name, index] = min(size, extent)
        return found


def _in_fours(rows: float) -> int:
    return max(1, round(rows) // 4 * 4)
