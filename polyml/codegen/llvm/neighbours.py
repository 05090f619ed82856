"""Reads of one row at neighbouring places in a vector loop: one load per vector, and the others are shifted out of it and the next one.

A stencil reads a[k - 1], a[k] and a[k + 1]. Where a vector is as long as a cache line, all but one of these cross two lines, each at the price of two loads, and are bound to miss L1 twice. So the
loop carries the vector at one of these places from iteration to iteration, loads the following one ahead, and takes the places between out of both by a shuffle:

    here = load a[k]; left = load a[k - 1]
    for k in lower .. upper - width:
        next = load a[k + width]
        body with a[k - 1] = left, a[k] = here, a[k + 1] = shift(here, next, 1)
        left = shift(here, next, width - 1); here = next
    body once more, in which a[k + 1] is a load

In L1 a load across two lines costs no more than two: there one place after `here` stays a load where shuffles and arithmetic, which share two units, would take longer than all loads.

What is loaded ahead is what the next iteration needs itself, so nothing is touched that would not be without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from math import prod

from polyml.codegen.llvm.ir import INDEX, Builder, Lines, Value, integer, type_of
from polyml.codegen.llvm.memory import Evaluate, access
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Assign, For, Prefetch
from polyml.expressions import Apply, Read, Subscript, reads_of, walk
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["Row", "emit_shifted", "neighbouring_reads"]

LINE = 64
"""Bytes of the vectors that are worth it: shorter ones lie within a line more often than not."""


SHORT = 16 * 1024
"""Bytes of an array that stays in L1."""


@dataclass(frozen=True, slots=True)
class Row:
    """Reads of an array that differ along the lanes only. reads: subscripts by how far from `here` they are, in elements; those of `here` are at 0. loaded: places that are loads all the same."""

    array: str
    reads: Mapping[int, tuple[Subscript, ...]]
    loaded: frozenset[int] = frozenset()

    @property
    def before(self) -> list[int]:
        """The places whose vectors the loop carries besides `here`."""
        return sorted(shift for shift in self.reads if shift < 0)


def neighbouring_reads(state: State, node: For) -> list[Row]:
    """The rows that a vector loop, full vectors one by one, reads at several places less than a vector apart, and does not write."""
    if node.kind != "vector" or node.masked or node.step != node.width or state.lanes is not None:
        return []
    if not all(isinstance(inner, Assign | Prefetch) for inner in node.body):
        return []
    assigns = [inner for inner in node.body if isinstance(inner, Assign)]
    written = {inner.target.variable for inner in assigns}
    found: dict[tuple[str, tuple[Subscript, ...], Affine], dict[int, Read]] = {}
    for read in dict.fromkeys(read for inner in assigns for read in reads_of(inner.value)):
        if read.tensor not in written and _is_plain(state, read, node):
            last = read.subscripts[-1]
            assert isinstance(last, Affine), "internal: a plain read with an indirect subscript"
            place = last - affine(node.variable)
            found.setdefault((read.tensor, read.subscripts[:-1], place - place.constant), {})[place.constant] = read
    rows = []
    for (array, *_), reads in found.items():
        here = min(reads, key=lambda place: (abs(place), place))
        near = {place - here: read.subscripts for place, read in reads.items() if abs(place - here) < node.width}
        if len(near) > 1:
            rows.append(Row(array, near))
    return _balanced(state, rows, assigns)


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
    variable = state.slots[row.array].variable
    constant = all(extent.is_constant for extent in variable.shape)
    return constant and variable.dtype.itemsize * prod(e.constant for e in variable.shape) <= SHORT


def _is_plain(state: State, read: Read, node: For) -> bool:
    """Whether consecutive lanes read consecutive elements of the array's last dimension, whole vectors of at least a line."""
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
    return not any(node.variable in s.variables() for s in moving if isinstance(s, Affine))


