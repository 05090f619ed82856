"""Reads of one row at neighbouring places in a vector loop: one load per vector, and the others are shifted out of it and the next one.

A stencil reads a[k - 1], a[k] and a[k + 1]. Where a vector is as long as a cache line, all but one of these cross two lines, each at the price of two loads, and are bound to miss L1 twice. So the
loop carries the vector at one of these places from iteration to iteration, loads the following one ahead, and takes the places between out of both by a shuffle:

    here = load a[k]; left = load a[k - 1]
    for k in lower .. upper - width:
        next = load a[k + width]
        body with a[k - 1] = left, a[k] = here, a[k + 1] = shift(here, next, 1)
        left = shift(here, next, width - 1); here = next
    body once more, in which a[k + 1] is a load

A sum that is the same at several places (the columns of a window; codegen/passes/sums/sums_by_place.py) is such a row, too: it is added up once and shifted like an element.

In L1 a load across two lines costs no more than two: there one place after `here` stays a load where shuffles and arithmetic, which share two units, would take longer than all loads.

What is loaded ahead is what the next iteration needs itself, so nothing is touched that would not be without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from polyml.codegen.llvm.ir import INDEX, Builder, Lines, Value, integer, type_of
from polyml.codegen.llvm.memory.access import Evaluate, access
from polyml.codegen.llvm.memory.inside import is_inside
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Assign, For, Prefetch
from polyml.codegen.passes.sums.sums_by_place import LINE, base_of
from polyml.expressions import Apply, Expr, Read, has_index_values, reads_of, substitute, walk
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["Parts", "Row", "emit_shifted", "neighbouring_rows"]

SHORT = 16 * 1024
"""Bytes of an array that stays in L1."""


@dataclass(frozen=True, slots=True)
class Row:
    """Elements or sums of them that differ along the lanes only. reads: each by how far from `here` it is, in elements; that of `here` is at 0. loaded: places that are loads all the same."""

    reads: Mapping[int, Expr]
    loaded: frozenset[int] = frozenset()

    @property
    def before(self) -> list[int]:
        """The places whose vectors the loop carries besides `here`."""
        return sorted(shift for shift in self.reads if shift < 0)


def neighbouring_rows(state: State, node: For) -> list[Row]:
    """The rows that a vector loop, full vectors one by one, reads at several places less than a vector apart, and does not write ahead of that."""
    if node.kind != "vector" or node.masked or node.step != node.width or state.lanes is not None:
        return []
    if not all(isinstance(inner, Assign | Prefetch) for inner in node.body):
        return []
    assigns = [inner for inner in node.body if isinstance(inner, Assign)]
    always = _always(assigns)
    sums, reads = _Sums.of(state, node, assigns, always).found()
    elements: dict[Expr, dict[int, Expr]] = {}
    for read in dict.fromkeys(reads):
        if _is_plain(state, read, node, always) and _stays(read, assigns):
            found = base_of(read, node.variable)
            assert found is not None, "internal: a plain read without a place"
            elements.setdefault(found[0], {})[found[1]] = read
    rows = []
    for places in elements.values():
        here = min(places, key=lambda place: (abs(place), place))
        near = {place - here: read for place, read in places.items() if abs(place - here) < node.width}
        if len(near) > 1:
            rows.append(Row(near))
    return [*_balanced(state, rows, assigns), *sums]


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums that stand at several places in the loop's expressions. places: by what they are at place 0, the largest first; placed: what a sum is at place 0, and its place, by its id."""

    node: For
    assigns: list[Assign]
    places: dict[Expr, dict[int, Expr]]
    placed: dict[int, tuple[Expr, int]]

    @staticmethod
    def of(state: State, node: For, assigns: list[Assign], always: frozenset[Read]) -> _Sums:
        places: dict[Expr, dict[int, Expr]] = {}
        placed: dict[int, tuple[Expr, int]] = {}
        sums, sizes = _sums_of(assigns)
        often = Counter(sizes)
        for expr, size in zip(sums, sizes, strict=True):
            found = base_of(expr, node.variable) if often[size] > 1 else None
            if found is None:
                continue
            placed[id(expr)] = found
            if all(_is_plain(state, read, node, always) and _stays(read, assigns) for read in reads_of(expr)):
                base, place = found
                places.setdefault(base, {})[place] = expr
        largest = sorted(places, key=lambda base: -sum(1 for _ in walk(base)))
        return _Sums(node, assigns, {base: places[base] for base in largest if len(places[base]) > 1}, placed)

    def found(self) -> tuple[list[Row], list[Read]]:
        """The rows of sums, and the reads outside of them. A sum within another one of these is at hand where that begins."""
        kept = dict(self.places)
        while True:
            outer: dict[Expr, set[int]] = {base: set() for base in kept}
            reads: list[Read] = []
            for inner in self.assigns:
                self._outermost(inner.value, kept, outer, reads)
            rows = []
            for base, places in kept.items():
                here = min(places, key=lambda place: (abs(place), place))
                near = {place for place in outer[base] if abs(place - here) < self.node.width}
                if near == outer[base] and near - {here}:
                    rows.append(Row({place - here: places[place] for place in sorted(near | {here})}))
                elif near:
                    del kept[base]
                    break
            else:
                return rows, reads

    def _outermost(
        self, expr: Expr, kept: Mapping[Expr, object], found: dict[Expr, set[int]], reads: list[Read]
    ) -> None:
        """Adds the places of kept sums that stand in no other, and the reads outside of them."""
        if isinstance(expr, Apply):
            placed = self.placed.get(id(expr))
            if placed is not None and placed[0] in kept:
                found[placed[0]].add(placed[1])
                return
            for arg in expr.args:
                self._outermost(arg, kept, found, reads)
        else:
            reads += reads_of(expr)


