"""One row per op of polyml.ops that is not a read, a select or vector math: how it is computed on Values.

Arguments have the same lanes and the dtype that the op computes in. Floating point keeps NaN, infinities and signed zeros; only contraction (FMA) is
allowed, and only with the builder's `contract` flag. Integers wrap; dividing them never traps.
"""

from __future__ import annotations

from collections.abc import Callable

from polyml.codegen.llvm.half import narrowed, to_odd_single, widened
from polyml.codegen.llvm.ir import Builder, Value, constant, type_of
from polyml.codegen.llvm.math.kit import call
from polyml.codegen.llvm.math.remainder import fmod
from polyml.codegen.llvm.whole_quotients import divides_by_floats, floor_quotient, remainder
from polyml.codegen.llvm.wide_casts import from_wide, is_wide, to_wide
from polyml.dtypes import DType, f32, f64

__all__ = ["ARITHMETIC", "Row", "cast", "maximum", "minimum", "multiply_add"]

Row = Callable[[Builder, tuple[Value, ...], DType], Value]
"""(builder, arguments, the arguments' dtype) -> result."""


def cast(b: Builder, a: Value, source: DType, target: DType) -> Value:
    """NumPy's astype: floats truncate towards zero (what does not fit is any value, but no trap), integers wrap, non-zero (NaN too) is True."""
    to = type_of(target)
    if source == target:
        return a
    if source.is_half:
        return cast(b, widened(b, a, source), f32, target)
    if target.is_half:
        single = to_odd_single(b, a) if source == f64 else cast(b, a, source, f32)
        return narrowed(b, single, target)
    if target.kind == "b":
        return b.compare("une" if source.is_float else "ne", a, constant(a.type, 0))
    if source.is_float and target.is_float:
        return b.convert("fpext" if target.bits > source.bits else "fptrunc", a, to.element)
    if target.is_float:
        if source.kind == "i" and is_wide(b, to.of(a.lanes), a.type):
            return from_wide(b, a, to.element)
        return b.convert("sitofp" if source.kind == "i" else "uitofp", a, to.element)
    if source.is_float:
        return _truncate(b, a, target)
    if target.bits < source.bits and source.kind != "b":
        return b.convert("trunc", a, to.element)
    return b.convert("sext" if source.kind == "i" else "zext", a, to.element)


def _truncate(b: Builder, a: Value, target: DType) -> Value:
    """Through i32 or i64 as NumPy does on this kind of machine, and frozen: a value out of range is poison otherwise."""
    if target.kind == "u" and target.bits == 64:
        wide = b.convert("fptoui", a, "i64")
    elif target.bits == 64 or (target.kind == "u" and target.bits == 32):
        wide = to_wide(b, a) if is_wide(b, a.type, type_of("i64")) else b.convert("fptosi", a, "i64")
    else:
        wide = b.convert("fptosi", a, "i32")
    frozen = b.emit(wide.type, f"freeze {wide}")
    return b.convert("trunc", frozen, f"i{target.bits}")


def multiply_add(b: Builder, x: Value, y: Value, z: Value) -> Value:
    """`x * y + z`; of floats fused where the target can."""
    if not z.type.is_float:
        return b.arithmetic("add", b.arithmetic("mul", x, y), z)
    return b.intrinsic("fmuladd", x, y, z)


def minimum(b: Builder, x: Value, y: Value, dtype: DType) -> Value:
    """The smaller one; NaN wins. In a reduction y is the accumulator: its own NaN test stays off the critical path."""
    return _extremum(b, x, y, dtype, "lt")


def maximum(b: Builder, x: Value, y: Value, dtype: DType) -> Value:
    """The larger one; NaN wins. In a reduction y is the accumulator."""
    return _extremum(b, x, y, dtype, "gt")


def _extremum(b: Builder, x: Value, y: Value, dtype: DType, order: str) -> Value:
    if not dtype.is_float:
        return b.select(b.compare(_signed(order, dtype), x, y), x, y)
    # Three instructions on x86, one on AArch64. nsz: which of 0.0 and -0.0 is the smaller one is open in NumPy too; nothing else is given up.
    return b.intrinsic("minimum" if order == "lt" else "maximum", x, y, flags="nsz ")


def _signed(order: str, dtype: DType) -> str:
    return ("s" if dtype.kind == "i" else "u") + order


