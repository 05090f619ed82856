"""Pairs of bf16 or i16, and four numbers of 8 bits, as numbers of 32 bits, and the instruction that adds their products to an f32 or i32.

x86's vdpbf16ps computes two fused multiply-adds per lane and takes subnormal numbers, read or computed, for zero (Intel, Architecture Instruction Set Extensions Programming Reference, on
AVX512_BF16). Where the target has none, the same products are added up in f32. Its vpmaddwd adds two products of i16, exactly but for -32768 in all four places, where it wraps as i32 does; LLVM makes one
instruction of it and the addition behind it where there is one (vpdpwssd of AVX512_VNNI). Elsewhere halves are multiplied as i32. vpdpbusd adds four products of u8 and i8, exactly.
"""

from __future__ import annotations

from polyml.codegen.llvm.arithmetic import multiply_add
from polyml.codegen.llvm.ir import Builder, Value, constant, type_of
from polyml.codegen.llvm.memory.access import Evaluate
from polyml.codegen.llvm.memory.loads import load_neighbours
from polyml.codegen.llvm.state import State
from polyml.expressions import Apply, Const, Expr, Read, neighbours

__all__ = ["dot_of_pairs", "pair"]


def pair(state: State, expr: Apply, evaluate: Evaluate) -> Value:
    """Two or four elements as one number, the first one low; those that are neighbours in memory are read at once."""
    b = state.builder
    read, added = neighbours(expr), _added(expr.args[0])
    if read is not None and added is not None:
        found = load_neighbours(state, read.tensor, read.subscripts, evaluate, len(expr.args))
        if found is not None:
            return _each_plus(b, found, added) if added else found
    parts = [b.convert("zext", evaluate(state, arg), "i32") for arg in expr.args]
    lanes = max(part.lanes for part in parts)
    made, *others = (b.splat(part, lanes) for part in parts)
    for k, part in enumerate(others, 1):
        made = b.binary("or", made, b.binary("shl", part, constant(part.type, 32 // len(parts) * k)))
    return made


def _added(expr: Expr) -> int | None:
    """What is added to an element's bits; None where something else is done to it."""
    match expr:
        case Read():
            return 0
        case Apply(op="cast", args=(Read() as read,)) if read.dtype.is_integer and expr.dtype.bits == read.dtype.bits:
            return 0
        case Apply(op="add", args=(inner, Const(value=int() as value))) if expr.dtype.bits == 8:
            return value if _added(inner) == 0 else None
        case _:
            return None


def _each_plus(b: Builder, numbers: Value, added: int) -> Value:
    """The same number added to each of the four numbers of 8 bits, whose sums wrap."""
    bytes_ = type_of("i8", 4 * numbers.lanes)
    each = b.binary(
        "add", b.emit(bytes_, f"bitcast {numbers} to {bytes_}"), constant(bytes_, (added + 128) % 256 - 128)
    )
    return b.emit(numbers.type, f"bitcast {each} to {numbers.type}")


def dot_of_pairs(b: Builder, op: str, x: Value, y: Value, total: Value) -> Value:
    """total + x0*y0 + x1*y1 (+ x2*y2 + x3*y3), all with the same lanes. op: dot_bf16, dot_i16 or dot_i8."""
    lanes = total.lanes
    known = b.module.instructions
    if lanes > 16 or not {"dot_bf16": known.dot_bf16, "dot_i16": known.dot_i16, "dot_i8": known.dot_i8}[op]:
        return {"dot_bf16": _in_f32, "dot_i16": _of_halves, "dot_i8": _of_bytes}[op](b, x, y, total)
    native = max(lanes, 4)
    if lanes == 1:
        wide = [_first_lane(b, v) for v in (total, x, y)]
    else:
        order = [*range(lanes), *[0] * (native - lanes)]
        wide = [v if lanes == native else b.shuffle(v, order) for v in (total, x, y)]
    made = {"dot_bf16": _dot_bf16, "dot_i16": _dot_i16, "dot_i8": _dot_i8}[op](b, *wide)
    if lanes == 1:
        return b.extract(made, 0)
    return made if lanes == native else b.shuffle(made, range(lanes))


def _dot_bf16(b: Builder, total: Value, x: Value, y: Value) -> Value:
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * total.lanes}"
    b.module.declare(name, str(total.type), [str(v.type) for v in (total, x, y)])
    return b.emit(total.type, f"call {total.type} @{name}({total}, {x}, {y})")


_MULTIPLY_ADD = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}


def _dot_i16(b: Builder, total: Value, x: Value, y: Value) -> Value:
    name, halves = f"llvm.x86.{_MULTIPLY_ADD[total.lanes]}", type_of("i16", 2 * total.lanes)
    b.module.declare(name, str(total.type), [str(halves)] * 2)
    parts = [b.emit(halves, f"bitcast {v} to {halves}") for v in (x, y)]
    products = b.emit(total.type, f"call {total.type} @{name}({parts[0]}, {parts[1]})")
    return b.binary("add", total, products)


def _dot_i8(b: Builder, total: Value, x: Value, y: Value) -> Value:
    name = f"llvm.x86.avx512.vpdpbusd.{32 * total.lanes}"
    b.module.declare(name, str(total.type), [str(v.type) for v in (total, x, y)])
    return b.emit(total.type, f"call {total.type} @{name}({total}, {x}, {y})")


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


def _of_halves(b: Builder, x: Value, y: Value, total: Value) -> Value:
    return _of_parts(b, (x, "ashr"), (y, "ashr"), total, 16)


def _of_bytes(b: Builder, x: Value, y: Value, total: Value) -> Value:
    return _of_parts(b, (x, "lshr"), (y, "ashr"), total, 8)


def _of_parts(b: Builder, x: tuple[Value, str], y: tuple[Value, str], total: Value, bits: int) -> Value:
    """Products of parts of so many bits, which are shifted to the top and down again: by "ashr" those that have a sign."""
    for k in range(0, 32, bits):
        parts = []
        for value, shift in (x, y):
            top = b.binary("shl", value, constant(value.type, 32 - bits - k)) if k < 32 - bits else value
            parts.append(b.binary(shift, top, constant(value.type, 32 - bits)))
        total = b.binary("add", total, b.binary("mul", *parts))
    return total
