"""Loads whose lanes go through rows in turn, x[v % 2, v // 2] or x[v // 2]: as many elements of each row as lanes meet, and a shuffle that puts them between each other. Alone, each lane would be a load."""

from __future__ import annotations

from polyml.codegen.llvm.ir import POINTER, Value
from polyml.codegen.llvm.memory.addresses import Offset, Term
from polyml.codegen.llvm.state import State, stored_type
from polyml.expressions import Subscript
from polyml.sets.affine import Affine
from polyml.sets.turns import MOST_ROWS, rows_in_turn

__all__ = ["load_zipped"]


def load_zipped(state: State, name: str, subscripts: tuple[Subscript, ...]) -> Value | None:
    """The elements, one for each lane; None where lanes go another way, or begin with a row that is not known."""
    b, lanes, slot = state.builder, state.lanes, state.slots[name]
    if lanes is None or lanes.mask is not None or lanes.width == 1 or slot.variable.lanes > 1:
        return None
    type_ = stored_type(slot.variable, lanes.width)
    spot = state.flat(name, subscripts)
    place = Affine() if spot is None else spot[0]
    found = None if spot is None or spot[1] else rows_in_turn(place, lanes.variable)
    if found is None:
        return None
    rows, apart, divided = found
    firsts = [row for row in range(rows) if state.nest.multiple_of(divided - row) % rows == 0]
    if rows > MOST_ROWS or lanes.width % rows or lanes.width == rows or not firsts:
        return None
    terms: tuple[tuple[Term, int], ...] = tuple(((atom, None), coefficient) for atom, coefficient in place.terms)
    start = state.nest.address(name, slot.pointer, stored_type(slot.variable), Offset(terms, place.constant))
    part = type_.of(lanes.width // rows)
    loaded: list[Value] = []
    for lane in range(rows if apart or firsts[0] else 1):
        ahead = lane * apart + (firsts[0] + lane) // rows * (1 - apart * rows)
        pointer = b.emit(POINTER, f"getelementptr {type_.of(1)}, {start}, i64 {ahead}") if ahead else start
        loaded.append(b.emit(part, f"load {part}, {pointer}, align {slot.variable.dtype.alignment}"))
    if len(loaded) == 1:
        return b.shuffle(loaded[0], [lane // rows for lane in range(lanes.width)])
    while len(loaded) & (len(loaded) - 1):
        loaded.append(loaded[-1])  # two at a time, as shuffles go
    count = len(loaded)
    while len(loaded) > 1:
        size = loaded[0].lanes * 2
        loaded = [b.shuffle(loaded[k], range(size), loaded[k + 1]) for k in range(0, len(loaded), 2)]
    length = lanes.width // rows
    assert loaded[0].lanes == count * length, "internal: rows side by side"
    return b.shuffle(loaded[0], [lane % rows * length + lane // rows for lane in range(lanes.width)])
