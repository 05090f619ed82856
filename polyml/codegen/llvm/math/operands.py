"""Constants of polynomials as whole vectors in memory, where registers are few (AVX2).

A polynomial has more coefficients than 16 registers hold beside what is computed. Of a constant that is the same in all lanes LLVM makes a broadcast of one number (vbroadcastss), an instruction ahead of the
one that needs it, for whatever is in no register: seven of gelu's 45 instructions. A vector in memory is an operand of that instruction itself. So constants are loads of vectors that LLVM takes for
unknown and unchanging: it keeps in registers as many as there is room for, as of any others.

AVX-512's instructions broadcast such an operand themselves, and have twice the registers.
"""

from __future__ import annotations

from polyml.codegen.llvm.ir import Builder, Type, Value, constant

__all__ = ["operand"]

_BITS = 256
"""Of a register."""


def operand(b: Builder, type_: Type, number: float) -> Value:
    """The number in each lane of vectors of floats, as an operand of what adds or multiplies."""
    plain = constant(type_, number)
    if not b.module.instructions.avx2 or number == 0.0 or type_.lanes * type_.bits % _BITS:
        return plain
    register = type_.of(_BITS // type_.bits)
    name = f"polyml.number.{register.mangled}.{plain.text[plain.text.rindex(' ') + 1 : -1]}"
    value = b.known.get(name)
    if value is None:
        size = _BITS // 8
        # Not a constant, which LLVM would put in the place of the load.
        filled = f"@{name} = internal global {constant(register, number)}, align {size}"
        b.module.definitions.setdefault(name, filled)
        value = b.known[name] = b.emit(register, f"load {register}, ptr @{name}, align {size}, !invariant.load !{{}}")
    return value if register == type_ else b.shuffle(value, [k % register.lanes for k in range(type_.lanes)])
