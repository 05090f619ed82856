"""Vectors that walk down the columns of a large matrix: what lies some rows further down is fetched on the way.

Every row lies in another page, where no prefetcher of the hardware follows, and the processor sees only as many rows ahead as it has room for instructions. So a sequential
loop between the lanes and their steps asks for a coming row itself. The first walk down a strip of columns does; those after it find the strip in L2, if it fits there, and fetch a row that comes soon into L1.
In what the strip's loops write, only sums in registers look ahead: a recurrence reads what it has just written. But a row that is written without having been read has to come, too, before a part of it can be
stored: it is asked for, to be written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from polyml.codegen.loops import Allocate, Assign, Block, For, Function, If, Node, Place, Prefetch, Variable
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.vectors.streams import flat_element
from polyml.codegen.prefetch.caches import AHEAD, SOME_SIZE, Caches
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import expressions, nodes_of, walk_nodes, with_body
from polyml.expressions import reads_of
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.schedule.schedule import Note
from polyml.sets.affine import Affine, affine, minimum
from polyml.sets.shapes import is_known

__all__ = ["prefetch_columns"]

PAGE = 4096
"""Bytes of the smallest page: from this stride on, nothing but the loop itself knows where the next row is."""

NEAR = 16
"""Rows ahead of what comes from L2: 8 to 32 are alike."""

WRITTEN_AHEAD = 4096
"""Bytes that are asked for to be written: they come to L1."""

LEAST_TILE = 8
"""Sums of a register tile."""

LONG = 64
"""Iterations below which the first rows, which nobody asked for, count as much as the others."""


def prefetch_columns(
    function: Function, caches: Caches, near: Set[str] = frozenset()
) -> tuple[Function, tuple[Note, ...]]:
    """The function with prefetches in loops down columns, but of arrays that are known to be `near`: no larger than L2.

    Rewrite:
        vector for (j..) for (i..) x = .. r[i, j] .. r[i - 1, j] ..
        -> vector for (j..) for (i..) { prefetch r[i + 256, j]; x = .. r[i, j] .. r[i - 1, j] .. }
    """
    if not caches.l2:
        return function, ()
    arrays = [n.variable for n in nodes_of(function) if isinstance(n, Allocate) and n.variable.scope == "local"]
    arrays = [*function.arguments, *(v for v in arrays if v.lanes == 1 and v.strides is None)]
    numbers = dict.fromkeys(function.sizes, SOME_SIZE)
    # What is of symbolic size may be large.
    far = (v for v in arrays if v.name not in near and (v.bytes is None or v.bytes > caches.l2))
    large = {v.name: _with_numbers(v, numbers) for v in far}
    uneven = {v.name: v.shape[-1] for v in arrays if not is_known(v.shape[1:])}
    pass_ = _Columns(large, numbers, caches, uneven, [])
    made = map_loops(function, pass_.fetched) if large else function
    return made, tuple(dict.fromkeys(pass_.notes))


@dataclass(frozen=True, slots=True)
class _Columns:
    """large: arrays, by name, with `numbers` instead of symbolic sizes. uneven: those whose rows may be anything but whole lines, and the rows' length."""

    large: Mapping[str, Variable]
    numbers: Mapping[str, int]
    caches: Caches
    uneven: Mapping[str, Affine]
    notes: list[Note]

    def fetched(self, loop: For, ranges: Ranges, _: For | None) -> For | None:
        if loop.kind != "vector" or loop.width == 1 or loop.masked:
            return None
        return replace(loop, body=made) if (made := self.walks(loop, ranges)) is not loop.body else loop

    def walks(self, lanes: For, ranges: Ranges) -> tuple[Node, ...]:
        """The body of the vector loop with prefetches in the loops directly inside."""
        inside = ranges.enter(lanes)
        fetched: set[tuple[str, Affine]] = set()
        written = frozenset(n.target.variable for n in walk_nodes(lanes.body) if isinstance(n, Assign))

        def visit(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
            made: list[Node] = []
            for node in nodes:
                match node:
                    case For(kind="sequential"):
                        lines = tuple(self.coming(node, lanes, inside, fetched, written))
                        node = replace(node, body=(*lines, *node.body)) if lines else node
                    case Allocate() | Block() | If():
                        node = with_body(node, visit)
                    case _:
                        pass
                made.append(node)
            return renewed(nodes, tuple(made))

        return visit(lanes.body)

    def coming(
        self, loop: For, lanes: For, ranges: Ranges, fetched: set[tuple[str, Affine]], written: frozenset[str]
    ) -> Iterator[Prefetch]:
        """The lines of a row further on, of each strip of columns: into L2, or into L1 where a walk before has brought the strip into L2. written: arrays that the strip's loops write."""
        span = (loop.upper - loop.lower).substitute(self.numbers)
        trips = span.constant if span.is_constant else ranges.highest(span)
        if (trips is not None and trips < LONG * loop.step) or any(isinstance(n, For) for n in walk_nodes(loop.body)):
            return
        asked = {node.place.variable for node in loop.body if isinstance(node, Prefetch)}
        reads = [r for node in walk_nodes(loop.body) for e in expressions(node) for r in reads_of(e)]
        if not _is_tile(loop):
            asked |= written
        read = [Place(r.tensor, r.subscripts) for r in reads if r.tensor not in asked]
        yield from self.lines(self.columns(read, loop, lanes), loop, trips, fetched, write=False)
        if not _is_tile(loop):
            stores = [n for n in walk_nodes(loop.body) if isinstance(n, Assign)]
            streams = {n.target.variable for n in stores if n.streaming}  # past the caches, if they begin at a line
            made = [n.target for n in stores if n.target.variable not in streams]
            yield from self.lines(self.columns(made, loop, lanes), loop, trips, fetched, write=True)

    def lines(
        self,
        columns: Mapping[tuple[str, Affine], Place],
        loop: For,
        trips: int | None,
        fetched: set[tuple[str, Affine]],
        *,
        write: bool,
    ) -> Iterator[Prefetch]:
        """Prefetches for those columns."""
        line = self.caches.line
        ahead = (WRITTEN_AHEAD if write else AHEAD) // (line * max(1, len(columns)))
        for (array, start), place in columns.items():
            strip = None if trips is None else trips // loop.step * line * len(columns)
            again = (array, start) in fetched
            if again and (write or strip is None or strip <= self.caches.l1):
                continue
            if strip is not None and strip <= self.caches.l2 * 3 // 4:
                fetched.add((array, start))
            rows, level = (NEAR, 1) if again else (ahead, 1 if write else 2)
            for row in range(loop.step):
                moved = {loop.variable: affine(loop.variable) + (-(-rows // loop.step) * loop.step - row)}
                there = Place(array, tuple(s.substitute(moved) for s in _affine(place.subscripts)))
                yield Prefetch(there, level, write)
            where = f"into L{level}{', to be written' if write else ''}"
            self.notes.append(Note("prefetch", loop.variable, f"{array} {rows} rows ahead, {where}"))

    def columns(self, places: Sequence[Place], loop: For, lanes: For) -> dict[tuple[str, Affine], Place]:
        """The vectors that the loop walks down with, a line or more apart, by array and element at the loop's start modulo a row: for each the place that is furthest ahead."""
        found: dict[tuple[str, Affine], tuple[int, Place]] = {}
        for place in places:
            variable = self.large.get(place.variable)
            flat = None if variable is None else flat_element(variable, place.subscripts)
            stride = None if flat is None else flat.stride(loop.variable)
            if variable is None or flat is None or not stride or flat.stride(lanes.variable) != 1:
                continue
            if abs(stride) * variable.dtype.itemsize * loop.step < PAGE:
                continue
            flat = flat.substitute(self.numbers)
            # Columns to the left of the loop's start are in its row, too.
            row, column = divmod(flat.constant + abs(stride) // 2, abs(stride))
            column -= abs(stride) // 2
            where = (place.variable, _without(flat, loop.variable) - flat.constant + column)
            row = row if stride > 0 else -row
            if where not in found or row > found[where][0]:
                found[where] = row, place
        # Vectors that do not start at a line end in another one, which is the next one's first line, if there is a next one.
        for (array, start), (row, place) in [*found.items()]:
            beyond = self.beyond_line(place, lanes)
            if beyond == affine(0):
                continue
            last = {lanes.variable: affine(lanes.variable) + beyond}
            end = Place(array, tuple(s.substitute(last) for s in _affine(place.subscripts)))
            found.setdefault((array, start + (lanes.width - 1)), (row, end))
        asked: dict[tuple[str, Affine], int] = {}
        chosen: dict[tuple[str, Affine], Place] = {}
        for (array, start), (_, place) in sorted(found.items(), key=lambda item: item[0][1].constant):
            beside, line = (array, start - start.constant), self.caches.line // self.large[array].dtype.itemsize
            if beside not in asked or start.constant - asked[beside] >= line - 1:
                asked[beside] = start.constant
                chosen[array, start] = place
        return chosen

    def beyond_line(self, place: Place, lanes: For) -> Affine:
        """From a vector's first element to one in the line where it ends; 0 if every vector begins at a line, if the array itself does, as results and scratch memory do. Of rows of unknown length: 0 where
        they are whole lines at the call, for which another line would come from memory in vain."""
        variable, most = self.large[place.variable], affine(lanes.width - 1)
        if not self.begins_at_a_line(place, lanes):
            return most
        row = self.uneven.get(place.variable)
        if row is None:
            return affine(0)
        return minimum([most, row % (self.caches.line // variable.dtype.itemsize) * (lanes.width - 1)])

    def begins_at_a_line(self, place: Place, lanes: For) -> bool:
        """Whether every vector does if every row does."""
        variable = self.large[place.variable]
        flat = flat_element(variable, place.subscripts)
        if flat is None:
            return False
        first = flat.substitute({**self.numbers, lanes.variable: lanes.lower})
        elements = self.caches.line // variable.dtype.itemsize
        strides = [coefficient for _, coefficient in first.terms]
        return all(number % elements == 0 for number in (first.constant, lanes.step, *strides))


def _is_tile(loop: For) -> bool:
    """Whether the loop does nothing but add to several registers."""
    sums = [n for n in loop.body if isinstance(n, Assign) and n.reduction is not None and not n.target.subscripts]
    return LEAST_TILE <= len(sums) == len(loop.body)


def _without(flat: Affine, variable: str) -> Affine:
    return flat.substitute({variable: affine(0)})


def _affine(subscripts: Sequence[object]) -> tuple[Affine, ...]:
    return tuple(s for s in subscripts if isinstance(s, Affine))


def _with_numbers(variable: Variable, numbers: Mapping[str, int]) -> Variable:
    """The array with rows of some length, where that is symbolic."""
    return replace(variable, shape=tuple(extent.substitute(numbers) for extent in variable.shape))
