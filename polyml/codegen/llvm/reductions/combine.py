"""Combining: a target with a value, the lanes of a value with each other, and the pairs of argmax and argmin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polyml.codegen.llvm.arithmetic import ARITHMETIC, multiply_add
from polyml.codegen.llvm.expression import evaluate, product_factors
from polyml.codegen.llvm.functions_once import functions_once
from polyml.codegen.llvm.ir import Value, constant
from polyml.codegen.llvm.memory.access import Access, access, register_parts
from polyml.codegen.llvm.memory.known_elements import forget, forget_register, remember
from polyml.codegen.llvm.memory.loads import load
from polyml.codegen.llvm.memory.phases import Phase
from polyml.codegen.llvm.memory.stores import store, store_row
from polyml.codegen.llvm.pairs import dot_of_pairs
from polyml.codegen.llvm.state import State, stored_type
from polyml.codegen.loops import Assign, Place, UpdateArgument
from polyml.dtypes import DType
from polyml.expressions import Apply, Expr, Read
from polyml.ops import REDUCTIONS

__all__ = ["COMBINED", "assign", "combine", "keep_better", "masked", "read_place", "update_argument", "write_place"]

COMBINED: frozenset[str] = frozenset(row.name for row in REDUCTIONS.values() if row.combine in ARITHMETIC) | {
    "argmax",
    "argmin",
}
"""The reductions that this module carries out."""


def assign(state: State, node: Assign) -> None:
    """`target = value`, or `target = combine(target, value)`."""
    state.functions = functions_once(state.builder, node.value)
    _assign(state, node)
    state.functions = None


def _assign(state: State, node: Assign) -> None:
    target = state.slots[node.target.variable].variable
    if node.reduction is None:
        vectors = state.lanes is not None and target.scope != "register" and state.builder.module.instructions.avx2
        value = evaluate(state, _looked_at(node) if vectors else node.value)
        write_place(state, node.target, value, streaming=node.streaming, aligned=node.aligned)
    elif node.across:
        value = across(state, node.reduction, evaluate(state, node.value), target.dtype)
        write_place(
            state, node.target, combine(state, node.reduction, read_place(state, node.target), value, target.dtype)
        )
    elif target.scope == "register" and (target.lanes > 1 or state.lanes is None):
        new = _combined_with(state, node, lambda: read_place(state, node.target), target.dtype)
        write_place(state, node.target, new, adds=node.reduction == "sum")
    else:
        _accumulate(state, node, target.dtype)


def _looked_at(node: Assign) -> Expr:
    """The value; of a minimum or maximum of the target's element and something else the other way round. The first operand is looked at for NaN, and the choice between what a place has and
    something else would be stored under a mask. In a register, or without lanes, it is the one that comes first that is better looked at."""
    match node.value:
        case Apply(op="min" | "max", args=(Read() as old, other)) if (
            old.tensor == node.target.variable and old.subscripts == node.target.subscripts
        ):
            return replace(node.value, args=(other, old))
        case _:
            return node.value


def _combined_with(state: State, node: Assign, read: Callable[[], Value], dtype: DType) -> Value:
    """combine(target, value), with a product fused into a sum, and each of several."""
    match node.value:
        case Apply(op="dot_bf16" | "dot_i16" | "dot_i8" as op, args=(left, right)) if (
            node.reduction == "sum" and dtype == node.value.dtype
        ):
            x, y, total = evaluate(state, left), evaluate(state, right), read()
            lanes, b = max(x.lanes, y.lanes, total.lanes), state.builder
            return dot_of_pairs(b, op, b.splat(x, lanes), b.splat(y, lanes), b.splat(total, lanes))
    products = _products(state, node.value) if node.reduction == "sum" else None
    if products is not None:
        total = read()
        for pair, negative in products:
            total = _fused(state, pair, total, negative)
        return total
    factors = product_factors(state, node.value) if node.reduction == "sum" else None
    if factors is None:
        value = evaluate(state, node.value)
        return combine(state, node.reduction or "", read(), value, dtype)
    return _fused(state, factors, read(), False)


def _fused(state: State, factors: tuple[Expr, Expr], old: Value, negative: bool) -> Value:
    """old + x * y, or old - x * y."""
    b = state.builder
    x, y = evaluate(state, factors[0]), evaluate(state, factors[1])
    if negative:
        x, y = (y, x) if y.lanes < x.lanes else (x, y)
        x = b.emit(x.type, f"fneg {x}")
    lanes = max(x.lanes, y.lanes, old.lanes)
    return multiply_add(b, b.splat(x, lanes), b.splat(y, lanes), b.splat(old, lanes))


def _products(state: State, value: Expr) -> list[tuple[tuple[Expr, Expr], bool]] | None:
    """The factors of each term and whether it is subtracted, where the value is a sum of products, or one that is subtracted."""
    found: list[tuple[tuple[Expr, Expr], bool]] = []
    stack: list[tuple[Expr, bool]] = [(value, False)]
    while stack:
        expr, negative = stack.pop()
        match expr:
            case Apply(op="add", args=(left, right)):
                stack += [(right, negative), (left, negative)]
            case Apply(op="sub", args=(left, right)):
                stack += [(right, not negative), (left, negative)]
            case Apply(op="neg", args=(inner,)):
                stack.append((inner, not negative))
            case _:
                factors = product_factors(state, expr)
                if factors is None:
                    return None
                found.append((factors, negative))
    return found if len(found) > 1 or found[0][1] else None


def _accumulate(state: State, node: Assign, dtype: DType) -> None:
    """A reduction into memory, or into one element from all lanes."""
    if state.slots[node.target.variable].variable.scope == "register":
        value = masked(state, node, evaluate(state, node.value), dtype)
        value = across(state, node.reduction or "", value, dtype)
        write_place(
            state, node.target, combine(state, node.reduction or "", read_place(state, node.target), value, dtype)
        )
        return
    where = access(state, node.target.variable, node.target.subscripts, evaluate)
    if state.lanes is None or where.stride not in (0, None):
        new = _combined_with(state, node, lambda: read_place(state, node.target), dtype)
        store(state, where, new, streaming=node.streaming, aligned=node.aligned)
    elif where.stride == 0:
        value = across(state, node.reduction or "", masked(state, node, evaluate(state, node.value), dtype), dtype)
        store(state, where, combine(state, node.reduction or "", read_place(state, node.target), value, dtype))
    else:
        _one_lane_after_another(
            state, node, where, state.builder.splat(evaluate(state, node.value), state.width), dtype
        )


def masked(state: State, node: Assign, value: Value, dtype: DType) -> Value:
    """The value per lane, the identity in lanes that do not act."""
    lanes = state.lanes
    assert lanes is not None
    value = state.builder.splat(value, lanes.width)
    if lanes.mask is None:
        return value
    identity = REDUCTIONS[node.reduction or ""].identity(dtype)
    assert identity is not None, "internal: argmax and argmin are UpdateArgument"
    return state.builder.select(lanes.mask, value, constant(value.type, identity))


def _one_lane_after_another(state: State, node: Assign, where: Access, value: Value, dtype: DType) -> None:
    """Lanes may meet in one element: combine them in order."""
    b, lanes = state.builder, state.lanes
    assert lanes is not None
    forget(state, where.slot.variable.name)
    element = stored_type(where.slot.variable)
    for lane in range(lanes.width):
        after = b.fresh("lane")
        if lanes.mask is not None:
            then = b.fresh("lane")
            b.branch(b.extract(lanes.mask, lane), then, after)
            b.start(then)
        pointer = b.extract(where.pointer, lane)
        old = b.emit(element, f"load {element}, {pointer}, align {dtype.itemsize}")
        if dtype.kind == "b":
            old = b.compare("ne", old, constant(old.type, 0))
        new = combine(state, node.reduction or "", old, b.extract(value, lane), dtype)
        if dtype.kind == "b":
            new = b.convert("zext", new, "i8")
        b.write(f"store {new}, {pointer}, align {dtype.itemsize}")
        if lanes.mask is not None:
            b.jump(after)
            b.start(after)


def combine(state: State, reduction: str, old: Value, new: Value, dtype: DType) -> Value:
    """One step of the reduction; the accumulator is the row's second argument (see arithmetic.minimum)."""
    op = REDUCTIONS[reduction].combine
    assert op is not None, "internal: argmax and argmin are UpdateArgument"
    lanes = max(old.lanes, new.lanes)
    b = state.builder
    new, old = b.splat(new, lanes), b.splat(old, lanes)
    extremum = op in ("max", "min") and dtype.is_float
    if state.hope is not None and extremum:
        return state.hope.extremum(new, old, {"max": "ogt", "min": "olt"}[op])
    if state.numbers and extremum:
        return b.select(b.compare({"max": "ogt", "min": "olt"}[op], new, old), new, old)
    return ARITHMETIC[op](b, (new, old), dtype)


