"""Where variables live: arguments, registers, and local arrays on the stack or the heap."""

from __future__ import annotations

from polyml.codegen.llvm.ir import INDEX, POINTER, Value, integer, type_of
from polyml.codegen.llvm.memory.access import register_parts
from polyml.codegen.llvm.state import Slot, State
from polyml.codegen.loops import Variable
from polyml.sets.affine import Affine

__all__ = ["SCRATCH", "SCRATCH_FREE", "add_slot", "leave_room", "make_room", "release"]

SCRATCH, SCRATCH_FREE = "polyml_scratch", "polyml_scratch_free"
"""The runtime's `ptr (i64 bytes)`, at a multiple of 64, and what gives it back."""

_STACK_LIMIT = 64 * 1024
"""Bytes: larger local arrays, and all that would make a frame larger than four times this, live on the heap."""

PERIOD = 4096
"""Bytes after which lines of an L1 meet in one set: a page, since it is looked up while the page's address is."""

STRIP = 1536
"""Bytes between arrays whose strips lie side by side: those of a row that a tile of many rows has (1024; schedule/strategy/sequential/time_tiles.py), and half as many, since loads at the beginning of a strip wait for stores to the end of one that
ends there modulo PERIOD. Rows may be such that all even ones begin near each other, modulo PERIOD; then strips of both fill it."""

ROW = 2048
"""Bytes of a local array on the stack from which on it lies half a PERIOD from the argument whose rows it belongs to: loads of a row wait for older stores whose addresses differ from theirs by a multiple of PERIOD."""


def add_slot(state: State, variable: Variable, pointer: Value) -> None:
    """Makes the variable known, at that address."""
    mask = None if state.lanes is None else state.lanes.mask
    state.slots[variable.name] = Slot(variable, pointer, _strides(state, variable), mask)


def _strides(state: State, variable: Variable) -> tuple[int | str, ...]:
    if variable.strides is not None:
        return variable.strides
    strides: list[int | str] = []
    step: int | str = 1 if variable.scope == "register" else variable.lanes
    for position in range(len(variable.shape) - 1, -1, -1):
        strides.append(step)
        if position:
            step = _times(state, step, variable.shape[position])
    return tuple(reversed(strides))


def _times(state: State, step: int | str, extent: Affine) -> int | str:
    """step * extent; a product with a size gets a name in the nest."""
    if isinstance(step, int) and extent.is_constant:
        return step * extent.constant
    name = f"{step}*({extent})"
    nest, b = state.nest, state.builder
    if name not in nest.strides:
        size = nest.index(extent)
        if step != 1:
            factor = integer(step) if isinstance(step, int) else nest.strides[step]
            size = nest.once(0, ("stride", name), lambda: b.binary("mul", size, factor))
        nest.strides[name] = size
    return name


