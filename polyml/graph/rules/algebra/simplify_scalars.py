"""Rules for scalars: algebra that holds for every number of the type, NaN, infinities and the sign of zero included."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from polyml.dtypes import DType
from polyml.expressions import Apply, Const, Expr, walk

__all__ = ["SCALAR_RULES", "Rule"]

Rule = Callable[[Apply], Expr | None]
"""An equal expression, or None when the rule does not apply."""


def _is(expr: Expr, value: float) -> bool:
    """True for this constant; zeros are told apart by their sign."""
    return (
        isinstance(expr, Const)
        and expr.value == value
        and math.copysign(1, float(expr.value)) == math.copysign(1, float(value))
    )


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 0


def _same(x: Expr, y: Expr) -> bool:
    """Equality that tells 0.0 and -0.0, and 1 and True, apart."""
    return x == y and repr(x) == repr(y)


def _zero(dtype: DType) -> Const:
    return Const(0.0 if dtype.is_float else 0, dtype)


def _add(expr: Apply) -> Expr | None:
    x, y = expr.args
    exact = expr.dtype.is_integer
    for one, other in ((x, y), (y, x)):
        if (exact and _is_zero(one)) or (expr.dtype.is_float and _is(one, -0.0)):
            return other
    if isinstance(y, Apply) and y.op == "neg":
        return Apply("sub", (x, y.args[0]), expr.dtype)
    if isinstance(x, Apply) and x.op == "neg":
        return Apply("sub", (y, x.args[0]), expr.dtype)
    return None


def _sub(expr: Apply) -> Expr | None:
    x, y = expr.args
    if (expr.dtype.is_integer and _is_zero(y)) or (expr.dtype.is_float and _is(y, 0.0)):
        return x
    if expr.dtype.is_integer and _same(x, y):
        return _zero(expr.dtype)
    if isinstance(y, Apply) and y.op == "neg":
        return Apply("add", (x, y.args[0]), expr.dtype)
    return None


def _mul(expr: Apply) -> Expr | None:
    for one, other in (expr.args, expr.args[::-1]):
        if _is(one, 1):
            return other
        if expr.dtype.is_integer and _is_zero(one):
            return _zero(expr.dtype)
        if _is(one, -1):
            return Apply("neg", (other,), expr.dtype)
    return None


def _div(expr: Apply) -> Expr | None:
    x, y = expr.args
    if _is(y, 1):
        return x
    if isinstance(y, Const) and expr.dtype.is_float and y.value and math.isfinite(y.value):
        mantissa, exponent = math.frexp(float(y.value))
        if abs(mantissa) == 0.5 and abs(exponent) < 100:  # a power of two: its reciprocal is exact
            return Apply("mul", (x, Const(1 / float(y.value), expr.dtype)), expr.dtype)
    return None


def _floordiv(expr: Apply) -> Expr | None:
    return expr.args[0] if expr.dtype.is_integer and _is(expr.args[1], 1) else None


def _mod(expr: Apply) -> Expr | None:
    return _zero(expr.dtype) if expr.dtype.is_integer and _is(expr.args[1], 1) else None


def _pow(expr: Apply) -> Expr | None:
    x, y = expr.args
    if _is(y, 1):
        return x
    if _is(y, 2) and sum(1 for _ in walk(x)) <= 16:
        return Apply("mul", (x, x), expr.dtype)
    return None


def _neg(expr: Apply) -> Expr | None:
    match expr.args[0]:
        case Apply(op="neg", args=(x,)):
            return x
        case Apply(op="sub", args=(x, y), dtype=dtype) if dtype.is_integer:
            return Apply("sub", (y, x), dtype)
        case _:
            return None


def _abs(expr: Apply) -> Expr | None:
    match expr.args[0]:
        case Apply(op="neg", args=(x,)):
            return Apply("abs", (x,), expr.dtype)
        case Apply(op="abs") as inner:
            return inner
        case _:
            return None


def _idempotent(expr: Apply) -> Expr | None:
    """f(f(x)) is f(x)."""
    inner = expr.args[0]
    return inner if isinstance(inner, Apply) and inner.op == expr.op else None


def _cast(expr: Apply) -> Expr | None:
    inner = expr.args[0]
    if inner.dtype == expr.dtype:
        return inner
    match inner:
        case Apply(op="cast", args=(x,)) if _contains(inner.dtype, x.dtype) and (
            not inner.dtype.is_float or expr.dtype.is_float or x.dtype == expr.dtype
        ):
            return Apply("cast", (x,), expr.dtype)  # the first cast lost nothing
        case Apply(
            op="select", args=(condition, Const() as x, Const() as y)
        ):  # numbers have no type of their own to compute in
            return Apply("select", (condition, *(Apply("cast", (n,), expr.dtype) for n in (x, y))), expr.dtype)
        case _:
            return None


def _part(expr: Apply) -> Expr | None:
    """A part of a complex number that is made of parts."""
    match expr.args[0]:
        case Apply(op="complex", args=(real, imag)):
            return real if expr.op == "real" else imag
        case _:
            return None


def _complex(expr: Apply) -> Expr | None:
    """A complex number that is taken apart and put together again."""
    match expr.args:
        case (Apply(op="real", args=(x,)), Apply(op="imag", args=(y,))) if _same(x, y):
            return x
        case _:
            return None


def _contains(wide: DType, narrow: DType) -> bool:
    """True when each value of `narrow` is one of `wide`."""
    if narrow.is_half:
        return wide.is_float and not wide.is_half
    if wide.is_half:
        return False
    return bool(np.can_cast(narrow.numpy, wide.numpy, "safe")) and not (wide.is_float and narrow.bits >= wide.bits)


def _select(expr: Apply) -> Expr | None:
    condition, yes, no = expr.args
    if isinstance(condition, Const):
        return yes if condition.value else no
    if _same(yes, no):
        return yes
    if isinstance(condition, Apply) and condition.op == "not":
        return Apply("select", (condition.args[0], no, yes), expr.dtype)
    return None


def _and(expr: Apply) -> Expr | None:
    for one, other in (expr.args, expr.args[::-1]):
        if isinstance(one, Const):
            return other if one.value else one
    return expr.args[0] if _same(*expr.args) else None


def _or(expr: Apply) -> Expr | None:
    for one, other in (expr.args, expr.args[::-1]):
        if isinstance(one, Const):
            return one if one.value else other
    return expr.args[0] if _same(*expr.args) else None


def _not(expr: Apply) -> Expr | None:
    inner = expr.args[0]
    return inner.args[0] if isinstance(inner, Apply) and inner.op == "not" else None


def _same_twice(expr: Apply) -> Expr | None:
    """min(x, x) and max(x, x)."""
    return expr.args[0] if _same(*expr.args) else None


SCALAR_RULES: Mapping[str, Rule] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "floordiv": _floordiv,
    "mod": _mod,
    "pow": _pow,
    "neg": _neg,
    "abs": _abs,
    "relu": _idempotent,
    "floor": _idempotent,
    "ceil": _idempotent,
    "round": _idempotent,
    "cast": _cast,
    "real": _part,
    "imag": _part,
    "complex": _complex,
    "select": _select,
    "and": _and,
    "or": _or,
    "not": _not,
    "min": _same_twice,
    "max": _same_twice,
}
