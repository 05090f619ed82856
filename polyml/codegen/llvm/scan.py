"""Recurrences in lanes: what a `Scan` computes, and where its carry lives."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

from polyml.codegen.llvm.arithmetic import multiply_add
from polyml.codegen.llvm.expression import evaluate
from polyml.codegen.llvm.ir import Builder, Lines, Type, Value, constant, type_of
from polyml.codegen.llvm.reductions import combine, masked, read_place, write_place
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Allocate, Assign, For, If, Place, Scan, Variable
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import DType
from polyml.expressions import Const, Expr
from polyml.ops import REDUCTIONS
from polyml.records import dataclass

__all__ = ["assign_scanned", "scan_numbers", "with_lanes"]

DOUBLE = Type("double", 1)

_WIDE = 512
"""Bits of a vector of AVX-512."""


def with_lanes(node: Allocate) -> Variable:
    """The variable; the carry of scans holds its value in every lane, so that a vector waits for one multiply-add of the one before, and for no shuffle."""
    variable = node.variable
    if variable.scope != "register" or variable.shape or variable.lanes > 1:
        return variable
    match node.body:
        case (Assign(target=Place(variable=first)), *rest) | (
            If(then=(Assign(target=Place(variable=first)), *rest)),
        ) if first == variable.name:
            widths = {loop.width for loop in walk_nodes(rest) if isinstance(loop, For) and _carries(loop, first)}
            return replace(variable, lanes=widths.pop()) if len(widths) == 1 else variable
        case _:
            return variable


def _carries(loop: For, name: str) -> bool:
    """Whether a scan right in the loop moves that carry on."""
    return loop.kind == "vector" and any(
        isinstance(inner, Assign) and inner.scan is not None and inner.scan.carries == (name,)
        for inner in walk_nodes(loop.body)
    )


def assign_scanned(state: State, node: Assign, scan: Scan) -> None:
    """Writes the values of a recurrence in all lanes, from those of its inhomogeneous part; the carry moves on to the last lane's.

    Pairs (factor, value) of functions that are linear in the reduction's semiring are composed over 1, 2, 4, ... lanes (Kogge and Stone, "A parallel algorithm for the efficient solution
    of a general class of recurrence equations", IEEE Trans. Computers, 1973); lanes that do not act hand on what they get.
    """
    if scan.second is not None:
        _assign_second_order(state, node, scan)
        return
    b, width, reduction = state.builder, state.width, node.reduction or "sum"
    slot = state.slots[scan.carry]
    dtype = slot.variable.dtype
    identity = REDUCTIONS[reduction].identity(dtype)
    assert identity is not None, "internal: a scan of argmax or argmin"
    rest = masked(state, replace(node, reduction=reduction), evaluate(state, node.value), dtype)
    neutral = _neutral(state, rest.type, reduction, identity)
    steps = _Steps(state, reduction, dtype, _is_harmless(scan.factor, dtype), neutral)
    acts = None if state.lanes is None else state.lanes.mask
    totals = state.prepared.get(scan, ()) if acts is None else ()
    if not totals and scan.factor is not None:
        totals = _totals(state, scan.factor, reduction, rest.type, acts)
    factor, total = (totals[0], totals[-1]) if totals else (None, None)
    reset = None if scan.reset is None else _resets(state, scan.reset)
    value, cut = rest, reset
    for number, step in enumerate(1 << k for k in range(width.bit_length() - 1)):
        made_of = totals[number] if totals else None
        value = steps.taken(made_of, _earlier(b, value, step, neutral), value, cut, beside=step)
        if cut is not None:
            cut = b.binary("or", cut, _earlier_bits(b, cut, step))
    carry = read_place(state, Place(scan.carry, ()))
    last = _last(b, value, carry.lanes)
    value = steps.taken(total, b.splat(carry, width), value, cut)
    if cut is None:
        # The last lane by itself, with the same operation: all that the next vector waits for.
        following = steps.taken(None if total is None else _last(b, total, carry.lanes), carry, last)
    else:
        following = _last(b, value, carry.lanes)
    if factor is not None and reduction != "sum" and not dtype.is_float:
        value, following = _settled(steps, factor, rest, reset, b.splat(carry, width), value, following)
    elif (
        factor is not None and scan.factor is not None and reduction == "sum" and not _stays_normal(scan.factor, width)
    ):
        single, wide = evaluate(state, scan.factor), b.splat(carry, width)
        value, following = _step_by_step(steps, single, factor, rest, reset, wide, value, following)
    b.write(f"store {following}, {slot.pointer}, align {dtype.alignment}")
    write_place(state, node.target, value, streaming=node.streaming, aligned=node.aligned)


def scan_numbers(state: State, node: Assign, scan: Scan, width: int) -> tuple[Value, ...]:
    """What a scan needs that follows from its factors alone, which are the same in all lanes and iterations."""
    assert scan.factor is not None, "internal: a scan without factors"
    type_ = type_of(node.value.dtype, width)
    if scan.second is not None:
        return _second_order_numbers(state, scan, type_)
    return _totals(state, scan.factor, node.reduction or "sum", type_, None)


def _totals(state: State, factor: Expr, reduction: str, type_: Type, acts: Value | None) -> tuple[Value, ...]:
    """The factors of a vector's lanes, and those of 2, 4, .. lanes together, up to all lanes before each one and itself. acts: the lanes that do."""
    b, one = state.builder, constant(type_, 1 if reduction == "sum" else 0)
    total = b.splat(evaluate(state, factor), type_.lanes)
    if acts is not None:
        total = b.select(acts, total, one)
    found = [total]
    for step in (1 << k for k in range(type_.lanes.bit_length() - 1)):
        earlier = _earlier(b, found[-1], step, one)
        found.append(b.arithmetic("mul" if reduction == "sum" else "add", found[-1], earlier))
    return tuple(found)


