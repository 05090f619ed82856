"""A block of a copy that is a run of neighbours where it is written: each vector of the run is picked, by shuffles, out of as few vectors as hold its elements where they are read.

Nothing is touched that is not between two elements that are read; the last vector of a run overlaps the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polyml.codegen.llvm.ir import POINTER, Builder, Type, Value, type_of
from polyml.codegen.llvm.memory.access import Evaluate, access
from polyml.codegen.llvm.memory.known_elements import forget
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Assign, For
from polyml.expressions import Read, Subscript
from polyml.sets.affine import Affine
from polyml.sets.picked import LARGEST, places_of_parts, places_of_run, vectors_of_run, windows_of

__all__ = ["shuffle_block"]


def shuffle_block(state: State, loop: For, evaluate: Evaluate) -> None:
    """All iterations of a nest of loops of kind "shuffle" at once, the nest's variable being at the first one of its outermost loop."""
    loops = list(_nest(loop))
    (move,) = loops[-1].body
    assert isinstance(move, Assign), "internal: a block that does not copy"
    assert isinstance(move.value, Read), "internal: a block that does not copy"
    to, of = (move.target.variable, move.target.subscripts), (move.value.tensor, move.value.subscripts)
    steps: list[tuple[int, int, int]] = []
    for inner in loops:
        extent = inner.upper - inner.lower
        assert extent.is_constant, "internal: a block of unknown length"
        along, other = (_stride(state, name, subscripts, inner.variable) for name, subscripts in (to, of))
        steps.append((extent.constant, along, other))
    places = places_of_run(steps)
    assert places is not None, "internal: a block with gaps"
    first = {inner.variable: inner.lower for inner in loops[1:]}
    pointers = [
        access(state, name, tuple(s.substitute(first) if isinstance(s, Affine) else s for s in subscripts), evaluate)
        for name, subscripts in (to, of)
    ]
    size = pointers[0].slot.variable.dtype.itemsize
    lane, align = type_of(f"i{8 * min(size, LARGEST)}"), pointers[0].slot.variable.dtype.alignment
    _copy(
        state.builder, lane, places_of_parts(places, size), pointers[0].pointer, pointers[1].pointer, loop.width, align
    )
    forget(state, move.target.variable)


def _nest(loop: For) -> Iterator[For]:
    """The loop and those inside, each of which is all that the one before does."""
    yield loop
    while len(loop.body) == 1 and isinstance(inner := loop.body[0], For):
        yield inner
        loop = inner


def _stride(state: State, name: str, subscripts: tuple[Subscript, ...], variable: str) -> int:
    place = state.flat(name, subscripts)
    assert place is not None, "internal: a block at unknown places"
    assert not place[1], "internal: a block at unknown distances"
    stride = place[0].stride(variable)
    assert stride is not None, "internal: a block at irregular distances"
    return stride


def _copy(b: Builder, lane: Type, places: Sequence[int], to: Value, of: Value, width: int, align: int) -> None:
    low, high = min(places), max(places)
    length = min(width, 1 << ((high - low + 1).bit_length() - 1))
    loaded: dict[int, Value] = {}
    for start in vectors_of_run(len(places), width):
        wanted = places[start : start + width]
        windows = windows_of(wanted, length, low, high)
        for window in windows:
            if window not in loaded:
                type_ = lane.of(length)
                loaded[window] = b.emit(type_, f"load {type_}, {_moved(b, lane, of, window)}, align {align}")
        value = _picked(b, lane.of(width), wanted, windows, [loaded[window] for window in windows])
        b.write(f"store {value}, {_moved(b, lane, to, start)}, align {align}")


def _moved(b: Builder, lane: Type, pointer: Value, elements: int) -> Value:
    return b.emit(POINTER, f"getelementptr {lane}, {pointer}, i64 {elements}") if elements else pointer


def _picked(b: Builder, type_: Type, wanted: Sequence[int], windows: Sequence[int], loaded: Sequence[Value]) -> Value:
    """The elements at these places, out of vectors that begin at `windows`."""
    length = loaded[0].lanes
    if length == 1:  # one element is all that is read
        return b.splat(loaded[0], type_.lanes)
    spots: list[tuple[int, int]] = []  # which window, and where in it
    for place in wanted:
        which = next(k for k, window in enumerate(windows) if window <= place < window + length)
        spots.append((which, place - windows[which]))
    order: list[int | None] = [at + length * which if which < 2 else None for which, at in spots]
    other = loaded[1] if len(loaded) > 1 else None
    if other is None and order == list(range(type_.lanes)) and length == type_.lanes:
        return loaded[0]
    value = _order(b, type_, loaded[0], order, other)
    for number, vector in enumerate(loaded[2:], 2):
        if length < type_.lanes:
            vector = _order(b, type_, vector, [k if k < length else None for k in range(type_.lanes)], None)
        mixed: list[int | None] = []
        for lane, (which, at) in enumerate(spots):
            mixed.append(lane if which < number else type_.lanes + at if which == number else None)
        value = _order(b, type_, value, mixed, vector)
    return value


def _order(b: Builder, type_: Type, one: Value, order: Sequence[int | None], other: Value | None) -> Value:
    """The lanes in that order; None: whatever."""
    mask = ", ".join("i32 poison" if k is None else f"i32 {k}" for k in order)
    second = f"{one.type} poison" if other is None else str(other)
    return b.emit(type_, f"shufflevector {one}, {second}, <{len(order)} x i32> <{mask}>")
