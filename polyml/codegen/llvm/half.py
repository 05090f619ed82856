"""Half precision in memory: f16 and bf16 as integers of 16 bits, converted to f32 to compute with and rounded to nearest even when they are stored.

f16 goes through the hardware's conversions where the target has them (F16C on x86, always on AArch64), else through integer arithmetic: LLVM would call a function of a
compiler's runtime library, which nobody links here. Source of that arithmetic: F. Giesen, "half_to_float_fast5" and "float_to_half_fast3_rtne" (public domain, 2012).
bf16 is the upper half of an f32. An f64 is rounded to odd first, so that rounding twice is rounding once: S. Boldo and G. Melquiond, "Emulation of a FMA and correctly-rounded
sums: proved algorithms using rounding to odd" (IEEE Transactions on Computers 57, 2008).
"""

from __future__ import annotations

from polyml.codegen.llvm.ir import Builder, Value, constant, type_of
from polyml.dtypes import DType

__all__ = ["half_constant", "narrowed", "to_odd_single", "widened"]


def half_constant(b: Builder, value: float, dtype: DType) -> Value:
    """A number of the type, as its bits."""
    return narrowed(b, constant(type_of("float"), value), dtype)


def widened(b: Builder, a: Value, source: DType) -> Value:
    """The 16 bits as an f32, exactly."""
    if source.name == "bf16":
        return _as_float(b, _shift(b, "shl", b.convert("zext", a, "i32"), 16))
    if b.module.instructions.half:
        return b.convert("fpext", b.convert("bitcast", a, "half"), "float")
    bits = b.convert("zext", a, "i32")
    rest = _shift(b, "shl", _and(b, bits, 0x7FFF), 13)
    exponent = _and(b, rest, 0x7C00 << 13)
    normal = _add(b, rest, (127 - 15) << 23)
    special = _add(b, normal, (128 - 16) << 23)
    smallest = constant(type_of("float", a.lanes), 2.0**-14)
    subnormal = _as_bits(b, b.binary("fsub", _as_float(b, _add(b, normal, 1 << 23)), smallest))
    is_subnormal = b.compare("eq", exponent, constant(exponent.type, 0))
    found = b.select(is_subnormal, subnormal, normal)
    found = b.select(b.compare("eq", exponent, constant(exponent.type, 0x7C00 << 13)), special, found)
    sign = _shift(b, "shl", _and(b, bits, 0x8000), 16)
    return _as_float(b, b.binary("or", found, sign))


def narrowed(b: Builder, a: Value, target: DType) -> Value:
    """An f32 as 16 bits, rounded to nearest even; NaN stays NaN."""
    if target.name == "bf16":
        return _to_bf16(b, a)
    if b.module.instructions.half:
        return b.convert("bitcast", b.convert("fptrunc", a, "half"), "i16")
    bits = _as_bits(b, a)
    sign = _and(b, bits, -(1 << 31))
    size = b.binary("xor", bits, sign)
    odd = _and(b, _shift(b, "lshr", size, 13), 1)
    normal = _shift(b, "lshr", b.binary("add", _add(b, size, ((15 - 127) << 23) + 0xFFF), odd), 13)
    magic = ((127 - 15) + (23 - 10) + 1) << 23  # an addition that shifts a subnormal's bits to the end, rounding them
    shifter = _as_float(b, constant(bits.type, magic))
    subnormal = _add(b, _as_bits(b, b.binary("fadd", _as_float(b, size), shifter)), -magic)
    found = b.select(b.compare("ult", size, constant(size.type, 113 << 23)), subnormal, normal)
    infinite = b.select(
        b.compare("ugt", size, constant(size.type, 255 << 23)),
        constant(size.type, 0x7E00),
        constant(size.type, 0x7C00),
    )
    found = b.select(b.compare("uge", size, constant(size.type, (127 + 16) << 23)), infinite, found)
    return b.convert("trunc", b.binary("or", found, _shift(b, "lshr", sign, 16)), "i16")


def _to_bf16(b: Builder, a: Value) -> Value:
    bits = _as_bits(b, a)
    high = _shift(b, "lshr", bits, 16)
    rounded = _shift(b, "lshr", b.binary("add", _add(b, bits, 0x7FFF), _and(b, high, 1)), 16)
    quiet = b.binary("or", high, constant(high.type, 0x40))
    return b.convert("trunc", b.select(b.compare("uno", a, a), quiet, rounded), "i16")


def to_odd_single(b: Builder, a: Value) -> Value:
    """An f64 as f32: truncated, with the last bit set when that was not exact."""
    near = b.convert("fptrunc", a, "float")
    back = b.convert("fpext", near, "double")
    bits = _as_bits(b, near)
    too_large = b.compare("ogt", b.intrinsic("fabs", back), b.intrinsic("fabs", a))
    down = b.select(too_large, _add(b, bits, -1), bits)
    sticky = b.convert("zext", b.compare("one", back, a), "i32")
    return _as_float(b, b.binary("or", down, sticky))


def _as_bits(b: Builder, a: Value) -> Value:
    return b.convert("bitcast", a, "i32")


def _as_float(b: Builder, a: Value) -> Value:
    return b.convert("bitcast", a, "float")


def _add(b: Builder, a: Value, number: int) -> Value:
    return b.binary("add", a, constant(a.type, number))


def _and(b: Builder, a: Value, number: int) -> Value:
    return b.binary("and", a, constant(a.type, number))


def _shift(b: Builder, op: str, a: Value, by: int) -> Value:
    return b.binary(op, a, constant(a.type, by))