def _compare(order: str) -> Row:
    def row(b: Builder, args: tuple[Value, ...], dtype: DType) -> Value:
        if dtype.is_float:
            return b.compare({"eq": "oeq", "ne": "une"}.get(order, "o" + order), *args)
        return b.compare(order if order in ("eq", "ne") else _signed(order, dtype), *args)

    return row


def _add(b: Builder, args: tuple[Value, ...], dtype: DType) -> Value:
    return b.binary("or", *args) if dtype.kind == "b" else b.arithmetic("add", *args)


def _sub(b: Builder, args: tuple[Value, ...], dtype: DType) -> Value:
    return b.arithmetic("sub", *args)


def _mul(b: Builder, args: tuple[Value, ...], dtype: DType) -> Value:
    return b.binary("and", *args) if dtype.kind == "b" else b.arithmetic("mul", *args)


def _div(b: Builder, args: tuple[Value, ...], dtype: DType) -> Value:
    assert dtype.is_float, f"internal: true division of {dtype}"
    return b.binary("fdiv", *args)


def _neg(b: Builder, args: tuple[Value, ...], dtype: DType) -> Value:
    (a,) = args
    return b.emit(a.type, f"fneg {a}") if dtype.is_float else b.binary("sub", constant(a.type, 0), a)


def _abs(b: Builder, args: tuple[Value, ...], dtype: DType) -> Value:
    (a,) = args
    if dtype.is_float:
        return b.intrinsic("fabs", a)
    if dtype.kind != "i":
        return a
    return b.select(b.compare("slt", a, constant(a.type, 0)), b.binary("sub", constant(a.type, 0), a), a)


def _safe_divisor(b: Builder, x: Value, y: Value, dtype: DType) -> tuple[Value, Value]:
    """A divisor that cannot trap: 1 in place of 0 and of -1 under the smallest number; and the mask of the zeros."""
    zero = b.compare("eq", y, constant(y.type, 0))
    bad = zero
    if dtype.kind == "i":
        lowest = b.compare("eq", x, constant(x.type, -(1 << (dtype.bits - 1))))
        bad = b.binary("or", zero, b.binary("and", lowest, b.compare("eq", y, constant(y.type, -1))))
    return b.select(bad, constant(y.type, 1), y), zero


def _crosses(b: Builder, rest: Value, divisor: Value) -> Value:
    """Whether a truncated remainder is not zero and has the other sign than the divisor."""
    other_sign = b.compare("slt", b.binary("xor", rest, divisor), constant(rest.type, 0))
    return b.binary("and", b.compare("ne", rest, constant(rest.type, 0)), other_sign)


def _floordiv(b: Builder, args: tuple[Value, ...], dtype: DType) -> Value:
    x, y = args
    if dtype.is_float:
        return _float_floordiv(b, x, y)
    if divides_by_floats(y, dtype):
        return floor_quotient(b, x, y, dtype)
    divisor, zero = _safe_divisor(b, x, y, dtype)
    if dtype.kind == "i":
        quotient = b.binary("sdiv", x, divisor)
        rest = b.binary("sub", x, b.binary("mul", quotient, divisor))
        quotient = b.binary("sub", quotient, b.convert("zext", _crosses(b, rest, divisor), quotient.type.element))
    else:
        quotient = b.binary("udiv", x, divisor)
    return b.select(zero, constant(x.type, 0), quotient)


def _mod(b: Builder, args: tuple[Value, ...], dtype: DType) -> Value:
    x, y = args
    if dtype.is_float:
        return _float_mod(b, x, y)[0]
    if divides_by_floats(y, dtype):
        return remainder(b, x, y, dtype)
    divisor, zero = _safe_divisor(b, x, y, dtype)
    if dtype.kind == "i":
        rest = b.binary("srem", x, divisor)
        rest = b.select(_crosses(b, rest, divisor), b.binary("add", rest, divisor), rest)
    else:
        rest = b.binary("urem", x, divisor)
    return b.select(zero, constant(x.type, 0), rest)


def _float_mod(b: Builder, x: Value, y: Value) -> tuple[Value, Value, Value]:
    """NumPy's remainder; also fmod, and whether it was moved by one divisor."""
    zero = constant(x.type, 0.0)
    rest = call(b.module, b, fmod, (x, y))
    nonzero = b.compare("une", rest, zero)
    signs_differ = b.binary("xor", b.compare("olt", y, zero), b.compare("olt", rest, zero))
    moved = b.binary("and", nonzero, signs_differ)
    result = b.select(moved, b.binary("fadd", rest, y), rest)
    signed_zero = b.intrinsic("copysign", zero, y)
    is_zero = b.binary("and", b.compare("oeq", rest, zero), b.compare("une", y, zero))
    return b.select(is_zero, signed_zero, result), rest, moved


