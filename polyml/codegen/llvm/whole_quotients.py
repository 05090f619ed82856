"""Quotients and remainders of many whole numbers by as many: x86 and NEON divide no vectors of these, and LLVM takes them apart, a division of some ten cycles for each element.

A float that holds both numbers exactly, with bits to spare, divides them in their stead. No rounding reaches a whole number that the quotient is below: x / y is 1 / |y| or more away from those that
it is not, relative to them 1 / (|x| + |y|), which is 2^-17 for numbers of 16 bits (f32 rounds by 2^-24 of a number) and 2^-33 for those of 32 (f64, 2^-53). So the floor of the rounded
quotient is that of the exact one, and x less its product with y, all of them exact, is the remainder. Numbers of 64 bits fit no float.
"""

from __future__ import annotations

from polyml.codegen.llvm.ir import Builder, Value, constant
from polyml.dtypes import DType

__all__ = ["divides_by_floats", "floor_quotient", "remainder"]


def divides_by_floats(y: Value, dtype: DType) -> bool:
    """Whether vectors of this dtype are divided so; by a number that is known a multiplication does it."""
    return y.lanes > 1 and not y.is_constant and dtype.is_integer and dtype.bits <= 32


def floor_quotient(b: Builder, x: Value, y: Value, dtype: DType) -> Value:
    """The floor of x / y, wrapped; 0 where y is 0."""
    quotient, _, _ = _floor(b, x, y, dtype)
    if dtype.kind == "i" and dtype.bits == 32:  # the smallest number by -1
        limit = constant(quotient.type, 2.0**31)
        quotient = b.select(b.compare("oeq", quotient, limit), constant(quotient.type, -(2.0**31)), quotient)
    return _whole(b, quotient, y, dtype)


def remainder(b: Builder, x: Value, y: Value, dtype: DType) -> Value:
    """x less that quotient times y, which has the divisor's sign; 0 where y is 0."""
    quotient, dividend, divisor = _floor(b, x, y, dtype)
    return _whole(b, b.arithmetic("sub", dividend, b.arithmetic("mul", quotient, divisor)), y, dtype)


def _floor(b: Builder, x: Value, y: Value, dtype: DType) -> tuple[Value, Value, Value]:
    """The floor of the quotient, and both numbers, as floats."""
    element = "float" if dtype.bits <= 16 else "double"
    dividend, divisor = (b.convert("sitofp" if dtype.kind == "i" else "uitofp", v, element) for v in (x, y))
    return b.intrinsic("floor", b.binary("fdiv", dividend, divisor)), dividend, divisor


def _whole(b: Builder, number: Value, y: Value, dtype: DType) -> Value:
    """A float that 32 bits hold, or no number where y is 0, as the dtype."""
    unsigned = dtype.kind == "u" and dtype.bits == 32
    whole = b.convert("fptoui" if unsigned else "fptosi", number, "i32")
    return b.select(
        b.compare("eq", y, constant(y.type, 0)), constant(y.type, 0), b.convert("trunc", whole, y.type.element)
    )
