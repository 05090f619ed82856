"""sin and cos: r = x - q pi/2 with pi/2 in parts, then the polynomial that quadrant q asks for. Large arguments go out of line to the C library."""

from __future__ import annotations

from polyml.codegen.llvm.math.constants import format_of
from polyml.codegen.llvm.math.kit import Number, by_lane, fma, horner, rarely, where

__all__ = ["cos", "sin", "sin_cos"]


def sin(x: Number) -> Number:
    """f32: 1.6 ulp, f64: 0.8 ulp."""
    return rarely(_large(x), _with_sign(_quadrant(_reduced(abs(x)), 0), x), sin_by_lane, x)


def cos(x: Number) -> Number:
    """f32: 1.6 ulp, f64: 0.8 ulp."""
    return rarely(_large(x), _quadrant(_reduced(x), 1), cos_by_lane, x)


def sin_cos(x: Number) -> tuple[Number, Number]:
    """Both, the same to the last bit: what a number and its opposite are reduced to differs in signs alone."""
    reduced, large = _reduced(abs(x)), _large(x)
    sine = rarely(large, _with_sign(_quadrant(reduced, 0), x), sin_by_lane, x)
    return sine, rarely(large, _quadrant(reduced, 1), cos_by_lane, x)


def sin_by_lane(x: Number) -> Number:
    """Of any number; f32 through f64."""
    return by_lane("sin", x)


def cos_by_lane(x: Number) -> Number:
    """Of any number; f32 through f64."""
    return by_lane("cos", x)


def _large(x: Number) -> Number:
    """Where the reduction in parts is not exact enough, or NaN."""
    return ~abs(x).at_most(format_of(x.type).trig_safe)


def _with_sign(y: Number, x: Number) -> Number:
    """An odd function of x, whose value for |x| is y: -0.0 gives -0.0."""
    return (y.bits() ^ (x.bits() & (-1 << (x.type.bits - 1)))).floats()


def _reduced(x: Number) -> tuple[Number, Number, Number]:
    """The quadrant, in a number's lowest bits, and the sine and the cosine of what is left."""
    f = format_of(x.type)
    t = fma(x, f.two_over_pi, f.magic)
    n = t - f.magic
    sine, cosine = (_single if x.type.element == "float" else _double)(x, n)
    return t.bits(), sine, cosine


def _quadrant(reduced: tuple[Number, Number, Number], offset: int) -> Number:
    """sin(x + offset pi/2)."""
    quadrant, sine, cosine = reduced
    q = quadrant + offset if offset else quadrant
    y = where((q & 1).differs(0), cosine, sine)
    return (y.bits() ^ ((q & 2) << (y.type.bits - 2))).floats()


def _single(x: Number, n: Number) -> tuple[Number, Number]:
    f = format_of(x.type)
    r = x
    for part in f.half_pi:
        r = fma(n, -part, r)
    u = r * r
    sine = fma(horner(f.sin, u), u * r, r)
    cosine = fma(horner(f.cos, u), u * u, fma(u, -0.5, 1.0))
    return sine, cosine


def _double(x: Number, n: Number) -> tuple[Number, Number]:
    """The reduced argument in two parts, r + low."""
    f = format_of(x.type)
    first = fma(n, -f.half_pi[0], x)
    product = n * f.half_pi[1]
    r = first - product
    lost = ((first - r) - product) - fma(n, f.half_pi[1], -product)
    low = fma(n, -f.half_pi[2], lost)
    u = r * r
    sine = fma(horner(f.sin, u), u * r, low) + r
    half = u * 0.5
    w = 1.0 - half
    correction = ((1.0 - w) - half) + fma(horner(f.cos, u), u * u, -(r * low))
    return sine, w + correction