def _assign_second_order(state: State, node: Assign, scan: Scan) -> None:
    """The same of a recurrence y[n] = a y[n - 1] + b y[n - 2] + u[n], whose a and b are the same for all elements.

    In terms of a step back z it divides u by 1 - a z - b z^2. Multiplied with 1 + a z - b z^2 that is 1 - a' z^2 - b' z^4, with a' = a^2 + 2 b and b' = -b^2, and w = u + a z u - b z^2 u is divided by it: a recurrence
    like the first one over every other element, and so on until a step is as long as the vector (Graeffe's squaring of roots, cyclic reduction). What comes from the last two elements before the vector is added by the numbers that the recurrence makes of 1, 0 and of 0, 1.
    """
    b, width = state.builder, state.width
    rest = b.splat(evaluate(state, node.value), width)
    slots = [state.slots[name] for name in scan.carries]
    last, earlier = (read_place(state, Place(name, ())) for name in scan.carries)
    if state.lanes is not None and state.lanes.mask is not None:
        value, last, earlier = _one_by_one(state, state.lanes.mask, rest, scan, (last, earlier))
    else:
        numbers = state.prepared.get(scan) or _second_order_numbers(state, scan, rest.type)
        steps, (row, row_before, *ends) = numbers[:-6], numbers[-6:]
        nothing = _neutral(state, rest.type, "sum", 0)
        value = rest
        for number, step in enumerate(1 << k for k in range(width.bit_length() - 1)):
            near, far = steps[2 * number : 2 * number + 2]
            made = multiply_add(b, near, _earlier(b, value, step, nothing), value)
            value = made if 2 * step >= width else multiply_add(b, far, _earlier(b, value, 2 * step, nothing), made)
        own = [_widened(b, b.extract(value, width - 1 - k)) for k in range(2)]
        for numbers_of, carry in ((row_before, earlier), (row, last)):
            value = multiply_add(b, numbers_of, b.splat(_narrowed(b, carry, rest.type), width), value)
        moved = [
            multiply_add(b, ends[2 * k], last, multiply_add(b, ends[2 * k + 1], earlier, own[k])) for k in range(2)
        ]
        value, last, earlier = _finite(state, rest, scan, (last, earlier), (value, moved[0], moved[1]))
    for slot, following in zip(slots, (last, earlier), strict=True):
        b.write(f"store {following}, {slot.pointer}, align {slot.variable.dtype.alignment}")
    write_place(state, node.target, value, streaming=node.streaming, aligned=node.aligned)


