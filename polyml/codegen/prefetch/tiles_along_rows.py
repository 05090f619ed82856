"""Register tiles that go along rows: while one is computed, what the next rows need is fetched into L2, a line at a time.

The inner loop of a tile reads a packed panel in order, which the hardware's prefetchers see. They do not see where the next tile's rows begin, neither those of the
operand that is read where it lies nor those of a result that partial sums are added to: they wait for the last cache each time. So the inner loop asks for
one line of each per iteration; more at once would take the buffers that the panel comes through. Where a whole block of the result was set to zero
ahead of its tiles (a product written over its operand), the next tile's rows are there, and those of the next block are fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from math import ceil, prod

from polyml.codegen.loops import Allocate, Assign, For, Function, Node, Place, Prefetch, Variable
from polyml.codegen.passes.vectors.streams import flat_element
from polyml.codegen.prefetch.caches import Caches
from polyml.codegen.prefetch.once import LEAST_STEPS
from polyml.codegen.prefetch.tile_sums import (
    LEAST,
    LEAST_REGISTERS,
    affine_subscripts,
    map_tiles,
    only_sums,
    with_prefetches,
)
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import nodes_of, walk_nodes
from polyml.expressions import Read, reads_of, variables_in
from polyml.records import dataclass
from polyml.schedule.schedule import Note
from polyml.sets.affine import Affine, affine

__all__ = ["prefetch_rows"]

TOGETHER = 2
"""Lines that each step of one tile's sums asks for, at most, when it fetches rows from end to end: more loads would take turns with those of the sums."""

MOST_STEP = 16
"""Elements of a result's row that an iteration moves on by, at most: there should be one for each line."""

LONG = 32
"""Iterations of the inner loop below which its own loads are few, and the next tile's rows are near."""

FEW_LINES = 4
"""Lines between packed rows and the next ones, at most, across which the hardware's prefetchers go on."""

SUMS = 32
"""Sums that such an iteration has, at least: shorter ones count in part."""


def prefetch_rows(
    function: Function, caches: Caches, registers: int, held: Set[str] = frozenset()
) -> tuple[Function, tuple[Note, ...]]:
    """The function with prefetches in the inner loops of its register tiles. registers: of vectors, that the machine has."""
    if not caches.l2:
        return function, ()
    scratch = (node.variable for node in nodes_of(function) if isinstance(node, Allocate))
    pass_ = _Tiles({v.name: v for v in function.arguments}, {v.name: v for v in scratch}, caches, registers, held, [])
    body = map_tiles(function.body, pass_.tile)
    notes = tuple(dict.fromkeys(pass_.notes))
    return (function if body is function.body else replace(function, body=body)), notes


@dataclass(frozen=True, slots=True)
class _Rows:
    """Elements of an array that a tile touches: `count` in the direction `dimension` from `start` on, and `across` lines in each."""

    array: str
    start: tuple[Affine, ...]
    dimension: int
    count: int
    across: int


