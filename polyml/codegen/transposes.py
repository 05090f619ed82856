"""Rows that the lanes of a vector loop walk along: instead of one element per lane at a time, blocks of rows and columns go through registers, transposed,
into scratch memory that has the lanes side by side, and back.

Lanes along independent rows are what a recurrence along them leaves. Nothing is reassociated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from polyml.codegen.element_accesses import ElementAccess, accesses_of
from polyml.codegen.jam import storage_names
from polyml.codegen.loops import Allocate, Assign, For, Function, If, Node, Place, Variable
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import fresh, map_places, walk_nodes, with_body
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Expr, IndexValue, Read, Subscript
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine, minimum

__all__ = ["transpose_rows"]

_LONGEST = 64
"""Columns of a strip, at most: more gains nothing, and what is in flight should stay in L1."""

_L1 = 32 * 1024
"""What L1 is taken for where it is not known."""


def transpose_rows(function: Function, *, l1_bytes: int = 0) -> Function:
    """The function with the rows that innermost loops inside vector loops walk along in scratch memory, strip by strip.

    A read of the strip's elements ahead of the loop is one that the loop would do itself: only what every iteration accesses is treated, where nothing
    else in the loop may write it.

    Rewrite:
        vector(8) for (i ..) for (j = 1; j < n; j++) y[i, j] = a * y[i, j - 1] + x[i, j];
        -> vector(8) for (i ..) {
             transpose for (c = 0; c < 1; c++) y_rows[c] = y[i, c];
             for (s = 1; s < n; s += 64) {
               (in blocks) transpose for (c = s; c < s + 64; c++) x_rows[c - s] = x[i, c];
               for (j = s; j < s + 64; j++) y_rows[j - s + 1] = a * y_rows[j - s] + x_rows[j - s];
               (in blocks) transpose for (c = s; c < s + 64; c++) y[i, c] = y_rows[c - s + 1];
               y_rows[0] = y_rows[64];
             } }

    Args:
        l1_bytes: of one core's L1; 0: not known.
    """
    variables = {v.name: v for v in function.arguments}
    variables |= {n.variable.name: n.variable for n in walk_nodes(function.body) if isinstance(n, Allocate)}
    taken = storage_names(function.body) | set(variables) | set(function.sizes)
    pass_ = _Transposes(variables, taken, (l1_bytes or _L1) // 2)
    body = pass_.body(function.body, Ranges(), None)
    return function if body is function.body else replace(function, body=body)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The accesses of one array that walk along the same rows: subscripts `line` but for `dimension`, where it is `line[dimension] + sign * (j + offset)`
    for the loop's variable j. write: the offset that is written, or None."""

    variable: Variable
    line: tuple[Affine, ...]
    dimension: int
    sign: int
    offsets: frozenset[int]
    reads: frozenset[int]
    write: int | None
    buffer: str = ""

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