def _finite(
    state: State, rest: Value, scan: Scan, before: tuple[Value, Value], made: tuple[Value, Value, Value]
) -> tuple[Value, Value, Value]:
    """What was made; where an element is no finite number, made again one by one: the numbers of many elements together overflow where single ones do not."""
    b, value = state.builder, made[0]
    again, done = b.fresh("in_turn"), b.fresh("finite")
    # An infinity less itself is no number.
    apart = b.emit(value.type, f"fsub {value}, {value.text}")
    ways = [(made, b.block)]
    b.branch(b.any_lane(b.compare("uno", apart, apart)), again, done, rare=True)
    b.start(again)
    ways.append((_one_by_one(state, constant(type_of("i1", rest.lanes), 1), rest, scan, before), b.block))
    b.jump(done)
    b.start(done)
    found = []
    for k, old in enumerate(made):
        incoming = ", ".join(f"[{way[k].text}, %{label}]" for way, label in ways)
        found.append(b.emit(old.type, f"phi {old.type} {incoming}"))
    return found[0], found[1], found[2]


def _second_order_numbers(state: State, scan: Scan, type_: Type) -> tuple[Value, ...]:
    """Of each doubling what the lanes a step and two steps before are multiplied by; of the last two elements before a vector what each lane has of them; and the same of the last lane and the one before.

    In f64, as are the last two elements: what is rounded here would go on for as long as the recurrence remembers.
    """
    b, width = state.builder, type_.lanes
    a, c = (_widened(b, factor) for factor in _two_factors(state, scan))
    of_last, of_earlier = [constant(DOUBLE, 1), a], [constant(DOUBLE, 0), c]
    while len(of_last) <= width:
        for numbers in (of_last, of_earlier):
            numbers.append(multiply_add(b, a, numbers[-1], b.arithmetic("mul", c, numbers[-2])))
    found: list[Value] = []
    for _ in range(width.bit_length() - 1):
        found += [b.splat(_narrowed(b, number, type_), width) for number in (a, b.emit(c.type, f"fneg {c}"))]
        square = b.arithmetic("mul", c, c)
        a, c = multiply_add(b, a, a, b.arithmetic("add", c, c)), b.emit(c.type, f"fneg {square}")
    found += [_row(b, numbers[1:], type_) for numbers in (of_last, of_earlier)]
    return (*found, *(numbers[at] for at in (width, width - 1) for numbers in (of_last, of_earlier)))


def _two_factors(state: State, scan: Scan) -> tuple[Value, Value]:
    """A recurrence's factors, which all lanes share, as numbers."""
    assert scan.factor is not None, "internal: a recurrence of second order without a first"
    assert scan.second is not None, "internal: a recurrence of second order without a second"
    first, second = (evaluate(state, factor) for factor in (scan.factor, scan.second))
    return _once(state, first), _once(state, second)


def _once(state: State, factor: Value) -> Value:
    return factor if factor.lanes == 1 else state.builder.extract(factor, 0)


def _widened(b: Builder, number: Value) -> Value:
    return number if number.type == DOUBLE else b.convert("fpext", number, "double")


def _narrowed(b: Builder, number: Value, type_: Type) -> Value:
    """The number in the type of such lanes."""
    return number if type_.element == DOUBLE.element else b.convert("fptrunc", number, type_.element)


def _row(b: Builder, numbers: list[Value], type_: Type) -> Value:
    """The first numbers, one for each lane."""
    row = Value(type_, "poison")
    for lane in range(type_.lanes):
        row = b.emit(type_, f"insertelement {row}, {_narrowed(b, numbers[lane], type_)}, i64 {lane}")
    return row


