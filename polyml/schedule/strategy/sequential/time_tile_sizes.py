"""Sizes of time tiles (time_tiles.py): how many steps, rows and vectors of a strip, so that what they touch stays in L1 or L2.

At one step a tile touches a block of rows in all arrays, a strip of each along the lanes, as many lines long as L1 holds of the fewest rows, up to `STRIP_LINES`. Strips begin and end where vectors do: they move by whole
vectors from step to step; a row along which a recurrence runs is not cut. In one direction blocks fit in L1 where that leaves at least `LEAST_ROWS` rows, else in an eighth or a quarter of L2; then as many steps as shift the block
by twice its own height (six times where rows are cut into strips), about as many in each tile, and in each thread's. In several directions blocks are narrow along one where rows are jammed, so that neighbours stay in L1 while the others are swept,
and wide along the others, as far as a quarter of L2 allows; then as many steps as shift the block by its own width. The next tile is the next one along the narrow direction: what it shares with the one before is near, and
what rows of tiles share is in L3 where not all of the arrays are.
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

__all__ = ["Sweep"]

LEAST_STEPS = 4
"""A time loop of fewer steps stays as it is."""

STEPS_OF_ANY = 8
"""Steps of a tile at least where calls may have any number of them: the first one may have few."""

STRIP_VECTORS = 16
"""Vectors in a strip along the lanes, at least; a row of twice as many is not cut."""

STRIP_LINES = 16
"""Lines in a strip along the lanes, at most: where vectors are shorter than lines, what the loops around it cost is spread over more of them, as long as the fewest rows that a block may have stay in L1."""

STEPS_OF_STRIPS = 6
"""Heights by which the steps of a tile shift a block of strips, along whose one direction the next tile finds most of what it touches in L2, but by no more than half of all rows; other blocks twice their own."""

LOADS_OF_LINE = 32
"""Loads for what one line of the result takes, at most, where a line from L3 counts: at two a cycle, several times as long as such a line takes."""

OPERATIONS_OF_LINE = 32
"""Vector instructions of arithmetic for a line of what a step touches, at least, where lines from L2 do not count: divisions of one stencil take longer than these do, and the borders of tiles are computed in short vectors."""

UNKNOWN = 1 << 20
"""What an extent that is symbolic is taken for: more than any tile has. Whether a step is large enough is asked at each call."""

NARROW = 4
"""Rows of a block along the first of several directions: those that are jammed (neighbours.py)."""

WIDE = 32
"""Rows of a block along the others, at most: the block's border along them is an eighth of that along the first."""

