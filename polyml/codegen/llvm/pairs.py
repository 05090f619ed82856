"""Pairs of bf16 as numbers of 32 bits, and the instruction that adds their products to an f32.

x86's vdpbf16ps computes two fused multiply-adds per lane and takes subnormal numbers, read or computed, for zero (Intel, Architecture Instruction Set Extensions Programming Reference, on
AVX512_BF16). Where the target has none, the same products are added up in f32.
"""

from __future__ import annotations

from polyml.codegen.llvm.arithmetic import multiply_add
from polyml.codegen.llvm.ir import Builder, Value, constant, type_of
from polyml.codegen.llvm.memory import Evaluate, load_neighbours
from polyml.codegen.llvm.state import State
from polyml.expressions import Apply, neighbours

__all__ = ["dot_of_pairs", "pair"]


def pair(state: State, expr: Apply, evaluate: Evaluate) -> Value:
    """Two elements as one number, the first one low; neighbours in memory are read at once."""
    b = state.builder
    read = neighbours(expr)
    if read is not None:
        found = load_neighbours(state, read.tensor, read.subscripts, evaluate)
        if found is not None:
            return found
    first, second = (b.convert("zext", evaluate(state, arg), "i32") for arg in expr.args)
    lanes = max(first.lanes, second.lanes)
    first, second = b.splat(first, lanes), b.splat(second, lanes)
    return b.binary("or", first, b.binary("shl", second, constant(second.type, 16)))


def dot_of_pairs(b: Builder, x: Value, y: Value, total: Value) -> Value:
    """total + x0*y0 + x1*y1, all with the same lanes."""
    lanes = total.lanes
    if not b.module.dot_bf16 or lanes > 16:
        return _in_f32(b, x, y, total)
    native = max(lanes, 4)
    if lanes == 1:
        wide = [_first_lane(b, v) for v in (total, x, y)]
    else:
        order = [*range(lanes), *[0] * (native - lanes)]
        wide = [v if lanes == native else b.shuffle(v, order) for v in (total, x, y)]
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * native}"
    result, bits = type_of("float", native), type_of("i32", native)
    b.module.declare(name, str(result), [str(result), str(bits), str(bits)])
    made = b.emit(result, f"call {result} @{name}({', '.join(map(str, wide))})")
    if lanes == 1:
        return b.extract(made, 0)
    return made if lanes == native else b.shuffle(made, range(lanes))


def _first_lane(b: Builder, value: Value) -> Value:
    type_ = value.type.of(4)
    return b.emit(type_, f"insertelement {type_} zeroinitializer, {value}, i32 0")


def _in_f32(b: Builder, x: Value, y: Value, total: Value) -> Value:
    for shifted in (False, True):
        parts = []
        for v in (x, y):
            bits = (
                b.binary("shl", v, constant(v.type, 16))
                if shifted
                else b.binary("and", v, constant(v.type, -(1 << 16)))
            )
            parts.append(b.convert("bitcast", bits, "float"))
        total = multiply_add(b, parts[0], parts[1], total)
    return total
