"""exp and what is made of it: tanh, sigmoid, erf, gelu.

exp: n = x / ln 2 rounded by adding a magic number, r = x - n ln 2 in two parts, e^r = 1 + r (1 + r Q(r)), scaled by 2^n through the exponent bits.
The integer n is read off the bits of the magic sum, so no conversion instruction is needed. Where an instruction scales by 2^n and rounds once, whatever n is (AVX-512's
vscalef), and another looks into a table, n has a few bits behind the point, which choose a power of two between 1 and 2, and r is so small that two coefficients do (f64: six): 11 instructions, seven
of them multiplications or fused, no branch and no call, around which registers would be saved. AVX2 has tables for f32, of four powers, or of eight for what is more accurate, and three coefficients beside them: eight multiplications or
fused, where the polynomial takes ten; 2^n is added to the exponent.
"""

from __future__ import annotations

from polyml.codegen.llvm.math.constants import (
    EXP2_BESIDE_EIGHTHS,
    EXP_BESIDE_EIGHTHS,
    EXP_BESIDE_QUARTERS,
    format_of,
)
from polyml.codegen.llvm.math.kit import Number, call, fma, horner, in_pairs, rarely, where
from polyml.codegen.llvm.math.scaling import (
    assists,
    bounded,
    eighths,
    in_registers,
    is_negative,
    looked_up,
    looks_up_parts,
    quarters,
    scaled,
    scales,
)

__all__ = ["erf", "exp", "exp_of_sum", "gelu", "sigmoid", "tanh"]


def exp(x: Number) -> Number:
    """e^x. f32: 1.0 ulp, f64: 1.0 ulp."""
    if scales(x):
        return in_registers(_exp_by_roots, x)
    return _unless_far(x, in_registers(_exp_by_quarters, x)) if looks_up_parts(x) else exp_accurately(x)


def exp_accurately(x: Number) -> Number:
    """e^x, somewhat more accurately: f32: 0.92 ulp, f64: 0.9 ulp. One scaling by 2^n suffices but near overflow and where results are denormal.

    Arguments so small that the result is 0 stay in line: masked softmax is full of e^-inf.
    """
    f = format_of(x.type)
    if scales(x):
        return in_registers(_exp_scaled, x)
    if looks_up_parts(x):
        usual = in_registers(_exp_by_eighths, x)
    else:
        t, r = _reduce(x, f.magic)
        usual = (_exp_near_zero(r).bits() + (t.bits() << f.mantissa)).floats()
    return _unless_far(x, usual)


def _unless_far(x: Number, usual: Number) -> Number:
    """What is usual, but e^x where x is too large for one scaling, or NaN."""
    f = format_of(x.type)
    return rarely(_outside(x, f.exp_safe), usual, exp_everywhere, x, settled=(x < f.exp_range[0], 0.0))


def _exp_scaled(x: Number) -> Number:
    """e^x by one scaling. For infinities n is one, and scales any number, even the NaN that r becomes, to what is right; where n is so large that r is not small any
    more, the bound makes its exponential a positive number, and n decides again."""
    f = format_of(x.type)
    t, r = _reduce(x, f.magic)
    return scaled(_exp_near_zero(bounded(r, 1.0)), t - f.magic, _something(x))


def _exp_by_roots(x: Number) -> Number:
    """The same with a few bits of n behind the point, which name a power of two between 1 and 2."""
    f = format_of(x.type)
    magic = f.magic / len(f.roots)
    t, r = _reduce(x, magic)
    r = bounded(r, 1.0)
    root = looked_up(f.roots, t.bits())
    return scaled(fma(root * r, fma(horner(f.exp_tiny, r), r, 1.0), root), t - magic, _something(x))


def _something(x: Number) -> Number | None:
    """Where e^x is no 0 by underflow, which takes Intel's cores hundreds of cycles; None elsewhere. Ice Lake, 10 ns for 16 of f32, 87 where one of them is -200 and in no mask; the comparison takes 2 to 4 % where numbers are in L1."""
    return ~(x < format_of(x.type).exp_range[0]) if assists(x) else None


def _exp_by_eighths(x: Number) -> Number:
    """The same with a table of eight, within `exp_safe`."""
    f = format_of(x.type)
    t, r = _reduce(x, f.magic / 8)
    root = eighths(t, 1.0, f.roots[::2])
    return fma(root * r, fma(horner(EXP_BESIDE_EIGHTHS, r), r, 1.0), root)


def _exp_by_quarters(x: Number) -> Number:
    """The same with a table of four: half an instruction less, 0.99 ulp instead of 0.92."""
    f = format_of(x.type)
    t, r = _reduce(x, f.magic / 4)
    root = quarters(t, f.roots[::4])
    return fma(root * r, fma(horner(EXP_BESIDE_QUARTERS, r), r, 1.0), root)


def _exp_near_zero(r: Number) -> Number:
    """e^r for abs(r) <= ln(2)/2."""
    f = format_of(r.type)
    return fma(fma(horner(f.exp, r), r, 1.0), r, 1.0)


def exp_everywhere(x: Number) -> Number:
    """e^x over the whole range."""
    return exp_of_sum(x, None)


def exp_of_sum(x: Number, low: Number | None) -> Number:
    """e^(x + low) over the whole range, low far below x: scales in two steps, 2^(n/2) each, and nowhere to 0, which takes Intel's cores hundreds of cycles."""
    f = format_of(x.type)
    smallest, largest = f.exp_range
    nothing = x < smallest
    clamped = where(x > largest, largest, x)
    clamped = where(nothing, 0.0, clamped)
    t, r = _reduce(clamped, f.magic + 2 * f.bias, None if low is None else where(clamped.equals(x), low, 0.0))
    half = fma(clamped, f.inverse_ln2 * 0.5, f.magic + f.bias).bits()
    power = _exp_near_zero(r) * (half << f.mantissa).floats() * ((t.bits() - half) << f.mantissa).floats()
    return where(nothing, 0.0, power)


