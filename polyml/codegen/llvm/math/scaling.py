"""Instructions for exponential functions, where the module's target has them. AVX-512: scaling by a power of two, the smaller of two absolute values, and small tables. AVX2: tables of eight and of four numbers of 32 bits.

Intel 64 and IA-32 Architectures Software Developer's Manual, vol. 2C: VSCALEFPS (table of special cases: infinite exponents win even over NaN), VRANGEPS, VPERMPS, VPERMD, VPERMI2PS.
All lengths of vectors take the same steps in whole registers, so that a lane's result does not depend on them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from polyml.codegen.llvm.ir import I32, Type, Value, constant, type_of
from polyml.codegen.llvm.math.constants import format_of
from polyml.codegen.llvm.math.kit import Number

__all__ = [
    "assists",
    "bounded",
    "eighths",
    "in_registers",
    "is_negative",
    "looked_up",
    "looks_up_parts",
    "quarters",
    "scaled",
    "scales",
]

_REGISTERS = (256, 512)
"""Bits of the vectors whose forms are used; without AVX-512 the first."""


def scales(x: Number) -> bool:
    """Whether the instructions exist for numbers like x."""
    return x.builder.module.instructions.scalef and x.type.is_float


def looks_up_parts(x: Number) -> bool:
    """Whether `quarters` and `eighths` exist for numbers like x."""
    return x.builder.module.instructions.avx2 and x.type.element == "float"


def assists(x: Number) -> bool:
    """Whether it takes hundreds of cycles to scale to what is no normal number."""
    return x.builder.module.instructions.assists


def is_negative(x: Number) -> Number:
    """x < 0, where it does not matter what it is for zeros and NaN: AVX2 chooses by the sign, without a comparison."""
    return x.bits() < 0 if x.builder.module.instructions.avx2 else x < 0.0


def in_registers(recipe: Callable[[Number], Number], x: Number) -> Number:
    """What the recipe, which uses these instructions, makes of a number of any lanes: a register at a time, with zeros behind a short one."""
    b, lanes, bits = x.builder, x.type.lanes, x.type.bits
    registers = _REGISTERS if scales(x) else _REGISTERS[:1]
    if lanes * bits in registers:
        return recipe(x)
    if lanes * bits > registers[-1]:
        half = lanes // 2
        halves = [
            in_registers(recipe, Number(b, b.shuffle(x.value, part))) for part in (range(half), range(half, lanes))
        ]
        return Number(b, b.shuffle(halves[0].value, range(lanes), halves[1].value))
    whole = x.type.of(next(size for size in registers if size >= lanes * bits) // bits)
    zeros = Value(whole, "zeroinitializer")
    if lanes == 1:
        padded = b.emit(whole, f"insertelement {zeros}, {x.value}, i64 0")
    else:
        padded = b.shuffle(x.value, [min(k, lanes) for k in range(whole.lanes)], Value(x.type, "zeroinitializer"))
    return Number(b, b.shuffle(recipe(Number(b, padded)).value, range(lanes)))


def scaled(x: Number, n: Number, kept: Number | None = None) -> Number:
    """x * 2^floor(n), rounded once; infinite or 0 for infinite n, NaN for NaN n. kept: where it is that, and not 0."""
    return _masked("scalef", x, n, kept=kept)


def bounded(x: Number, limit: float) -> Number:
    """x, or the limit with x's sign where abs(x) is larger; where x is NaN, some number no larger than the limit."""
    smaller_absolute_value_with_the_first_sign = 0b0010
    return _masked("range", x, x.like(limit), smaller_absolute_value_with_the_first_sign)


