"""Loads whose lanes go from one block to the next, s[v // 100], x[v // 28, v % 28] or w[v % 100]: within a block the lanes read one element, or elements side by side, and few blocks meet in a vector. One load for each
of these, broadcast or of the lanes that it is for, and the lanes put together; as a gather each lane would be a load, and its place a quotient."""

from __future__ import annotations

from polyml.codegen.llvm.ir import POINTER, Value, integer
from polyml.codegen.llvm.memory.addresses import Offset, Term
from polyml.codegen.llvm.memory.masked import masked_load, zeros
from polyml.codegen.llvm.state import ZERO, State, stored_type
from polyml.expressions import Subscript
from polyml.sets.affine import Affine, FloorDiv, affine

__all__ = ["load_in_blocks"]

_MOST_CROSSINGS = 5
"""Of blocks' ends within a vector; with more of them gathers are as good."""


def load_in_blocks(state: State, name: str, subscripts: tuple[Subscript, ...]) -> Value | None:
    """The elements, one for each lane; None where lanes go another way."""
    lanes, slot, nest = state.lanes, state.slots[name], state.nest
    if lanes is None or lanes.width == 1 or slot.variable.lanes > 1:
        return None
    spot = state.flat(name, subscripts)
    if spot is None:
        return None
    place, unknown = spot  # the latter: by strides that are known at run time only
    parts: list[tuple[str | None, Affine]] = [(None, place), *unknown]
    along, division, steps = 0, None, list[tuple[str | None, int]]()
    for key, part in parts:
        for atom, coefficient in part.terms:
            if nest.lane_stride(affine(atom), lanes.variable, lanes.width) == 0:
                continue
            if atom == lanes.variable and key is None:
                along = coefficient
            elif isinstance(atom, FloorDiv) and division in (None, atom):
                division = atom
                steps.append((key, coefficient))
            else:
                return None
    if division is None or along not in (0, 1):
        return None
    stride = nest.lane_stride(division.numerator, lanes.variable, lanes.width)
    if not stride or stride < 0 or stride * lanes.width + division.denominator >= 1 << 31:
        return None
    if along and slot.variable.dtype.bits < 32 and not state.builder.module.instructions.scalef:
        return None  # no masked loads of short elements before AVX-512
    terms: list[tuple[Term, int]] = [
        ((atom, key), coefficient) for key, part in parts for atom, coefficient in part.terms
    ]
    terms += [((None, key), part.constant) for key, part in unknown if part.constant]
    start = nest.address(name, slot.pointer, stored_type(slot.variable), Offset(tuple(terms), place.constant))
    if steps == [(None, -division.denominator)] and along == stride:
        again = _repeated(state, name, start, division)
        if again is not None:
            return again
    crossings = nest.crossings(division, stride, lanes.width, _MOST_CROSSINGS)
    if crossings is None:
        return None
    starts, crossed = _starts(state, name, start, steps, crossings), [beyond for _, beyond in crossings]
    return (_runs if along else _broadcasts)(state, name, starts, crossed)


def _starts(
    state: State, name: str, first: Value, steps: list[tuple[str | None, int]], crossings: list[tuple[Value, Value]]
) -> list[Value]:
    """The address from which on each block's lanes read; of blocks that no lane meets, that of the last one."""
    b, element = state.builder, stored_type(state.slots[name].variable)
    step = integer(sum(coefficient for key, coefficient in steps if key is None))
    for key, coefficient in steps:
        if key is not None:
            step = b.binary("add", step, b.binary("mul", state.nest.strides[key], integer(coefficient)))
    found, moved = [first], first
    for meets, _ in crossings:
        moved = b.emit(POINTER, f"getelementptr {element}, {moved}, {step}")
        found.append(b.select(meets, moved, found[-1]))
    return found


def _repeated(state: State, name: str, start: Value, division: FloorDiv) -> Value | None:
    """One block again and again, w[v % 4], where vectors begin with its first element and have several whole ones."""
    b, lanes, variable = state.builder, state.lanes, state.slots[name].variable
    assert lanes is not None
    size = division.denominator
    if lanes.mask is not None or lanes.width % size or state.nest.multiple_of(division.numerator) % size:
        return None
    block = stored_type(variable, size)
    loaded = b.emit(block, f"load {block}, {start}, align {variable.dtype.alignment}")
    return b.shuffle(loaded, [lane % size for lane in range(lanes.width)])


def _broadcasts(state: State, name: str, starts: list[Value], crossed: list[Value]) -> Value:
    """One element of each block, in its lanes. Where not all lanes act, one that no such lane wants may not be there."""
    b, lanes, variable = state.builder, state.lanes, state.slots[name].variable
    assert lanes is not None
    element, found = stored_type(variable), None
    for block, pointer in enumerate(starts):
        if lanes.mask is not None:
            wants = _lanes_of(state, crossed, block)
            b.module.definitions.setdefault("polyml.zero", ZERO)
            pointer = b.emit(POINTER, f"select {b.any_lane(wants)}, {pointer}, ptr @polyml.zero")
        one = b.splat(b.emit(element, f"load {element}, {pointer}, align {variable.dtype.alignment}"), lanes.width)
        found = one if found is None else b.select(crossed[block - 1], one, found)
    assert found is not None
    return found


def _runs(state: State, name: str, starts: list[Value], crossed: list[Value]) -> Value:
    """As many elements side by side of each block as it has lanes."""
    b, lanes, variable = state.builder, state.lanes, state.slots[name].variable
    assert lanes is not None
    type_ = stored_type(variable, lanes.width)
    found = zeros(type_)
    for block, pointer in enumerate(starts):
        wants = _lanes_of(state, crossed, block)
        wants = b.twice(wants) if type_.is_pair else wants
        found = masked_load(b, pointer, variable.dtype.alignment, wants, found)
    return found


def _lanes_of(state: State, crossed: list[Value], block: int) -> Value:
    """The acting lanes that are in the block: beyond its begin, and not beyond its end."""
    b, lanes = state.builder, state.lanes
    assert lanes is not None
    wants = None if lanes.mask is None else lanes.mask
    if block:
        wants = crossed[block - 1] if wants is None else b.binary("and", wants, crossed[block - 1])
    if block < len(crossed):
        before = b.negate(crossed[block])
        wants = before if wants is None else b.binary("and", wants, before)
    return lanes.all_set if wants is None else wants
