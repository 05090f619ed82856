"""Division of many numbers by one: a reciprocal, and as much correction as makes each quotient the correctly rounded one.

A vector division occupies its unit for 10 to 16 cycles where AVX-512 has half as many dividers as lanes; multiplications by the divisor's reciprocal (which does not change, so
that it is computed once) with two corrections take five. q1 below is within one unit in the last place, and with a correctly rounded reciprocal one more correction from
the exact remainder rounds correctly (P. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", IBM J. Res. Dev. 34 (1990), theorem 8.1; Muller et
al., "Handbook of Floating-Point Arithmetic", section 4.7). Remainders are exact while nothing under- or overflows, which a test per vector makes sure; else it is divided.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyml.codegen.llvm.ir import Builder, Value, constant
from polyml.codegen.llvm.math.kit import Number, call, fma, rarely, where

__all__ = ["WIDE", "divide_by_one"]

WIDE = 512
"""Bits of a vector from which on this is faster than the division unit."""


@dataclass(frozen=True, slots=True)
class _Format:
    """Powers of two: of divisors, and of quotients, for which all remainders and their products are normal numbers."""

    divisor: tuple[int, int]
    quotient: tuple[int, int]
    mantissa: int
    bias: int


_F32 = _Format((-24, 40), (-75, 80), 23, 127)
_F64 = _Format((-200, 200), (-600, 600), 52, 1023)


def divide_by_one(b: Builder, x: Value, divisor: Value) -> Value:
    """x / divisor in every lane, exactly as the machine divides; the divisor is a scalar."""
    d = Number(b, divisor)
    low, high = (2.0**e for e in _format(d).divisor)
    usable = (abs(d) > low) & (abs(d) < high)
    reciprocal = where(usable, 1.0 / d, float("nan"))
    lanes = [b.splat(scalar.value, x.lanes) for scalar in (d, reciprocal)]
    return call(b.module, b, quotient, (x, *lanes))


def quotient(x: Number, d: Number, reciprocal: Number) -> Number:
    """x / d, correctly rounded. reciprocal: 1 / d, or NaN where d is too large or too small."""
    q0 = x * reciprocal
    q1 = fma(fma(-d, q0, x), reciprocal, q0)
    q2 = fma(fma(-d, q1, x), reciprocal, q1)
    f = _format(x)
    smallest, largest = ((e + f.bias) << f.mantissa for e in f.quotient)
    above = (q0.bits() & ((1 << f.mantissa + (8 if f.mantissa == 23 else 11)) - 1)) - _constant(q0, smallest)
    unusual = above.at_least_unsigned(largest - smallest)
    # Zeros are frequent (a masked softmax); their sign is that of the product.
    return rarely(unusual, q2, plain_quotient, x, d, settled=(x.equals(0.0) & q0.equals(0.0), q0))


def plain_quotient(x: Number, d: Number) -> Number:
    """x / d by the division unit."""
    return x / d


def _constant(like: Number, value: int) -> Number:
    return Number(like.builder, constant(like.type.integers(), value))


def _format(x: Number) -> _Format:
    return _F32 if x.type.bits == 32 else _F64
