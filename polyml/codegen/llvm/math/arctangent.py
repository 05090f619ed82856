"""atan2: the smaller over the larger argument, brought below tan(pi/8) by atan t = pi/4 + atan((t - 1)/(t + 1)), then a polynomial, and the octant's multiple of pi/4."""

from __future__ import annotations

from polyml.codegen.llvm.math.constants import format_of
from polyml.codegen.llvm.math.kit import Number, fma, horner, where

__all__ = ["atan2"]

_TAN_PI_8 = 0.41421356237309503


def atan2(y: Number, x: Number) -> Number:
    """The angle of (x, y), with C's values for zeros and infinities. f32, f64: below 2 ulp."""
    f = format_of(x.type)
    steep = abs(y) > abs(x)
    larger, smaller = where(steep, abs(y), abs(x)), where(steep, abs(x), abs(y))
    infinite = larger.equals(float("inf"))
    smaller = where(infinite, where(smaller.equals(float("inf")), smaller.like(1.0), 0.0), smaller)
    larger = where(infinite | larger.equals(0.0), 1.0, larger)
    huge = larger > 2.0 ** (f.bias - 1)  # so that their sum is finite
    larger, smaller = where(huge, larger * 0.25, larger), where(huge, smaller * 0.25, smaller)
    beyond = smaller > larger * _TAN_PI_8
    t = where(beyond, smaller - larger, smaller) / where(beyond, smaller + larger, larger)
    angle = fma(t * (t * t), horner(f.atan, t * t), t)
    eighths = where(beyond, angle.like(1.0), 0.0)
    angle, eighths = where(steep, -angle, angle), where(steep, 2.0 - eighths, eighths)
    left = x.bits() < 0
    angle, eighths = where(left, -angle, angle), where(left, 4.0 - eighths, eighths)
    high, low = f.half_pi[0] * 0.5, f.half_pi[1] * 0.5
    found = fma(eighths, high, fma(eighths, low, angle)).with_sign_of(y)
    return where(x.is_nan() | y.is_nan(), x + y, found)
