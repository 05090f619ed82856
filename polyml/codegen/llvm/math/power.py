"""pow: f32 through log2 and 2^z in f64; f64 through a logarithm in two doubles."""

from __future__ import annotations

from fractions import Fraction

from polyml.codegen.llvm.math.constants import DOUBLE, EXP2_OF_DOUBLE, LOG2_OF_DOUBLE, format_of
from polyml.codegen.llvm.math.exponential import exp_of_sum
from polyml.codegen.llvm.math.kit import Number, fma, horner, where

__all__ = ["pow"]

_INFINITY, _NAN = float("inf"), float("nan")


def pow(x: Number, y: Number) -> Number:
    """x^y with C's special cases. f32: 0.54 ulp, f64: 1.1 ulp."""
    return _special(x, y, (_pow_single if x.type.element == "float" else _pow_double)(abs(x), y))


def _pow_single(x: Number, y: Number) -> Number:
    return _exp2(_log2(x.to("fpext", "double")) * y.to("fpext", "double")).to("fptrunc", "float")


def _pow_double(x: Number, y: Number) -> Number:
    high, low = _log_in_two(x)
    product = high * y
    return exp_of_sum(product, fma(high, y, -product) + low * y)


def _log_in_two(x: Number) -> tuple[Number, Number]:
    """log of a positive number as a sum of two doubles, relative error about 2^-66.

    x = 2^k m; with s = (m - 1)/(m + 1), log m = 2 atanh s = 2 s + s z (2/3 + 2/5 z + 2/7 z^2 + ...), z = s^2; s, z and the first product are in two doubles.
    """
    denormal = x < DOUBLE.smallest
    x = where(denormal, x * float(1 << 54), x)
    k = (x.bits() - DOUBLE.root_half) >> DOUBLE.mantissa
    e = (k + 0x4338000000000000).floats() - DOUBLE.magic - where(denormal, x.like(54.0), 0.0)
    f = (x.bits() - (k << DOUBLE.mantissa)).floats() - 1.0
    below = f + 2.0
    s = f / below
    s_low = fma(-s, below, f) - s * (f - (below - 2.0))
    s_low = s_low / below
    z = s * s
    z_low = fma(s, s, -z) + s * s_low * 2.0
    # 2/3 + z (2/5 + z (...)) in two doubles, from the second term on in one.
    tail = z * horner([2.0 / (2 * n + 5) for n in range(11)], z)
    c = tail + 2.0 / 3.0
    c_low = (tail - (c - 2.0 / 3.0)) + _TWO_THIRDS_LOW
    zc = z * c
    zc_low = fma(z, c, -zc) + (z * c_low + z_low * c)
    cubic = s * zc
    cubic_low = fma(s, zc, -cubic) + (s * zc_low + s_low * zc)
    high, low = _two_sum(e * _LN2_HEAD, s * 2.0)
    high, more = _two_sum(high, cubic)
    low = low + more + (s_low * 2.0 + cubic_low + e * _LN2_TAIL)
    return _two_sum(high, low)


def _two_sum(a: Number, b: Number) -> tuple[Number, Number]:
    """a + b and what rounding lost, for abs(a) >= abs(b) or a == 0."""
    total = a + b
    return total, b - (total - a)


_TWO_THIRDS_LOW = float(Fraction(2, 3) - Fraction(2.0 / 3.0))
_LN2_HEAD = float.fromhex("0x1.62e42fefa38p-1")
_LN2_TAIL = float.fromhex("0x1.ef35793c7673p-45")
"""ln 2 in two parts; the first one has so few bits that its product with an exponent is exact."""


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
    odd = whole & half.intrinsic("trunc").differs(half) & (exponent < float(2 << format_of(x.type).mantissa))
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
