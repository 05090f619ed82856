"""Loads of elements at places that tensors tell, `v[f[t, c], d]`, a load for each lane at an address of its own: on machines whose vectors are not gathered faster by an instruction.

LLVM would take such a gather apart as well, behind addresses that were computed in vectors: lanes of 64 bits, two products for each of these, and each address moved from the vector unit to the others again, for every element that is read at the same place.
Here places are read as numbers, where they lie in memory, and all that is read at one place shares the number. With eight lanes of three coordinates for three corners that is 24 loads of places and 72 of elements, which go into lanes as they are loaded (vinsertps),
instead of some 240 instructions for addresses. The instruction, too, is slower: eight elements of a table in L1 take 3.6 ns by vgatherdps on Zen 3, and 2.3 by loads of their places and of themselves (measured); on Intel's cores before Sapphire Rapids it is slower than loads
with the microcode against Downfall (deal.II's changelog).
"""

from __future__ import annotations

from collections.abc import Sequence

from polyml.codegen.llvm.ir import POINTER, Type, Value, integer, type_of
from polyml.codegen.llvm.memory.access import Evaluate, access, as_index, regular, told
from polyml.codegen.llvm.state import ZERO, State, stored_type
from polyml.expressions import Expr, Read, Subscript, apart
from polyml.sets.affine import Affine, weighted_sum

__all__ = ["load_each", "load_from", "load_one_by_one"]


def load_one_by_one(state: State, name: str, subscripts: tuple[Subscript, ...], evaluate: Evaluate) -> Value | None:
    """The elements, one for each lane; None where the machine gathers, lanes do not all act, or the place is told by no tensor along the lanes."""
    b, lanes, slot = state.builder, state.lanes, state.slots[name]
    if b.module.instructions.gathers or lanes is None or lanes.width == 1 or lanes.mask is not None:
        return None
    type_ = stored_type(slot.variable, lanes.width)
    if type_.is_pair or slot.variable.lanes > 1:
        return None
    known: list[tuple[Affine, int]] = []
    symbolic: dict[str, Affine] = {}
    offsets: list[Value | None] = [None] * lanes.width
    moves = False
    for subscript, stride in zip(subscripts, slot.strides, strict=True):
        known_part, rest = (subscript, None) if isinstance(subscript, Affine) else apart(subscript)
        if isinstance(stride, int):
            known.append((known_part, stride))
        else:
            symbolic[stride] = symbolic.get(stride, Affine()) + known_part
        if rest is None:
            continue
        found = _numbers(state, rest, evaluate)
        moves |= len(set(found)) > 1
        factor = integer(stride) if isinstance(stride, int) else state.nest.strides[stride]
        for lane, number in enumerate(found):
            _add(state, offsets, lane, number if stride == 1 else b.binary("mul", number, factor))
    if not moves:
        return None
    pointer, along, step, varying = regular(state, slot, [(None, weighted_sum(known)), *symbolic.items()])
    element, align = stored_type(slot.variable), slot.variable.dtype.alignment
    result = Value(type_, "poison")
    for lane in range(lanes.width):
        if step is not None and lane:
            _add(state, offsets, lane, b.binary("mul", step, integer(lane)))
        if varying is not None:
            _add(state, offsets, lane, b.extract(varying, lane))
        offset = offsets[lane]
        place = pointer if offset is None else b.emit(POINTER, f"getelementptr {element}, {pointer}, {offset}")
        if along and lane:
            place = b.emit(POINTER, f"getelementptr {element}, {place}, i64 {along * lane}")
        one = b.emit(element, f"load {element}, {place}, align {align}")
        result = b.emit(type_, f"insertelement {result}, {one}, i64 {lane}")
    return result


