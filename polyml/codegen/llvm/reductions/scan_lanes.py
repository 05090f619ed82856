"""Lanes of a recurrence: values moved from lane to lane, and what stands before the first one."""

from __future__ import annotations

from polyml.codegen.llvm.expression import evaluate
from polyml.codegen.llvm.ir import Builder, Type, Value, constant, type_of
from polyml.codegen.llvm.state import State
from polyml.expressions import Expr

__all__ = [
    "Sources",
    "earlier_bits",
    "earlier_lanes",
    "in_halves",
    "lanes_with",
    "last_lane",
    "neutral_lanes",
    "resets",
    "sources_of",
    "taken_from",
]

Sources = tuple[int | None, ...]
"""Of a step of a scan: the lane that each lane takes a value from; None: it takes none."""

_WIDE = 512
"""Bits of a vector of AVX-512."""


def resets(state: State, condition: Expr) -> Value:
    """Where a recurrence starts anew, per lane; lanes that do not act hand on what they get."""
    b = state.builder
    found = b.splat(evaluate(state, condition), state.width)
    mask = None if state.lanes is None else state.lanes.mask
    return found if mask is None else b.binary("and", found, mask)


def earlier_bits(b: Builder, mask: Value, step: int) -> Value:
    """The lanes of a mask moved up by `step`, as bits of a number; the first ones are false."""
    bits = Type(f"i{mask.lanes}", 1)
    number = b.emit(bits, f"bitcast {mask} to {bits}")
    moved = b.binary("shl", number, constant(bits, step))
    return b.emit(mask.type, f"bitcast {moved} to {mask.type}")


def earlier_lanes(b: Builder, value: Value, step: int, before: Value) -> Value:
    """The lanes moved up by `step`; the first ones are those of `before`."""
    lanes = value.lanes
    return b.shuffle(value, [lanes + k if k < step else k - step for k in range(lanes)], before)


def in_halves(b: Builder, type_: Type) -> bool:
    """Whether lanes had better stay within halves of a register for as long as they can: with AVX2, where moving them within halves is one instruction of one cycle, and between halves two of four to seven."""
    known = b.module.instructions
    return known.avx2 and not known.valign and type_.lanes * type_.bits == 256 and type_.bits in (32, 64)


def sources_of(lanes: int, *, halves: bool) -> tuple[Sources, ...]:
    """The steps of a scan: each lane with the one 1, 2, 4, .. before it (Kogge and Stone); halves: within each half, and then all of the second with the last of the first (Sklansky, "Conditional-sum addition logic", IRE Trans., 1960)."""
    length = lanes // 2 if halves else lanes
    found: list[Sources] = []
    step = 1
    while step < length:
        found.append(tuple(k - step if k % length >= step else None for k in range(lanes)))
        step *= 2
    if halves:
        found.append(tuple(None if k < length else length - 1 for k in range(lanes)))
    return tuple(found)


def taken_from(b: Builder, value: Value, sources: Sources, before: Value) -> Value:
    """The lanes that the step takes; in lanes that take none those of `before`."""
    lanes = value.lanes
    return b.shuffle(value, [lanes + k if source is None else source for k, source in enumerate(sources)], before)


def lanes_with(sources: Sources) -> Value:
    """A mask of the lanes that take one."""
    bits = ", ".join(f"i1 {'false' if source is None else 'true'}" for source in sources)
    return Value(type_of("i1", len(sources)), f"<{bits}>")


def neutral_lanes(state: State, type_: Type, reduction: str, identity: float) -> Value:
    """The reduction's identity in all lanes. Of wide vectors LLVM does not know it: with a constant it moves lanes by vexpand, two instructions of the one unit that shuffles, instead of one."""
    known = constant(type_, identity)
    if type_.lanes * type_.bits < _WIDE or not type_.is_float:
        return known
    found = state.unforeseen.get(known)
    if found is None:
        b, element = state.builder, type_.of(1)
        name = f"polyml_{reduction}_{element.element}"
        b.module.definitions.setdefault(name, f"@{name} = internal global {constant(element, identity)}")
        with b.into(state.entry):
            found = b.splat(b.emit(element, f"load volatile {element}, ptr @{name}"), type_.lanes)
        state.unforeseen[known] = found
    return found


def last_lane(b: Builder, value: Value, lanes: int) -> Value:
    """The last lane, once or in as many lanes."""
    if lanes == 1:
        return b.extract(value, value.lanes - 1)
    return b.shuffle(value, [value.lanes - 1] * lanes)