def _reduce(x: Number, magic: float, low: Number | None = None) -> tuple[Number, Number]:
    """magic + n for the integer n next to x / ln 2, and x - n ln 2 (+ low)."""
    f = format_of(x.type)
    t = fma(x, f.inverse_ln2, magic)
    n = t - magic
    r = fma(n, -f.ln2[0], x)
    return t, fma(n, -f.ln2[1], r) if low is None else r + fma(n, -f.ln2[1], low)


def _power_of_two(t: Number, mantissa: int) -> Number:
    """2^n, where the low bits of t are n plus the exponent's bias."""
    return (t.bits() << mantissa).floats()


def _outside(x: Number, limit: float) -> Number:
    """abs(x) > limit, or NaN."""
    return ~abs(x).at_most(x.operand(limit))


def _expm1(x: Number) -> Number:
    """e^x - 1 for x where 2^n neither over- nor underflows."""
    f = format_of(x.type)
    t, r = _reduce(x, f.magic + f.bias)
    p = fma(horner(f.expm1, r), r * r, r)
    scale = _power_of_two(t, f.mantissa)
    return fma(scale, p, scale - 1.0)


def tanh(x: Number) -> Number:
    """E/(E + 2) with E = expm1(2 abs(x)): numerator's and denominator's errors cancel in part. f32: 2.6 ulp, f64: 2.6 ulp."""
    f = format_of(x.type)
    a = abs(x)
    a = where(a > f.tanh_end, f.tanh_end, a)
    e = _expm1(a + a)
    return (e / (e + 2.0)).with_sign_of(x)


def sigmoid(x: Number) -> Number:
    """1/(1 + e^-x) as (x < 0 ? z : 1)/(1 + z) with z = e^-abs(x). f32: 2.4 ulp, with a table of eight powers 2.6."""
    z = Number(x.builder, call(x.builder.module, x.builder, exp_accurately, ((-abs(x)).value,)))
    return where(is_negative(x), z, 1.0) / (z + 1.0)


def erf(x: Number) -> Number:
    """-expm1(-a Q(a)) with a = abs(x), the leading coefficient in two parts. f32: 1.8 ulp, f64: 2.0 ulp."""
    return _erf(x)


def _erf(x: Number) -> Number:
    f = format_of(x.type)
    a = abs(x)
    a = where(a > f.erf_end, f.erf_end, a)
    y = horner(f.erf[1:], a)
    if x.type.element == "float":
        y = fma(y, a, _ERF_LOW) * a
    else:
        y = a * (a * y)
    y = fma(a, -f.erf[0], -y)
    return abs(_expm1(y)).with_sign_of(x)


_ERF_LOW = float.fromhex("-0x1.f7ac925dca38bp-25")
"""What 2/sqrt(pi) rounded to f32 leaves."""


def gelu(x: Number) -> Number:
    """x/2 (1 + erf(x / sqrt 2)) as x P or x (1 - P), whichever is right for x's sign, where P = erfc(abs(x) / sqrt 2)/2 is a power of two with a polynomial for its exponent.

    The error of the factor is 2^-23.7 in f32 and 2^-52 in f64; what is left of negative numbers keeps two digits down to -8, then vanishes.
    """
    f = format_of(x.type)
    if scales(x):
        return in_registers(_gelu_scaled, x)
    if looks_up_parts(x):
        return in_registers(_gelu_by_eighths, x)
    a = abs(x)
    magic = f.magic + (f.bias - 1)
    z = a * horner(f.gelu, a)
    t = z + magic
    part = _exp_near_zero((z - (t - magic)) * _LN2) * _power_of_two(t, f.mantissa)
    return _weighed(x, where(a > f.gelu_end, 0.0, part))


def _gelu_by_eighths(x: Number) -> Number:
    """The exponent has three bits behind the point, as in `_exp_by_eighths`."""
    f = format_of(x.type)
    magic = f.magic / 8
    a = abs(x)
    exponent = in_pairs(f.gelu, a)
    # Two multiply-adds of the exponent take a step less than its product, which both wait for.
    t = fma(a, exponent, magic)
    r = fma(a, exponent, -(t - magic))
    root = eighths(t, 0.5, f.roots[::2])
    part = fma(root * r, horner(EXP2_BESIDE_EIGHTHS, r), root)
    return _weighed(x, where(a > f.gelu_end, 0.0, part))


def _gelu_scaled(x: Number) -> Number:
    """The exponent has a few bits behind the point, as in `_exp_by_roots`."""
    f = format_of(x.type)
    magic = f.magic / len(f.roots)
    a = abs(x)
    # Powers of two that are no normal numbers would take Intel's cores hundreds of cycles.
    a = where(a > f.gelu_end, _GELU_ALL, a)
    z = a * horner(f.gelu, a)
    t = z + magic
    n = t - magic
    r = z - n
    root = looked_up([0.5 * root for root in f.roots], t.bits())
    exp2 = [c * _LN2 ** (k + 1) for k, c in enumerate((1.0, *f.exp_tiny))]
    return _weighed(x, scaled(fma(root * r, horner(exp2, r), root), n))


def _weighed(x: Number, part: Number) -> Number:
    """x times the part, or what the part leaves of one."""
    return x * where(is_negative(x), part, 1.0 - part)


_GELU_ALL = 20.0
"""A magnitude at which the power of two of `gelu` is smaller than any number."""
_LN2 = 0.6931471805599453
