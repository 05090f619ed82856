"""The entry point of a kernel: a CPython function (METH_FASTCALL | METH_KEYWORDS) as LLVM IR.

It checks each argument against the kernel's signature by reading NumPy's fixed array header, allocates the results, releases the GIL around the host
function and returns. Whatever is unusual (keywords, other layouts, subclasses, NumPy scalars, possibly overlapping writes) goes to `@slow`, a Python callable that takes the same
arguments. Helpers that every kernel shares are in polyml.runtime.support. Addresses of Python objects are in globals that are filled at load time.

Source: NumPy C API (PyArrayObject_fields; PyArray_Empty), CPython C API (METH_FASTCALL).
"""

from __future__ import annotations

from typing import assert_never

from polyml.dtypes import DType
from polyml.runtime.ir_text import IrWriter
from polyml.runtime.layout import ArrayHeader
from polyml.runtime.signature import ArrayParameter, ScalarParameter, Signature, SizeParameter
from polyml.sets.affine import Affine, affine

__all__ = ["emit_entry", "entry_globals"]

_DECLARATIONS = """\
@slow = global ptr null
@fault = global ptr null
declare i1 @polyml_is_array(ptr, ptr, i32, i32)
declare i1 @polyml_number_f64(ptr, ptr)
declare i1 @polyml_number_i64(ptr, ptr)
declare i1 @polyml_number_u64(ptr, ptr)
declare i1 @polyml_number_bool(ptr, ptr)
declare ptr @polyml_empty(ptr, i32, ptr)
declare ptr @polyml_scalar(ptr)
declare ptr @polyml_none()
declare ptr @polyml_fault(ptr, i32)
declare ptr @polyml_slow(ptr, ptr, i64, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
"""


def entry_globals(signature: Signature) -> dict[str, DType]:
    """The globals that hold the addresses of dtype objects (beside `slow` and `fault`), by name."""
    dtypes = {p.dtype for p in signature.parameters if isinstance(p, ArrayParameter)} | {
        r.dtype for r in signature.results
    }
    return {f"dtype_{dtype.name}": dtype for dtype in sorted(dtypes, key=lambda d: d.name)}


def emit_entry(signature: Signature, *, host: str, header: ArrayHeader, name: str = "entry") -> str:
    """The module text with `ptr @name(ptr self, ptr args, i64 nargs, ptr kwnames)` that calls the host function `@host`.

    Args:
        header: offsets of NumPy's array header in this interpreter.
    """
    ir = IrWriter()
    objects = _check_kinds(ir, signature, header)
    numbers, sizes = _read_numbers(ir, signature, objects, header)
    _check_layouts(ir, signature, objects, sizes, header)
    data = {
        p.name: ir.load("ptr", objects[p.name], header.data)
        for p in signature.parameters
        if isinstance(p, ArrayParameter)
    }
    _check_overlap(ir, signature, data, sizes)
    results = _allocate(ir, signature, sizes)
    addresses = [numbers[p.name] if isinstance(p, ScalarParameter) else data[p.name] for p in signature.buffers]
    addresses += [ir.load("ptr", results[r.name], header.data) for r in signature.results]
    _call_host(ir, signature, host, addresses, [sizes[s] for s in signature.sizes], results)
    _give(ir, signature, objects, results)
    body = "\n".join(ir.lines)
    table = "".join(f"@{name} = global ptr null\n" for name in entry_globals(signature))
    return (
        f"{_DECLARATIONS}{table}declare i32 @{host}(ptr, ptr)\n\n"
        f"define ptr @{name}(ptr %self, ptr %args, i64 %nargs, ptr %kwnames) {{\n{body}\n"
        "slow:\n  %callee = load ptr, ptr @slow\n"
        "  %answer = call ptr @polyml_slow(ptr %callee, ptr %args, i64 %nargs, ptr %kwnames)\n  ret ptr %answer\n}\n"
    )