def across(state: State, reduction: str, value: Value, dtype: DType) -> Value:
    """All lanes combined, by halves."""
    while value.lanes > 1:
        half = value.lanes // 2
        low = state.builder.shuffle(value, range(half))
        high = state.builder.shuffle(value, range(half, value.lanes))
        value = combine(state, reduction, low, high, dtype)
    return value


def read_place(state: State, place: Place) -> Value:
    return load(state, place.variable, place.subscripts, evaluate)


def write_place(
    state: State,
    place: Place,
    value: Value,
    *,
    streaming: bool = False,
    aligned: bool = False,
    adds: bool = False,
) -> None:
    """Stores into memory, or into a register (in lanes that do not act it keeps its value)."""
    slot = state.slots[place.variable]
    if slot.variable.scope != "register":
        if (phase := state.written.get((place.variable, place.subscripts))) is not None:
            _write_phase(state, place, phase, value, streaming=streaming)
            return
        where = access(state, place.variable, place.subscripts, evaluate)
        store(state, where, value, streaming=streaming, aligned=aligned)
        remember(state, where, place.subscripts, value)
        return
    b, lanes = state.builder, state.lanes
    assert value.lanes in (1, slot.variable.lanes), f"internal: {value.lanes} lanes into {place.variable}"
    value = b.splat(value, slot.variable.lanes)
    mask = None if lanes is None else (lanes.mask if value.lanes > 1 else lanes.any)
    # Nobody sees the other lanes of a register that is made where the same ones act, and additions do no harm there: a selection would take as long as the addition.
    unseen = adds and value.lanes > 1 and slot.mask is mask
    if mask is not None and not unseen:
        value = b.select(mask, value, read_place(state, place))
    forget_register(state, place.variable)
    align = slot.variable.dtype.alignment
    if value.type.is_pair and value.lanes > 1:
        for part, pointer in enumerate(register_parts(state, slot.pointer, value.type)):
            b.write(f"store {b.part_of(value, part)}, {pointer}, align {align}")
        return
    b.write(f"store {value}, {slot.pointer}, align {align}")
    if value.text in b.extrema:
        b.known["register", place.variable] = value


