"""Registers whose lanes go to rows of memory, of which each register has a column: columns side by side are transposed in registers, so that each row's elements are stored together.

A register tile whose lanes run across the rows of its result stores one element at a time, or scatters, which takes as long. Eight registers of 16 lanes are 16 rows of eight elements: 24 shuffles and 16 stores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from polyml.codegen.llvm.expression import evaluate
from polyml.codegen.llvm.ir import POINTER, Value
from polyml.codegen.llvm.memory.access import access
from polyml.codegen.llvm.memory.known_elements import forget
from polyml.codegen.llvm.memory.transpose import transposed
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Assign, Node
from polyml.expressions import Read, Subscript, reads_of
from polyml.records import dataclass
from polyml.sets.affine import Affine

__all__ = ["Columns", "run_of_columns", "store_columns"]


@dataclass(frozen=True, slots=True)
class Columns:
    """Nodes that store columns, and those between them, which come first. count: of all of them."""

    between: tuple[Assign, ...]
    stores: tuple[Assign, ...]

    @property
    def count(self) -> int:
        return len(self.between) + len(self.stores)


def run_of_columns(state: State, nodes: Sequence[Node]) -> Columns | None:
    """The first nodes, as many as store registers to columns of one array, with last terms of sums in other registers between them; None where no two columns are neighbours."""
    stores: list[Assign] = []
    between: list[Assign] = []
    ended = 0
    for node in nodes:
        if not isinstance(node, Assign):
            break
        if _is_plain(state, node) and (not stores or node.target.variable == stores[0].target.variable):
            stores.append(node)
            ended = len(between)
        elif stores and _may_come_first(state, node, stores):
            between.append(node)
        else:
            break
    if not any(len(columns) > 1 for columns in _side_by_side(stores)) or _parts_of_rows(state, stores):
        return None
    return Columns(tuple(between[:ended]), tuple(stores))


def _parts_of_rows(state: State, stores: Sequence[Assign]) -> bool:
    """Whether some of them are elements of rows that are stored as a whole once the others are there, too (`Phase`), and these are not among them."""
    places = ((node.target.variable, node.target.subscripts) for node in stores)
    phases = [phase for place in places if (phase := state.written.get(place)) is not None]
    here = Counter(phase.first for phase in phases)
    return any(here[phase.first] < phase.gap for phase in phases)


def store_columns(state: State, run: Sequence[Assign]) -> None:
    """Carries out these nodes: as many columns at a time as is a power of two and no more than the lanes, the last ones of which overlap those before."""
    for columns in _side_by_side(run):
        most = min(len(columns), state.width)
        count = 1 << (most.bit_length() - 1)
        for start in range(0, len(columns), count):
            _store(state, columns[min(start, len(columns) - count) :][:count])
    forget(state, run[0].target.variable)


def _may_come_first(state: State, node: Assign, stores: Sequence[Assign]) -> bool:
    """Whether it goes to a register that none of the stores writes to memory, and reads nothing that they write."""
    written = stores[0].target.variable
    if state.slots[node.target.variable].variable.scope != "register" or node.scan is not None or node.across:
        return False
    read = {r.tensor for s in stores for r in reads_of(s.value)}
    return node.target.variable not in read and all(r.tensor != written for r in reads_of(node.value))


def _is_plain(state: State, node: Assign) -> bool:
    """Whether it stores a register of floats, all lanes of which act and go to rows that are apart."""
    lanes, value = state.lanes, node.value
    if lanes is None or lanes.mask is not None or not isinstance(value, Read) or node.reduction is not None:
        return False
    if node.across or node.scan is not None or node.atomic or node.asynchronous:
        return False
    slot, source = state.slots[node.target.variable], state.slots[value.tensor].variable
    variable, subscripts = slot.variable, node.target.subscripts
    if source.scope != "register" or source.lanes != state.width or source.dtype != variable.dtype:
        return False
    if variable.scope == "register" or variable.lanes > 1 or not variable.dtype.is_float or variable.dtype.itemsize < 4:
        return False
    strides = slot.strides
    if not subscripts or not all(isinstance(step, int) for step in strides) or strides[-1] != 1:
        return False
    along = [s.stride(lanes.variable) if isinstance(s, Affine) else None for s in subscripts]
    return None not in along and along[-1] == 0 and any(along)


def _side_by_side(run: Sequence[Assign]) -> list[list[Assign]]:
    """The nodes by rows, and in each of these runs of neighbours in order."""
    rows: dict[tuple[Subscript, ...], dict[Affine, list[Assign]]] = {}
    for node in run:
        *outer, last = node.target.subscripts
        assert isinstance(last, Affine), "internal: a column that is no number"
        rows.setdefault(tuple(outer), {}).setdefault(last - last.constant, []).append(node)
    found: list[list[Assign]] = []
    for columns in (columns for by_start in rows.values() for columns in by_start.values()):
        known = {_place(node): node for node in columns}
        for at in sorted(known):
            if at - 1 in known:
                found[-1].append(known[at])
            else:
                found.append([known[at]])
    return found


def _place(node: Assign) -> int:
    last = node.target.subscripts[-1]
    assert isinstance(last, Affine), "internal: a column that is no number"
    return last.constant


def _store(state: State, columns: Sequence[Assign]) -> None:
    b, first, count = state.builder, columns[0].target, len(columns)
    where = access(state, first.variable, first.subscripts, evaluate)
    assert where.stride is not None, "internal: rows at irregular distances"
    values = [evaluate(state, node.value) for node in columns]
    made = transposed(b, values, range(count.bit_length() - 1)) if count > 1 else values
    element, align = values[0].type.of(1), where.slot.variable.dtype.alignment
    for row in range(state.width):
        part = b.shuffle(made[row % count], range(row // count * count, row // count * count + count))
        place = _moved(state, where.pointer, str(element), row * where.stride)
        value = part if count > 1 else b.extract(values[0], row)
        b.write(f"store {value}, {place}, align {align}")


def _moved(state: State, pointer: Value, element: str, elements: int) -> Value:
    return (
        pointer if not elements else state.builder.emit(POINTER, f"getelementptr {element}, {pointer}, i64 {elements}")
    )
