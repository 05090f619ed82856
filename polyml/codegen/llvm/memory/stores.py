"""Stores by the stride of the address along the lanes; masked where lanes are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyml.codegen.llvm.ir import BIT, POINTER, Value
from polyml.codegen.llvm.memory.access import Access, lane_pointers, part_pointers, pointers_of, reverse, reversed_lanes
from polyml.codegen.llvm.memory.between import put_between
from polyml.codegen.llvm.memory.known_elements import forget
from polyml.codegen.llvm.memory.leading import in_pieces, store_first, store_leading
from polyml.codegen.llvm.memory.masked import masked_scatter, masked_store
from polyml.codegen.llvm.state import State
from polyml.sets.affine import affine

__all__ = ["store", "store_row"]


def store(state: State, where: Access, value: Value, *, streaming: bool = False, aligned: bool = False) -> None:
    """Writes the value (a scalar or one per lane) to the elements, for the lanes that act; of several lanes on one element the last one wins.

    streaming: past the caches, where the address is proved to be a multiple of the vector's size. aligned: it is one.
    """
    b, lanes = state.builder, state.lanes
    variable = where.slot.variable
    forget(state, variable.name)
    if variable.dtype.kind == "b":
        value = b.convert("zext", value, "i8")
    align = variable.dtype.alignment
    if where.stride == 0 and value.lanes == 1:
        _store_scalar(state, where, value)
        return
    assert lanes is not None, "internal: a value with lanes is stored outside a vector loop"
    value = b.splat(value, lanes.width)
    if where.stride == 0 and lanes.mask is None:
        b.write(f"store {b.extract(value, lanes.width - 1)}, {where.pointer}, align {align}")
    elif where.stride == 1:
        whole = streaming and (aligned or _is_aligned(state, where, _stored_at_once(state, where)))
        _store_contiguous(state, where, where.pointer, value, whole)
    elif where.stride == -1:
        first = b.emit(POINTER, f"getelementptr {value.type.of(1)}, {where.pointer}, i64 {1 - lanes.width}")
        with state.within(reversed_lanes(state)):
            _store_contiguous(state, where, first, reverse(state, value), False)
    elif value.type.is_pair and lanes.mask is None:
        for lane, place in enumerate(lane_pointers(state, where)):
            b.write(f"store {b.extract(value, lane)}, {place}, align {align}")
    else:
        pointers = pointers_of(state, where)
        if not value.type.is_pair:
            _scatter(state, pointers, value, align)
            return
        for part, place in enumerate(part_pointers(state, pointers, value.type)):
            _scatter(state, place, b.part_of(value, part), align)


def store_row(state: State, where: Access, values: Sequence[Value], *, streaming: bool = False) -> None:
    """Writes values that lie between each other: of each lane its elements, one behind the other, from where the access of the first value points to."""
    b, lanes, variable = state.builder, state.lanes, where.slot.variable
    assert lanes is not None, "internal: lanes of a row outside a vector loop"
    assert where.stride == len(values), "internal: a row of which elements are missing"
    forget(state, variable.name)
    if variable.dtype.kind == "b":
        values = [b.convert("zext", value, "i8") for value in values]
    width = lanes.width
    whole = streaming and lanes.mask is None and _is_aligned(state, where, variable.dtype.itemsize * width)
    for number, vector in enumerate(put_between(b, [b.splat(value, width) for value in values])):
        place = where.pointer
        if number:
            place = b.emit(POINTER, f"getelementptr {vector.type.of(1)}, {where.pointer}, i64 {number * width}")
        mask = lanes.mask
        if mask is not None:
            mask = b.shuffle(mask, [(number * width + lane) // len(values) for lane in range(width)])
        with state.within(lanes if mask is None else replace(lanes, mask=mask, leading=None)):
            _store_contiguous(state, where, place, vector, whole)


def _scatter(state: State, pointers: Value, value: Value, align: int) -> None:
    assert state.lanes is not None
    masked_scatter(state.builder, value, pointers, align, state.lanes.all_set)


def _store_scalar(state: State, where: Access, value: Value) -> None:
    b, lanes = state.builder, state.lanes
    text = f"store {value}, {where.pointer}, align {where.slot.variable.dtype.alignment}"
    if lanes is None or lanes.any is None:
        b.write(text)
        return
    then, after = b.fresh("store"), b.fresh("stored")
    b.branch(lanes.any, then, after)
    b.start(then)
    b.write(text)
    b.jump(after)
    b.start(after)


def _store_contiguous(state: State, where: Access, pointer: Value, value: Value, streaming: bool) -> None:
    b, lanes = state.builder, state.lanes
    assert lanes is not None
    variable = where.slot.variable
    if lanes.mask is not None:
        if isinstance(lanes.leading, Value) and not value.type.is_pair and variable.scope == "global":
            store_first(b, pointer, value, lanes.leading, variable.dtype.alignment)
            return
        if isinstance(lanes.leading, int) and in_pieces(value.type):
            store_leading(b, pointer, value, lanes.leading, variable.dtype.alignment)
            return
        if value.type.is_pair:
            mask = b.twice(lanes.mask)
        else:
            mask = lanes.mask if value.type.element in _STORED_WHOLE else _unforeseen(state, lanes.mask)
        masked_store(b, value, pointer, variable.dtype.alignment, mask)
        return
    whole = _stored_at_once(state, where)
    if streaming:
        state.streams = True
        b.write(f"store {value}, {pointer}, align {whole}, !nontemporal !{{i32 1}}")
    else:
        b.write(f"store {value}, {pointer}, align {variable.dtype.alignment}")


def _stored_at_once(state: State, where: Access) -> int:
    """Bytes of a whole vector that one instruction stores."""
    return min(where.slot.variable.dtype.itemsize * state.width, state.builder.module.instructions.register_bytes)


def _is_aligned(state: State, where: Access, size: int) -> bool:
    """Whether the address is a multiple of `size` bytes: for all values of the loop variables, from the array's alignment or its lead."""
    variable, flat = where.slot.variable, where.flat
    if flat is None:
        return False
    itemsize = variable.dtype.itemsize
    if (variable.alignment or 1) % size == 0 and state.nest.multiple_of(flat) * itemsize % size == 0:
        return True
    leads = [lead for lead in state.leads if lead.array == variable.name and not lead.row and lead.bytes % size == 0]
    return any(state.nest.multiple_of(flat - affine(lead.name)) * itemsize % size == 0 for lead in leads)


_STORED_WHOLE = frozenset({"float", "double", "i64"})
"""Elements that are not the low bits of longer ones."""

_ALL = "polyml_all"


def _unforeseen(state: State, mask: Value) -> Value:
    """The mask, in a form that LLVM cannot take for a constant.

    With AVX-512, LLVM 22 makes of a masked store whose mask is constant, with one lane, and whose value is truncated from longer elements a store of
    one such longer element: it writes beyond the one that is meant.
    """
    b = state.builder
    found = state.unforeseen.get(mask.lanes)
    if found is None:
        b.module.definitions.setdefault(_ALL, f"@{_ALL} = internal global i1 true")
        with b.into(state.entry):
            found = b.splat(b.emit(BIT, f"load volatile i1, ptr @{_ALL}"), mask.lanes)
        state.unforeseen[mask.lanes] = found
    return b.binary("and", mask, found)
