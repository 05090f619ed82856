"""Between floats and integers of 64 bits, in vectors of AVX2: it converts 32 bits only, and LLVM takes a vector of 64 apart, five or six instructions for each lane.

Places are computed so, `i64(x[n] * 255)`, and `f32(i[n])` goes back; they are small numbers nearly always. Where all lanes fit 32 bits a vector is converted at once, which a comparison and a jump decide; where one does not, LLVM's code does it, out of line. So every number comes out as it would.
Predicted for four lanes of f32 to i64: 6 instructions instead of 18.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polyml.codegen.llvm.functions.helpers import define
from polyml.codegen.llvm.ir import Builder, Type, Value, constant, type_of
from polyml.codegen.llvm.math.kit import KEPT

__all__ = ["from_wide", "is_wide", "to_wide"]

_BITS = 32
"""Of the integers that vectors are converted to and from."""

_Usual = Callable[[Builder, Value], tuple[Value, Value]]
"""Writes the conversion by way of 32 bits, and says which lanes these are not enough for."""


def is_wide(b: Builder, float_: Type, integer: Type) -> bool:
    """Whether the machine converts vectors between these types by way of 32 bits only."""
    return b.module.instructions.avx2 and float_.lanes > 1 and integer.bits == 2 * _BITS


def to_wide(b: Builder, x: Value) -> Value:
    """Floats as i64; any value, that may be another one each time, for what does not fit."""
    to = type_of("i64", x.lanes)

    def usual(inner: Builder, given: Value) -> tuple[Value, Value]:
        size = inner.intrinsic("fabs", given)
        beyond = inner.compare("uge", size, constant(x.type, 2.0 ** (_BITS - 1)))
        return beyond, inner.convert("sext", inner.convert("fptosi", given, f"i{_BITS}"), to.element)

    return _either(b, x, to, "fptosi", usual)


def from_wide(b: Builder, x: Value, element: str) -> Value:
    """Integers of 64 bits, with a sign, as floats."""
    to = type_of(element, x.lanes)

    def usual(inner: Builder, given: Value) -> tuple[Value, Value]:
        short = inner.convert("trunc", given, f"i{_BITS}")
        beyond = inner.compare("ne", inner.convert("sext", short, "i64"), given)
        return beyond, inner.convert("sitofp", short, to.element)

    return _either(b, x, to, "sitofp", usual)


def _either(b: Builder, x: Value, to: Type, op: str, usual: _Usual) -> Value:
    """The usual conversion, unless lanes are beyond it."""
    name = f"polyml.{op}.{x.type.mangled}.{to.mangled}"
    kept = ' "no_caller_saved_registers"' if to.lanes * to.bits in KEPT and to.lanes.bit_count() == 1 else ""

    def rare(inner: Builder, given: Mapping[str, Value]) -> str:
        return f"ret {inner.convert(op, given['x'], to.element)}"

    def body(inner: Builder, given: Mapping[str, Value]) -> str:
        beyond, found = usual(inner, given["x"])
        inner.branch(inner.any_lane(beyond), "beyond", "fits", rare=True)
        inner.start("beyond")
        inner.write(f"ret {inner.call(f'{name}.beyond', to, (given['x'],))}")
        inner.start("fits")
        return f"ret {found}"

    define(b.module, f"{name}.beyond", to, {"x": x.type}, f"noinline cold{kept}", rare)
    define(b.module, name, to, {"x": x.type}, "alwaysinline", body)
    return b.call(name, to, (x,))
