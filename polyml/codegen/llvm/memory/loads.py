"""Loads by the stride of the address along the lanes (access.py): broadcast, contiguous, reversed, strided, gathered; masked where lanes are."""

from __future__ import annotations

from dataclasses import replace

from polyml.codegen.llvm.ir import I32, POINTER, Type, Value, constant, type_of
from polyml.codegen.llvm.memory.access import (
    Access,
    Evaluate,
    access,
    lane_pointers,
    loaded_first,
    part_pointers,
    pointers_of,
    register_parts,
    reverse,
    reversed_lanes,
)
from polyml.codegen.llvm.memory.between import put_apart
from polyml.codegen.llvm.memory.in_blocks import load_in_blocks
from polyml.codegen.llvm.memory.inside import reads_all_lanes
from polyml.codegen.llvm.memory.known_elements import keep
from polyml.codegen.llvm.memory.leading import load_first, load_leading
from polyml.codegen.llvm.memory.masked import masked_gather, masked_load, zeros
from polyml.codegen.llvm.memory.one_by_one import load_each, load_from, load_one_by_one
from polyml.codegen.llvm.memory.phases import Phase
from polyml.codegen.llvm.memory.zipped import load_zipped
from polyml.codegen.llvm.state import ZERO, State, stored_type
from polyml.expressions import Subscript
from polyml.sets.affine import Affine

__all__ = ["load", "load_neighbours", "load_part"]

_WIDEST_SHUFFLED_STRIDE = 4
"""Up to here a strided vector is read by as many contiguous loads and shuffles, else gathered."""


def load(state: State, name: str, subscripts: tuple[Subscript, ...], evaluate: Evaluate) -> Value:
    """The element, or one per lane when the address varies with the lanes. Lanes that do not act read nothing."""
    b = state.builder
    slot = state.slots[name]
    if slot.variable.scope == "register":
        type_ = type_of(slot.variable.dtype, slot.variable.lanes)
        if type_.is_pair and type_.lanes > 1:
            real, imag = (
                b.emit(type_.part, f"load {type_.part}, {place}, align {slot.variable.dtype.alignment}")
                for place in register_parts(state, slot.pointer, type_)
            )
            return b.paired(real, imag, type_.element)
        found = b.known.get(("register", name))
        return found or b.emit(type_, f"load {type_}, {slot.pointer}, align {slot.variable.dtype.alignment}")
    key = ("load", name, subscripts, state.lanes)
    found = b.known.get(key)
    if found is None and reads_all_lanes(state, name, subscripts):
        with state.within(state.loop_lanes):
            return load(state, name, subscripts, evaluate)
    if found is None:
        phase = state.phases.get((name, subscripts)) if state.lanes is not None and state.lanes.mask is None else None
        if phase is not None:
            found = _load_phase(state, name, phase, evaluate)
        if found is None and any(isinstance(s, Affine) and not s.is_linear for s in subscripts):
            found = load_zipped(state, name, subscripts) or load_in_blocks(state, name, subscripts)
        if found is None and not all(isinstance(s, Affine) for s in subscripts):
            found = load_one_by_one(state, name, subscripts, evaluate)
        if found is None:
            found = _load(state, access(state, name, subscripts, evaluate))
        if slot.variable.dtype.kind == "b":
            found = b.compare("ne", found, constant(found.type, 0))
        keep(state, key, found)
    return found


def load_part(state: State, name: str, subscripts: tuple[Subscript, ...], evaluate: Evaluate, imaginary: bool) -> Value:
    """The real or imaginary part of an element; where one is for all lanes, that part alone is read."""
    b, slot = state.builder, state.slots[name]
    guarded = state.lanes is not None and state.lanes.any is not None
    if slot.variable.scope != "register" and not guarded:
        key = ("load", name, subscripts, (state.lanes, imaginary))
        found = b.known.get(key)
        if found is None:
            where = access(state, name, subscripts, evaluate)
            if where.stride != 0:
                return b.part_of(load(state, name, subscripts, evaluate), int(imaginary))
            part = type_of(slot.variable.dtype.part)
            pointer = b.emit(POINTER, f"getelementptr {part}, {where.pointer}, i64 {int(imaginary)}")
            found = b.emit(part, f"load {part}, {pointer}, align {slot.variable.dtype.alignment}")
            keep(state, key, found)
        return found
    return b.part_of(load(state, name, subscripts, evaluate), int(imaginary))