def _float_floordiv(b: Builder, x: Value, y: Value) -> Value:
    """NumPy's floor_divide: the quotient of `x - fmod(x, y)`, rounded to the nearest integer; x / 0 is IEEE's."""
    zero, one = constant(x.type, 0.0), constant(x.type, 1.0)
    _, rest, moved = _float_mod(b, x, y)
    quotient = b.binary("fdiv", b.binary("fsub", x, rest), y)
    quotient = b.select(moved, b.binary("fsub", quotient, one), quotient)
    floor = b.intrinsic("floor", quotient)
    above = b.compare("ogt", b.binary("fsub", quotient, floor), constant(x.type, 0.5))
    rounded = b.select(above, b.binary("fadd", floor, one), floor)
    plain = b.binary("fdiv", x, y)
    signed_zero = b.intrinsic("copysign", zero, plain)
    rounded = b.select(b.compare("oeq", quotient, zero), signed_zero, rounded)
    return b.select(b.compare("oeq", y, zero), plain, rounded)


def _logical(op: str) -> Row:
    return lambda b, args, dtype: b.binary(op, *(cast(b, a, dtype, _BOOLEAN) for a in args))


def _not(b: Builder, args: tuple[Value, ...], dtype: DType) -> Value:
    return b.negate(cast(b, args[0], dtype, _BOOLEAN))


def _relu(b: Builder, args: tuple[Value, ...], dtype: DType) -> Value:
    (x,) = args
    zero = constant(x.type, 0)
    order = "olt" if dtype.is_float else _signed("lt", dtype)
    return x if dtype.kind in "ub" else b.select(b.compare(order, x, zero), zero, x)


def _rounding(intrinsic: str) -> Row:
    return lambda b, args, dtype: b.intrinsic(intrinsic, *args) if dtype.is_float else args[0]


def _sqrt(b: Builder, args: tuple[Value, ...], dtype: DType) -> Value:
    return b.intrinsic("sqrt", *args)


def _rsqrt(b: Builder, args: tuple[Value, ...], dtype: DType) -> Value:
    return b.binary("fdiv", constant(args[0].type, 1.0), b.intrinsic("sqrt", *args))


def _bits(op: str) -> Row:
    return lambda b, args, dtype: b.binary(op, *args)


def _shl(b: Builder, args: tuple[Value, ...], dtype: DType) -> Value:
    x, y = args
    fits = b.compare("ult", y, constant(y.type, dtype.bits))
    return b.select(fits, b.binary("shl", x, y), constant(x.type, 0))


def _shr(b: Builder, args: tuple[Value, ...], dtype: DType) -> Value:
    x, y = args
    fits = b.compare("ult", y, constant(y.type, dtype.bits))
    if dtype.kind == "u":
        return b.select(fits, b.binary("lshr", x, y), constant(x.type, 0))
    return b.binary("ashr", x, b.select(fits, y, constant(y.type, dtype.bits - 1)))


_BOOLEAN = DType("bool", "b", 8)

ARITHMETIC: dict[str, Row] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "floordiv": _floordiv,
    "mod": _mod,
    "bitand": _bits("and"),
    "bitor": _bits("or"),
    "bitxor": _bits("xor"),
    "popcount": lambda b, args, dtype: b.intrinsic("ctpop", *args),
    "shl": _shl,
    "shr": _shr,
    "neg": _neg,
    "abs": _abs,
    "min": lambda b, args, dtype: minimum(b, args[0], args[1], dtype),
    "max": lambda b, args, dtype: maximum(b, args[0], args[1], dtype),
    **{order: _compare(order) for order in ("eq", "ne", "lt", "le", "gt", "ge")},
    "and": _logical("and"),
    "or": _logical("or"),
    "not": _not,
    "relu": _relu,
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "copysign": lambda b, args, dtype: b.intrinsic("copysign", *args),
    "floor": _rounding("floor"),
    "ceil": _rounding("ceil"),
    "round": _rounding("roundeven"),
}