def _check_kinds(ir: IrWriter, signature: Signature, header: ArrayHeader) -> dict[str, str]:
    """Loads the argument objects; arrays have the right type, dtype, rank and flags past this point."""
    # All storage of the call is in the entry block, so that it is static.
    ir.label("start")
    for parameter in signature.parameters:
        if not isinstance(parameter, ArrayParameter):
            ir.do(f"%number.{parameter.name} = alloca i64, align 8")
    rank = max((len(r.shape) for r in signature.results), default=0)
    ir.do(f"%dims = alloca [{max(1, rank)} x i64], align 8")
    ir.do(f"%arrays = alloca [{max(1, len(signature.buffers) + len(signature.results))} x ptr], align 8")
    ir.do(f"%sizes = alloca [{max(1, len(signature.sizes))} x i64], align 8")
    count = ir.value(f"icmp eq i64 %nargs, {len(signature.parameters)}")
    plain = ir.value("icmp eq ptr %kwnames, null")
    ir.go_on_if(ir.all_of([count, plain]), "slow")
    objects = {p.name: ir.load("ptr", "%args", 8 * k, "object") for k, p in enumerate(signature.parameters)}
    for parameter in signature.parameters:
        if isinstance(parameter, ArrayParameter):
            dtype = ir.value(f"load ptr, ptr @dtype_{parameter.dtype.name}")
            flags = header.aligned | (header.writeable if parameter.written else 0)
            arguments = f"ptr {objects[parameter.name]}, ptr {dtype}, i32 {len(parameter.shape)}, i32 {flags}"
            ir.go_on_if(ir.value(f"call i1 @polyml_is_array({arguments})"), "slow")
    return objects


def _read_numbers(
    ir: IrWriter, signature: Signature, objects: dict[str, str], header: ArrayHeader
) -> tuple[dict[str, str], dict[str, str]]:
    """Addresses of the converted scalars, and the values of the symbolic sizes."""
    addresses: dict[str, str] = {}
    sizes: dict[str, str] = {}
    for parameter in signature.parameters:
        match parameter:
            case ArrayParameter():
                continue
            case ScalarParameter(name=name, dtype=dtype):
                addresses[name] = f"%number.{name}"
                _convert_scalar(ir, objects[name], addresses[name], dtype)
            case SizeParameter(name=name, value=value):
                taken = ir.value(f"call i1 @polyml_number_i64(ptr {objects[name]}, ptr %number.{name})")
                ir.go_on_if(taken, "slow")
                number = ir.value(f"load i64, ptr %number.{name}")
                if value is None:
                    sizes[name] = number
                else:
                    ir.go_on_if(ir.value(f"icmp eq i64 {number}, {value}"), "slow")
            case _:
                assert_never(parameter)
    for name, (position, dimension) in signature.size_sources().items():
        if dimension is not None:
            dims = ir.load("ptr", objects[signature.parameters[position].name], header.dimensions)
            sizes[name] = ir.load("i64", dims, 8 * dimension, "size")
    return addresses, sizes


def _convert_scalar(ir: IrWriter, thing: str, address: str, dtype: DType) -> None:
    """Stores the Python number `thing` as `dtype` at `address`; slow when it is something else or does not fit."""
    kind = {"f": "f64", "i": "i64", "u": "u64", "b": "bool"}[dtype.kind]
    ir.go_on_if(ir.value(f"call i1 @polyml_number_{kind}(ptr {thing}, ptr {address})"), "slow")
    if dtype.kind == "f" and dtype.bits == 32:
        wide = ir.value(f"load double, ptr {address}")
        ir.do(f"store float {ir.value(f'fptrunc double {wide} to float')}, ptr {address}")
    elif dtype.is_integer and dtype.bits < 64:
        wide = ir.value(f"load i64, ptr {address}")
        narrow = ir.value(f"trunc i64 {wide} to i{dtype.bits}")
        back = ir.value(f"{'sext' if dtype.kind == 'i' else 'zext'} i{dtype.bits} {narrow} to i64")
        ir.go_on_if(ir.value(f"icmp eq i64 {back}, {wide}"), "slow")
        ir.do(f"store i{dtype.bits} {narrow}, ptr {address}")


