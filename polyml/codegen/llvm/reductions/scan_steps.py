"""Steps of a recurrence of first order: one by itself, and all of them again, one after the other, where those of several lanes together do not give the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

from polyml.codegen.llvm.arithmetic import multiply_add
from polyml.codegen.llvm.expression import evaluate
from polyml.codegen.llvm.ir import Builder, Lines, Value, constant, type_of
from polyml.codegen.llvm.reductions.combine import combine
from polyml.codegen.llvm.reductions.scan_lanes import last_lane
from polyml.codegen.llvm.state import State
from polyml.dtypes import DType
from polyml.expressions import Const, Expr
from polyml.records import dataclass

__all__ = [
    "Doubt",
    "Steps",
    "beyond_products",
    "beyond_sums",
    "finite",
    "is_harmless",
    "settled",
    "stays_normal",
    "step_by_step",
]


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of a recurrence in a reduction's semiring. harmless: a factor moves nothing that is neutral."""

    state: State
    reduction: str
    dtype: DType
    harmless: bool
    neutral: Value

    def taken(
        self,
        factor: Value | None,
        before: Value,
        rest: Value,
        reset: Value | None = None,
        *,
        inside: Value | None = None,
    ) -> Value:
        """combine(factor * before, rest), or with maxima and minima combine(factor + before, rest); where `reset` holds, rest. inside: the lanes that have something before them, others what is neutral."""
        b = self.state.builder
        if reset is not None:
            return b.select(reset, rest, self.taken(factor, before, rest, inside=inside))
        if self.reduction == "sum" and factor is not None:
            return multiply_add(b, factor, before, rest)
        if factor is not None:
            before = b.arithmetic("add", before, factor)
            if inside is not None and not self.harmless:
                before = b.select(inside, before, self.neutral)
        return combine(self.state, self.reduction, before, rest, self.dtype)


def settled(
    steps: Steps, factor: Value, rest: Value, reset: Value | None, carry: Value, value: Value, following: Value
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
    other = last_lane(b, moved, following.lanes)
    b.jump(start)
    head.append(f"  {made.text} = phi {value.type} [{value.text}, %{entered}], [{moved.text}, %{again}]")
    head.append(f"  {last.text} = phi {last.type} [{following.text}, %{entered}], [{other.text}, %{again}]")
    b.start(done)
    return made, last


Doubt = Callable[[], Value]
"""Whether something speaks for it that steps of several lanes together do not give the numbers of single ones."""


def beyond_products(state: State, factor: Expr, value: Value) -> tuple[Doubt, ...]:
    """Of sums: where a value is no finite number, the product of several factors may have overflowed, or may be an infinity that met a zero. Where all lanes have one factor its power says, before the loop, whether there is anything to look at."""
    b, single = state.builder, evaluate(state, factor)
    doubts: list[Doubt] = [lambda: _any_not_finite(b, value)]
    if single.lanes == 1:
        doubts.insert(0, lambda: _is_beyond(b, single, value.lanes))
    return tuple(doubts)


def beyond_sums(b: Builder, total: Value, again: Doubt) -> tuple[Doubt, ...]:
    """Of maxima and minima: the sum of several factors may have overflowed, or have been no number. again: the totals without infinities that make nothing of what is before, whose sums are right."""
    return (lambda: _any_not_finite(b, total), lambda: _any_not_finite(b, again()))


def finite(b: Builder, factor: Value, identity: float) -> Value:
    """The factors, zeros in the place of infinities that make nothing of what is before."""
    nothing = b.compare("oeq", factor, constant(factor.type, identity))
    return b.select(nothing, constant(factor.type, 0), factor)


def step_by_step(
    steps: Steps,
    factor: Value,
    rest: Value,
    reset: Value | None,
    carry: Value,
    made: tuple[Value, Value],
    doubts: Sequence[Doubt],
) -> tuple[Value, Value]:
    """The values and the carry, of floats, as they are made; where all doubts are right (each is asked where those before it are), made again step by step."""
    b = steps.state.builder
    start, again, done = (b.fresh(name) for name in ("in_turn", "next_turn", "finite"))
    value, following = made
    ways: list[tuple[Value, Value, str]] = []
    for k, doubt in enumerate(doubts):
        then = start if k == len(doubts) - 1 else b.fresh("doubt")
        right = doubt()
        ways.append((value, following, b.block))
        b.branch(right, then, done, rare=True)
        b.start(then)
    b.jump(again)
    b.start(again)
    now, turn = Value(value.type, f"%{b.fresh('now')}"), Value(_COUNT, f"%{b.fresh('turn')}")
    head: Lines = []
    b.lines.append(head)
    moved = steps.taken(factor, b.shuffle(now, [now.lanes, *range(now.lanes - 1)], carry), rest, reset)
    ways.append((moved, last_lane(b, moved, following.lanes), again))
    after = b.binary("add", turn, constant(_COUNT, 1))
    b.branch(b.compare("eq", after, constant(_COUNT, value.lanes)), done, again)
    head.append(f"  {now.text} = phi {value.type} [{rest.text}, %{start}], [{moved.text}, %{again}]")
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


def _any_not_finite(b: Builder, value: Value) -> Value:
    # An infinity less itself is no number.
    apart = b.emit(value.type, f"fsub {value}, {value.text}")
    return b.any_lane(b.compare("uno", apart, apart))


def stays_normal(factor: Expr | None, lanes: int, reduction: str) -> bool:
    """Whether it is an integer, or a number whose powers are neither zero nor infinite in its type; with maxima and minima, whose multiples are not."""
    if factor is None or not factor.dtype.is_float:
        return True
    if not isinstance(factor, Const):
        return False
    if reduction != "sum":
        return factor.value == 0 or factor.dtype.is_normal(float(factor.value) * lanes)
    try:
        return factor.dtype.is_normal(float(factor.value) ** lanes)
    except OverflowError:
        return False


def is_harmless(factor: Expr | None, dtype: DType) -> bool:
    """Whether an infinity stays what it is when the factor is added."""
    return isinstance(factor, Const) and dtype.is_float and isfinite(factor.value)
