"""Loads whose lanes go through rows in turn, x[v % 2, v // 2] or x[v // 2]: as many elements of each row as lanes meet, and a shuffle that puts them between each other. Alone, each lane would be a load."""

from __future__ import annotations

from polyml.codegen.llvm.ir import POINTER, Type, Value, constant
from polyml.codegen.llvm.memory.addresses import Offset, Term
from polyml.codegen.llvm.memory.masked import masked_load, zeros
from polyml.codegen.llvm.state import State, stored_type
from polyml.expressions import Subscript
from polyml.sets.turns import MOST_ROWS, rows_in_turn

__all__ = ["load_zipped"]


def load_zipped(state: State, name: str, subscripts: tuple[Subscript, ...]) -> Value | None:
    """The elements, one for each lane; None where lanes go another way, or begin with a row that is not known."""
    b, lanes, slot = state.builder, state.lanes, state.slots[name]
    if lanes is None or lanes.width == 1 or slot.variable.lanes > 1:
        return None
    type_ = stored_type(slot.variable, lanes.width)
    if lanes.mask is not None and (type_.is_pair or slot.variable.dtype.bits < 32):
        return None
    spot = state.flat(name, subscripts)
    if spot is None:
        return None
    place, unknown = spot  # the latter: by strides that are known at run time only
    still = all(state.nest.lane_stride(part, lanes.variable, lanes.width) == 0 for _, part in unknown)
    found = rows_in_turn(place, lanes.variable) if still else None
    if found is None:
        return None
    rows, apart, divided = found
    firsts = [row for row in range(rows) if state.nest.multiple_of(divided - row) % rows == 0]
    if rows > MOST_ROWS or lanes.width % rows or lanes.width == rows or not firsts:
        return None
    terms: list[tuple[Term, int]] = [((atom, None), coefficient) for atom, coefficient in place.terms]
    for stride, part in unknown:
        terms += [((atom, stride), coefficient) for atom, coefficient in part.terms]
        terms += [((None, stride), part.constant)] if part.constant else []
    start = state.nest.address(name, slot.pointer, stored_type(slot.variable), Offset(tuple(terms), place.constant))
    short = type_.of(lanes.width // rows)
    loaded: list[Value] = []
    count = rows if apart or firsts[0] else 1
    for lane in range(count):
        ahead = lane * apart + (firsts[0] + lane) // rows * (1 - apart * rows)
        pointer = b.emit(POINTER, f"getelementptr {type_.of(1)}, {start}, i64 {ahead}") if ahead else start
        loaded.append(_load(state, pointer, short, slot.variable.dtype.alignment, range(lane, lane + rows // count)))
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


def _load(state: State, pointer: Value, part: Type, align: int, uses: range) -> Value:
    """Elements from the address on, each for those lanes of its turn that are named: under a mask the ones that some of these want."""
    b, lanes = state.builder, state.lanes
    assert lanes is not None
    if lanes.mask is None:
        return b.emit(part, f"load {part}, {pointer}, align {align}")
    rows = lanes.width // part.lanes
    # As numbers: masks of single bits are shuffled bit by bit.
    numbers = b.convert("sext", lanes.mask, "i32")
    chosen = [b.shuffle(numbers, range(use, lanes.width, rows)) for use in uses]
    some = chosen[0]
    for other in chosen[1:]:
        some = b.binary("or", some, other)
    mask = b.compare("ne", some, constant(some.type, 0))
    return masked_load(b, pointer, align, mask, zeros(part))
