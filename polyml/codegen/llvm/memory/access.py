"""The elements that an access names: their address, and how it moves along the lanes, which decides between broadcast, contiguous, reversed, strided and gathered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce

from polyml.codegen.llvm.ir import POINTER, Type, Value, integer, type_of
from polyml.codegen.llvm.memory.addresses import Offset, Term
from polyml.codegen.llvm.state import Lanes, Slot, State, stored_type
from polyml.expressions import Expr, Subscript, apart, reads_of
from polyml.records import dataclass
from polyml.sets.affine import Affine, weighted_sum

__all__ = [
    "Access",
    "Evaluate",
    "access",
    "as_index",
    "is_apart",
    "lane_pointers",
    "loaded_first",
    "part_pointers",
    "pointers_of",
    "prefetch",
    "register_parts",
    "regular",
    "reverse",
    "reversed_lanes",
    "told",
]

_REGISTER = 256
"""Bits of AVX2's registers, for which alone LLVM's constraint stands."""

Evaluate = Callable[[State, Expr], Value]
"""Computes the expression of a gathered subscript."""


@dataclass(frozen=True, slots=True)
class Access:
    """The elements that an access names. stride: along the lanes, in elements (0: one element for all), `pointer` is the first lane's;
    None: `pointer` holds one address per lane. flat: the (first lane's) element, counted from the array's start; None: not known as one expression.
    evenly: the first of such addresses and a stride along the lanes that is known at run time, where they have one."""

    slot: Slot
    pointer: Value
    stride: int | None
    flat: Affine | None
    evenly: tuple[Value, Value] | None = None


def access(state: State, name: str, subscripts: tuple[Subscript, ...], evaluate: Evaluate) -> Access:
    """Computes the address of `name[subscripts]`."""
    slot = state.slots[name]
    assert len(subscripts) == len(slot.strides), (
        f"internal: {name} has {len(slot.strides)} dimensions, not {len(subscripts)}"
    )
    known: list[tuple[Affine, int]] = []
    symbolic: dict[str, Affine] = {}
    gathered: list[tuple[Value, int | str]] = []
    for subscript, stride in zip(subscripts, slot.strides, strict=True):
        if not isinstance(subscript, Affine):
            subscript, rest = apart(subscript)
            if rest is not None:
                gathered.append((as_index(state, told(state, rest, evaluate), rest), stride))
        if isinstance(stride, int):
            known.append((subscript, stride))
        else:
            symbolic[stride] = symbolic.get(stride, Affine()) + subscript
    flat = weighted_sum(known)
    parts: list[tuple[str | None, Affine]] = [(None, flat), *symbolic.items()]
    pointer, lane_stride, step, varying = regular(state, slot, parts)
    whole = None if symbolic or gathered else flat
    if slot.variable.lanes > 1 and slot.variable.scope != "register":  # the lanes' copies of an element are neighbours
        lane_stride += 1
    element = stored_type(slot.variable)
    for value, stride in gathered:
        scaled = _scaled(state, value, stride)
        if scaled.lanes == 1:
            pointer = state.builder.emit(POINTER, f"getelementptr {element}, {pointer}, {scaled}")
        else:
            varying = scaled if varying is None else state.builder.binary("add", varying, scaled)
    if step is not None:
        return _evenly(state, slot, pointer, step, lane_stride, varying)
    if varying is None:
        return Access(slot, pointer, lane_stride, whole)
    if lane_stride != 0:
        varying = state.builder.binary("add", varying, state.builder.iota(state.width, lane_stride))
    pointers = state.builder.emit(type_of("ptr", state.width), f"getelementptr {element}, {pointer}, {varying}")
    return Access(slot, pointers, None, None)


def _evenly(state: State, slot: Slot, first: Value, step: Value, more: int, varying: Value | None) -> Access:
    """Lanes `step` elements and `more` apart: their distances from the first one are the same wherever that is, and computed once."""
    nest, b, width = state.nest, state.builder, state.width
    if more:
        step = nest.once(0, ("step", step.text, more), partial(b.binary, "add", step, integer(more)))
    distances = nest.once(
        0, ("distances", step.text, width), lambda: b.binary("mul", b.iota(width), b.splat(step, width))
    )
    offsets = distances if varying is None else b.binary("add", varying, distances)
    pointers = b.emit(type_of("ptr", width), f"getelementptr {stored_type(slot.variable)}, {first}, {offsets}")
    return Access(slot, pointers, None, None, (first, step) if varying is None else None)


def regular(
    state: State, slot: Slot, parts: list[tuple[str | None, Affine]]
) -> tuple[Value, int, Value | None, Value | None]:
    """Of what is no tensor's: pointer to the first lane's element, the constant stride along the lanes, what is added to it at run time, and what of the offset varies otherwise (or None)."""
    variable = state.lanes.variable if state.lanes is not None and state.lanes.width > 1 else None
    nest = state.nest
    terms: list[tuple[Term, int]] = []
    shift, lane_stride = 0, 0
    steps: list[tuple[str, int]] = []
    varying: Value | None = None
    for key, part in parts:
        stride = 0 if variable is None else nest.lane_stride(part, variable, state.width)
        if stride is None:
            assert variable is not None
            fixed = tuple(t for t in part.terms if nest.lane_stride(Affine((t,)), variable, state.width) == 0)
            rest = part - Affine(fixed, part.constant)
            part = part - rest
            along = _scaled(state, nest.lanes_index(rest, variable, state.width), 1 if key is None else key)
            varying = along if varying is None else state.builder.binary("add", varying, along)
        elif stride and key is not None:
            steps.append((key, stride))
        elif stride:
            lane_stride = stride
        terms.extend(((atom, key), coefficient) for atom, coefficient in part.terms)
        if key is None:
            shift = part.constant
        elif part.constant:
            terms.append(((None, key), part.constant))
    name = slot.variable.name
    pointer = nest.address(name, slot.pointer, stored_type(slot.variable), Offset(tuple(terms), shift))
    return pointer, lane_stride, _sum_of_strides(state, steps) if steps else None, varying


def _sum_of_strides(state: State, steps: list[tuple[str, int]]) -> Value:
    """Strides that are known at run time, so many times each."""
    b = state.builder

    def compute() -> Value:
        scaled = [b.binary("mul", state.nest.strides[key], integer(times)) for key, times in steps]
        return reduce(partial(b.binary, "add"), scaled)

    return state.nest.once(0, ("steps", tuple(steps)), compute)


def told(state: State, place: Expr, evaluate: Evaluate) -> Value:
    """What tensors tell of a subscript, once for all that is read and written there until one of them is written. What registers tell is asked anew: they change from step to step."""
    key, known = ("place", place, state.lanes), state.builder.known
    if any(state.slots[read.tensor].variable.scope == "register" for read in reads_of(place)):
        return evaluate(state, place)
    if key not in known:
        known[key] = evaluate(state, place)
    return known[key]


def as_index(state: State, value: Value, subscript: Expr) -> Value:
    """The subscript's value with 64 bits."""
    signed = subscript.dtype.kind == "i"
    return state.builder.convert("sext" if signed else "zext", value, "i64")


def _scaled(state: State, value: Value, stride: int | str) -> Value:
    if stride == 1:
        return value
    factor = integer(stride) if isinstance(stride, int) else state.nest.strides[stride]
    return state.builder.binary("mul", value, state.builder.splat(factor, value.lanes))


def is_apart(
    state: State, name: str, subscripts: tuple[Subscript, ...], evaluate: Evaluate, *, or_beside: bool = False
) -> bool:
    """Whether lanes read the element from places that are not side by side: strided or gathered. or_beside: or from such that are, but not all from one."""
    if state.lanes is None or state.slots[name].variable.scope == "register":
        return False
    return access(state, name, subscripts, evaluate).stride not in ((0,) if or_beside else (0, 1, -1))


def part_pointers(state: State, pointers: Value, type_: Type) -> tuple[Value, Value]:
    """The addresses of the real and of the imaginary parts."""
    return pointers, state.builder.emit(pointers.type, f"getelementptr {type_.part.of(1)}, {pointers}, i64 1")


def register_parts(state: State, pointer: Value, type_: Type) -> tuple[Value, Value]:
    """Where a register of complex lanes has its real and its imaginary parts: each of them side by side, so that steps compute with them as they are, and nothing is put between each other that the next step takes apart."""
    return pointer, state.builder.emit(pointer.type, f"getelementptr {type_.part}, {pointer}, i64 1")


def loaded_first(state: State, value: Value) -> Value:
    """The value, whose lanes are about to change places, by a load of its own: measured on Zen 3, an instruction that moves lanes between halves of a register takes two cycles from memory, and 1.0 to 1.3 from a register."""
    b = state.builder
    if not b.module.instructions.avx2 or value.type.lanes * value.type.bits != _REGISTER:
        return value
    return b.emit(value.type, f'call {value.type} asm "", "=x,0"({value})')


def reverse(state: State, value: Value) -> Value:
    """The lanes in the opposite order."""
    return state.builder.shuffle(value, range(value.lanes - 1, -1, -1))


def reversed_lanes(state: State) -> Lanes:
    """The lanes with their mask in the opposite order."""
    lanes = state.lanes
    assert lanes is not None
    return lanes if lanes.mask is None else replace(lanes, mask=reverse(state, lanes.mask), leading=None)


def pointers_of(state: State, where: Access) -> Value:
    """One address per lane."""
    if where.stride is None:
        return where.pointer
    element = stored_type(where.slot.variable)
    steps = state.builder.iota(state.width, where.stride)
    return state.builder.emit(type_of("ptr", state.width), f"getelementptr {element}, {where.pointer}, {steps}")


def lane_pointers(state: State, where: Access) -> list[Value]:
    """The same as single addresses, which are numbers beside the first one's where the stride is known: nothing is taken out of a vector."""
    b, nest, element = state.builder, state.nest, stored_type(where.slot.variable)
    first, step = where.evenly or (where.pointer, None)
    if where.stride is None and step is None:
        return [b.extract(where.pointer, lane) for lane in range(state.width)]
    found = [first]
    for lane in range(1, state.width):
        if step is None:
            offset = integer((where.stride or 0) * lane)
        else:
            offset = nest.once(0, ("times", step.text, lane), partial(b.binary, "mul", step, integer(lane)))
        found.append(b.emit(POINTER, f"getelementptr {element}, {first}, {offset}"))
    return found


def prefetch(state: State, where: Access, level: int, *, write: bool) -> None:
    """Asks for the cache line of the (first lane's) element; an address outside of all memory does no harm."""
    b = state.builder
    pointer = where.pointer if where.stride is not None else b.extract(where.pointer, 0)
    b.module.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
    b.write(f"call void @llvm.prefetch.p0({pointer}, i32 {int(write)}, i32 {4 - level}, i32 1)")