def load_neighbours(
    state: State, name: str, subscripts: tuple[Subscript, ...], evaluate: Evaluate, count: int
) -> Value | None:
    """The element and those behind it, so many that they make a number of 32 bits, as that number, the first one low; None where they are not side by side in memory."""
    b, slot, lanes = state.builder, state.slots[name], state.lanes
    if slot.variable.scope == "register" or slot.variable.lanes > 1 or slot.strides[-1] != 1:
        return None
    assert 8 * slot.variable.dtype.itemsize * count == 32, "internal: elements that are no number of 32 bits"
    guarded = lanes is not None and lanes.any is not None
    key = ("load", name, subscripts, (lanes, "neighbours"))
    found = b.known.get(key)
    if found is None:
        where = access(state, name, subscripts, evaluate)
        align = slot.variable.dtype.alignment
        if where.stride == 0:
            if guarded:
                return None
            found = b.emit(I32, f"load i32, {where.pointer}, align {align}")
        else:
            assert lanes is not None
            type_ = type_of("i32", lanes.width)
            if where.stride == count:
                found = _load_run(state, where.pointer, align, type_)
            else:
                found = _gather(state, pointers_of(state, where), type_, align)
        keep(state, key, found)
    return found


def _load(state: State, where: Access) -> Value:
    b, lanes = state.builder, state.lanes
    variable = where.slot.variable
    align = variable.dtype.alignment
    if where.stride == 0:
        element = stored_type(variable)
        pointer = where.pointer
        if lanes is not None and lanes.any is not None:  # perhaps no lane acts: read a zero of our own instead
            state.builder.module.definitions.setdefault("polyml.zero", ZERO)
            pointer = b.emit(POINTER, f"select {lanes.any}, {pointer}, ptr @polyml.zero")
        return b.emit(element, f"load {element}, {pointer}, align {align}")
    assert lanes is not None
    type_ = stored_type(variable, lanes.width)
    if where.stride == 1:
        return _load_contiguous(state, where.pointer, align, where)
    if where.stride == -1:
        first = b.emit(POINTER, f"getelementptr {type_.of(1)}, {where.pointer}, i64 {1 - lanes.width}")
        with state.within(reversed_lanes(state)):
            return reverse(state, loaded_first(state, _load_contiguous(state, first, align, where)))
    if where.stride is not None and 1 < where.stride <= _WIDEST_SHUFFLED_STRIDE:
        if lanes.mask is None:
            return _load_strided(state, where, where.stride)
        if not type_.is_pair:
            return _load_strided_masked(state, where, where.stride)
    if lanes.mask is None and (type_.is_pair or not state.builder.module.instructions.gathers):
        return load_from(state, lane_pointers(state, where), type_, align)
    pointers = pointers_of(state, where)
    if not type_.is_pair:
        return _gather(state, pointers, type_, align)
    real, imag = (_gather(state, place, type_.part, align) for place in part_pointers(state, pointers, type_))
    return b.paired(real, imag, type_.element)


def _gather(state: State, pointers: Value, type_: Type, align: int) -> Value:
    assert state.lanes is not None
    if not state.builder.module.instructions.gathers:
        return load_each(state, pointers, type_, align)
    return masked_gather(state.builder, pointers, align, state.lanes.all_set, zeros(type_))


def _load_contiguous(state: State, pointer: Value, align: int, where: Access) -> Value:
    lanes = state.lanes
    assert lanes is not None
    return _load_run(state, pointer, align, stored_type(where.slot.variable, lanes.width))