def _sums_of(assigns: list[Assign]) -> tuple[list[Apply], list[int]]:
    """All sums within the values, and of how many operations they are: only those of the same size may be the same."""
    sums: list[Apply] = []
    sizes: dict[int, int] = {}
    for inner in assigns:
        nodes = list(walk(inner.value))
        for node in reversed(nodes):  # what is below it first
            sizes[id(node)] = 1 + sum(sizes[id(arg)] for arg in node.args) if isinstance(node, Apply) else 0
        sums += (n for n in nodes if isinstance(n, Apply) and n.op in ("add", "sub") and n.dtype.is_float)
    return sums, [sizes[id(expr)] for expr in sums]


def _always(assigns: list[Assign]) -> frozenset[Read]:
    """The reads that no condition on indices keeps from happening."""
    found: list[Read] = []
    left: list[Expr] = [assign.value for assign in assigns]
    while left:
        match left.pop():
            case Apply(op="select", args=(condition, *_)) if has_index_values(condition):
                left.append(condition)
            case Apply(args=args):
                left += args
            case Read() as read:
                found += reads_of(read)
            case _:
                pass
    return frozenset(found)


def _stays(read: Read, assigns: list[Assign]) -> bool:
    """Whether what is read is not written by the loop before it is read, even a vector ahead of time: other rows, or what a single assignment writes when it has been read."""
    for inner in assigns:
        target = inner.target
        if target.variable != read.tensor:
            continue
        gaps = [
            mine - theirs if isinstance(mine, Affine) and isinstance(theirs, Affine) else None
            for mine, theirs in zip(read.subscripts, target.subscripts, strict=True)
        ]
        if any(gap is not None and gap.is_constant and gap.constant for gap in gaps[:-1]):
            continue
        along = gaps[-1]
        same = all(gap is not None and gap == Affine() for gap in gaps[:-1])
        if not (same and along is not None and along.is_constant and along.constant >= 0 and len(assigns) == 1):
            return False
    return True


def _balanced(state: State, rows: list[Row], assigns: list[Assign]) -> list[Row]:
    """Rows that stay in L1 load a place themselves instead where that has shuffles and arithmetic wait less for each other than loads do: of both kinds there are two units."""
    shuffles = sum(len(row.reads) - 1 for row in rows)
    arithmetic = sum(isinstance(node, Apply) for inner in assigns for node in walk(inner.value))
    loads = len({(r.tensor, r.subscripts) for inner in assigns for r in reads_of(inner.value)}) - shuffles
    made = []
    for row in rows:
        after = [shift for shift in row.reads if shift > 0] if _is_short(state, row) else []
        if after and arithmetic + shuffles > loads + 2:
            row, shuffles, loads = replace(row, loaded=frozenset(after[:1])), shuffles - 1, loads + 2
        made.append(row)
    return made


def _is_short(state: State, row: Row) -> bool:
    (read, *_) = reads_of(row.reads[0])
    size = state.slots[read.tensor].variable.bytes
    return size is not None and size <= SHORT


def _is_plain(state: State, read: Read, node: For, always: frozenset[Read]) -> bool:
    """Whether consecutive lanes read consecutive elements of the array's last dimension, whole vectors of at least a line, all of which are there: each iteration reads them, or could."""
    slot = state.slots[read.tensor]
    variable = slot.variable
    if variable.scope == "register" or variable.lanes > 1 or not read.subscripts or slot.strides[-1] != 1:
        return False
    if variable.dtype.kind not in "fiu" or variable.dtype.itemsize < 4 or variable.dtype.itemsize * node.width < LINE:
        return False
    *around, last = read.subscripts
    if not isinstance(last, Affine) or not all(isinstance(s, Affine) for s in around):
        return False
    moving = (last - affine(node.variable), *around)
    if any(node.variable in s.variables() for s in moving if isinstance(s, Affine)):
        return False
    return read in always or is_inside(state, read.tensor, read.subscripts, node)


@dataclass(frozen=True, slots=True)
class Parts:
    """How a loop's parts are written. inside: makes the loop's variable the value and its lanes those of the loop. body: the loop's body there. ahead: what comes before the first iteration, where there is one."""

    inside: Callable[[Value], AbstractContextManager[None]]
    body: Callable[[], None]
    evaluate: Evaluate
    ahead: Callable[[], None]