def load_each(state: State, pointers: Value, type_: Type, align: int) -> Value:
    """The elements at the addresses, of which there is one for each lane; zeros for lanes that do not act, whose elements may not be there (LLVM would write a branch for each lane)."""
    b, lanes = state.builder, state.lanes
    assert lanes is not None
    if lanes.mask is not None:
        b.module.definitions.setdefault("polyml.zero", ZERO)
        pointers = b.select(lanes.mask, pointers, b.splat(Value(POINTER, "@polyml.zero"), pointers.lanes))
    return load_from(state, [b.extract(pointers, lane) for lane in range(pointers.lanes)], type_, align)


def load_from(state: State, places: Sequence[Value], type_: Type, align: int) -> Value:
    """The elements at single addresses, one for each lane. Both parts of a complex number are one load: a gather for each part would take two, and leave them to be put between each other."""
    b, one = state.builder, type_.of(1)
    loaded = [b.emit(one, f"load {one}, {place}, align {align}") for place in places]
    if type_.is_pair:
        return b.side_by_side(loaded)
    result = Value(type_, "poison")
    for lane, element in enumerate(loaded):
        result = b.emit(type_, f"insertelement {result}, {element}, i64 {lane}")
    return result


def _add(state: State, offsets: list[Value | None], lane: int, number: Value) -> None:
    before = offsets[lane]
    offsets[lane] = number if before is None else state.builder.binary("add", before, number)


def _numbers(state: State, subscript: Expr, evaluate: Evaluate) -> list[Value]:
    """The subscript's value in each lane, as numbers of 64 bits: from memory where an array has them as they are, else out of the vector that was computed."""
    b, lanes = state.builder, state.lanes
    assert lanes is not None
    if isinstance(subscript, Read) and _lies_in_memory(state, subscript):
        keys = [("load", subscript.tensor, subscript.subscripts, (lanes, lane)) for lane in range(lanes.width)]
        if keys[0] not in b.known:
            where = access(state, subscript.tensor, subscript.subscripts, evaluate)
            element, align = stored_type(where.slot.variable), where.slot.variable.dtype.alignment
            if where.stride is None:
                return _out_of(state, told(state, subscript, evaluate), subscript)
            for lane, key in enumerate(keys):
                place = where.pointer
                if where.stride == 0 and lane:
                    b.known[key] = b.known[keys[0]]
                    continue
                if lane:
                    place = b.emit(POINTER, f"getelementptr {element}, {place}, i64 {where.stride * lane}")
                b.known[key] = as_index(state, b.emit(element, f"load {element}, {place}, align {align}"), subscript)
        return [b.known[key] for key in keys]
    place = told(state, subscript, evaluate)
    taken_out = [("lane", place.text, lane) for lane in range(lanes.width)]
    if taken_out[0] not in b.known:
        b.known.update(zip(taken_out, _out_of(state, place, subscript), strict=True))
    return [b.known[key] for key in taken_out]


def _out_of(state: State, value: Value, subscript: Expr) -> list[Value]:
    """A computed vector's lanes, with 64 bits each. Of 32 bits two at a time: what takes them from one unit to the other is dearer than to part them there."""
    b, signed = state.builder, subscript.dtype.kind == "i"
    if value.type.bits != 32 or value.lanes % 2:
        return [as_index(state, b.extract(value, lane), subscript) for lane in range(state.width)]
    pairs = b.emit(type_of("i64", value.lanes // 2), f"bitcast {value} to {type_of('i64', value.lanes // 2)}")
    half, found = integer(32), list[Value]()
    for k in range(pairs.lanes):
        both = b.extract(pairs, k)
        low = (
            b.binary("ashr", b.binary("shl", both, half), half)
            if signed
            else b.binary("and", both, integer((1 << 32) - 1))
        )
        found += [low, b.binary("ashr" if signed else "lshr", both, half)]
    return found


def _lies_in_memory(state: State, place: Read) -> bool:
    """Whether the elements are read from memory, and no register has them."""
    slot = state.slots[place.tensor]
    if slot.variable.scope == "register" or slot.variable.lanes > 1 or slot.variable.dtype.kind == "b":
        return False
    if ("load", place.tensor, place.subscripts, state.lanes) in state.builder.known:
        return False
    return all(isinstance(s, Affine) for s in place.subscripts)
