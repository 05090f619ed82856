"""Strips of rows that the lanes of a vector loop walk along: their columns from memory to scratch memory, the loop on these, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from functools import reduce

from polyml.codegen.loops import Assign, For, If, Node, Place, Variable
from polyml.codegen.passes.vectors.streams import is_zero
from polyml.codegen.rewrite import map_places, with_body
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Expr, IndexValue, Read, Subscript, substitute
from polyml.new_names import fresh
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine, maximum, minimum

__all__ = ["Rows", "Strips"]


@dataclass(frozen=True, slots=True)
class Rows:
    """The accesses of one array that walk along the same rows: subscripts `line` but for `dimension`, where it is `line[dimension] + sign * (j + offset)`
    for the loop's variable j. write: the offset that is written, or None. streaming: whether what is written should bypass the caches.
    value: what the elements are, of the loop's variable, where they are no array's (passes/transposes/transposed_values.py)."""

    variable: Variable
    line: tuple[Affine, ...]
    dimension: int
    sign: int
    offsets: frozenset[int]
    reads: frozenset[int]
    write: int | None
    streaming: bool = False
    buffer: str = ""
    value: Expr | None = None

    @property
    def first(self) -> int:
        return min(self.offsets)

    @property
    def last(self) -> int:
        return max(self.offsets)

    @property
    def span(self) -> int:
        """Columns of a strip beyond its iterations."""
        return self.last - self.first

    @property
    def is_loaded(self) -> bool:
        """Whether columns are read that the loop has not written before."""
        return bool(self.reads) and (self.write is None or max(self.reads) >= self.write)

    def memory(self, column: str) -> tuple[Affine, ...]:
        """The subscripts of the element in `column`."""
        along = self.line[self.dimension] + affine(column) * self.sign
        return (*self.line[: self.dimension], along, *self.line[self.dimension + 1 :])


@dataclass(frozen=True, slots=True)
class Strips:
    """One loop in strips of `length` iterations. runs: it has an iteration. lead: the name of the elements of an argument before its first aligned one."""

    loop: For
    rows: tuple[Rows, ...]
    length: int
    width: int
    runs: bool
    taken: set[str]
    lead: Callable[[Variable], str]

    def nodes(self, trips: int | None) -> tuple[Node, ...]:
        loop, made = self.loop, list[Node]()
        ahead = [
            node
            for r in self.rows
            if r.reads
            for node in self.copy(r, loop.lower + r.first, loop.lower + r.last, loop.lower)
        ]
        made += self.if_it_runs(ahead)
        strip = fresh(f"{loop.variable}_strip", self.taken)
        if trips is None:
            made += self.any_strips(strip)
            return tuple(made)
        start = loop.lower
        peeled = next((at for r in self.rows if (at := self.before_lines(r)) is not None), 0)
        peeled = peeled if peeled < trips - self.length else 0
        if peeled:
            made += self.strip(start, start + peeled, moved=peeled)
            start, trips = start + peeled, trips - peeled
        middle = start + trips // self.length * self.length
        if trips >= self.length:
            made.append(self.strips(strip, start, middle, affine(strip) + self.length, phase=peeled))
        if trips % self.length:
            made += self.strip(middle, loop.upper, phase=peeled)
        return tuple(made)

    def if_it_runs(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """The nodes where the loop has an iteration."""
        if self.runs or not nodes:
            return nodes
        condition = Apply("lt", (IndexValue(self.loop.lower, i64), IndexValue(self.loop.upper, i64)), boolean)
        return (If(condition=condition, then=tuple(nodes)),)

    def any_strips(self, strip: str) -> Sequence[Node]:
        """Strips of a loop of any length. The first is as much shorter as blocks of what is written then start where vectors do, if rows do."""
        loop = self.loop
        ahead = next((at for r in self.rows if (at := self.any_before_lines(r)) is not None), affine(0))
        first, end = affine(strip), minimum([loop.upper, affine(strip) + self.length])
        if ahead != affine(0):
            first = maximum([loop.lower, affine(strip)])
        body = self.strip(first, end, moved=affine(strip) + self.length - first)
        strips = For(variable=strip, lower=loop.lower - ahead, upper=loop.upper, step=self.length, body=body)
        return (strips,) if ahead == affine(0) else self.if_it_runs((strips,))

    def any_before_lines(self, rows: Rows) -> Affine | None:
        """Elements of a vector ahead of the first one that is written, as if each row began with a whole one."""
        if rows.write is None:
            return None
        first = rows.line[rows.dimension] + (self.loop.lower + rows.write) * rows.sign
        ahead = first if rows.sign > 0 else -first - 1
        return ahead - ahead // self.width * self.width

    def before_lines(self, rows: Rows) -> int | None:
        """Iterations until a block of what is written starts where vectors do, so that each of its rows is a part of one line; None where rows do not all begin alike."""
        start, lower = rows.line[rows.dimension], self.loop.lower
        steps = [step for d, step in enumerate(rows.variable.memory_strides) if d != rows.dimension]
        alike = all(step is not None and step % self.width == 0 for step in steps)
        if rows.write is None or not alike or not start.is_constant or not lower.is_constant:
            return None
        first = start.constant + rows.sign * (lower.constant + rows.write)
        return -first % self.width if rows.sign > 0 else (first + 1) % self.width

    def at_lines(self, rows: Rows, start: Affine, phase: int | None) -> Expr | None:
        """When blocks of what is written from column `start` on are whole vectors at lines; None: they are not, or that is not worth a question."""
        ahead = self.before_lines(rows)
        if ahead is not None:
            return is_zero(affine(self.lead(rows.variable))) if phase == ahead else None
        variable, row = rows.variable, rows.variable.shape[-1]
        uneven = row.is_constant and row.constant % self.width != 0
        if variable.strides is not None or rows.dimension != len(variable.shape) - 1 or uneven:
            return None
        first = rows.line[rows.dimension] + start * rows.sign + (0 if rows.sign > 0 else 1)
        rests = [e - e // self.width * self.width for e in (row, first)]
        conditions = [is_zero(e) for e in (affine(self.lead(variable)), *rests) if e != affine(0)]
        return reduce(lambda a, b: Apply("and", (a, b), boolean), conditions)

    def strips(self, strip: str, lower: Affine, upper: Affine, end: Affine, phase: int | None = None) -> For:
        body = self.strip(affine(strip), end, moved=self.length, phase=phase)
        return For(variable=strip, lower=lower, upper=upper, step=self.length, body=body)

    def strip(
        self, start: Affine, end: Affine, *, moved: Affine | int = 0, phase: int | None = None
    ) -> tuple[Node, ...]:
        """Loads, iterations, stores; and what the next strip needs of this one, `moved` columns to the front (0: there is none).

        phase: iterations of the loop before the strip, but for whole blocks; None: it does not matter.
        """
        made: list[Node] = []
        for r in self.rows:
            if r.is_loaded:
                made += self.copy(r, start + r.last, end + r.last, start)
        body = map_places(self.loop.body, place=lambda p: self.place(p, start), read=lambda p: self.read(p, start))
        body = _plain(body, {r.buffer for r in self.rows})
        made.append(replace(self.loop, lower=start, upper=end, body=body))
        for r in self.rows:
            if r.write is not None:
                past = self.at_lines(r, start + r.write, phase) if r.streaming else None
                made += self.copy(r, start + r.write, end + r.write, start, back=True, past=past)
        for r in self.rows:
            for column in range(r.span if moved != 0 else 0):
                value = Read(r.buffer, (moved + affine(column),), r.variable.dtype)
                made.append(Assign(target=Place(r.buffer, (affine(column),)), value=value))
        return tuple(made)

    def copy(
        self,
        rows: Rows,
        start: Affine,
        end: Affine,
        origin: Affine,
        *,
        back: bool = False,
        past: Expr | None = None,
    ) -> Iterator[Node]:
        """Columns from `start` to `end`, from the array or back to it; `origin` is the strip's first iteration. past: when whole blocks bypass the caches; None: never."""
        span = end - start
        if span == affine(0):
            return
        column = fresh(f"{self.loop.variable}_column", self.taken)
        place = Place(rows.buffer, (affine(column) - origin - rows.first,))
        memory, dtype = rows.memory(column), rows.variable.dtype
        if back:
            move = Assign(target=Place(rows.variable.name, memory), value=Read(place.variable, place.subscripts, dtype))
        else:
            element = Read(rows.variable.name, memory, dtype)
            value = None if rows.value is None else substitute(rows.value, {self.loop.variable: affine(column)})
            move = Assign(target=place, value=value or element)
        whole = span // self.width * self.width
        if not span.is_constant or span.constant >= self.width:
            block = fresh(f"{self.loop.variable}_block", self.taken)

            def blocks(move: Assign) -> For:
                if whole == affine(self.width):
                    return _block(column, start, end if span == whole else start + self.width, move)
                one = _block(column, affine(block), affine(block) + self.width, move)
                return For(variable=block, lower=start, upper=start + whole, step=self.width, body=(one,))

            if past is not None:
                streamed = blocks(replace(move, streaming=True, aligned=True))
                yield If(condition=past, then=(streamed,), otherwise=(blocks(move),))
            else:
                yield blocks(move)
        if not span.is_constant or span.constant % self.width:
            yield _block(column, start + whole, end, move)

    def place(self, place: Place, start: Affine) -> Place:
        found = self.found(place.variable, place.subscripts)
        return place if found is None else Place(found[0].buffer, (self.position(*found, start),))

    def read(self, read: Read, start: Affine) -> Expr:
        found = self.found(read.tensor, read.subscripts)
        return read if found is None else Read(found[0].buffer, (self.position(*found, start),), read.dtype)

    def position(self, rows: Rows, offset: int, start: Affine) -> Affine:
        return affine(self.loop.variable) - start + (offset - rows.first)

    def found(self, name: str, subscripts: Sequence[Subscript]) -> tuple[Rows, int] | None:
        """The rows that an access belongs to, and its offset."""
        for rows in self.rows:
            if rows.variable.name != name or not all(isinstance(s, Affine) for s in subscripts):
                continue
            differences = [
                s - m for s, m in zip(subscripts, rows.memory(self.loop.variable), strict=True) if isinstance(s, Affine)
            ]
            if all(d.is_constant and (d.constant == 0 or k == rows.dimension) for k, d in enumerate(differences)):
                return rows, differences[rows.dimension].constant * rows.sign
        return None


def _plain(nodes: tuple[Node, ...], buffers: Set[str]) -> tuple[Node, ...]:
    """The nodes without streaming stores into scratch memory."""

    def visit(node: Node) -> Node:
        if isinstance(node, Assign):
            return replace(node, streaming=False) if node.streaming and node.target.variable in buffers else node
        return with_body(node, lambda body: tuple(visit(inner) for inner in body))

    return tuple(visit(node) for node in nodes)


def _block(column: str, lower: Affine, upper: Affine, move: Assign) -> For:
    return For(variable=column, lower=lower, upper=upper, kind="transpose", body=(move,))
