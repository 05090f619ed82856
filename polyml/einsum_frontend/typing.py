"""Element types of expressions: NumPy's promotion, weak numbers, and a cast wherever a type changes.

Numbers, sizes, index values and 0-d results of only those are *weak*: beside a tensor they take its type (`x[n] / sqrt(D)` stays f32), as Python
numbers do in NumPy (NEP 50).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyml.dtypes import DType, boolean, f64, i64, promote
from polyml.errors import DTypeError
from polyml.expressions import Apply, Const, Expr
from polyml.ops import OPS, result_dtype
from polyml.source import Span

__all__ = ["Typed", "apply", "cast", "common", "is_narrow", "number", "stored"]


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression, and whether it is weak (then its dtype is i64, f64 or bool)."""

    expr: Expr
    weak: bool

    @property
    def dtype(self) -> DType:
        return self.expr.dtype


def number(value: int | float | bool) -> Typed:
    """A weak number."""
    dtype = boolean if isinstance(value, bool) else i64 if isinstance(value, int) else f64
    return Typed(Const(value, dtype), True)


def cast(expr: Expr, dtype: DType, span: Span | None = None) -> Expr:
    """The expression as `dtype`; a number is converted on the spot.

    Raises:
        DTypeError: a number that `dtype` cannot hold.
    """
    if expr.dtype == dtype:
        return expr
    if not isinstance(expr, Const):
        return Apply("cast", (expr,), dtype)
    value = expr.value
    if dtype.is_float:
        return Const(float(value), dtype)
    if dtype == boolean:
        return Const(bool(value), dtype)
    if isinstance(value, float) and not math.isfinite(value):
        raise DTypeError(f"{value} has no value in {dtype}", span=span)
    if not _fits(int(value), dtype):
        raise DTypeError(
            f"{value} does not fit in {dtype}", span=span, hint=f"convert the tensor, e.g. {_wider(dtype)}(..)"
        )
    return Const(int(value), dtype)


def common(args: Sequence[Typed]) -> tuple[DType, bool]:
    """The promoted type of several values, and whether it is weak."""
    strong = [arg.dtype for arg in args if not arg.weak]
    kinds = {arg.dtype.kind for arg in args if arg.weak}
    if not strong:
        return (f64 if "f" in kinds else i64 if "i" in kinds else boolean), True
    dtype = strong[0] if all(d == strong[0] for d in strong) else promote(*strong)
    if "f" in kinds and not dtype.is_float:
        return f64, False
    if "i" in kinds and dtype == boolean:
        return i64, False
    return dtype, False


def apply(op: str, args: Sequence[Typed], span: Span | None = None) -> Typed:
    """The op of polyml.ops on values of any types: casts inserted, numbers computed, booleans as in NumPy (`+` is or, `*` is and).

    Raises:
        DTypeError: the op is not defined for the type, or a number does not fit the type beside it.
    """
    rule = OPS[op].rule
    if rule == "logical":
        weak = all(arg.weak for arg in args)
        return _folded(op, [cast(arg.expr, boolean, span) for arg in args], boolean, weak)
    if rule == "select":
        condition, *values = args
        dtype, weak = common(values)
        return Typed(
            Apply(op, (cast(condition.expr, boolean), *(cast(v.expr, dtype, span) for v in values)), dtype), weak
        )
    dtype, weak = common(args)
    if rule == "comparison" and dtype.is_integer and any(_overflows(arg, dtype) for arg in args):
        dtype = i64
    if dtype == boolean:
        return _on_booleans(op, args, weak, span)
    if rule == "float":
        dtype = f64 if weak else result_dtype(op, dtype)
    elif rule == "true_divide":
        dtype = result_dtype(op, dtype)
    if op in ("floor", "ceil", "round") and dtype.is_integer:
        return Typed(args[0].expr, weak)
    if op == "abs" and dtype.kind == "u":
        return Typed(args[0].expr, weak)
    if op == "pow" and dtype.is_integer:
        dtype = _integer_power(args, dtype, weak, span)
    result = boolean if rule == "comparison" else dtype
    return _folded(op, [cast(arg.expr, dtype, span) for arg in args], result, weak)


def _on_booleans(op: str, args: Sequence[Typed], weak: bool, span: Span | None) -> Typed:
    """Ops whose arguments are all bool."""
    values = [cast(arg.expr, boolean) for arg in args]
    match op:
        case "add" | "max":
            return _folded("or", values, boolean, weak)
        case "mul" | "min":
            return _folded("and", values, boolean, weak)
        case "eq" | "ne" | "lt" | "le" | "gt" | "ge":
            return _folded(op, values, boolean, weak)
        case "abs" | "relu":
            return Typed(values[0], weak)
        case _:
            if OPS[op].rule == "float" or op == "div":
                return apply(op, [Typed(cast(v, f64), weak) for v in values], span)
            raise DTypeError(
                f"{op} is not defined for bool", span=span, hint="convert it, e.g. i32(..), or use `not`, `!=`"
            )


def _integer_power(args: Sequence[Typed], dtype: DType, weak: bool, span: Span | None) -> DType:
    exponent = args[1].expr
    if isinstance(exponent, Const) and exponent.value < 0:
        if weak:
            return f64
        raise DTypeError(
            f"{dtype} to the power {exponent.value} has no integer value", span=span, hint="convert to a float"
        )
    return dtype


def _folded(op: str, args: Sequence[Expr], dtype: DType, weak: bool) -> Typed:
    """The application, computed where all arguments are numbers and the result is one."""
    if weak and all(isinstance(arg, Const) for arg in args) and args:
        values = [arg.dtype.numpy.type(arg.value) for arg in args if isinstance(arg, Const)]
        with np.errstate(all="ignore"):
            result = np.asarray(OPS[op].meaning(*values)).astype(dtype.numpy)
        if op not in ("floordiv", "mod") or values[1] != 0:
            return Typed(Const(result.item(), dtype), weak)
    return Typed(Apply(op, tuple(args), dtype), weak)


def stored(value: Typed, dtype: DType, *, name: str, update: bool = False, span: Span | None = None) -> Expr:
    """The value as an element of a tensor of `dtype`: floats round to narrower ones and integers convert, but no float becomes an integer and no
    number a bool unasked.

    Raises:
        DTypeError: such a conversion.
    """
    if value.dtype == dtype:
        return value.expr
    whole = isinstance(value.expr, Const) and value.weak and float(value.expr.value).is_integer()
    if (value.dtype.is_float and not dtype.is_float and not whole) or (dtype == boolean and value.dtype != boolean):
        verb = "is updated with" if update else "is assigned"
        raise DTypeError(
            f"{name} has dtype {dtype}, and {verb} values of dtype {value.dtype}",
            span=span,
            hint=f"write the conversion: {dtype}(..)" if dtype != boolean else "write a comparison: .. != 0",
        )
    return cast(value.expr, dtype, span)


def is_narrow(dtype: DType) -> bool:
    """8- and 16-bit integers, which a sum would soon overflow."""
    return dtype.is_integer and dtype.bits < 32


def _overflows(arg: Typed, dtype: DType) -> bool:
    return arg.weak and isinstance(arg.expr, Const) and not _fits(int(arg.expr.value), dtype)


def _fits(value: int, dtype: DType) -> bool:
    if dtype.kind == "u":
        return 0 <= value < 1 << dtype.bits
    return -(1 << dtype.bits - 1) <= value < 1 << dtype.bits - 1


def _wider(dtype: DType) -> str:
    return "i32" if dtype.bits < 32 else "i64"