def _load_run(state: State, pointer: Value, align: int, type_: Type) -> Value:
    """A vector from the address on, of the lanes that act."""
    b, lanes = state.builder, state.lanes
    assert lanes is not None
    if lanes.mask is None:
        return b.emit(type_, f"load {type_}, {pointer}, align {align}")
    if type_.bits < b.module.instructions.least_masked and lanes.leading is not None:
        if isinstance(lanes.leading, int):
            return load_leading(b, pointer, type_, lanes.leading, align)
        return load_first(b, pointer, type_, lanes.leading, align)
    mask = b.twice(lanes.mask) if type_.is_pair else lanes.mask
    return masked_load(b, pointer, align, mask, zeros(type_))


def _load_strided(state: State, where: Access, stride: int) -> Value:
    """Contiguous loads that end exactly at the last element, then a shuffle: nothing outside first..last is touched."""
    b, width = state.builder, state.width
    type_ = stored_type(where.slot.variable, width)
    last = (width - 1) * stride
    starts = [min(k * width, last + 1 - width) for k in range(stride)]
    picked: list[tuple[int, int]] = []  # (which load, which of its lanes) per lane
    for lane in range(width):
        which = min(lane * stride // width, stride - 1)
        picked.append((which, lane * stride - starts[which]))
    result: Value | None = None
    for which, start in enumerate(starts):
        pointer = b.emit(POINTER, f"getelementptr {type_.of(1)}, {where.pointer}, i64 {start}")
        part = b.emit(type_, f"load {type_}, {pointer}, align {where.slot.variable.dtype.alignment}")
        if result is None:
            result = b.shuffle(part, [lane if owner == 0 else 0 for owner, lane in picked])
        else:
            order = [width + lane if owner == which else k for k, (owner, lane) in enumerate(picked)]
            result = b.shuffle(result, order, part)
    assert result is not None
    return result


def _load_phase(state: State, name: str, phase: Phase, evaluate: Evaluate) -> Value | None:
    """The lanes out of vectors that all phases share; None where its row does not lie side by side."""
    b, width = state.builder, state.width
    key = ("load", name, phase.first, ("phase", phase.number, state.lanes))
    if key not in b.known:
        where = access(state, name, phase.first, evaluate)
        if where.stride != phase.gap:
            return None
        type_, align = stored_type(where.slot.variable, width), where.slot.variable.dtype.alignment
        loaded: list[Value] = []
        for number in range(phase.gap):
            pointer = b.emit(POINTER, f"getelementptr {type_.of(1)}, {where.pointer}, i64 {number * width}")
            loaded.append(b.emit(type_, f"load {type_}, {pointer}, align {align}"))
        for number, value in enumerate(put_apart(b, loaded)):
            b.known["load", name, phase.first, ("phase", number, state.lanes)] = value
    return b.known[key]


def _load_strided_masked(state: State, where: Access, stride: int) -> Value:
    """The same where not all lanes act: each of the loads touches the elements of those that do, by masks that are spread like them, or the ones up to the last of the first lanes."""
    b, width, lanes = state.builder, state.width, state.lanes
    assert lanes is not None
    assert lanes.mask is not None
    type_ = stored_type(where.slot.variable, width)
    none, small = zeros(lanes.mask.type), type_.bits < b.module.instructions.least_masked
    owners = [divmod(lane * stride, width) for lane in range(width)]
    result: Value | None = None
    for which in range(owners[-1][0] + 1):
        if small and isinstance(lanes.leading, int):
            count = min((lanes.leading - 1) * stride + 1 - which * width, width)
            if count <= 0:
                break
            within = replace(lanes, mask=None if count == width else lanes.mask, leading=count)
        else:
            inside = {at: lane for lane, (owner, at) in enumerate(owners) if owner == which}
            mask = b.shuffle(lanes.mask, [inside.get(at, width) for at in range(width)], none)
            within = replace(lanes, mask=mask, leading=None)
        pointer = b.emit(POINTER, f"getelementptr {type_.of(1)}, {where.pointer}, i64 {which * width}")
        with state.within(within):
            part = _load_run(state, pointer, where.slot.variable.dtype.alignment, type_)
        if result is None:
            result = b.shuffle(part, [at if owner == 0 else 0 for owner, at in owners])
        else:
            order = [width + at if owner == which else k for k, (owner, at) in enumerate(owners)]
            result = b.shuffle(result, order, part)
    assert result is not None
    return result