def emit_shifted(
    state: State,
    node: For,
    bounds: tuple[Value, Value],
    rows: list[Row],
    inside: Callable[[Value], AbstractContextManager[None]],
    body: Callable[[], None],
    evaluate: Evaluate,
) -> None:
    """The loop with its rows carried along.

    Args:
        inside: makes the loop's variable the value and its lanes those of the loop. body: writes the loop's body there.
    """
    b = state.builder
    lower, upper = bounds
    first, loop, last, after = b.fresh("first"), b.fresh("loop"), b.fresh("last"), b.fresh("after")
    b.branch(b.compare("slt", lower, upper), first, after)
    b.start(first)
    with inside(lower):
        starts = [_bits(state, row, row.reads[shift], evaluate) for row, shift in _carried(rows)]
    end = b.binary("sub", upper, integer(node.step))
    entered = b.block
    b.branch(b.compare("slt", lower, end), loop, last)
    b.start(loop)
    current, following = Value(INDEX, f"%{b.fresh(node.variable)}"), b.fresh("%next")
    head: Lines = []
    b.lines.append(head)
    carried = [Value(start.type, f"%{b.fresh('row')}") for start in starts]
    ahead = {node.variable: affine(node.variable) + node.step}
    with inside(current):
        held = _by_row(rows, carried)
        passed_on: list[Value] = []
        for number, row in enumerate(rows):
            here = held[number, 0]
            moved = tuple(s.substitute(ahead) if isinstance(s, Affine) else s for s in row.reads[0])
            following_row = _bits(state, row, moved, evaluate)
            for shift in row.reads.keys() - row.loaded:
                _know(state, row, shift, held[number, shift] if shift <= 0 else _shifted(b, here, following_row, shift))
            for shift in (0, *row.before):
                passed_on.append(_shifted(b, here, following_row, node.width + shift) if shift else following_row)
        body()
    b.write(f"{following} = add nsw i64 {current.text}, {node.step}")
    left = b.block
    head.append(f"  {current.text} = phi i64 [{lower.text}, %{entered}], [{following}, %{left}]")
    for value, start, new in zip(carried, starts, passed_on, strict=True):
        head.append(f"  {value.text} = phi {value.type} [{start.text}, %{entered}], [{new.text}, %{left}]")
    b.branch(b.compare("slt", Value(INDEX, following), end), loop, last)
    b.start(last)
    final = b.emit(INDEX, f"phi i64 [{lower.text}, %{entered}], [{following}, %{left}]")
    kept = [
        b.emit(start.type, f"phi {start.type} [{start.text}, %{entered}], [{new.text}, %{left}]")
        for start, new in zip(starts, passed_on, strict=True)
    ]
    with inside(final):
        for (number, shift), value in _by_row(rows, kept).items():
            _know(state, rows[number], shift, value)
        body()
    b.jump(after)
    b.start(after)


def _carried(rows: list[Row]) -> Iterator[tuple[Row, int]]:
    """What the loop carries, in order."""
    for row in rows:
        for shift in (0, *row.before):
            yield row, shift


def _by_row(rows: list[Row], values: list[Value]) -> dict[tuple[int, int], Value]:
    """The carried values by the number of their row and their place."""
    keys = [(number, shift) for number, row in enumerate(rows) for shift in (0, *row.before)]
    return dict(zip(keys, values, strict=True))


def _bits(state: State, row: Row, subscripts: tuple[Subscript, ...], evaluate: Evaluate) -> Value:
    """The vector as integers, for whose shifts x86 has an instruction without a register for the order (valign), and LLVM uses it for integers only."""
    b, type_ = state.builder, type_of(state.slots[row.array].variable.dtype, state.width).integers()
    pointer = access(state, row.array, subscripts, evaluate).pointer
    return b.emit(type_, f"load {type_}, {pointer}, align {state.slots[row.array].variable.dtype.alignment}")


def _know(state: State, row: Row, shift: int, bits: Value) -> None:
    """From here on in the iteration this is what is read there."""
    b, type_ = state.builder, type_of(state.slots[row.array].variable.dtype, state.width)
    value = bits if bits.type == type_ else b.emit(type_, f"bitcast {bits} to {type_}")
    b.known["load", row.array, row.reads[shift], state.lanes] = value


def _shifted(b: Builder, here: Value, following: Value, by: int) -> Value:
    """The lanes from `by` on of one vector and the next."""
    return b.shuffle(here, range(by, by + here.lanes), following)
