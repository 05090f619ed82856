"""Division of many numbers by one: a reciprocal, and as much correction as makes each quotient the correctly rounded one.

A vector division occupies its unit for 10 to 16 cycles where AVX-512 has half as many dividers as lanes. The divisor does not change, so its reciprocal is computed once, in two
parts: the product with both is off by hardly more than half a unit in the last place (N. Brisebarre, J.-M. Muller and S. K. Raina, "Accelerating correctly rounded floating-point
division when the divisor is known in advance", IEEE Trans. Computers 53 (2004)), and one correction from the exact remainder rounds such a quotient correctly (P. Markstein,
"Computation of elementary functions on the IBM RISC System/6000 processor", IBM J. Res. Dev. 34 (1990), theorem 8.1; Muller et al., "Handbook of Floating-Point Arithmetic",
section 4.7). Remainders are exact while nothing under- or overflows, which a test per vector makes sure; else it is divided.
"""

from __future__ import annotations

from polyml.codegen.llvm.ir import Builder, Value
from polyml.codegen.llvm.math.kit import Number, call, fma, rarely, where
from polyml.records import dataclass

__all__ = ["Reciprocal", "divide_by_one", "parts_of", "pays"]

WIDE = 512
"""Bits of a vector from which on this may be faster than the division unit."""

WORK = 7.0
"""Instructions of one such quotient, each of which takes as long as a multiply-add."""

AHEAD = 128.0
"""Multiply-adds that would fit into the time until a reciprocal's parts are there: some 60 cycles in which each instruction waits for the one before."""

LONGER_F64 = 1.5
"""Time of a vector division of f64 relative to one of f32 (1.5 on Zen 4, 1.6 on Golden Cove)."""


@dataclass(frozen=True, slots=True)
class _Format:
    """Powers of two: of divisors, and of the smallest quotients, for which all remainders and their products are normal numbers."""

    divisor: tuple[int, int]
    quotient: int


_F32 = _Format((-24, 40), -75)
_F64 = _Format((-200, 200), -600)


Reciprocal = tuple[Value, Value, Value]
"""A divisor, and its reciprocal in two parts; scalars."""


def pays(b: Builder, bits: int, lanes: int, vectors: int | None) -> bool:
    """Whether quotients of vectors by one number of so many bits take less time this way. vectors: how many; None: not known, taken for many."""
    if bits * lanes < WIDE:
        return False
    gain = b.module.instructions.division * (LONGER_F64 if bits == 64 else 1.0) - WORK
    return gain > 0 and (vectors is None or gain * vectors > AHEAD)


def parts_of(b: Builder, divisor: Value) -> Reciprocal:
    """What `divide_by_one` takes of a divisor."""
    d = Number(b, divisor)
    smallest, largest = (2.0**e for e in _format(d).divisor)
    usable = (abs(d) > smallest) & (abs(d) < largest)
    high = where(usable, 1.0 / d, float("nan"))
    low = fma(-d, high, 1.0) * high
    return d.value, high.value, low.value


def divide_by_one(b: Builder, x: Value, reciprocal: Reciprocal) -> Value:
    """x / divisor in every lane, exactly as the machine divides."""
    return call(b.module, b, quotient, (x, *(b.splat(part, x.lanes) for part in reciprocal)))


def quotient(x: Number, d: Number, high: Number, low: Number) -> Number:
    """x / d, correctly rounded. high: 1 / d rounded, or NaN where d is too large or too small; low: what it leaves of 1 / d.

    Whatever goes wrong gives NaN in the end: an infinite x or quotient leaves no remainder.
    """
    near = fma(x, high, x * low)
    q = fma(fma(-d, near, x), high, near)
    unusual = ~(abs(q).at_least(2.0 ** _format(x).quotient))
    # Zeros are frequent (a masked softmax); their sign is that of the product.
    zero = x * high
    return rarely(unusual, q, plain_quotient, x, d, settled=(x.equals(0.0) & zero.equals(0.0), zero))


def plain_quotient(x: Number, d: Number) -> Number:
    """x / d by the division unit."""
    return x / d


def _format(x: Number) -> _Format:
    return _F32 if x.type.bits == 32 else _F64