def looked_up(table: Sequence[float], index: Number) -> Number:
    """The entries that the low bits of the index name: 16 of f32, 8 of f64, which one register holds, or two."""
    b, lanes = index.builder, index.type.lanes
    element, short = ("float", "s") if index.type.bits == 32 else ("double", "d")
    type_ = type_of(element, lanes)
    parts = [_listed(type_, table[k : k + lanes]) for k in range(0, len(table), lanes)]
    name = f"permvar.{short}f.512" if len(parts) == 1 else f"vpermi2var.p{short}.256"
    passed = (parts[0], index.value, *parts[1:])
    b.module.declare(f"llvm.x86.avx512.{name}", str(type_), [str(value.type) for value in passed])
    return Number(b, b.call(f"llvm.x86.avx512.{name}", type_, passed))


def eighths(t: Number, factor: float, roots: Sequence[float]) -> Number:
    """factor * 2^t, normal numbers, in a vector of eight, where the low bits of the float t are eight times its value: 2^(k/8) is the root k, rounded, and what is left of t goes into the exponent.

    An entry of the table is a root less the bits that k itself has in the sum of t's and the root's, so that no bit of t is masked.
    """
    b, bits, shift = t.builder, t.bits(), format_of(t.type).mantissa - 3
    table = _entries(bits.type, [factor * root for root in roots], shift)
    b.module.declare("llvm.x86.avx2.permd", str(bits.type), [str(bits.type)] * 2)
    root = Number(b, b.call("llvm.x86.avx2.permd", bits.type, (table, bits.value)))
    return (root + (bits << shift)).floats()


def quarters(t: Number, roots: Sequence[float]) -> Number:
    """2^t likewise, where the low bits of t are four times its value. Each half of a register has all four roots, so that no number crosses them: one step where `eighths` take two (Zen 3)."""
    b, bits, shift = t.builder, t.bits(), format_of(t.type).mantissa - 2
    table = b.convert("bitcast", _entries(bits.type, roots, shift), t.type.element)
    b.module.declare("llvm.x86.avx.vpermilvar.ps.256", str(t.type), [str(t.type), str(bits.type)])
    root = Number(b, b.call("llvm.x86.avx.vpermilvar.ps.256", t.type, (table, bits.value)))
    return (root.bits() + (bits << shift)).floats()


def _entries(type_: Type, roots: Sequence[float], shift: int) -> Value:
    """The roots' bits, each less its place where that comes to stand, again and again in all lanes."""
    entries = [(_bits_of(root) - (k << shift)) % (1 << 32) for k, root in enumerate(roots)]
    return Value(type_, f"<{', '.join(f'i32 {entries[k % len(entries)]}' for k in range(type_.lanes))}>")


def _bits_of(single: float) -> int:
    (bits,) = struct.unpack("<I", struct.pack("<f", single))
    assert isinstance(bits, int)
    return bits


def _listed(type_: Type, numbers: Sequence[float]) -> Value:
    """A constant of other numbers in each lane."""
    element = type_.of(1)
    return Value(type_, f"<{', '.join(str(constant(element, number)) for number in numbers)}>")


def _masked(name: str, a: Number, b: Number, *immediate: int, kept: Number | None = None) -> Number:
    """The instruction of all lanes, or of those that are kept beside zeros, rounding as the thread does. What a `select` masks LLVM may compute in all lanes, with a later instruction masked."""
    builder, type_ = a.builder, a.type
    size = type_.lanes * type_.bits
    mask = type_of(f"i{max(8, type_.lanes)}")
    function = f"llvm.x86.avx512.mask.{name}.p{'s' if type_.bits == 32 else 'd'}.{size}"
    current_rounding = [constant(I32, 4)] if size == _REGISTERS[-1] else []
    constants = [constant(I32, k) for k in immediate]
    lanes = constant(mask, -1)
    if kept is not None:
        bits = builder.shuffle(kept.value, [k % type_.lanes for k in range(mask.bits)])
        lanes = builder.emit(mask, f"bitcast {bits} to {mask}")
    passed = (a.value, b.value, *constants, Value(type_, "zeroinitializer"), lanes, *current_rounding)
    parameters = [f"{value.type}{' immarg' if value.type is I32 else ''}" for value in passed]
    builder.module.declare(function, str(type_), parameters)
    return Number(builder, builder.call(function, type_, passed))