@dataclass(frozen=True, slots=True)
class _Tiles:
    arguments: Mapping[str, Variable]
    locals: Mapping[str, Variable]
    caches: Caches
    registers: int
    held: Set[str]
    notes: list[Note]

    def tile(self, lanes: For, loops: tuple[For, ...]) -> For:
        """The vector loop, with prefetches in the innermost loop of its one nest of sums."""
        inner = [node for node in walk_nodes(lanes.body) if isinstance(node, For)]
        loop = next((node for node in inner if only_sums(node)), None)
        if loop is None or not all(only_sums(node) or _only_loops(node) for node in inner) or len(loop.body) < LEAST:
            return lanes
        nest = inner[: inner.index(loop)]
        trips = [Ranges((*loops, *nest)).highest(sums.upper - sums.lower) for sums in (*nest, loop)]
        share = max(1, SUMS // len(loop.body))
        if None not in trips and prod(trip for trip in trips if trip is not None) < LONG * loop.step * share:
            return lanes
        result, operand = self.result(lanes, loop), self.operand(loop, lanes)
        ahead = next(
            (found for rows in (operand, result) if rows is not None and (found := _moving(rows, loops))), None
        )
        if ahead is None:
            return lanes
        between = _without_own(loops[loops.index(ahead) + 1 :], lanes)
        places: list[Place] = []
        if operand is not None:
            places += self.operand_lines(operand, loop, ahead, between)
        elif (packed := self.packed(loop, lanes, ahead)) is not None:
            places += self.packed_lines(packed, loop, ahead, between)
        if result is not None and ahead.variable in variables_in(result.start):
            places += self.result_lines(result, loop, lanes, _beyond_block(result, ahead, loops), between)
        places = self.affordable(places, loop)
        if not places:
            return lanes
        nodes = tuple(Prefetch(place, 2) for place in places)
        names = ", ".join(dict.fromkeys(place.variable for place in places))
        self.notes.append(Note("prefetch", ahead.variable, f"the next rows of {names}, from inside a register tile"))
        return replace(lanes, body=with_prefetches(lanes.body, loop, nodes))

    def operand(self, loop: For, lanes: For) -> _Rows | None:
        """Rows of a large argument that the loop walks along, the same for all lanes."""
        reads = [r for node in loop.body if isinstance(node, Assign) for r in reads_of(node.value)]
        rows = [r for r in dict.fromkeys(reads) if self.is_row(r, loop, lanes)]
        if not rows or len({r.tensor for r in rows}) != 1:
            return None
        first = [r for r in rows if _along(r, loop) == _along(rows[0], loop)]
        return _in_a_row([affine_subscripts(r) for r in first], rows[0].tensor, 1)

    def packed(self, loop: For, lanes: For, ahead: For) -> Read | None:
        """The first element of packed rows that the loop walks along in the order of memory, the same for all lanes, that move on with the loop `ahead`."""
        for read in dict.fromkeys(r for n in loop.body if isinstance(n, Assign) for r in reads_of(n.value)):
            variable = self.locals.get(read.tensor)
            flat = None if variable is None or not self.is_large(variable) else flat_element(variable, read.subscripts)
            if flat is None or not flat.stride(loop.variable) or flat.stride(lanes.variable) != 0:
                continue
            if ahead.variable in flat.variables():
                return read
        return None

    def packed_lines(self, read: Read, loop: For, ahead: For, between: Sequence[For]) -> Iterator[Place]:
        """The lines of the next rows that lie where this iteration's do; one in each tile along the same rows, all at once where there are none."""
        variable = self.locals[read.tensor]
        flat = flat_element(variable, read.subscripts)
        along = 0 if flat is None else flat.stride(loop.variable) or 0
        if flat is not None and not between and self.lie_behind(variable, flat, loop, ahead):
            return
        lines = _power(-(-along * variable.dtype.itemsize * loop.step // self.caches.line))
        each = max(1, loop.step // lines)
        free = next((outer for outer in between if outer.step > 0), None)
        turns = [affine(k) for k in range(lines)]
        if free is not None:
            turns = [(affine(free.variable) // free.step) % lines]
        for turn in turns:
            moved = {
                ahead.variable: affine(ahead.variable) + ahead.step,
                loop.variable: affine(loop.variable) + turn * each,
            }
            yield Place(read.tensor, tuple(s.substitute(moved) for s in affine_subscripts(read)))

    def lie_behind(self, variable: Variable, flat: Affine, loop: For, ahead: For) -> bool:
        """Whether the next rows begin where these end, or a few lines further on: what asks for these, line by line, comes to them."""
        beyond = flat.substitute({ahead.variable: affine(ahead.variable) + ahead.step}) - flat
        gap = beyond - (loop.upper - loop.lower) * (flat.stride(loop.variable) or 0)
        return gap.is_constant and 0 <= gap.constant * variable.dtype.itemsize <= FEW_LINES * self.caches.line

    def is_row(self, read: Read, loop: For, lanes: For) -> bool:
        variable = self.arguments.get(read.tensor)
        if variable is None or not self.is_large(variable):
            return False
        # Of rows of unknown length the place within one is enough, where neither loop leaves it.
        across = [s for s, step in zip(read.subscripts, variable.memory_strides, strict=True) if step is None]
        if any(not isinstance(s, Affine) or s.variables() & {loop.variable, lanes.variable} for s in across):
            return False
        flat = flat_element(variable, read.subscripts, whole_rows=True)
        return flat is not None and flat.stride(loop.variable) == 1 and flat.stride(lanes.variable) == 0

    def affordable(self, places: Sequence[Place], loop: For) -> list[Place]:
        """Those that there is time to find: with few registers no more than one of which each iteration of the loop asks for another one of rows of unknown length, which takes products of integers and registers for them. Zen 3, f64, any size, of the
        time with several: lu of 600 0.74, cholesky 0.87, syrk 0.82; gemm of 1000 x 1100 x 1200 takes 1.10 without its one."""
        even = [place for place in places if self.is_even(place, loop)]
        several = len(places) - len(even) > 1
        return even if several and self.registers < LEAST_REGISTERS else list(places)

    def is_even(self, place: Place, loop: For) -> bool:
        """Whether all iterations of the loop ask for rows of one number, or of known length."""
        variable = self.arguments.get(place.variable) or self.locals[place.variable]
        rows = zip(place.subscripts, variable.memory_strides, strict=True)
        return not any(step is None and loop.variable in variables_in((s,)) for s, step in rows)

    def is_large(self, variable: Variable) -> bool:
        return variable.name not in self.held and (variable.bytes is None or variable.bytes > self.caches.l2 // 4)

    def together(self, rows: _Rows, loop: For, pace: int = 1) -> int:
        """How many rows a tile fetches from end to end, at most: a line of each in all the steps that are in one, where lines are asked for once (prefetch/once.py). pace: elements for each of the loop's."""
        steps = self.caches.line // (self.arguments[rows.array].dtype.itemsize * loop.step * pace)
        return TOGETHER * steps if self.registers >= LEAST_REGISTERS and steps >= LEAST_STEPS else TOGETHER

    def result_lines(self, rows: _Rows, loop: For, lanes: For, ahead: For, between: Sequence[For]) -> Iterator[Place]:
        """The next rows' vectors: a few rows from end to end in each of the tiles along the same rows, through an address that moves evenly, since anything else takes integer instructions
        on ports that sums use; or one vector of the next tile's after the other where that does not fit."""
        free = next((outer for outer in between if outer.step > 0), None)
        each, known = _rows_per_tile(rows, ahead, between), Ranges((ahead, *between))
        span = None if free is None else known.highest(free.upper - free.lower)
        trips = known.highest(loop.upper - loop.lower)
        last = len(rows.start) - 1
        along = free is not None and lanes.lower == affine(free.variable) and rows.dimension != last
        if free is None or span is None or trips is None or not along or span > MOST_STEP * trips:
            yield _result_line(rows, loop, ahead, lanes.width)
            return
        pace = ceil(span / trips)
        if each > self.together(rows, loop, pace):
            yield _result_line(rows, loop, ahead, lanes.width)
            return
        tile = (affine(free.variable) - free.lower) // free.step % ceil(rows.count / each) * each
        column = {lanes.variable: free.lower + (affine(loop.variable) - loop.lower) * pace}
        for k in range(each):
            place = _moved(rows, ahead, tile + k)
            yield Place(rows.array, tuple(s.substitute(column) for s in place.subscripts if isinstance(s, Affine)))

    def result(self, lanes: For, loop: For) -> _Rows | None:
        """The vectors of a large argument that are loaded ahead of the loop."""
        loads: list[Read] = []
        for node in _before(lanes.body, loop):
            if isinstance(node, Assign) and isinstance(node.value, Read) and node.value.tensor in self.arguments:
                loads.append(node.value)
        moving = [r for r in loads if any(lanes.variable in s.variables() for s in affine_subscripts(r))]
        if not moving or len({r.tensor for r in moving}) != 1 or not self.is_large(self.arguments[moving[0].tensor]):
            return None
        first = [s.constant for s in affine_subscripts(moving[0])]
        where = [k for k, s in enumerate(affine_subscripts(moving[0])) if lanes.variable in s.variables()]
        column = [r for r in moving if all(affine_subscripts(r)[k].constant == first[k] for k in where)]
        across, rest = divmod(len(moving), len(column))
        return None if rest else _in_a_row([affine_subscripts(r) for r in column], moving[0].tensor, across)

    def operand_lines(self, rows: _Rows, loop: For, ahead: For, between: Sequence[For]) -> Iterator[Place]:
        """As many rows as iterations share a line; the others in other tiles along the same rows, or at once where there are none."""
        itemsize = self.arguments[rows.array].dtype.itemsize
        # Powers of two, since quotients and remainders of others take several times as many instructions.
        step = _power(loop.step)
        together = max(1, self.caches.line // (itemsize * step))
        groups = _power(-(-rows.count // together))
        turn = (affine(loop.variable) // step) % together
        free = next((outer for outer in between if outer.step > 0), None)
        each = _rows_per_tile(rows, ahead, between)
        if free is not None and each <= self.together(rows, loop):
            # A few rows per tile, from end to end: the address walks along with the operand's own.
            first = (affine(free.variable) - free.lower) // free.step * each
            yield from (_moved(rows, ahead, first + k) for k in range(each))
        elif groups == 1:
            yield _moved(rows, ahead, turn)
        elif free is not None:
            yield _moved(rows, ahead, turn + (affine(free.variable) // free.step) % groups * together)
        else:
            for group in range(groups):
                yield _moved(rows, ahead, turn + group * together)


def _without_own(between: tuple[For, ...], lanes: For) -> tuple[For, ...]:
    """The loops without the one over tiles whose vectors overlap at the end (passes/vectors/overlap.py), as if the vector loop went over them itself: columns of unknown number may be those of one tile."""
    if not between or lanes.upper != lanes.lower + lanes.width or lanes.lower != affine(between[-1].variable):
        return between
    return between[:-1] if between[-1].step > lanes.step else between


def _rows_per_tile(rows: _Rows, ahead: For, between: Sequence[For]) -> int:
    """How many of the next rows each of the tiles along the same rows has to fetch, for all to be there in time."""
    free = next((outer for outer in between if outer.step > 0), None)
    span = None if free is None else Ranges((ahead, *between)).highest(free.upper - free.lower)
    return rows.count if free is None or span is None else ceil(rows.count / max(1, ceil(span / free.step)))


def _result_line(rows: _Rows, loop: For, ahead: For, width: int) -> Place:
    """One vector of the next rows' after the other."""
    turn, count = affine(loop.variable) // _power(loop.step), _power(rows.count)
    place = _moved(rows, ahead, turn % count)
    column = (turn // count) % _power(rows.across) * width
    last = len(place.subscripts) - 1
    return Place(
        rows.array,
        tuple(s + column if k == last else s for k, s in enumerate(place.subscripts) if isinstance(s, Affine)),
    )


def _power(count: int) -> int:
    """A power of two, so that remainders are cheap; what is fetched too much belongs to the tiles after."""
    return 1 << (count - 1).bit_length()


def _moved(rows: _Rows, ahead: For, row: Affine) -> Place:
    """The start of a row of the next tile."""
    step = {ahead.variable: affine(ahead.variable) + ahead.step}
    start = [s.substitute(step) for s in rows.start]
    start[rows.dimension] = start[rows.dimension] + row
    return Place(rows.array, tuple(start))


def _moving(rows: _Rows, loops: Sequence[For]) -> For | None:
    """The innermost loop that goes on to other rows."""
    names = variables_in(rows.start)
    return next((loop for loop in reversed(loops) if loop.variable in names and loop.step >= rows.count), None)


def _beyond_block(rows: _Rows, ahead: For, loops: Sequence[For]) -> For:
    """The loop `ahead`, or with the step of the blocks that it goes through, where the block's rows are written ahead of it, and in cache."""
    for block in loops[: loops.index(ahead)]:
        if ahead.lower == affine(block.variable) and block.step > ahead.step:
            touched = {n.target.variable for n in _before(block.body, ahead) if isinstance(n, Assign)}
            return replace(ahead, step=block.step) if rows.array in touched else ahead
    return ahead


def _in_a_row(elements: Sequence[tuple[Affine, ...]], array: str, across: int) -> _Rows | None:
    """The elements as neighbours along one dimension; None when they are not."""
    first = elements[0]
    steps = [tuple(b - a for a, b in zip(first, other, strict=True)) for other in elements]
    if len(elements) < 2 or any(not d.is_constant for step in steps for d in step):
        return None
    moved = [k for k in range(len(first)) if any(step[k].constant for step in steps)]
    if len(moved) != 1 or sorted(step[moved[0]].constant for step in steps) != list(range(len(elements))):
        return None
    return _Rows(array, first, moved[0], len(elements), across)


def _along(read: Read, loop: For) -> tuple[int, ...]:
    """Where in the row a read is."""
    return tuple(s.constant for s in affine_subscripts(read) if loop.variable in s.variables())


def _only_loops(loop: For) -> bool:
    """Whether a sequential loop is around other loops, and nothing else."""
    return loop.kind == "sequential" and all(isinstance(node, For) for node in loop.body)


def _before(nodes: Sequence[Node], loop: For) -> Iterator[Node]:
    """The nodes in order up to the loop."""
    for node in walk_nodes(nodes):
        if node is loop:
            return
        yield node
