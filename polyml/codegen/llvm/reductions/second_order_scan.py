"""Recurrences of second order in lanes, y[n] = a y[n - 1] + b y[n - 2] + u[n], whose a and b are the same for all elements."""

from __future__ import annotations

from polyml.codegen.llvm.arithmetic import multiply_add
from polyml.codegen.llvm.expression import evaluate
from polyml.codegen.llvm.ir import Builder, Type, Value, constant, type_of
from polyml.codegen.llvm.memory.known_elements import forget_register
from polyml.codegen.llvm.reductions.combine import read_place, write_place
from polyml.codegen.llvm.reductions.scan_lanes import earlier_lanes, neutral_lanes
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Assign, Place, Scan

__all__ = ["assign_second_order", "second_order_numbers"]

DOUBLE = Type("double", 1)


def assign_second_order(state: State, node: Assign, scan: Scan) -> None:
    """Writes the values of such a recurrence in all lanes; the carries move on to the last two lanes'.

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
        numbers = state.prepared.get(scan) or second_order_numbers(state, scan, rest.type)
        steps, (row, row_before, *ends) = numbers[:-6], numbers[-6:]
        nothing = neutral_lanes(state, rest.type, "sum", 0)
        value = rest
        for number, step in enumerate(1 << k for k in range(width.bit_length() - 1)):
            near, far = steps[2 * number : 2 * number + 2]
            made = multiply_add(b, near, earlier_lanes(b, value, step, nothing), value)
            value = (
                made if 2 * step >= width else multiply_add(b, far, earlier_lanes(b, value, 2 * step, nothing), made)
            )
        own = [_widened(b, b.extract(value, width - 1 - k)) for k in range(2)]
        for numbers_of, carry in ((row_before, earlier), (row, last)):
            value = multiply_add(b, numbers_of, b.splat(_narrowed(b, carry, rest.type), width), value)
        moved = [
            multiply_add(b, ends[2 * k], last, multiply_add(b, ends[2 * k + 1], earlier, own[k])) for k in range(2)
        ]
        value, last, earlier = _finite(state, rest, scan, (last, earlier), (value, moved[0], moved[1]))
    for slot, following in zip(slots, (last, earlier), strict=True):
        b.write(f"store {following}, {slot.pointer}, align {slot.variable.dtype.alignment}")
        forget_register(state, slot.variable.name)
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


def second_order_numbers(state: State, scan: Scan, type_: Type) -> tuple[Value, ...]:
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