LEAST_ROWS = 8
"""Rows of a block in each direction: less, and its border is as large as itself. A direction that has no more than two such blocks (components, velocities of a lattice) is not cut where another one is."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One step of the time loop, in which statements sweep over arrays. steps: per statement its time index. directions: per statement and index, the index of the core statement (the one with most work) that runs with it in the band.
    whole: indices of the core statement that are not cut."""

    facts: Facts
    steps: Mapping[str, str]
    directions: dict[tuple[str, str], str] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()

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

    def rows(self, lanes: str) -> list[str]:
        """The core's directions that are cut, without the lanes."""
        return [index for index in self.space(self.core) if index != lanes and index not in self.whole]

    def short(self, lanes: str) -> frozenset[str]:
        """The core's directions that are no longer than two of the least blocks, beside rows along which strips are cut."""
        space, asked = self.space(self.core), self.facts.options.tile_sizes is not None
        if asked or space[lanes] <= 2 * STRIP_VECTORS * self.facts.target.lanes(self.core.itemsize):
            return frozenset()
        return frozenset(index for index, extent in space.items() if index != lanes and extent <= 2 * LEAST_ROWS)

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
    def may_be_cut(self) -> bool:
        """Whether a tile can be less than all of a step: no block has fewer than `NARROW` rows in any direction, and no strip is so short. Looking for a band along many short indices
        takes long."""
        return self.facts.options.tile_sizes is not None or max(self.space(self.core).values(), default=0) > NARROW

    @property
    def hides_l3(self) -> bool:
        """Whether a step's loads take so long that it waits for nothing that comes from L3, which holds all of it."""
        core, target = self.core, self.facts.target
        loads = len(set(reads_of(self.facts.scop.statements[core.name].value)))
        of_line = loads * max(1, target.line_bytes // target.vector_bytes)
        return (
            of_line > LOADS_OF_LINE and self.bytes_of({m.name: self.space(m) for m in self.models}) <= target.l3_bytes
        )

    @property
    def room(self) -> int:
        """Bytes of a step that stay in L1 until the next one, or near it; in L2 where its arithmetic takes longer than they do from there."""
        target = self.facts.target
        boxes = {model.name: self.space(model) for model in self.models}
        vectors = sum(prod(boxes[m.name].values()) / target.lanes(m.itemsize) * m.operations for m in self.models)
        if vectors * target.line_bytes >= OPERATIONS_OF_LINE * self.bytes_of(boxes):
            return target.l2_bytes
        return min(2 * target.l1_bytes, target.l2_bytes // 2)

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
        rows = self.rows(lanes)
        # A strip is as good as a row of its length; a few rows alone are no tiles.
        least = {
            index: size if rows and index == lanes else 2 * (min(size, LEAST_ROWS) if len(rows) > 1 else size)
            for index, size in sizes.items()
            if size is not None
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
        room, far = 2 * target.l1_bytes // 3, target.l2_bytes // 8
        cut = self.strip(rows, strip, room) if 2 * strip < space[lanes] and not whole and not short else None
        length = self.longest(rows) if whole and space[lanes] == UNKNOWN else space[lanes]
        rooms = (room, target.l1_bytes if cut else 0, far, 2 * far)
        if len(rows) > 1 and not whole:
            heights = self.columns(rows, strip if short else cut or length, 2 * far)
            if min(heights[1:]) < LEAST_ROWS:
                return None
        else:
            for room in rooms:
                heights = self.rows_of(rows, cut or length, room)
                if min(heights) >= LEAST_ROWS:
                    break
            else:
                return None
        highest = max(space[index] for index in rows)
        return self.steps_of([min(height, highest) for height in heights], cut, lanes, skew)

    def strip(self, rows: Sequence[str], least: int, room: int) -> int:
        """Elements of a strip where rows are cut, `least` or more: the longest of whole lines with which a block of the fewest rows fits in `room` bytes. Blocks in several directions are no matter of L1."""
        target, itemsize = self.facts.target, self.core.itemsize
        line = max(target.line_bytes // itemsize, target.lanes(itemsize))
        fits = room // self.block_bytes(dict.fromkeys(rows, LEAST_ROWS), 1) if len(rows) == 1 else STRIP_LINES * line
        return max(least, min(fits // line, STRIP_LINES) * line)

    def longest(self, rows: Sequence[str]) -> int:
        """Elements of a row of unknown length, at most, where rows are not cut: those of the smallest blocks stay near."""
        one = self.block_bytes(dict.fromkeys(rows, LEAST_ROWS), 1)
        return max(1, self.facts.target.l2_bytes // 8 // one)

    def block_bytes(self, heights: Mapping[str, int], strip: int) -> int:
        """Bytes of a block of rows and strips."""
        boxes: dict[str, dict[str, int]] = {}
        for model in self.models:
            box = boxes[model.name] = self.space(model)
            for index in box:
                direction = self.directions.get((model.name, index), "")
                if direction not in self.whole:
                    box[index] = min(box[index], heights.get(direction, strip))
        return self.bytes_of(boxes)

    def rows_of(self, rows: list[str], strip: int, room: int) -> list[int]:
        """The sides of the largest block of rows in the room that is no longer than need be along the first of several directions."""
        one = self.block_bytes(dict.fromkeys(rows, 1), strip)
        if len(rows) == 1:
            return [_in_fours(room / one)]
        return [LEAST_ROWS, *[_in_fours((room / one / LEAST_ROWS) ** (1 / (len(rows) - 1)))] * (len(rows) - 1)]

    def columns(self, rows: list[str], strip: int, room: int) -> list[int]:
        """The sides of a block in several directions: as many rows as are jammed along the first one, which is swept innermost, so that the next row of the loop around it finds all neighbours in L1,
        and along the others as many as the room allows, up to where their border is small beside that. Where threads' rows of tiles together are more than L3 holds, blocks are small ones."""
        options, space = self.facts.options, self.space(self.core)
        one = self.block_bytes({row: NARROW if row == rows[0] else 1 for row in rows}, strip)
        wide = min(WIDE, _in_fours((room / one) ** (1 / (len(rows) - 1))))
        if options.parallel and options.threads > 1:
            # A thread begins when the one before is beyond the first two blocks.
            wide = min(wide, max(LEAST_ROWS, _in_fours(space[rows[-1]] / (2 * options.threads))))
            every = self.bytes_of({model.name: self.space(model) for model in self.models})
            if 2 * wide * options.threads * every > self.facts.target.l3_bytes * space[rows[-1]]:
                small = self.block_bytes(dict.fromkeys(rows, LEAST_ROWS), strip)
                return [LEAST_ROWS if small <= room else 1] * len(rows)
        return [NARROW, *[wide] * (len(rows) - 1)]

    def steps_of(self, heights: list[int], strip: int | None, lanes: str, skew: int) -> tuple[int | None, ...] | None:
        """The sizes with steps; None when nothing would be cut."""
        space = self.space(self.core)
        extents = [space[index] for index in self.rows(lanes)]
        if strip is None and all(height >= extent for height, extent in zip(heights, extents, strict=True)):
            return None
        if len(heights) > 1:
            far = max(heights[-1] if heights[0] < LEAST_ROWS else 0, 2 * LEAST_ROWS)
        else:
            shortest = min(heights, default=(strip or 0) // 8)
            far = 2 * shortest
            if heights and strip is not None:
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