def _one_by_one(
    state: State, mask: Value, rest: Value, scan: Scan, before: tuple[Value, Value]
) -> tuple[Value, Value, Value]:
    """The values at the ends of a row, where some lanes do nothing, and the last two elements behind them."""
    b, (last, earlier) = state.builder, before
    first, second = (_widened(b, factor) for factor in _two_factors(state, scan))
    row = Value(rest.type, "poison")
    for lane in range(rest.lanes):
        ahead = multiply_add(b, second, earlier, _widened(b, b.extract(rest, lane)))
        made, acts = multiply_add(b, first, last, ahead), b.extract(mask, lane)
        row = b.emit(rest.type, f"insertelement {row}, {_narrowed(b, made, rest.type)}, i64 {lane}")
        last, earlier = b.select(acts, made, last), b.select(acts, last, earlier)
    return row, last, earlier


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps of a recurrence in a reduction's semiring. harmless: a factor moves nothing that is neutral."""

    state: State
    reduction: str
    dtype: DType
    harmless: bool
    neutral: Value

    def taken(
        self, factor: Value | None, before: Value, rest: Value, reset: Value | None = None, *, beside: int = 0
    ) -> Value:
        """combine(factor * before, rest), or with maxima and minima combine(factor + before, rest); where `reset` holds, rest. beside: so many of the first lanes have nothing before them, but what is neutral."""
        b = self.state.builder
        if reset is not None:
            return b.select(reset, rest, self.taken(factor, before, rest, beside=beside))
        if self.reduction == "sum" and factor is not None:
            return multiply_add(b, factor, before, rest)
        if factor is not None:
            before = b.arithmetic("add", before, factor)
            if beside and not self.harmless:
                inside = ", ".join(f"i1 {'true' if k >= beside else 'false'}" for k in range(before.lanes))
                before = b.select(Value(type_of("i1", before.lanes), f"<{inside}>"), before, self.neutral)
        return combine(self.state, self.reduction, before, rest, self.dtype)


def _settled(
    steps: _Steps, factor: Value, rest: Value, reset: Value | None, carry: Value, value: Value, following: Value
) -> tuple[Value, Value]:
    """The values and the carry, of integers, whose maxima and sums of several steps are those of one step after another as long as no sum wraps around.

    Each lane is made again from the one before. Where all stay as they are, the first one is right, and with every lane the next; else one more of them is right each time.
    """
    b = steps.state.builder
    start, again, done = b.fresh("settling"), b.fresh("unsettled"), b.fresh("settled")
    entered = b.block
    b.jump(start)
    b.start(start)
    made, last = Value(value.type, f"%{b.fresh('made')}"), Value(following.type, f"%{b.fresh('last')}")
    head: Lines = []
    b.lines.append(head)
    moved = steps.taken(factor, b.shuffle(made, [made.lanes, *range(made.lanes - 1)], carry), rest, reset)
    b.branch(b.any_lane(b.compare("ne", moved, made)), again, done, rare=True)
    b.start(again)
    other = _last(b, moved, following.lanes)
    b.jump(start)
    head.append(f"  {made.text} = phi {value.type} [{value.text}, %{entered}], [{moved.text}, %{again}]")
    head.append(f"  {last.text} = phi {last.type} [{following.text}, %{entered}], [{other.text}, %{again}]")
    b.start(done)
    return made, last


