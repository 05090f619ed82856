"""log: x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt 2); log x = k ln 2 + log(1 + f), ln 2 in two parts."""

from __future__ import annotations

from polyml.codegen.llvm.math.constants import format_of
from polyml.codegen.llvm.math.kit import Number, fma, horner, rarely, where

__all__ = ["log", "log1p"]

_INFINITY = float("inf")


def log(x: Number) -> Number:
    """Natural logarithm. f32: 0.87 ulp, f64: 0.85 ulp. Zeros, denormals, negative numbers, infinities and NaN go out of line."""
    f = format_of(x.type)
    smallest = 1 << f.mantissa  # bits of the smallest normal number
    normal_numbers = (2 * f.bias) << f.mantissa
    unusual = (x.bits() - smallest).at_least_unsigned(normal_numbers)
    return rarely(unusual, _log_of_normal(x, None), log_everywhere, x)


def log1p(x: Number) -> Number:
    """log(1 + x): that of the rounded sum, and what the rounding took away (Kahan). f32: 1.6 ulp, f64: 1.6 ulp."""
    total = x + 1.0
    lost = where(abs(x) < 1.0, x - (total - 1.0), 1.0 - (total - x))
    rounded = log(total)
    plain = (x > -1.0) & (total < _INFINITY) & x.differs(0.0)
    return where(plain, rounded + lost / total, where(x.equals(0.0), x, rounded))


def log_everywhere(x: Number) -> Number:
    """Natural logarithm of any number."""
    f = format_of(x.type)
    denormal = x < f.smallest
    scaled = where(denormal, x * float(1 << f.mantissa), x)
    result = _log_of_normal(scaled, where(denormal, x.like(-float(f.mantissa)), 0.0))
    special = where(x.equals(0.0), -_INFINITY, where(x < 0.0, float("nan"), x))
    return where((x > 0.0) & (x < _INFINITY), result, special)


def _log_of_normal(x: Number, extra_exponent: Number | None) -> Number:
    f = format_of(x.type)
    shifted = x.bits() - f.root_half
    k = shifted >> f.mantissa
    e = _to_float(k)
    if extra_exponent is not None:
        e = e + extra_exponent
    m = (x.bits() - (k << f.mantissa)).floats() - 1.0
    return (_log_single if x.type.element == "float" else _log_double)(m, e)


def _to_float(k: Number) -> Number:
    """A small integer; 64-bit ones through the bits of a large double, which needs no conversion instruction."""
    if k.type.bits == 32:
        return k.to("sitofp", "float")
    return (k + 0x4338000000000000).floats() - 6755399441055744.0


def _log_single(m: Number, e: Number) -> Number:
    """e ln 2 + m - m^2/2 + m^3 P(m)."""
    f = format_of(m.type)
    square = m * m
    t = fma(horner(f.log, m), m * square, e * f.ln2[1])
    t = fma(square, -0.5, t) + m
    return fma(e, f.ln2[0], t)


def _log_double(m: Number, e: Number) -> Number:
    """e ln 2 + m - (h - s (h + z R(z))) with s = m/(2 + m), z = s^2, h = m^2/2."""
    f = format_of(m.type)
    s = m / (m + 2.0)
    z = s * s
    h = m * 0.5 * m
    t = fma(s, fma(horner(f.log, z), z, h), e * f.ln2[1])
    return fma(e, f.ln2[0], m - (h - t))