def emit_shifted(state: State, node: For, bounds: tuple[Value, Value], rows: list[Row], parts: Parts) -> None:
    """The loop with its rows carried along."""
    b, carrying = state.builder, _Carrying(state, node, rows, parts)
    lower, upper = bounds
    first, loop, last, after = b.fresh("first"), b.fresh("loop"), b.fresh("last"), b.fresh("after")
    b.branch(b.compare("slt", lower, upper), first, after)
    b.start(first)
    parts.ahead()
    outside = dict(state.held)
    starts = carrying.starts(lower)
    end = b.binary("sub", upper, integer(node.step))
    entered = b.block
    b.branch(b.compare("slt", lower, end), loop, last)
    b.start(loop)
    current, following = Value(INDEX, f"%{b.fresh(node.variable)}"), Value(INDEX, b.fresh("%next"))
    head: Lines = []
    b.lines.append(head)
    carried = [Value(start.type, f"%{b.fresh('row')}") for start in starts]
    with parts.inside(current):
        passed_on = carrying.shifted_on(carried)
        parts.body()
        state.held = dict(outside)
    b.write(f"{following.text} = add nsw i64 {current.text}, {node.step}")
    left = b.block

    def met(first: Value, later: Value) -> str:
        """What comes from ahead of the loop, or from its end."""
        return f"phi {first.type} [{first.text}, %{entered}], [{later.text}, %{left}]"

    head.append(f"  {current.text} = {met(lower, following)}")
    for value, start, new in zip(carried, starts, passed_on, strict=True):
        head.append(f"  {value.text} = {met(start, new)}")
    b.branch(b.compare("slt", following, end), loop, last)
    b.start(last)
    final = b.emit(INDEX, met(lower, following))
    kept = [b.emit(start.type, met(start, new)) for start, new in zip(starts, passed_on, strict=True)]
    with parts.inside(final):
        carrying.know(kept)
        parts.body()
        state.held = dict(outside)
    b.jump(after)
    b.start(after)


@dataclass(frozen=True, slots=True)
class _Carrying:
    """What the loop carries: of each row the vectors `here` and at the places before, in order."""

    state: State
    node: For
    rows: list[Row]
    parts: Parts

    def starts(self, lower: Value) -> list[Value]:
        """Loaded for the first iteration."""
        with self.parts.inside(lower):
            return [self.bits(row.reads[shift]) for row in self.rows for shift in (0, *row.before)]

    def shifted_on(self, carried: list[Value]) -> list[Value]:
        """Makes the values at all places known in an iteration that has another one behind it: what it passes on."""
        b, node = self.state.builder, self.node
        held = self.by_row(carried)
        ahead = {node.variable: affine(node.variable) + node.step}
        passed_on: list[Value] = []
        known: dict[Expr, Value] = {}
        for number, row in enumerate(self.rows):
            here, following = held[number, 0], self.bits(substitute(row.reads[0], ahead))
            for shift in row.reads.keys() - row.loaded:
                known[row.reads[shift]] = held[number, shift] if shift <= 0 else _shifted(b, here, following, shift)
            for shift in (0, *row.before):
                passed_on.append(_shifted(b, here, following, node.width + shift) if shift else following)
        for expr, value in known.items():
            _know(self.state, expr, value)
        return passed_on

    def know(self, carried: list[Value]) -> None:
        """The same in the last iteration, for the places that are carried."""
        for (number, shift), value in self.by_row(carried).items():
            _know(self.state, self.rows[number].reads[shift], value)

    def by_row(self, values: list[Value]) -> dict[tuple[int, int], Value]:
        """The carried values by the number of their row and their place."""
        keys = [(number, shift) for number, row in enumerate(self.rows) for shift in (0, *row.before)]
        return dict(zip(keys, values, strict=True))

    def bits(self, expr: Expr) -> Value:
        """The vector as integers, for whose shifts x86 has an instruction without a register for the order (valign), and LLVM uses it for integers only."""
        state, evaluate = self.state, self.parts.evaluate
        b, type_ = state.builder, type_of(expr.dtype, state.width).integers()
        if not isinstance(expr, Read):
            return b.emit(type_, f"bitcast {evaluate(state, expr)} to {type_}")
        pointer = access(state, expr.tensor, expr.subscripts, evaluate).pointer
        return b.emit(type_, f"load {type_}, {pointer}, align {state.slots[expr.tensor].variable.dtype.alignment}")


def _know(state: State, expr: Expr, bits: Value) -> None:
    """From here on in the iteration this is the expression's value."""
    b, type_ = state.builder, type_of(expr.dtype, state.width)
    value = bits if bits.type == type_ else b.emit(type_, f"bitcast {bits} to {type_}")
    if isinstance(expr, Read):
        b.known["load", expr.tensor, expr.subscripts, state.lanes] = value
    else:
        state.held[expr] = value


def _shifted(b: Builder, here: Value, following: Value, by: int) -> Value:
    """The lanes from `by` on of one vector and the next."""
    return b.shuffle(here, range(by, by + here.lanes), following)