def _write_phase(state: State, place: Place, phase: Phase, value: Value, *, streaming: bool) -> None:
    """Keeps the value until all of its row are there, which is stored then."""
    key = (place.variable, phase.first)
    waiting = state.waiting.setdefault(key, {})
    waiting[phase.number] = value
    if phase.last:
        del state.waiting[key]
        where = access(state, place.variable, phase.first, evaluate)
        store_row(state, where, [waiting[number] for number in range(phase.gap)], streaming=streaming)


# -- argmax and argmin ------------------------------------------------------------------------------------------------------------


def update_argument(state: State, node: UpdateArgument) -> None:
    """Keeps the better of (best, argument) and the candidate."""
    best_variable = state.slots[node.best.variable].variable
    dtype = best_variable.dtype
    candidate, index = evaluate(state, node.candidate), evaluate(state, node.candidate_index)
    if node.across:
        candidate, index = _best_across(state, node.kind, candidate, index, dtype)
    per_lane = max(candidate.lanes, index.lanes) > 1
    if per_lane and _one_for_all_lanes(state, node.best):
        candidate, index = state.builder.splat(candidate, state.width), state.builder.splat(index, state.width)
        if state.lanes is not None and state.lanes.mask is not None:
            index = state.builder.select(state.lanes.mask, index, constant(index.type, -1))
        candidate, index = _best_across(state, node.kind, candidate, index, dtype)
        per_lane = False
    best, argument = read_place(state, node.best), read_place(state, node.argument)
    index = _index_of(state, index, argument)
    lanes = max(best.lanes, argument.lanes, candidate.lanes, index.lanes)
    best, argument, candidate, index = (state.builder.splat(v, lanes) for v in (best, argument, candidate, index))
    merging = state.lanes is None and lanes > 1
    if state.hope is not None:
        # An index of -1 that is left tells that nothing was better than what the register began with.
        state.hope.arguments[node.argument] = None
        order = "gt" if node.kind == "argmax" else "lt"
        if dtype.is_float:
            wins = state.hope.beats(candidate, best, f"o{order}")
        else:
            wins = ARITHMETIC[order](state.builder, (candidate, best), dtype)
        write_place(state, node.best, state.builder.select(wins, candidate, best))
        write_place(state, node.argument, state.builder.select(wins, index, argument))
        return
    wins = _beats(
        state, node.kind, (candidate, index), (best, argument), dtype, ties=node.across or merging or not per_lane
    )
    write_place(state, node.best, state.builder.select(wins, candidate, best))
    write_place(state, node.argument, state.builder.select(wins, index, argument))


