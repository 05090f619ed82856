"""Vectors in memory under a mask: LLVM's intrinsics for them (LangRef, "Masked Vector Load and Store Intrinsics" and "Masked Vector Gather and Scatter Intrinsics").

The alignment is an argument of its own, as up to LLVM 21; later ones, which have it beside the pointer, read that form, too. In the later form the earlier ones abort the process.
"""

from collections.abc import Mapping

from polyml.codegen.llvm.functions.helpers import define
from polyml.codegen.llvm.ir import POINTER, Builder, Type, Value, type_of

_REGISTER = 256
"""Bits of AVX's registers."""


def masked_load(b: Builder, pointer: Value, align: int, mask: Value, others: Value) -> Value:
    """The elements from the address on for the lanes of the mask; the other lanes are those of `others`, whose type the result has."""
    type_, name = others.type, f"llvm.masked.load.{others.type.mangled}.p0"
    if b.module.instructions.masks_by_sign and not mask.is_constant and _is_split(type_):
        return _read_by_sign(b, pointer, mask, others)
    if not _is_long(b, type_, mask):
        return _read(b, name, pointer, align, mask, others)
    called = f"masked.load.{type_.mangled}.{align}"
    parameters = {"where": pointer.type, "mask": mask.type, "others": type_}

    def body(inner: Builder, given: Mapping[str, Value]) -> str:
        return f"ret {_read(inner, name, given['where'], align, given['mask'], given['others'])}"

    define(b.module, called, type_, parameters, "noinline", body)
    return b.emit(type_, f"call {type_} @{called}({pointer}, {mask}, {others})")


def masked_gather(b: Builder, pointers: Value, align: int, mask: Value, others: Value) -> Value:
    """For each lane of the mask the element at its address; the other lanes are those of `others`, whose type the result has."""
    name = f"llvm.masked.gather.{others.type.mangled}.{pointers.type.mangled}"
    return _read(b, name, pointers, align, mask, others)


def masked_store(b: Builder, value: Value, pointer: Value, align: int, mask: Value) -> None:
    """Writes the lanes of the mask from the address on."""
    name = f"llvm.masked.store.{value.type.mangled}.p0"
    if not _is_long(b, value.type, mask):
        _write(b, name, value, pointer, align, mask)
        return

    called = f"masked.store.{value.type.mangled}.{align}"
    parameters = {"value": value.type, "where": pointer.type, "mask": mask.type}

    def body(inner: Builder, given: Mapping[str, Value]) -> str:
        _write(inner, name, given["value"], given["where"], align, given["mask"])
        return "ret void"

    define(b.module, called, "void", parameters, "noinline", body)
    b.write(f"call void @{called}({value}, {pointer}, {mask})")


def masked_scatter(b: Builder, value: Value, pointers: Value, align: int, mask: Value) -> None:
    """Writes each lane of the mask to its address."""
    _write(b, f"llvm.masked.scatter.{value.type.mangled}.{pointers.type.mangled}", value, pointers, align, mask)


def _is_long(b: Builder, type_: Type, mask: Value) -> bool:
    """Whether the access is a branch per element (Target.least_masked): as a function of its own it stands in the module once, not for each row of each block of a copy (12 s of compilation)."""
    return type_.bits < b.module.instructions.least_masked and not mask.is_constant


def zeros(type_: Type) -> Value:
    """What lanes outside of a mask read, nearly always."""
    return Value(type_, "zeroinitializer")


def _is_split(type_: Type) -> bool:
    """Whether it is several of AVX's registers, or real and imaginary parts, which are used apart: LLVM's own load is not safe for it (_read_by_sign)."""
    return type_.is_pair or (type_.bits in (32, 64) and type_.lanes * type_.bits > _REGISTER)


def _read_by_sign(b: Builder, pointer: Value, mask: Value, others: Value) -> Value:
    """The load by AVX's instruction, a register at a time, with masks of which LLVM knows nothing.

    LLVM 22 goes wrong at its own where it cuts a vector in registers. One of which it knows by then that no lane acts has ones for a mask, whose signs are zeros, and is read whole for that (combineMaskedLoadConstantMask in X86ISelLowering.cpp takes each number but zero for
    a true one): wrong numbers, and memory outside of the array. And where some lanes are not used (parts of complex numbers) those of `others` become undefined, are frozen one step too late, and nothing is found to select, which ends the process.
    """
    part = others.type.part.of(2 * others.lanes) if others.type.is_pair else others.type
    float_ = type_of("float" if part.bits == 32 else "double", _REGISTER // part.bits)
    name = "llvm.x86.avx.maskload." + ("ps" if part.bits == 32 else "pd") + ".256"
    b.module.declare(name, str(float_), ["ptr", str(float_.integers())])
    none = Value(mask.type, "zeroinitializer")
    found = []
    for start in range(0, part.lanes, float_.lanes):
        order = [min(k, part.lanes) for k in range(start, start + float_.lanes)]
        signs = b.convert("sext", b.shuffle(mask, order, none), float_.integers().element)
        signs = b.intrinsic("arithmetic.fence", b.convert("bitcast", signs, float_.element))
        place = b.emit(POINTER, f"getelementptr {part.of(1)}, {pointer}, i64 {start}") if start else pointer
        found.append(b.call(name, float_, (place, b.convert("bitcast", signs, float_.integers().element))))
    while len(found) > 1:
        pairs = zip(found[::2], [*found[1::2], *found[-1:]][: (len(found) + 1) // 2], strict=True)
        found = [b.shuffle(low, range(2 * low.lanes), high) for low, high in pairs]
    read = found[0] if found[0].lanes == part.lanes else b.shuffle(found[0], range(part.lanes))
    read = Value(others.type, b.convert("bitcast", read, part.element).text)
    return read if others.text == "zeroinitializer" else b.emit(others.type, f"select {mask}, {read}, {others}")


def _read(b: Builder, name: str, where: Value, align: int, mask: Value, others: Value) -> Value:
    type_ = others.type
    b.module.declare(name, str(type_), [str(where.type), "i32", str(mask.type), str(type_)])
    return b.emit(type_, f"call {type_} @{name}({where}, i32 {align}, {mask}, {others})")


def _write(b: Builder, name: str, value: Value, where: Value, align: int, mask: Value) -> None:
    b.module.declare(name, "void", [str(value.type), str(where.type), "i32", str(mask.type)])
    b.write(f"call void @{name}({value}, {where}, i32 {align}, {mask})")