class _Transposes:
    def __init__(self, variables: Mapping[str, Variable], taken: set[str], budget: int) -> None:
        self.variables, self.taken, self.budget = variables, taken, budget

    def body(self, nodes: tuple[Node, ...], ranges: Ranges, lanes: For | None) -> tuple[Node, ...]:
        made = tuple(self.node(node, ranges, lanes) for node in nodes)
        return nodes if all(a is b for a, b in zip(made, nodes, strict=True)) else made

    def node(self, node: Node, ranges: Ranges, lanes: For | None) -> Node:
        if not isinstance(node, For):
            return with_body(node, lambda body: self.body(body, ranges, lanes))
        if lanes is not None and not any(isinstance(inner, For) for inner in walk_nodes(node.body)):
            return self.innermost(node, ranges, lanes)
        lanes = node if node.kind == "vector" and node.width > 1 else lanes
        inside = ranges.enter(node)
        return with_body(node, lambda body: self.body(body, inside, lanes))

    def innermost(self, loop: For, ranges: Ranges, lanes: For) -> Node:
        trips = ranges.constant(loop.upper - loop.lower)
        ragged = lanes.variable in loop.lower.variables() | loop.upper.variables()
        if loop.kind != "sequential" or loop.step != 1 or ragged or (trips is not None and trips < lanes.width):
            return loop
        rows = self.rows(loop, ranges, lanes)
        if not rows:
            return loop
        per_column = sum(lanes.width * r.variable.dtype.itemsize for r in rows)
        widest = max(r.span for r in rows)
        length = min(_LONGEST, max(self.budget // per_column - widest, 1)) // lanes.width * lanes.width
        if length < max(lanes.width, widest):
            return loop
        if trips is not None:  # strips of about one length
            each = -(-trips // -(-trips // length))
            length = -(-max(each, widest) // lanes.width) * lanes.width
        named = tuple(replace(r, buffer=fresh(f"{r.variable.name}_rows", self.taken)) for r in rows)
        strips = _Strips(loop, named, length, lanes.width, ranges.is_positive(loop.upper - loop.lower), self.taken)
        body = strips.nodes(trips)
        for r in reversed(named):
            # A block that ends early touches all its columns in scratch memory.
            extent = (affine(length + r.span + (lanes.width if trips is None else 0)),)
            room = Variable(
                name=r.buffer, dtype=r.variable.dtype, shape=extent, scope="local", lanes=lanes.width, alignment=64
            )
            body = (Allocate(variable=room, body=body),)
        return body[0]

    # -- which rows -------------------------------------------------------------------------------------------------------------

    def rows(self, loop: For, ranges: Ranges, lanes: For) -> tuple[_Rows, ...]:
        """The rows to be copied, in order of their first access."""
        arrays = {n: v for n, v in self.variables.items() if v.scope != "register" and v.lanes == 1}
        accesses = accesses_of(loop, ranges, of=arrays.keys())
        groups: dict[object, list[tuple[ElementAccess, int]]] = {}
        found: dict[object, _Rows] = {}
        written = {a.variable for a in accesses if a.write}
        for access in accesses:
            rows = self.line_of(access, loop, lanes)
            key: object = access if rows is None else (access.variable, rows.line, rows.dimension, rows.sign)
            if rows is not None:
                found.setdefault(key, rows)
            groups.setdefault(key, []).append((access, 0 if rows is None else rows.first))
        chosen: list[_Rows] = []
        for key, members in groups.items():
            name = members[0][0].variable
            if key not in found or any(a.conditional for a, _ in members):
                continue
            others = [a for k, group in groups.items() if k != key for a, _ in group if a.variable == name]
            if name in written and not all(_apart(members[0][0], a, lanes) for a in others):
                continue
            writes = {offset for a, offset in members if a.write}
            if len(writes) > 1:
                continue
            reads = frozenset(offset for a, offset in members if a.read)
            offsets = frozenset(offset for _, offset in members)
            chosen.append(replace(found[key], offsets=offsets, reads=reads, write=next(iter(writes), None)))
        return tuple(chosen)

    def line_of(self, access: ElementAccess, loop: For, lanes: For) -> _Rows | None:
        """The access as one that walks along a row of each lane; None when it does not."""
        variable = self.variables[access.variable]
        if access.indirect:
            return None
        subscripts = access.element[1]
        along = [d for d, s in enumerate(subscripts) if loop.variable in s.variables()]
        across = [d for d, s in enumerate(subscripts) if lanes.variable in s.variables()]
        if len(along) != 1 or not across or along[0] in across:
            return None
        (dimension,) = along
        sign = subscripts[dimension].stride(loop.variable)
        steps = _steps(variable)
        if sign not in (1, -1) or steps[dimension] != 1:
            return None
        if any(subscripts[d].stride(lanes.variable) is None for d in across):
            return None
        known = [steps[d] for d in across]
        total = sum((subscripts[d].stride(lanes.variable) or 0) * s for d, s in zip(across, known, strict=True) if s)
        if None not in known and total in (-1, 0, 1):
            return None
        rest = subscripts[dimension] - affine(loop.variable) * sign
        start = rest - rest.constant
        line = (*subscripts[:dimension], start, *subscripts[dimension + 1 :])
        offset = rest.constant * sign
        return _Rows(variable, line, dimension, sign, frozenset({offset}), frozenset(), None)


@dataclass(frozen=True, slots=True)
class _Strips:
    """One loop in strips of `length` iterations. runs: it has an iteration."""

    loop: For
    rows: tuple[_Rows, ...]
    length: int
    width: int
    runs: bool
    taken: set[str]

    def nodes(self, trips: int | None) -> tuple[Node, ...]:
        loop, made = self.loop, list[Node]()
        ahead = [
            node
            for r in self.rows
            if r.reads
            for node in self.copy(r, loop.lower + r.first, loop.lower + r.last, loop.lower)
        ]
        if ahead and not self.runs:
            condition = Apply("lt", (IndexValue(loop.lower, i64), IndexValue(loop.upper, i64)), boolean)
            made.append(If(condition=condition, then=tuple(ahead)))
        else:
            made += ahead
        strip = fresh(f"{loop.variable}_strip", self.taken)
        if trips is None:
            upper = minimum([loop.upper, affine(strip) + self.length])
            made.append(self.strips(strip, loop.lower, loop.upper, upper))
            return tuple(made)
        middle = loop.lower + trips // self.length * self.length
        if trips >= self.length:
            made.append(self.strips(strip, loop.lower, middle, affine(strip) + self.length))
        if trips % self.length:
            made += self.strip(middle, loop.upper, last=True)
        return tuple(made)

    def strips(self, strip: str, lower: Affine, upper: Affine, end: Affine) -> For:
        body = self.strip(affine(strip), end, last=False)
        return For(variable=strip, lower=lower, upper=upper, step=self.length, body=body)

    def strip(self, start: Affine, end: Affine, *, last: bool) -> tuple[Node, ...]:
        """Loads, iterations, stores; and what the next strip needs of this one moved to the front."""
        made: list[Node] = []
        for r in self.rows:
            if r.is_loaded:
                made += self.copy(r, start + r.last, end + r.last, start)
        body = map_places(self.loop.body, place=lambda p: self.place(p, start), read=lambda p: self.read(p, start))
        made.append(replace(self.loop, lower=start, upper=end, body=body))
        for r in self.rows:
            if r.write is not None:
                made += self.copy(r, start + r.write, end + r.write, start, back=True)
        for r in self.rows:
            for column in range(0 if last else r.span):
                value = Read(r.buffer, (affine(column + self.length),), r.variable.dtype)
                made.append(Assign(target=Place(r.buffer, (affine(column),)), value=value))
        return tuple(made)

    def copy(self, rows: _Rows, start: Affine, end: Affine, origin: Affine, *, back: bool = False) -> Iterator[Node]:
        """Columns from `start` to `end`, from the array or back to it; `origin` is the strip's first iteration."""
        span = end - start
        if span == affine(0):
            return
        column = fresh(f"{self.loop.variable}_column", self.taken)
        place = Place(rows.buffer, (affine(column) - origin - rows.first,))
        memory, dtype = rows.memory(column), rows.variable.dtype
        if back:
            move = Assign(target=Place(rows.variable.name, memory), value=Read(place.variable, place.subscripts, dtype))
        else:
            move = Assign(target=place, value=Read(rows.variable.name, memory, dtype))
        whole = span // self.width * self.width
        if not span.is_constant or span.constant >= self.width:
            block = fresh(f"{self.loop.variable}_block", self.taken)
            one = _block(column, affine(block), affine(block) + self.width, move)
            if whole == affine(self.width):
                yield _block(column, start, end if span == whole else start + self.width, move)
            else:
                yield For(variable=block, lower=start, upper=start + whole, step=self.width, body=(one,))
        if not span.is_constant or span.constant % self.width:
            yield _block(column, start + whole, end, move)

    def place(self, place: Place, start: Affine) -> Place:
        found = self.found(place.variable, place.subscripts)
        return place if found is None else Place(found[0].buffer, (self.position(*found, start),))

    def read(self, read: Read, start: Affine) -> Expr:
        found = self.found(read.tensor, read.subscripts)
        return read if found is None else Read(found[0].buffer, (self.position(*found, start),), read.dtype)

    def position(self, rows: _Rows, offset: int, start: Affine) -> Affine:
        return affine(self.loop.variable) - start + (offset - rows.first)

    def found(self, name: str, subscripts: Sequence[Subscript]) -> tuple[_Rows, int] | None:
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


def _block(column: str, lower: Affine, upper: Affine, move: Assign) -> For:
    return For(variable=column, lower=lower, upper=upper, kind="transpose", body=(move,))


def _steps(variable: Variable) -> list[int | None]:
    """Elements between neighbours per dimension; None where that depends on sizes."""
    if variable.strides is not None:
        return list(variable.strides)
    steps: list[int | None] = []
    step: int | None = 1
    for extent in reversed(variable.shape):
        steps.append(step)
        step = step * extent.constant if step is not None and extent.is_constant else None
    return steps[::-1]


def _apart(one: ElementAccess, other: ElementAccess, lanes: For) -> bool:
    """Whether two accesses never meet, whichever lanes and iterations they belong to: a subscript that no inner loop moves differs by enough."""
    if one.indirect or other.indirect:
        return False
    moved = {loop.variable for loop in (*one.loops, *other.loops)}
    for a, b in zip(one.element[1], other.element[1], strict=True):
        if a.terms != b.terms or a.variables() & moved:
            continue
        stride, distance = a.stride(lanes.variable), a.constant - b.constant
        if stride is None or distance == 0:
            continue
        if stride == 0 or distance % stride != 0 or abs(distance // stride) >= lanes.width:
            return True
    return False