def _check_layouts(
    ir: IrWriter, signature: Signature, objects: dict[str, str], sizes: dict[str, str], header: ArrayHeader
) -> None:
    """Extents and strides; the stride of an extent of 1, and all of an empty array, may be anything."""
    for parameter in signature.parameters:
        if not isinstance(parameter, ArrayParameter) or not parameter.shape:
            continue
        dims = ir.load("ptr", objects[parameter.name], header.dimensions)
        conditions = []
        for k, extent in enumerate(parameter.shape):
            conditions.append(ir.value(f"icmp eq i64 {ir.load('i64', dims, 8 * k)}, {ir.affine(extent, sizes)}"))
        if affine(0) not in parameter.shape:
            strides = ir.load("ptr", objects[parameter.name], header.strides)
            for k, (extent, stride) in enumerate(zip(parameter.shape, _strides(ir, parameter, sizes), strict=True)):
                if extent == affine(1):
                    continue
                same = ir.value(f"icmp eq i64 {ir.load('i64', strides, 8 * k)}, {stride}")
                if not extent.is_constant:
                    single = ir.value(f"icmp eq i64 {ir.affine(extent, sizes)}, 1")
                    same = ir.value(f"or i1 {same}, {single}")
                conditions.append(same)
        ir.go_on_if(ir.all_of(conditions), "slow")


def _strides(ir: IrWriter, parameter: ArrayParameter, sizes: dict[str, str]) -> list[str]:
    """The expected strides in bytes, as IR values."""
    if parameter.strides is not None:
        return [str(stride) for stride in parameter.strides]
    return [
        _product(ir, parameter.shape[k + 1 :], sizes, parameter.dtype.itemsize) for k in range(len(parameter.shape))
    ]


def _product(ir: IrWriter, factors: tuple[Affine, ...], sizes: dict[str, str], constant: int) -> str:
    total = affine(constant)
    value: str | None = None
    for factor in factors:
        if factor.is_constant:
            total = total * factor.constant
        elif value is None:
            value = ir.affine(factor, sizes)
        else:
            value = ir.value(f"mul i64 {value}, {ir.affine(factor, sizes)}")
    return str(total.constant) if value is None else ir.value(f"mul i64 {value}, {total.constant}")


def _check_overlap(ir: IrWriter, signature: Signature, data: dict[str, str], sizes: dict[str, str]) -> None:
    """The address range of a written array meets no other array's; where it may, the slow path looks closer."""
    arrays = [p for p in signature.parameters if isinstance(p, ArrayParameter)]
    if len(arrays) < 2 or not any(p.written for p in arrays):
        return
    ranges = {p.name: _address_range(ir, p, data[p.name], sizes) for p in arrays}
    apart = []
    for k, left in enumerate(arrays):
        for right in arrays[k + 1 :]:
            if left.written or right.written:
                before = ir.value(f"icmp ule i64 {ranges[left.name][1]}, {ranges[right.name][0]}")
                behind = ir.value(f"icmp ule i64 {ranges[right.name][1]}, {ranges[left.name][0]}")
                apart.append(ir.value(f"or i1 {before}, {behind}"))
    ir.go_on_if(ir.all_of(apart), "slow")


def _address_range(ir: IrWriter, parameter: ArrayParameter, data: str, sizes: dict[str, str]) -> tuple[str, str]:
    """First byte and one past the last."""
    base = ir.value(f"ptrtoint ptr {data} to i64")
    low, high = Affine(), affine(parameter.dtype.itemsize)
    if parameter.strides is None:
        return base, ir.value(f"add i64 {base}, {_product(ir, parameter.shape, sizes, parameter.dtype.itemsize)}")
    for extent, stride in zip(parameter.shape, parameter.strides, strict=True):
        if stride < 0:
            low += (extent - 1) * stride
        else:
            high += (extent - 1) * stride
    first = ir.value(f"add i64 {base}, {ir.affine(low, sizes)}")
    return first, ir.value(f"add i64 {base}, {ir.affine(high, sizes)}")


