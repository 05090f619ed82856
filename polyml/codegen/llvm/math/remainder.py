"""fmod: what is left of x by multiples of y, which is always a float. The C library takes one bit of the quotient after the other, and one element.

The quotient is rounded, and so its whole part is right or one too large: below 2^p, p being the bits behind the leading one, whole numbers are floats, and rounding passes none of them. In both cases
what is left, x less this many y, is a multiple of the last place of the smaller of both and below the larger one, so a float: a fused multiply-add leaves it without rounding. Where it is
negative y is added once, which is exact, too. Source: for the exactness of remainders, Muller et al., "Handbook of Floating-Point Arithmetic", section 4.7 and theorem 2.1.
"""

from __future__ import annotations

from polyml.codegen.llvm.math.constants import format_of
from polyml.codegen.llvm.math.kit import Number, fma, rarely, where

__all__ = ["fmod"]


def fmod(x: Number, y: Number) -> Number:
    """x less the whole part of x / y times y, exactly, with the sign of x; NaN where x is infinite or y is 0. f32, f64."""
    size, divisor = abs(x), abs(y)
    quotient = (size / divisor).intrinsic("trunc")
    rest = fma(-quotient, divisor, size)
    rest = where(rest < 0.0, rest + divisor, rest)
    usual = (quotient < 2.0 ** format_of(x.type).mantissa) & (rest < divisor)
    return rarely(~usual, rest.with_sign_of(x), long_division, x, y)


def long_division(x: Number, y: Number) -> Number:
    """The same of any floats, by the C library."""
    return Number(x.builder, x.builder.binary("frem", x.value, y.value))
