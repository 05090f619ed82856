"""pow: products for constant exponents that are whole or half a whole number, repeated squaring for integers, vector math otherwise."""

from __future__ import annotations

from polyml.codegen.llvm.ir import Builder, Value, constant
from polyml.codegen.llvm.math import vector_math

__all__ = ["float_power", "integer_power"]

_LARGEST_MULTIPLIED_EXPONENT = 16
"""Each multiplication is rounded (docs/numerics.md); complex powers are products up to this exponent, too."""
_LARGEST_PRECISE_EXPONENT = 4
"""Of whole exponents with `precise=True`: two or three roundings, as many as a vector function may be off by."""


def float_power(b: Builder, x: Value, y: Value, exponent: float | None, *, precise: bool) -> Value:
    """`x ** y`; a constant exponent up to 16 in size becomes multiplications if it is whole, and a square root beside them if its double is; with `precise` a whole one up to 4."""
    size = 0.0 if exponent is None else abs(exponent)
    largest, parts = (_LARGEST_PRECISE_EXPONENT, 1) if precise else (_LARGEST_MULTIPLIED_EXPONENT, 2)
    if exponent is None or not 0 < size <= largest or parts * size != int(parts * size):
        return vector_math(b, "pow", x, y)
    power = _multiplied(b, "fmul", x, int(size)) if size == int(size) else _with_root(b, x, int(size))
    return power if exponent > 0 else b.binary("fdiv", constant(x.type, 1.0), power)


def _with_root(b: Builder, x: Value, whole: int) -> Value:
    """`x ** (whole + 1/2)`. Unlike the square root, pow has no -0, and an infinity for -inf."""
    infinity = constant(x.type, float("inf"))
    size = b.binary("fadd", x, constant(x.type, 0.0))
    root = b.intrinsic("sqrt", size)
    power = b.binary("fmul", _multiplied(b, "fmul", size, whole), root) if whole else root
    return b.select(b.compare("oeq", x, constant(x.type, float("-inf"))), infinity, power)


def _multiplied(b: Builder, op: str, x: Value, exponent: int) -> Value:
    result: Value | None = None
    square = x
    while True:
        if exponent & 1:
            result = square if result is None else b.binary(op, result, square)
        exponent >>= 1
        if not exponent:
            break
        square = b.binary(op, square, square)
    assert result is not None
    return result


def integer_power(b: Builder, x: Value, y: Value, exponent: float | None) -> Value:
    """`x ** y`, wrapping; a negative exponent (an error in NumPy) gives some value."""
    if exponent is not None and exponent >= 1:
        return _multiplied(b, "mul", x, int(exponent))
    if exponent == 0:
        return constant(x.type, 1)
    before, loop, after = b.block, b.fresh("power"), b.fresh("powered")
    zero, one = constant(x.type, 0), constant(x.type, 1)
    b.jump(loop)
    b.start(loop)
    names = [b.fresh("%p") for _ in range(3)]
    result, square, left = (Value(x.type, b.fresh("%r")) for _ in range(3))
    for value, start, update in zip((result, square, left), (one, x, y), names, strict=True):
        b.write(f"{value.text} = phi {x.type} [{start.text}, %{before}], [{update}, %{loop}]")
    odd = b.compare("ne", b.binary("and", left, one), zero)
    b.write(f"{names[0]} = select {odd}, {x.type} {b.binary('mul', result, square).text}, {result}")
    b.write(f"{names[1]} = mul {square}, {square.text}")
    b.write(f"{names[2]} = lshr {left}, {one.text}")
    more = b.any_lane(b.compare("ne", Value(x.type, names[2]), zero))
    b.branch(more, loop, after)
    b.start(after)
    return Value(x.type, names[0])
