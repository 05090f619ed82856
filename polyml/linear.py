"""Expressions that are linear in an element: steps of recurrences of first order, x[j] = a * x[j - 1] + p[j], or with maxima or minima for sums, and sums for products: x[j] = max(a + x[j - 1], p[j]).

A maximum distributes over a sum as a sum does over a product (the semiring of max and +, "tropical"): alignments, shortest paths over a grid, time warping, distance transforms and running extrema are linear there.

Source: Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity" (1992), section 1.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyml.dtypes import DType, boolean
from polyml.expressions import Apply, Const, Expr, Read, reads_of
from polyml.ops import REDUCTIONS
from polyml.records import dataclass

__all__ = ["Recurrence", "SecondOrder", "recurrence_of", "second_order_of"]


@dataclass(frozen=True, slots=True)
class Recurrence:
    """`factor * before + rest`, or with reduction "max" or "min" `max(factor + before, rest)`; factor: None: 1, or 0. reset: where this holds, `rest` alone (None: nowhere)."""

    rest: Expr
    factor: Expr | None
    reduction: str | None
    reset: Expr | None = None

    @property
    def is_exact(self) -> bool:
        """Whether composing steps rounds nothing otherwise than taking them in order."""
        return not self.rest.dtype.is_float or (self.reduction is not None and self.factor is None)


@dataclass(frozen=True, slots=True)
class SecondOrder:
    """`first * before + second * earlier + rest`."""

    rest: Expr
    first: Expr
    second: Expr


def second_order_of(value: Expr, before: Read, earlier: Read) -> SecondOrder | None:
    """The value as a step of a linear recurrence of second order in floating point, of the last element and the one before that; None when it is none."""
    found = _linear(value, before) if value.dtype.is_float else None
    first, others = found or (None, None)
    if first is None or others is None or _uses(first, earlier):
        return None
    apart = _linear(others, earlier)
    if apart is None or apart[0] is None or apart[1] is None:
        return None
    return SecondOrder(apart[1], first, apart[0])


def recurrence_of(value: Expr, before: Read) -> Recurrence | None:
    """The value as a step of a recurrence of first order; None when it is none."""
    match value:
        case Apply(op="select", args=(condition, first, second)) if not _uses(condition, before):
            if _uses(first, before) and _uses(second, before):
                return None
            if _uses(first, before):
                reset: Expr = Apply("not", (condition,), boolean)
                return _with_resets(_step_of(first, before) or _kept(first, before), reset, second)
            return _with_resets(_step_of(second, before) or _kept(second, before), condition, first)
    return _step_of(value, before)


def _kept(value: Expr, before: Read) -> Recurrence | None:
    """The element before itself, which nothing is added to."""
    if value != before or value.dtype.kind not in "fiu":
        return None
    identity = REDUCTIONS["max"].identity(value.dtype)
    return None if identity is None else Recurrence(Const(identity, value.dtype), None, "max")


def _with_resets(step: Recurrence | None, reset: Expr, value: Expr) -> Recurrence | None:
    """The step, but where `reset` holds the value alone."""
    if step is None:
        return None
    return replace(step, rest=Apply("select", (reset, value, step.rest), value.dtype), reset=reset)


def _step_of(value: Expr, before: Read) -> Recurrence | None:
    """The value as such a step, everywhere."""
    found = None if value.dtype.kind == "b" else _linear(value, before)
    if found is not None:
        factor, inhomogeneous = found
        if factor is None or inhomogeneous is None:
            return None
        if isinstance(factor, Const) and factor.dtype.is_float and not factor.dtype.is_normal(factor.value):
            return None  # of several numbers, each of which the type has, unlike their product
        return Recurrence(inhomogeneous, None if _is_one(factor) else factor, None)
    for op in ("max", "min"):
        found = _tropical(value, before, op)
        if found is not None and found[0] is not None and found[1] is not None:
            return Recurrence(found[1], None if _is_zero(found[0]) else found[0], op)
    return None


def _tropical(value: Expr, before: Read, op: str) -> tuple[Expr | None, Expr | None] | None:
    """The value as `op(first + before, second)` (None: the identity of op); None when it is not linear in that sense.

    Sums of integers wrap around, so that no extremum is moved past them.
    """
    if value == before:
        return Const(0, value.dtype), None
    if not _uses(value, before):
        return None, value
    if not isinstance(value, Apply) or value.op not in (op, "add", "sub") or value.dtype != before.dtype:
        return None
    parts = [part for arg in value.args if (part := _tropical(arg, before, op)) is not None]
    if len(parts) < len(value.args):
        return None
    if value.op == op:
        first, second = zip(*parts, strict=True)
        if value.dtype.is_integer and sum(term is not None for term in first) > 1:
            return None
        return _extremum(op, first), _extremum(op, second)
    linear, other = parts if parts[1][0] is None else parts[::-1]
    if other[0] is not None or other[1] is None or (value.op == "sub" and linear is not parts[0]):
        return None
    if value.dtype.is_integer and linear[1] is not None:
        return None
    factor, rest = (None if part is None else _moved(value.op, part, other[1]) for part in linear)
    return factor, rest


def _extremum(op: str, terms: Sequence[Expr | None]) -> Expr | None:
    found: Expr | None = None
    for term in dict.fromkeys(term for term in terms if term is not None):
        found = term if found is None else Apply(op, (found, term), term.dtype)
    return found


def _moved(op: str, value: Expr, by: Expr) -> Expr:
    if _is_zero(value):
        return by if op == "add" else Apply("neg", (by,), by.dtype)
    return Apply(op, (value, by), value.dtype)


def _linear(value: Expr, before: Read) -> tuple[Expr | None, Expr | None] | None:
    """The value as `first * before + second` (None: zero); None when it is not linear in it."""
    if value == before:
        return Const(1, value.dtype), None
    if not _uses(value, before):
        return None, value
    if not isinstance(value, Apply) or value.op not in ("add", "sub", "mul", "div", "neg"):
        return None
    parts = [_linear(arg, before) for arg in value.args]
    if any(part is None for part in parts):
        return None
    first, *others = [part for part in parts if part is not None]
    dtype = value.dtype
    if value.op == "neg":
        return _negated(first[0], dtype), _negated(first[1], dtype)
    (second,) = others
    if value.op in ("add", "sub"):
        return tuple(_sum(value.op, a, b, dtype) for a, b in zip(first, second, strict=True))  # type: ignore[return-value]
    if value.op == "div":
        if second[0] is not None or second[1] is None or not dtype.is_float:
            return None
        over = _quotient(Const(1, dtype), second[1], dtype)
        return _product(first[0], over, dtype), _product(first[1], over, dtype)
    if first[0] is not None and second[0] is not None:
        return None
    one, other = (first, second[1]) if second[0] is None else (second, first[1])
    return None if other is None else (_product(one[0], other, dtype), _product(one[1], other, dtype))


def _uses(value: Expr, before: Read) -> bool:
    return before in reads_of(value)


def _negated(value: Expr | None, dtype: DType) -> Expr | None:
    if isinstance(value, Const):
        return Const(-value.value, dtype)
    return None if value is None else Apply("neg", (value,), dtype)


def _sum(op: str, a: Expr | None, b: Expr | None, dtype: DType) -> Expr | None:
    if b is None:
        return a
    if a is None:
        return _negated(b, dtype) if op == "sub" else b
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(a.value + b.value if op == "add" else a.value - b.value, dtype)
    return Apply(op, (a, b), dtype)


def _product(a: Expr | None, b: Expr, dtype: DType) -> Expr | None:
    if a is None:
        return None
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(a.value * b.value, dtype)
    return b if _is_one(a) else a if _is_one(b) else Apply("mul", (a, b), dtype)


def _quotient(a: Const, b: Expr, dtype: DType) -> Expr:
    if isinstance(b, Const) and b.value:
        return Const(a.value / b.value, dtype)
    return Apply("div", (a, b), dtype)


def _is_one(value: Expr | None) -> bool:
    return isinstance(value, Const) and value.value == 1


def _is_zero(value: Expr | None) -> bool:
    return isinstance(value, Const) and value.value == 0
