"""pow: f32 through log2 and 2^z in f64; f64 by the C library, lane after lane."""

from __future__ import annotations

from polyml.codegen.llvm.math.constants import DOUBLE, EXP2_OF_DOUBLE, LOG2_OF_DOUBLE
from polyml.codegen.llvm.math.kit import Number, by_lane, fma, horner, where

__all__ = ["pow"]

_INFINITY, _NAN = float("inf"), float("nan")


def pow(x: Number, y: Number) -> Number:
    """x^y with C's special cases. f32: 0.54 ulp."""
    return _pow_single(x, y) if x.type.element == "float" else by_lane("pow", x, y)


def _pow_single(x: Number, y: Number) -> Number:
    magnitude = _exp2(_log2(abs(x).to("fpext", "double")) * y.to("fpext", "double")).to("fptrunc", "float")
    return _special(x, y, magnitude)


def _log2(x: Number) -> Number:
    """log2 of a positive normal double, about 36 bits."""
    k = (x.bits() - DOUBLE.root_half) >> DOUBLE.mantissa
    e = (k + 0x4338000000000000).floats() - DOUBLE.magic
    m = (x.bits() - (k << DOUBLE.mantissa)).floats() - 1.0
    return fma(horner(LOG2_OF_DOUBLE, m), m, e)


def _exp2(z: Number) -> Number:
    """2^z within the range of f32, clamped just outside of it."""
    z = where(z > 129.0, 129.0, z)
    z = where(z < -152.0, -152.0, z)
    t = z + DOUBLE.magic
    p = horner(EXP2_OF_DOUBLE, z - (t - DOUBLE.magic))
    return (p.bits() + (t.bits() << DOUBLE.mantissa)).floats()


def _special(x: Number, y: Number, magnitude: Number) -> Number:
    """Zeros, infinities, NaN and negative bases; magnitude: abs(x)^y for what is none of these."""
    size, exponent = abs(x), abs(y)
    falling = y < 0.0
    whole = y.intrinsic("trunc").equals(y)
    half = y * 0.5
    odd = whole & half.intrinsic("trunc").differs(half) & (exponent < float(1 << 24))
    zero, infinite = size.equals(0.0), size.equals(_INFINITY)
    result = magnitude
    of_zero = where(falling, x.like(_INFINITY), 0.0)
    of_infinity = where(falling, x.like(0.0), _INFINITY)
    result = where(zero, of_zero, where(infinite, of_infinity, result))
    grows = (size > 1.0) ^ falling
    at_infinity = where(size.equals(1.0), 1.0, where(grows, x.like(_INFINITY), 0.0))
    result = where(exponent.equals(_INFINITY), at_infinity, result)
    result = where(odd, result.with_sign_of(x), result)
    undefined = (x < 0.0) & ~whole & ~exponent.equals(_INFINITY) & ~infinite
    result = where(undefined | x.is_nan() | y.is_nan(), _NAN, result)
    return where(x.equals(1.0) | y.equals(0.0), 1.0, result)