def _allocate(ir: IrWriter, signature: Signature, sizes: dict[str, str]) -> dict[str, str]:
    made: dict[str, str] = {}
    for result in signature.results:
        for k, extent in enumerate(result.shape):
            ir.do(f"store i64 {ir.affine(extent, sizes)}, ptr {ir.offset('%dims', 8 * k)}")
        dtype = ir.value(f"load ptr, ptr @dtype_{result.dtype.name}")
        made_here = ir.value(f"call ptr @polyml_empty(ptr {dtype}, i32 {len(result.shape)}, ptr %dims)", "result")
        failed, onward = ir.fresh("failed"), ir.fresh("on")
        ir.do(f"br i1 {ir.value(f'icmp eq ptr {made_here}, null')}, label %{failed}, label %{onward}")
        ir.label(failed)
        for earlier in made.values():
            ir.do(f"call void @Py_DecRef(ptr {earlier})")
        ir.do("ret ptr null")
        ir.label(onward)
        made[result.name] = made_here
    return made


def _call_host(
    ir: IrWriter, signature: Signature, host: str, addresses: list[str], sizes: list[str], results: dict[str, str]
) -> None:
    """Runs the host function without the GIL; its faults become exceptions."""
    for k, address in enumerate(addresses):
        ir.do(f"store ptr {address}, ptr {ir.offset('%arrays', 8 * k)}")
    for k, size in enumerate(sizes):
        ir.do(f"store i64 {size}, ptr {ir.offset('%sizes', 8 * k)}")
    thread = ir.value("call ptr @PyEval_SaveThread()", "thread")
    status = ir.value(f"call i32 @{host}(ptr %arrays, ptr %sizes)", "status")
    ir.do(f"call void @PyEval_RestoreThread(ptr {thread})")
    failed, onward = ir.fresh("failed"), ir.fresh("on")
    ir.do(f"br i1 {ir.value(f'icmp eq i32 {status}, 0')}, label %{onward}, label %{failed}")
    ir.label(failed)
    for result in results.values():
        ir.do(f"call void @Py_DecRef(ptr {result})")
    fault = ir.value("load ptr, ptr @fault")
    ir.do(f"ret ptr {ir.value(f'call ptr @polyml_fault(ptr {fault}, i32 {status})')}")
    ir.label(onward)


def _give(ir: IrWriter, signature: Signature, objects: dict[str, str], results: dict[str, str]) -> None:
    """Returns None, the one object, or a tuple; in-place parameters as the objects that came in."""
    ranks = {result.name: len(result.shape) for result in signature.results}
    owned = {
        name: ir.value(f"call ptr @polyml_scalar(ptr {value})") if ranks[name] == 0 else value
        for name, value in results.items()
    }
    if not signature.returned:
        ir.do(f"ret ptr {ir.value('call ptr @polyml_none()')}")
        return
    seen: set[str] = set()
    items = []
    for name in signature.returned:
        if name in seen or name not in owned:  # the caller gets a reference of its own
            ir.do(f"call void @Py_IncRef(ptr {owned.get(name) or objects[name]})")
        items.append(owned.get(name) or objects[name])
        seen.add(name)
    assert set(owned) <= seen, "internal: a result that is not returned"
    if len(items) == 1:
        ir.do(f"ret ptr {items[0]}")
        return
    bundle = ir.value(f"call ptr @PyTuple_New(i64 {len(items)})", "tuple")
    failed, onward = ir.fresh("failed"), ir.fresh("on")
    ir.do(f"br i1 {ir.value(f'icmp eq ptr {bundle}, null')}, label %{failed}, label %{onward}")
    ir.label(failed)
    for item in items:
        ir.do(f"call void @Py_DecRef(ptr {item})")
    ir.do("ret ptr null")
    ir.label(onward)
    for k, item in enumerate(items):
        ir.do(f"call i32 @PyTuple_SetItem(ptr {bundle}, i64 {k}, ptr {item})")
    ir.do(f"ret ptr {bundle}")
