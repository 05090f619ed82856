"""Addresses, and loads by the stride of the address along the lanes: broadcast, contiguous, reversed, strided, gathered; masked where lanes are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polyml.codegen.llvm.addresses import Offset, Term
from polyml.codegen.llvm.ir import I32, POINTER, Type, Value, constant, integer, type_of
from polyml.codegen.llvm.phases import Phase
from polyml.codegen.llvm.state import Lanes, Slot, State, stored_type
from polyml.codegen.llvm.zipped import load_zipped
from polyml.expressions import Expr, Subscript
from polyml.records import dataclass
from polyml.sets.affine import Affine

__all__ = [
    "Access",
    "Evaluate",
    "access",
    "forget",
    "is_apart",
    "is_known",
    "load",
    "load_neighbours",
    "load_part",
    "part_pointers",
    "pointers_of",
    "prefetch",
    "remember",
    "reverse",
    "reversed_lanes",
]

Evaluate = Callable[[State, Expr], Value]
"""Computes the expression of a gathered subscript."""

_WIDEST_SHUFFLED_STRIDE = 4
"""Up to here a strided vector is read by as many contiguous loads and shuffles, else gathered."""


@dataclass(frozen=True, slots=True)
class Access:
    """The elements that an access names. stride: along the lanes, in elements (0: one element for all), `pointer` is the first lane's;
    None: `pointer` holds one address per lane. flat: the (first lane's) element, counted from the array's start; None: not known as one expression."""

    slot: Slot
    pointer: Value
    stride: int | None
    flat: Affine | None


def access(state: State, name: str, subscripts: tuple[Subscript, ...], evaluate: Evaluate) -> Access:
    """Computes the address of `name[subscripts]`."""
    slot = state.slots[name]
    assert len(subscripts) == len(slot.strides), (
        f"internal: {name} has {len(slot.strides)} dimensions, not {len(subscripts)}"
    )
    flat = Affine()
    symbolic: dict[str, Affine] = {}
    gathered: list[tuple[Value, int | str]] = []
    for subscript, stride in zip(subscripts, slot.strides, strict=True):
        if not isinstance(subscript, Affine):
            gathered.append((_as_index(state, evaluate(state, subscript), subscript), stride))
        elif isinstance(stride, int):
            flat = flat + subscript * stride
        else:
            symbolic[stride] = symbolic.get(stride, Affine()) + subscript
    parts: list[tuple[str | None, Affine]] = [(None, flat), *symbolic.items()]
    pointer, lane_stride, varying = _regular(state, slot, parts)
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
    if varying is None:
        return Access(slot, pointer, lane_stride, whole)
    if lane_stride != 0:
        varying = state.builder.binary("add", varying, state.builder.iota(state.width, lane_stride))
    pointers = state.builder.emit(type_of("ptr", state.width), f"getelementptr {element}, {pointer}, {varying}")
    return Access(slot, pointers, None, None)


def _regular(state: State, slot: Slot, parts: list[tuple[str | None, Affine]]) -> tuple[Value, int, Value | None]:
    """Pointer to the first lane's element, the constant stride along the lanes, and what of the offset varies otherwise (or None)."""
    variable = state.lanes.variable if state.lanes is not None and state.lanes.width > 1 else None
    nest = state.nest
    terms: list[tuple[Term, int]] = []
    shift, lane_stride = 0, 0
    varying: Value | None = None
    for key, part in parts:
        stride = 0 if variable is None else nest.lane_stride(part, variable, state.width)
        irregular = stride is None or (key is not None and stride != 0)
        if irregular:
            assert variable is not None
            fixed = tuple(t for t in part.terms if nest.lane_stride(Affine((t,)), variable, state.width) == 0)
            rest = part - Affine(fixed, part.constant)
            part = part - rest
            along = _scaled(state, nest.lanes_index(rest, variable, state.width), 1 if key is None else key)
            varying = along if varying is None else state.builder.binary("add", varying, along)
        elif stride:
            lane_stride = stride
        terms.extend(((atom, key), coefficient) for atom, coefficient in part.terms)
        if key is None:
            shift = part.constant
        elif part.constant:
            terms.append(((None, key), part.constant))
    name = slot.variable.name
    pointer = nest.address(name, slot.pointer, stored_type(slot.variable), Offset(tuple(terms), shift))
    return pointer, lane_stride, varying


def _as_index(state: State, value: Value, subscript: Expr) -> Value:
    signed = subscript.dtype.kind == "i"
    return state.builder.convert("sext" if signed else "zext", value, "i64")


def _scaled(state: State, value: Value, stride: int | str) -> Value:
    if stride == 1:
        return value
    factor = integer(stride) if isinstance(stride, int) else state.nest.strides[stride]
    return state.builder.binary("mul", value, state.builder.splat(factor, value.lanes))


def load(state: State, name: str, subscripts: tuple[Subscript, ...], evaluate: Evaluate) -> Value:
    """The element, or one per lane when the address varies with the lanes. Lanes that do not act read nothing."""
    b = state.builder
    slot = state.slots[name]
    if slot.variable.scope == "register":
        type_ = type_of(slot.variable.dtype, slot.variable.lanes)
        return b.emit(type_, f"load {type_}, {slot.pointer}, align {slot.variable.dtype.alignment}")
    key = ("load", name, subscripts, state.lanes)
    found = b.known.get(key)
    if found is None:
        phase = state.phases.get((name, subscripts)) if state.lanes is not None and state.lanes.mask is None else None
        if phase is not None:
            found = _load_phase(state, name, phase, evaluate)
        if found is None:
            found = load_zipped(state, name, subscripts)
        if found is None:
            found = _load(state, access(state, name, subscripts, evaluate))
        if slot.variable.dtype.kind == "b":
            found = b.compare("ne", found, constant(found.type, 0))
        b.known[key] = found
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
            found = b.known[key] = b.emit(part, f"load {part}, {pointer}, align {slot.variable.dtype.alignment}")
        return found
    return b.part_of(load(state, name, subscripts, evaluate), int(imaginary))


def load_neighbours(state: State, name: str, subscripts: tuple[Subscript, ...], evaluate: Evaluate) -> Value | None:
    """The element of 16 bits and the one behind it as one number of 32, the first one low; None where they are not side by side in memory."""
    b, slot, lanes = state.builder, state.slots[name], state.lanes
    if slot.variable.scope == "register" or slot.variable.lanes > 1 or slot.strides[-1] != 1:
        return None
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
            if where.stride == 2:
                found = _load_run(state, where.pointer, align, type_)
            else:
                found = _gather(state, pointers_of(state, where), type_, align)
        b.known[key] = found
    return found


def is_apart(state: State, name: str, subscripts: tuple[Subscript, ...], evaluate: Evaluate) -> bool:
    """Whether the lanes have the element from places that are not side by side."""
    if state.lanes is None or state.slots[name].variable.scope == "register":
        return False
    return access(state, name, subscripts, evaluate).stride not in (0, 1, -1)


def is_known(state: State, name: str, subscripts: tuple[Subscript, ...]) -> bool:
    """Whether reading the element for these lanes touches no memory: it is in a register, or what was just read is used again."""
    if state.slots[name].variable.scope == "register":
        return True
    keys = [state.lanes, (state.lanes, False), (state.lanes, True)]
    read = [("load", name, subscripts, lanes) in state.builder.known for lanes in keys]
    return read[0] or all(read[1:])


def forget(state: State, name: str) -> None:
    """The array is written: what was loaded from it, or by subscripts that read any array, may be different now."""
    known = state.builder.known
    for key in list(known):
        match key:
            case ("load", str(array), tuple(subscripts), _) if array == name or not all(
                isinstance(s, Affine) for s in subscripts
            ):
                del known[key]
            case _:
                pass


def remember(state: State, where: Access, subscripts: tuple[Subscript, ...], value: Value) -> None:
    """Lanes of which some do not act wrote the value: who reads the elements in the same lanes takes it from the register. LLVM does not see that, and a processor hands a masked store's bytes on from the cache
    only, some 20 cycles later."""
    lanes, variable = state.lanes, where.slot.variable
    if lanes is None or lanes.mask is None or where.stride != 1 or not variable.dtype.is_float:
        return
    if value.type == stored_type(variable, lanes.width):
        state.builder.known["load", variable.name, subscripts, lanes] = value


def _load(state: State, where: Access) -> Value:
    b, lanes = state.builder, state.lanes
    variable = where.slot.variable
    align = variable.dtype.alignment
    if where.stride == 0:
        element = stored_type(variable)
        pointer = where.pointer
        if lanes is not None and lanes.any is not None:  # perhaps no lane acts: read a zero of our own instead
            state.builder.module.definitions.setdefault("polyml.zero", _ZERO)
            pointer = b.emit(POINTER, f"select {lanes.any}, {pointer}, ptr @polyml.zero")
        return b.emit(element, f"load {element}, {pointer}, align {align}")
    assert lanes is not None
    type_ = stored_type(variable, lanes.width)
    if where.stride == 1:
        return _load_contiguous(state, where.pointer, align, where)
    if where.stride == -1:
        first = b.emit(POINTER, f"getelementptr {type_.of(1)}, {where.pointer}, i64 {1 - lanes.width}")
        with state.within(reversed_lanes(state)):
            return reverse(state, _load_contiguous(state, first, align, where))
    if where.stride is not None and 1 < where.stride <= _WIDEST_SHUFFLED_STRIDE:
        if lanes.mask is None:
            return _load_strided(state, where, where.stride)
        if not type_.is_pair:
            return _load_strided_masked(state, where, where.stride)
    pointers = pointers_of(state, where)
    if not type_.is_pair:
        return _gather(state, pointers, type_, align)
    real, imag = (_gather(state, place, type_.part, align) for place in part_pointers(state, pointers, type_))
    return b.paired(real, imag, type_.element)


def _gather(state: State, pointers: Value, type_: Type, align: int) -> Value:
    b, lanes = state.builder, state.lanes
    assert lanes is not None
    name = f"llvm.masked.gather.{type_.mangled}.{pointers.type.mangled}"
    b.module.declare(name, str(type_), [str(pointers.type), str(lanes.all_set.type), str(type_)])
    arguments = f"{pointers.type} align {align} {pointers.text}, {lanes.all_set}, {type_} zeroinitializer"
    return b.emit(type_, f"call {type_} @{name}({arguments})")


def part_pointers(state: State, pointers: Value, type_: Type) -> tuple[Value, Value]:
    """The addresses of the real and of the imaginary parts."""
    return pointers, state.builder.emit(pointers.type, f"getelementptr {type_.part.of(1)}, {pointers}, i64 1")


_ZERO = "@polyml.zero = internal constant [64 x i8] zeroinitializer, align 64"


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
    mask = b.twice(lanes.mask) if type_.is_pair else lanes.mask
    name = f"llvm.masked.load.{type_.mangled}.p0"
    b.module.declare(name, str(type_), ["ptr", str(mask.type), str(type_)])
    return b.emit(type_, f"call {type_} @{name}(ptr align {align} {pointer.text}, {mask}, {type_} zeroinitializer)")


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
    where = access(state, name, phase.first, evaluate)
    type_, gap = stored_type(where.slot.variable, width), where.stride
    if gap != phase.gap:
        return None
    owners = [divmod(lane * gap + phase.number, width) for lane in range(width)]
    result: Value | None = None
    for which in range(gap):
        key = ("load", name, phase.first, ("phase", which, state.lanes))
        part = b.known.get(key)
        if part is None:
            pointer = b.emit(POINTER, f"getelementptr {type_.of(1)}, {where.pointer}, i64 {which * width}")
            part = b.emit(type_, f"load {type_}, {pointer}, align {where.slot.variable.dtype.alignment}")
            b.known[key] = part
        if result is None:
            result = b.shuffle(part, [at if owner == 0 else 0 for owner, at in owners])
        else:
            order = [width + at if owner == which else k for k, (owner, at) in enumerate(owners)]
            result = b.shuffle(result, order, part)
    return result


def _load_strided_masked(state: State, where: Access, stride: int) -> Value:
    """The same where not all lanes act: each of the loads touches the elements of those that do, by masks that are spread like them."""
    b, width, lanes = state.builder, state.width, state.lanes
    assert lanes is not None
    assert lanes.mask is not None
    type_ = stored_type(where.slot.variable, width)
    none = Value(lanes.mask.type, "zeroinitializer")
    owners = [divmod(lane * stride, width) for lane in range(width)]
    result: Value | None = None
    for which in range(owners[-1][0] + 1):
        inside = {at: lane for lane, (owner, at) in enumerate(owners) if owner == which}
        mask = b.shuffle(lanes.mask, [inside.get(at, width) for at in range(width)], none)
        pointer = b.emit(POINTER, f"getelementptr {type_.of(1)}, {where.pointer}, i64 {which * width}")
        with state.within(replace(lanes, mask=mask, leading=None)):
            part = _load_run(state, pointer, where.slot.variable.dtype.alignment, type_)
        if result is None:
            result = b.shuffle(part, [at if owner == 0 else 0 for owner, at in owners])
        else:
            order = [width + at if owner == which else k for k, (owner, at) in enumerate(owners)]
            result = b.shuffle(result, order, part)
    assert result is not None
    return result


def reverse(state: State, value: Value) -> Value:
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


def prefetch(state: State, where: Access, level: int, *, write: bool) -> None:
    """Asks for the cache line of the (first lane's) element; an address outside of all memory does no harm."""
    b = state.builder
    pointer = where.pointer if where.stride is not None else b.extract(where.pointer, 0)
    b.module.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
    b.write(f"call void @llvm.prefetch.p0({pointer}, i32 {int(write)}, i32 {4 - level}, i32 1)")
