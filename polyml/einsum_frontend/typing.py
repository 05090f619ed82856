"""Element types of expressions: NumPy's promotion, weak numbers, and a cast wherever a type changes.

Numbers, sizes, index values and 0-d results of only those are *weak*: beside a tensor they take its type (`x[n] / sqrt(D)` stays f32), as Python
numbers do in NumPy (NEP 50).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from polyml.dtypes import DType, boolean, c64, c128, f32, f64, i64, promote, u64
from polyml.einsum_frontend.complex_functions import FUNCTIONS
from polyml.einsum_frontend.complex_parts import ROWS, Parts, joined, parts_of, power
from polyml.errors import DTypeError
from polyml.expressions import Apply, Const, Expr, Read, spelling
from polyml.ops import BITWISE, OPS, result_dtype
from polyml.records import dataclass
from polyml.source import Span

__all__ = [
    "Typed",
    "apply",
    "cast",
    "common",
    "converted",
    "element",
    "is_narrow",
    "number",
    "stored",
    "whole_exponent",
]


@dataclass(frozen=True, slots=True)
class Typed:
    """A value of the program, and whether it is weak (then its dtype is i64, f64, bool or c128).

    expr: of the value's type; of half precision it is an f32, and `half` says which type it has in the program. A complex one is an op `complex`.
    """

    expr: Expr
    weak: bool
    half: DType | None = None

    @property
    def dtype(self) -> DType:
        return self.half or self.expr.dtype


def number(value: int | float | bool) -> Typed:
    """A weak number."""
    dtype = boolean if isinstance(value, bool) else i64 if isinstance(value, int) else f64
    return Typed(Const(value, dtype), True)


def element(read: Read, weak: bool = False) -> Typed:
    """The value of an element of a tensor."""
    if read.dtype.is_half:
        return Typed(Apply("cast", (read,), f32), weak, read.dtype)
    return Typed(joined(parts_of(read), read.dtype), weak) if read.dtype.is_complex else Typed(read, weak)


def cast(expr: Expr, dtype: DType, span: Span | None = None) -> Expr:
    """The expression as `dtype`; a number is converted on the spot.

    Raises:
        DTypeError: a number that `dtype` cannot hold; a complex number as a real one.
    """
    if expr.dtype == dtype and not (isinstance(expr, Const) and dtype == i64):
        return expr
    if expr.dtype.is_complex and dtype == boolean:
        return apply("ne", [Typed(expr, False), number(0)]).expr
    if dtype.is_complex:
        parts = parts_of(expr)
        imag = None if parts.imag is None else cast(parts.imag, dtype.part, span)
        return joined(Parts(cast(parts.real, dtype.part, span), imag), dtype)
    if expr.dtype.is_complex:
        hint = f"take a part: {dtype}(real(..)), or its size: abs(..)"
        raise DTypeError(f"{expr.dtype} does not convert to {dtype}", span=span, hint=hint)
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
            f"{value} does not fit in {dtype}",
            span=span,
            hint="write it as a float" if dtype == i64 else f"convert the tensor, e.g. {_wider(dtype)}(..)",
        )
    return Const(int(value), dtype)


def converted(value: Typed, dtype: DType, span: Span | None = None) -> Typed:
    """An explicit conversion: floats to integers truncate, and values of half precision are rounded to it, as in NumPy.

    Raises:
        DTypeError: a number that `dtype` cannot hold; a complex number as a real one.
    """
    expr = value.expr
    if dtype.is_half:
        same = value.half == dtype
        return Typed(expr if same else Apply("cast", (cast(expr, dtype, span),), f32), False, dtype)
    if isinstance(expr, Const) and isinstance(expr.value, float) and dtype.is_integer:
        if not abs(expr.value) < 2**63:
            raise DTypeError(f"{expr.value} has no value in {dtype}", span=span)
        expr = Const(int(expr.value), i64)
    return Typed(cast(expr, dtype, span), False)


def common(args: Sequence[Typed], span: Span | None = None) -> tuple[DType, bool]:
    """The promoted type of several values, and whether it is weak.

    Raises:
        DTypeError: they have none.
    """
    strong = [arg.dtype for arg in args if not arg.weak]
    kinds = {arg.dtype.kind for arg in args if arg.weak}
    if not strong:
        return (c128 if "c" in kinds else f64 if "f" in kinds else i64 if "i" in kinds else boolean), True
    try:
        dtype = strong[0] if all(d == strong[0] for d in strong) else promote(*strong)
    except DTypeError as error:
        raise DTypeError(error.message, span=span, hint=error.hint) from None
    inexact = dtype.is_float or dtype.is_complex
    if "c" in kinds and not dtype.is_complex:
        return (c64 if dtype.part == f32 else c128), False
    if "f" in kinds and not inexact:
        return f64, False
    if "i" in kinds and dtype == boolean:
        return i64, False
    return dtype, False


def apply(op: str, args: Sequence[Typed], span: Span | None = None) -> Typed:
    """The op of polyml.ops on values of any types: casts inserted, numbers computed, booleans as in NumPy (`+` is or, `*` is and), complex numbers in parts.

    Raises:
        DTypeError: the op is not defined for the type, or a number does not fit the type beside it.
    """
    rule = "same" if op == "conj" else OPS[op].rule
    if rule == "logical":
        weak = all(arg.weak for arg in args)
        return _folded(op, [cast(arg.expr, boolean, span) for arg in args], boolean, weak)
    if rule == "select":
        return _select(args, span)
    dtype, weak = common(args, span)
    if dtype.is_complex or op in ("conj", "real", "imag", "complex"):
        return _on_parts(op, args, dtype, weak, span)
    if rule == "comparison" and dtype.is_integer and not weak and any(_may_overflow(arg, dtype) for arg in args):
        if dtype == u64:
            return _compared_with_u64(op, args, span)
        dtype = i64
    if dtype == boolean:
        return _on_booleans(op, args, weak, span)
    if op in BITWISE and not dtype.is_integer:
        hint = (
            "write `**` for a power" if op == "bitxor" else "write `and` between conditions" if op == "bitand" else None
        )
        raise DTypeError(f"{spelling(op)} is not defined for {dtype}", span=span, hint=hint)
    if op == "popcount" and (weak or dtype.kind != "u"):
        hint = f"say how many bits there are: popcount(u{dtype.bits if dtype.is_integer and not weak else 64}(..))"
        raise DTypeError(
            f"popcount is of unsigned integers, not of {'a number' if weak else dtype}", span=span, hint=hint
        )
    if rule == "float":
        dtype = f64 if weak else result_dtype(op, dtype)
    elif rule == "true_divide":
        dtype = result_dtype(op, dtype)
    if op in ("floor", "ceil", "round") and dtype.is_integer:
        return Typed(args[0].expr, weak)
    if op == "abs" and dtype.kind == "u":
        return Typed(args[0].expr, weak)
    if op == "neg" and weak and isinstance(args[0].expr, Const) and args[0].expr.value == 2**63:
        return number(-(2**63))  # the one number that i64 has and its negative not
    if op == "pow" and dtype.is_integer:
        dtype = _integer_power(args, dtype, weak, span)
    values = [cast(arg.expr, dtype.part, span) for arg in args]
    if rule == "comparison":
        rounded = [_rounded(value, dtype) if arg.weak else value for value, arg in zip(values, args, strict=True)]
        return _folded(op, rounded, boolean, weak)
    return replace(_folded(op, values, dtype.part, weak), half=dtype if dtype.is_half else None)


def _rounded(expr: Expr, dtype: DType) -> Expr:
    """A number that is compared with values of half precision: rounded to it first, so that `x == 0.1` can be true."""
    if not dtype.is_half or not isinstance(expr, Const):
        return expr
    with np.errstate(over="ignore"):
        return Const(float(np.asarray(expr.value).astype(dtype.numpy)), f32)


def _select(args: Sequence[Typed], span: Span | None) -> Typed:
    """A choice; of complex numbers part by part."""
    condition, *values = args
    dtype, weak = common(values, span)
    test = cast(condition.expr, boolean, span)
    if not dtype.is_complex:
        chosen = Apply("select", (test, *(cast(v.expr, dtype.part, span) for v in values)), dtype.part)
        return Typed(chosen, weak, dtype if dtype.is_half else None)
    zero = Const(0.0, dtype.part)
    (a, b), (c, d) = ((p.real, p.imag or zero) for p in (parts_of(cast(v.expr, dtype, span)) for v in values))
    both = (Apply("select", (test, *pair), dtype.part) for pair in ((a, c), (b, d)))
    return Typed(joined(Parts(*both), dtype), weak)


def _on_parts(op: str, args: Sequence[Typed], dtype: DType, weak: bool, span: Span | None) -> Typed:
    """Ops of complex numbers, and those between them and real ones.

    Raises:
        DTypeError: there is no such op.
    """
    if op == "complex" and dtype.is_complex:
        raise DTypeError(f"complex(..) takes two real numbers, not {dtype}", span=span)
    if op not in ("conj", "real", "complex") and not dtype.is_complex:
        assert op == "imag", "internal: an op on parts"
        return Typed(cast(Const(0, i64), dtype.part, span), weak, dtype if dtype.is_half else None)
    if op in ("conj", "real") and not dtype.is_complex:
        return args[0]
    exponent = whole_exponent(args[1].expr) if op == "pow" else None
    if exponent is not None:
        return _complex_power(args, dtype, weak, exponent, span)
    row = ROWS.get(op) or FUNCTIONS.get(op)
    if row is None:
        ordered = op in ("lt", "le", "gt", "ge", "min", "max", "relu")
        why = "complex numbers have no order" if ordered else f"{spelling(op)} is not defined for {dtype}"
        hint = (
            "compare abs(..) or real(..)" if ordered else _IN_OTHER_WORDS.get(op, "take real(..), imag(..) or abs(..)")
        )
        raise DTypeError(why, span=span, hint=hint)
    part = dtype.part if dtype.is_complex else f64 if weak or dtype.part != f32 else f32
    taken = [parts_of(arg.expr) for arg in args]
    made = row(
        tuple(Parts(cast(p.real, part, span), None if p.imag is None else cast(p.imag, part, span)) for p in taken)
    )
    if isinstance(made, Parts):
        return Typed(joined(made, c64 if part == f32 else c128), weak)
    return Typed(made, weak)


_IN_OTHER_WORDS = {"sigmoid": "write 1 / (1 + exp(-x))"}
"""What to write for a function that NumPy does not have for complex numbers."""


def whole_exponent(expr: Expr) -> int | None:
    """A constant exponent of 1 to 16 or -16 to -1."""
    value = expr.value if isinstance(expr, Const) else None
    return int(value) if value is not None and 1 <= abs(value) <= 16 and value == int(value) else None


def _complex_power(args: Sequence[Typed], dtype: DType, weak: bool, exponent: int, span: Span | None) -> Typed:
    """Whole constant powers, by products."""
    result = Typed(joined(power(parts_of(cast(args[0].expr, dtype, span)), abs(exponent)), dtype), weak)
    return result if exponent > 0 else apply("div", [number(1), result], span)


def _on_booleans(op: str, args: Sequence[Typed], weak: bool, span: Span | None) -> Typed:
    """Ops whose arguments are all bool."""
    values = [cast(arg.expr, boolean) for arg in args]
    match op:
        case "add" | "max" | "bitor":
            return _folded("or", values, boolean, weak)
        case "mul" | "min" | "bitand":
            return _folded("and", values, boolean, weak)
        case "bitxor":
            return _folded("ne", values, boolean, weak)
        case "eq" | "ne" | "lt" | "le" | "gt" | "ge":
            return _folded(op, values, boolean, weak)
        case "abs" | "relu":
            return Typed(values[0], weak)
        case _:
            if OPS[op].rule == "float" or op == "div":
                return apply(op, [Typed(cast(v, f64), weak) for v in values], span)
            raise DTypeError(
                f"{spelling(op)} is not defined for bool",
                span=span,
                hint="convert it, e.g. i32(..), or use `not`, `!=`",
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
    if value.dtype == dtype and not dtype.is_half:
        return value.expr
    inexact = value.dtype.is_float or value.dtype.is_complex
    whole = isinstance(value.expr, Const) and value.weak and float(value.expr.value).is_integer()
    narrows = inexact and not whole and not (dtype.is_float or dtype.is_complex)
    loses = value.dtype.is_complex and not dtype.is_complex
    if narrows or loses or (dtype == boolean and value.dtype != boolean):
        verb = "is updated with" if update else "is assigned"
        raise DTypeError(
            f"{name} has dtype {dtype}, and {verb} values of dtype {value.dtype}",
            span=span,
            hint="write a comparison: .. != 0"
            if dtype == boolean
            else "take real(..), imag(..) or abs(..)"
            if loses
            else f"write the conversion: {dtype}(..)",
        )
    return cast(value.expr, dtype, span)


def is_narrow(dtype: DType) -> bool:
    """8- and 16-bit integers, which a sum would soon overflow."""
    return dtype.is_integer and dtype.bits < 32


def _may_overflow(arg: Typed, dtype: DType) -> bool:
    """Whether a number, size or index value, which is compared by its value, may have none in the type."""
    return arg.weak and not (isinstance(arg.expr, Const) and _fits(int(arg.expr.value), dtype))


def _compared_with_u64(op: str, args: Sequence[Typed], span: Span | None) -> Typed:
    """A comparison of a u64, which no other type holds, with a number, size or index value that may be negative."""
    (value,) = (cast(arg.expr, i64, span) for arg in args if arg.weak)
    holds = bool(OPS[op].meaning(*(np.int64(-1 if arg.weak else 0) for arg in args)))
    if isinstance(value, Const):
        (other,) = (arg.expr for arg in args if not arg.weak)
        return Typed(Apply("ge" if holds else "lt", (other, Const(0, u64)), boolean), False)
    same = Apply(op, tuple(Apply("cast", (value,), u64) if arg.weak else arg.expr for arg in args), boolean)
    negative = Apply("lt" if holds else "ge", (value, Const(0, i64)), boolean)
    return Typed(Apply("or" if holds else "and", (negative, same), boolean), False)


def _fits(value: int, dtype: DType) -> bool:
    if dtype.kind == "u":
        return 0 <= value < 1 << dtype.bits
    return -(1 << dtype.bits - 1) <= value < 1 << dtype.bits - 1


def _wider(dtype: DType) -> str:
    return "i32" if dtype.bits < 32 else "i64"