def keep_better(state: State, node: UpdateArgument, candidate: Value, index: Value) -> None:
    """Keeps the better of what the node's places hold and one candidate, which is no NaN."""
    dtype = state.slots[node.best.variable].variable.dtype
    best, argument = read_place(state, node.best), read_place(state, node.argument)
    index = _index_of(state, index, argument)
    wins = _beats(state, node.kind, (candidate, index), (best, argument), dtype, ties=True)
    write_place(state, node.best, state.builder.select(wins, candidate, best))
    write_place(state, node.argument, state.builder.select(wins, index, argument))


def _index_of(state: State, index: Value, argument: Value) -> Value:
    """The index in as many bits as the argument has, to which it is known to fit."""
    bits, wanted = index.type.bits, argument.type.bits
    if bits == wanted:
        return index
    return state.builder.convert("trunc" if bits > wanted else "sext", index, f"i{wanted}")


def _one_for_all_lanes(state: State, place: Place) -> bool:
    """Whether all lanes share the element."""
    variable = state.slots[place.variable].variable
    if variable.scope == "register":
        return variable.lanes == 1
    return access(state, place.variable, place.subscripts, evaluate).stride == 0


def _beats(
    state: State, kind: str, new: tuple[Value, Value], old: tuple[Value, Value], dtype: DType, *, ties: bool
) -> Value:
    """Whether the new (value, index) replaces the old one. An index of -1 marks no value at all. ties: equal values go to the smaller index;
    without it the old one stays (its index is the smaller one then)."""
    b = state.builder
    (x, i), (y, j) = new, old
    none = constant(j.type, -1)
    order = "gt" if kind == "argmax" else "lt"
    if dtype.is_float:  # better or unordered, but nothing beats NaN
        wins = b.binary("and", b.compare(f"u{order}", x, y), b.compare("ord", y, y))
    else:
        wins = ARITHMETIC[order](b, (x, y), dtype)
    if ties:
        equal = ARITHMETIC["eq"](b, (x, y), dtype)
        if dtype.is_float:
            equal = b.binary("or", equal, b.binary("and", b.compare("uno", x, x), b.compare("uno", y, y)))
        wins = b.binary("or", wins, b.binary("and", equal, b.compare("slt", i, j)))
    wins = b.binary("or", wins, b.compare("eq", j, none))
    return b.binary("and", wins, b.compare("ne", i, none)) if ties else wins


def _best_across(state: State, kind: str, value: Value, index: Value, dtype: DType) -> tuple[Value, Value]:
    """The best of all lanes and the smallest index that has it; -1 when no lane has seen a value."""
    b = state.builder
    lanes = max(value.lanes, index.lanes)
    value, index = b.splat(value, lanes), b.splat(index, lanes)
    reduction = "max" if kind == "argmax" else "min"
    identity = REDUCTIONS[reduction].identity(dtype)
    assert identity is not None, "internal: min and max have identities"
    seen = b.compare("ne", index, constant(index.type, -1))
    best = across(state, reduction, b.select(seen, value, constant(value.type, identity)), dtype)
    has_best = ARITHMETIC["eq"](b, (value, b.splat(best, lanes)), dtype)
    if dtype.is_float:  # NaN wins, and equals nothing
        has_best = b.binary("or", has_best, b.compare("uno", value, value))
    largest = (1 << index.type.bits - 1) - 1
    none = constant(index.type, largest)
    indices = b.select(b.binary("and", has_best, seen), index, none)
    first = indices if lanes == 1 else b.intrinsic("vector.reduce.smin", indices, result=index.type.of(1))
    nothing = b.compare("eq", first, constant(first.type, largest))
    return best, b.select(nothing, constant(first.type, -1), first)
