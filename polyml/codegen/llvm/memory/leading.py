"""The first lanes of a vector in memory, without a mask: AVX is slow at storing under one, and has none for elements of fewer than 32 bits, of which LLVM reads and writes each behind a branch of its own.

How many lanes there are is a number (leading), or is known when it runs (first).
"""

from collections.abc import Mapping

from polyml.codegen.llvm.functions.helpers import define
from polyml.codegen.llvm.ir import POINTER, Builder, Type, Value, integer
from polyml.codegen.llvm.memory.masked import zeros

_HALF = 32
"""Bytes of vectors whose masked stores may be slow: those of AVX take 18 cycles on AMD's processors, ones with mask registers one."""


def in_pieces(type_: Type) -> bool:
    """Whether the first lanes of such a vector are better stored by `store_leading` than under a mask."""
    return not type_.is_pair and type_.bits // 8 * type_.lanes <= _HALF


def store_leading(b: Builder, pointer: Value, value: Value, count: int, align: int) -> None:
    """Writes the first `count` lanes, in pieces of powers of two."""
    start = 0
    while start < count:
        length = 1 << ((count - start).bit_length() - 1)
        type_ = value.type.of(length)
        places = ", ".join(f"i32 {k}" for k in range(start, start + length))
        piece = f"shufflevector {value}, {value.type} poison, <{length} x i32> <{places}>"
        part = b.emit(type_, piece if length > 1 else f"extractelement {value}, i32 {start}")
        place = b.emit(POINTER, f"getelementptr {value.type.of(1)}, {pointer}, i64 {start}") if start else pointer
        b.write(f"store {part}, {place}, align {align}")
        start += length


def store_first(b: Builder, pointer: Value, value: Value, count: Value, align: int) -> None:
    """As many elements of a vector as a number says that is known when it runs: all, or a piece for each of its bits. Rows of one length take the same branches each time."""
    width = value.lanes
    whole, part, after = b.fresh("whole"), b.fresh("part"), b.fresh("stored")
    b.branch(b.compare("sge", count, integer(width)), whole, part)
    b.start(whole)
    b.write(f"store {value}, {pointer}, align {align}")
    b.jump(after)
    b.start(part)
    while width > 1:
        half = width // 2
        low = b.shuffle(value, range(half)) if half > 1 else b.extract(value, 0)
        piece, rest = b.fresh("piece"), b.fresh("rest") if half > 1 else after
        before = b.block
        b.branch(b.compare("ne", b.binary("and", count, integer(half)), integer(0)), piece, rest)
        b.start(piece)
        b.write(f"store {low}, {pointer}, align {align}")
        if half > 1:
            high = b.shuffle(value, range(half, width))
            behind = b.emit(POINTER, f"getelementptr {value.type.of(1)}, {pointer}, i64 {half}")
        b.jump(rest)
        b.start(rest)
        if half > 1:
            value = b.emit(low.type, f"phi {low.type} [{low.text}, %{before}], [{high.text}, %{piece}]")
            pointer = b.emit(POINTER, f"phi {POINTER} [{pointer.text}, %{before}], [{behind.text}, %{piece}]")
        width = half


def load_leading(b: Builder, pointer: Value, type_: Type, count: int, align: int) -> Value:
    """Reads the first `count` lanes, others are zeros: a power of two of them, and where there are more as many that end with the last one."""
    length, width = 1 << (count.bit_length() - 1), type_.lanes
    part, result = type_.of(length), zeros(type_)
    for start in sorted({0, count - length}):
        place = b.emit(POINTER, f"getelementptr {type_.of(1)}, {pointer}, i64 {start}") if start else pointer
        read = b.emit(part, f"load {part}, {place}, align {align}")
        if length == 1:
            return b.emit(type_, f"insertelement {result}, {read}, i64 0")
        wide = b.shuffle(read, [min(max(k - start, 0), length - 1) for k in range(width)])
        result = b.shuffle(result, [width + k if start <= k < start + length else k for k in range(width)], wide)
    return result


def load_first(b: Builder, pointer: Value, type_: Type, count: Value, align: int) -> Value:
    """Reads as many lanes as a number says that is known when it runs, all or fewer, others are zeros; by a function that the module has once."""
    called, parameters = f"load.first.{type_.mangled}.{align}", {"where": pointer.type, "count": count.type}

    def body(inner: Builder, given: Mapping[str, Value]) -> str:
        return f"ret {_by_bits(inner, given['where'], type_, given['count'], align)}"

    define(b.module, called, type_, parameters, "noinline", body)
    return b.emit(type_, f"call {type_} @{called}({pointer}, {count})")


def _by_bits(b: Builder, pointer: Value, type_: Type, count: Value, align: int) -> Value:
    """A piece for each bit of the number, from the lowest one on, whose elements are the last. Rows of one length take the same branches each time."""
    whole, part, found, width = b.fresh("whole"), b.fresh("part"), zeros(type_), type_.lanes
    b.branch(b.compare("sge", count, integer(width)), whole, part)
    b.start(whole)
    b.write(f"ret {b.emit(type_, f'load {type_}, {pointer}, align {align}')}")
    b.start(part)
    for length in (1 << bit for bit in range(width.bit_length() - 1)):
        piece, rest, before = b.fresh("piece"), b.fresh("rest"), b.block
        b.branch(b.compare("ne", b.binary("and", count, integer(length)), integer(0)), piece, rest)
        b.start(piece)
        ahead = b.binary("and", count, integer(-2 * length))
        place = b.emit(POINTER, f"getelementptr {type_.of(1)}, {pointer}, {ahead}")
        read = load_leading(b, place, type_, length, align)
        read = b.shuffle(read, [k if k < length else width + k - length for k in range(width)], found)
        b.jump(rest)
        b.start(rest)
        found = b.emit(type_, f"phi {type_} [{found.text}, %{before}], [{read.text}, %{piece}]")
    return found
