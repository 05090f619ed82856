"""The frame of an LLVM function: room for its local arrays comes first, and whoever finds no memory for them leaves at once.

A function of a region returns 0 or NO_MEMORY, and then what it was to write is undefined. A thread that runs a part of its parallel loop and finds none notes that in an i32 of the function's frame, whose
address is the last word of the loop's context; the function leaves behind the loop.
"""

from __future__ import annotations

import functools

from polyml.codegen.llvm.ir import ENTRY, I32, POINTER, Lines, Value, flat
from polyml.codegen.llvm.memory.storage import release
from polyml.codegen.llvm.state import State

__all__ = ["NO_MEMORY", "failure_of", "finish", "leave_if_failed"]

NO_MEMORY = -1
"""What a function returns that found no memory."""

_START, _MISSING, _LEAVE = "start.0", "missing.0", "leave.0"
"""Blocks: what has no loop around it and makes room; the note that there is none; the one way out."""


def failure_of(state: State) -> Value:
    """The address of the i32 that is 0 as long as there was memory: given from outside, else of the function's own frame."""
    if state.failure is None:
        b = state.builder
        with b.into(state.entry):
            state.failure = b.emit(POINTER, "alloca i32, align 4")
            b.write(f"store i32 0, {state.failure}, align 4")
    return state.failure


def leave_if_failed(state: State) -> None:
    """Goes on only where all threads had memory: what they were to write may be subscripts."""
    b = state.builder
    onward = b.fresh("onward")
    b.branch(b.compare("ne", _status(state), Value(I32, "0")), _LEAVE, onward, rare=True)
    b.start(onward)


def _status(state: State) -> Value:
    return state.builder.emit(I32, f"load atomic i32, {failure_of(state)} monotonic, align 4")


def finish(state: State, header: str, *, status: bool) -> None:
    """Writes the function down. status: it returns whether there was memory; else its caller looks."""
    b = state.builder
    made = [f"{ENTRY}:", state.entry, *b.lines]
    if state.heap or state.failure is not None:
        missing = _unless_missing(state) if state.heap else [f"  br label %{ENTRY}"]
        b.jump(_LEAVE)
        b.start(_LEAVE)
        first, *rest = b.lines
        made = [f"{_START}:", state.entry, first, *missing, f"{ENTRY}:", *rest]
    last: Lines = []
    with b.into(last):
        release(state)
        if (
            state.streams
        ):  # they are not ordered with other stores: whoever learns that this function is done must see them
            b.write("fence seq_cst")
        b.write(f"ret {_status(state) if state.failure is not None else 'i32 0'}" if status else "ret void")
    # Vectors that registers do not hold lie in whole lines then; LLVM finds out too late that it needs them for a frame, and leaves those at any multiple of 16 bytes.
    attributes = 'nounwind "prefer-vector-width"="512" "stackrealign"'
    body = "\n".join(flat([*made, last]))
    b.module.definitions[state.name] = f"{header} {attributes} {{\n{body}\n}}"


def _unless_missing(state: State) -> Lines:
    """The end of the first block: on, where the heap gave all that was asked for."""
    b = state.builder
    lines: Lines = []
    failure, block = failure_of(state), b.block
    with b.into(lines):
        none = [b.compare("eq", pointer, Value(POINTER, "null")) for pointer in state.heap]
        b.branch(functools.reduce(lambda x, y: b.binary("or", x, y), none), _MISSING, ENTRY, rare=True)
        b.start(_MISSING)
        b.write(f"store atomic i32 {NO_MEMORY}, {failure} monotonic, align 4")
        b.jump(_LEAVE)
    b.block = block
    return lines
