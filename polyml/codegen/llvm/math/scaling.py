"""AVX-512's instructions for exponential functions, where the module's target has them: scaling by a power of two, and the smaller of two absolute values.

Intel 64 and IA-32 Architectures Software Developer's Manual, vol. 2C: VSCALEFPS (table of special cases: infinite exponents win even over NaN), VRANGEPS.
"""

from __future__ import annotations

from polyml.codegen.llvm.ir import I32, Value, constant, type_of
from polyml.codegen.llvm.math.kit import Number

__all__ = ["bounded", "scaled", "scales"]

_WHOLE = 512
"""Bits of the vectors whose forms are used: shorter ones are the tails of loops."""


def scales(x: Number) -> bool:
    """Whether the instructions exist for numbers like x."""
    return x.builder.module.scalef and x.type.is_float and x.type.lanes * x.type.bits == _WHOLE


def scaled(x: Number, n: Number) -> Number:
    """x * 2^floor(n), rounded once; infinite or 0 for infinite n, NaN for NaN n."""
    return _masked("scalef", x, n)


def bounded(x: Number, limit: float) -> Number:
    """x, or the limit with x's sign where abs(x) is larger; where x is NaN, some number no larger than the limit."""
    smaller_absolute_value_with_the_first_sign = 0b0010
    return _masked("range", x, x.like(limit), smaller_absolute_value_with_the_first_sign)


def _masked(name: str, a: Number, b: Number, *immediate: int) -> Number:
    """The instruction of all lanes, rounding as the thread does."""
    builder, type_ = a.builder, a.type
    lanes = type_of(f"i{type_.lanes}")
    function = f"llvm.x86.avx512.mask.{name}.p{'s' if type_.bits == 32 else 'd'}.{_WHOLE}"
    current_rounding = 4
    arguments = (
        a.value, b.value, *(constant(I32, k) for k in immediate),
        Value(type_, "zeroinitializer"), constant(lanes, -1), constant(I32, current_rounding),
    )  # fmt: skip
    attributes = [" immarg" if value.type is I32 else "" for value in arguments]
    parameters = [f"{value.type}{extra}" for value, extra in zip(arguments, attributes, strict=True)]
    builder.module.declare(function, str(type_), parameters)
    return Number(builder, builder.call(function, type_, arguments))
