"""Vectors in memory under a mask: LLVM's intrinsics for them (LangRef, "Masked Vector Load and Store Intrinsics" and "Masked Vector Gather and Scatter Intrinsics").

The alignment is an argument of its own, as up to LLVM 21; later ones, which have it beside the pointer, read that form, too. In the later form the earlier ones abort the process.
"""

from polyml.codegen.llvm.ir import Builder, Type, Value


def masked_load(b: Builder, pointer: Value, align: int, mask: Value, others: Value) -> Value:
    """The elements from the address on for the lanes of the mask; the other lanes are those of `others`, whose type the result has."""
    name = f"llvm.masked.load.{others.type.mangled}.p0"
    return _read(b, name, pointer, align, mask, others)


def masked_gather(b: Builder, pointers: Value, align: int, mask: Value, others: Value) -> Value:
    """For each lane of the mask the element at its address; the other lanes are those of `others`, whose type the result has."""
    name = f"llvm.masked.gather.{others.type.mangled}.{pointers.type.mangled}"
    return _read(b, name, pointers, align, mask, others)


def masked_store(b: Builder, value: Value, pointer: Value, align: int, mask: Value) -> None:
    """Writes the lanes of the mask from the address on."""
    _write(b, f"llvm.masked.store.{value.type.mangled}.p0", value, pointer, align, mask)


def masked_scatter(b: Builder, value: Value, pointers: Value, align: int, mask: Value) -> None:
    """Writes each lane of the mask to its address."""
    _write(b, f"llvm.masked.scatter.{value.type.mangled}.{pointers.type.mangled}", value, pointers, align, mask)


def zeros(type_: Type) -> Value:
    """What lanes outside of a mask read, nearly always."""
    return Value(type_, "zeroinitializer")


def _read(b: Builder, name: str, where: Value, align: int, mask: Value, others: Value) -> Value:
    type_ = others.type
    b.module.declare(name, str(type_), [str(where.type), "i32", str(mask.type), str(type_)])
    return b.emit(type_, f"call {type_} @{name}({where}, i32 {align}, {mask}, {others})")


def _write(b: Builder, name: str, value: Value, where: Value, align: int, mask: Value) -> None:
    b.module.declare(name, "void", [str(value.type), str(where.type), "i32", str(mask.type)])
    b.write(f"call void @{name}({value}, {where}, i32 {align}, {mask})")