def make_room(state: State, variable: Variable) -> Value:
    """Room for the variable: registers and small arrays on the stack, others on the heap, once per call of the function. Arrays of one size that are never used at the same time share theirs."""
    if variable.scope != "register":
        assert state.width == variable.lanes, "internal: a local array inside a vector loop that is not one per lane"
        return _room_for_array(state, variable)
    type_ = type_of(variable.dtype, variable.lanes)
    with state.builder.into(state.entry):
        alignment = max(variable.dtype.itemsize, type_.bits * type_.lanes // 8)
        pointer = state.builder.emit(POINTER, f"alloca {type_}, align {alignment}")
    if variable.lanes > 1 and state.lanes is not None and state.lanes.mask is not None:
        # What a register had before stays in lanes that do not act, and the hardware is slow where that happens to be a subnormal number.
        parts = register_parts(state, pointer, type_) if type_.is_pair else (pointer,)
        for part in parts:
            kind = type_.part if type_.is_pair else type_
            state.builder.write(f"store {kind} zeroinitializer, {part}, align {variable.dtype.alignment}")
    return pointer


def release(state: State) -> None:
    """Frees what is on the heap, before the function returns."""
    for pointer in state.heap:
        state.builder.module.declare(SCRATCH_FREE, "void", ["ptr"], "nounwind")
        state.builder.write(f"call void @{SCRATCH_FREE}({pointer})")


def _room_for_array(state: State, variable: Variable) -> Value:
    b, size = state.builder, _constant_size(variable)
    if size is not None and size <= _STACK_LIMIT and state.stack_bytes + size <= 4 * _STACK_LIMIT:
        row = _beside(state, variable) if size >= ROW else None
        size += 0 if row is None else PERIOD
        state.stack_bytes += size
        with b.into(state.entry):
            pointer = b.emit(POINTER, f"alloca [{max(size, 1)} x i8], align 64")
        if row is None:
            return pointer
        with b.into(state.nest.levels[0].lines):
            return _apart(state, pointer, row, PERIOD // 2)
    b.module.declare(SCRATCH, "noalias ptr", ["i64"], "nounwind")
    elements: int | str = variable.lanes
    for extent in variable.shape:
        elements = _times(state, elements, extent)
    count = integer(elements) if isinstance(elements, int) else state.nest.strides[elements]
    idle = state.idle.get(_kind(state, elements, variable))
    if idle:
        return idle.pop()
    beside = _beside(state, variable)
    with b.into(state.nest.levels[0].lines):
        total = b.binary("mul", count, integer(variable.dtype.itemsize))
        most = 127 if beside is None else 127 + PERIOD
        rounded = b.binary("and", b.binary("add", total, integer(most)), integer(-64))  # a multiple of 64, and not 0
        for version in state.versions:
            rounded = b.select(version, rounded, integer(0))  # where another version runs
        start = b.emit(POINTER, f"call align 64 ptr @{SCRATCH}({rounded})")
        # Strips of rows of both lie side by side in L1, and not on top of each other.
        pointer = start if beside is None else _apart(state, start, beside, (len(state.rooms) + 1) * STRIP)
    state.heap.append(start)
    state.rooms.append(pointer)
    return pointer


def _beside(state: State, variable: Variable) -> Value | None:
    """The last argument with rows as long as those of the local array, which is filled from it or for it."""
    found: Value | None = None
    for slot in state.slots.values():
        other = slot.variable
        alike = len(other.shape) > 1 and len(variable.shape) > 1 and other.shape[-1] == variable.shape[-1]
        if other.scope == "global" and alike and other.strides is None and variable.lanes == 1:
            found = slot.pointer if other.dtype.itemsize == variable.dtype.itemsize else found
    return found


def _apart(state: State, start: Value, beside: Value, distance: int) -> Value:
    """The first line from `start` on that is so far from the argument, modulo PERIOD."""
    b = state.builder
    here, there = (b.emit(INDEX, f"ptrtoint {pointer} to i64") for pointer in (start, beside))
    wanted = b.binary("add", there, integer(distance % PERIOD))
    ahead = b.binary("and", b.binary("sub", wanted, here), integer(PERIOD - 64))
    return b.emit(POINTER, f"getelementptr i8, {start}, {ahead}")


def leave_room(state: State, slot: Slot) -> None:
    """What comes later may have the room of a local array on the heap."""
    if slot.variable.scope == "register" or not any(slot.pointer is pointer for pointer in state.rooms):
        return
    elements: int | str = slot.variable.lanes
    for extent in slot.variable.shape:
        elements = _times(state, elements, extent)
    state.idle.setdefault(_kind(state, elements, slot.variable), []).append(slot.pointer)


def _kind(state: State, elements: int | str, variable: Variable) -> tuple[str, ...]:
    """What rooms have in common that may stand for each other: so many elements of a size, in the same version of the function."""
    return (str(elements), str(variable.dtype.itemsize), *(version.text for version in state.versions))


def _constant_size(variable: Variable) -> int | None:
    """Bytes, when no size is symbolic."""
    total = variable.dtype.itemsize * variable.lanes
    for extent in variable.shape:
        if not extent.is_constant:
            return None
        total *= extent.constant
    return total
