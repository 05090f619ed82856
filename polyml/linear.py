"""Expressions that are linear in an element: steps of recurrences of first order, x[j] = a * x[j - 1] + p[j], or of running maxima and minima."""

from __future__ import annotations

from polyml.dtypes import DType
from polyml.expressions import Apply, Const, Expr, Read, reads_of
from polyml.records import dataclass

__all__ = ["Recurrence", "recurrence_of"]


@dataclass(frozen=True, slots=True)
class Recurrence:
    """`combine(factor * before, rest)`; factor: None: 1; reduction: of `combine`, None: the sum."""

    rest: Expr
    factor: Expr | None
    reduction: str | None


def recurrence_of(value: Expr, before: Read) -> Recurrence | None:
    """The value as a step of a recurrence of first order; None when it is none."""
    if isinstance(value, Apply) and value.op in ("max", "min"):
        terms = _operands(value, value.op)
        others = [term for term in terms if term != before]
        if len(others) == len(terms) or not others or any(_uses(term, before) for term in others):
            return None
        best = others[0]
        for term in others[1:]:
            best = Apply(value.op, (best, term), value.dtype)
        return Recurrence(best, None, value.op)
    if value.dtype.kind == "b":
        return None
    found = _linear(value, before)
    if found is None:
        return None
    factor, inhomogeneous = found
    if factor is None or inhomogeneous is None:
        return None
    return Recurrence(inhomogeneous, None if _is_one(factor) else factor, None)


def _operands(value: Expr, op: str) -> list[Expr]:
    if isinstance(value, Apply) and value.op == op:
        return [term for arg in value.args for term in _operands(arg, op)]
    return [value]


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