def _step_by_step(
    steps: _Steps,
    single: Value,
    factor: Value,
    rest: Value,
    reset: Value | None,
    carry: Value,
    value: Value,
    following: Value,
) -> tuple[Value, Value]:
    """The values and the carry, of floats; where one is no finite number, made again step by step: the product of several factors overflows, or has an infinity that meets a zero, where the steps one after another do not.
    single: the factor, once where all lanes have the same. Then its power says, before the loop, whether there is anything to look at."""
    b = steps.state.builder
    ahead, start, again, done = (b.fresh(name) for name in ("powers", "in_turn", "next_turn", "finite"))
    ways: list[tuple[Value, Value, str]] = []
    if single.lanes == 1:
        ways.append((value, following, b.block))
        b.branch(_is_beyond(b, single, value.lanes), ahead, done, rare=True)
        b.start(ahead)
    # An infinity less itself is no number.
    apart = b.emit(value.type, f"fsub {value}, {value.text}")
    ways.append((value, following, b.block))
    b.branch(b.any_lane(b.compare("uno", apart, apart)), start, done, rare=True)
    b.start(start)
    b.jump(again)
    b.start(again)
    made, turn = Value(value.type, f"%{b.fresh('made')}"), Value(_COUNT, f"%{b.fresh('turn')}")
    head: Lines = []
    b.lines.append(head)
    moved = steps.taken(factor, b.shuffle(made, [made.lanes, *range(made.lanes - 1)], carry), rest, reset)
    ways.append((moved, _last(b, moved, following.lanes), again))
    after = b.binary("add", turn, constant(_COUNT, 1))
    b.branch(b.compare("eq", after, constant(_COUNT, value.lanes)), done, again)
    head.append(f"  {made.text} = phi {value.type} [{rest.text}, %{start}], [{moved.text}, %{again}]")
    head.append(f"  {turn.text} = phi {_COUNT} [0, %{start}], [{after.text}, %{again}]")
    b.start(done)
    values = ", ".join(f"[{way.text}, %{label}]" for way, _, label in ways)
    carries = ", ".join(f"[{way.text}, %{label}]" for _, way, label in ways)
    found = b.emit(value.type, f"phi {value.type} {values}")
    return found, b.emit(following.type, f"phi {following.type} {carries}")


_COUNT = type_of("i64", 1)


def _is_beyond(b: Builder, factor: Value, steps: int) -> Value:
    """Whether a power of the factor is zero, infinite or no number: the bits without the sign, less one, are large then."""
    power = factor
    while steps > 1:
        power = b.arithmetic("mul", power, power)
        steps //= 2
    bits = type_of(f"i{factor.type.bits}", 1)
    number = b.emit(bits, f"bitcast {power} to {bits}")
    unsigned = b.binary("sub", b.binary("shl", number, constant(bits, 1)), constant(bits, 1))
    fraction = 24 if factor.type.bits == 32 else 53
    infinite = ((1 << factor.type.bits - fraction) - 1) << fraction
    return b.compare("uge", unsigned, Value(bits, str(infinite - 1)))


def _stays_normal(factor: Expr | None, lanes: int) -> bool:
    """Whether it is an integer, or a number whose powers are neither zero nor infinite in its type."""
    if factor is None or not factor.dtype.is_float:
        return True
    if not isinstance(factor, Const):
        return False
    try:
        return factor.dtype.is_normal(float(factor.value) ** lanes)
    except OverflowError:
        return False


def _is_harmless(factor: Expr | None, dtype: DType) -> bool:
    """Whether an infinity stays what it is when the factor is added."""
    return isinstance(factor, Const) and dtype.is_float and isfinite(factor.value)


def _resets(state: State, condition: Expr) -> Value:
    """Where a recurrence starts anew, per lane; lanes that do not act hand on what they get."""
    b = state.builder
    found = b.splat(evaluate(state, condition), state.width)
    mask = None if state.lanes is None else state.lanes.mask
    return found if mask is None else b.binary("and", found, mask)


def _earlier_bits(b: Builder, mask: Value, step: int) -> Value:
    """The lanes of a mask moved up by `step`, as bits of a number; the first ones are false."""
    bits = Type(f"i{mask.lanes}", 1)
    number = b.emit(bits, f"bitcast {mask} to {bits}")
    moved = b.binary("shl", number, constant(bits, step))
    return b.emit(mask.type, f"bitcast {moved} to {mask.type}")


def _earlier(b: Builder, value: Value, step: int, before: Value) -> Value:
    """The lanes moved up by `step`; the first ones are those of `before`."""
    lanes = value.lanes
    return b.shuffle(value, [lanes + k if k < step else k - step for k in range(lanes)], before)


def _neutral(state: State, type_: Type, reduction: str, identity: float) -> Value:
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


def _last(b: Builder, value: Value, lanes: int) -> Value:
    """The last lane, once or in as many lanes."""
    if lanes == 1:
        return b.extract(value, value.lanes - 1)
    return b.shuffle(value, [value.lanes - 1] * lanes)
