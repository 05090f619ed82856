"""The entry point of a kernel: a CPython function (METH_FASTCALL | METH_KEYWORDS) as LLVM IR.

It checks each argument against the kernel's signature by reading NumPy's fixed array header (polyml.runtime.entry.checks), allocates the results, releases the GIL
around the host function and returns. Whatever is unusual (keywords, other layouts, subclasses, other kinds of numbers, writes that may overlap) goes to a Python callable that
takes the same arguments. The function's `self` is the tuple of Python objects that it needs (`entry_objects`), so that its code holds no address, and
one code serves several function objects. Helpers that every kernel shares are in polyml.runtime.support.module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from math import inf

from polyml.runtime.entry.checks import OUT, Checked, check_arguments, check_out, dtypes_of
from polyml.runtime.entry.layout import ArrayHeader
from polyml.runtime.recycle import ALIGNED, LARGE, empty, empty_at
from polyml.runtime.signature import KernelSignature, Result, ScalarParameter
from polyml.sets.shapes import element_count, is_known

__all__ = ["emit_entry", "entry_objects"]

_DECLARATIONS = """\
declare i1 @polyml_is_array(ptr, ptr, i32, i32)
declare i1 @polyml_number_f64(ptr, ptr)
declare i1 @polyml_number_i64(ptr, ptr)
declare i1 @polyml_number_u64(ptr, ptr)
declare i1 @polyml_number_bool(ptr, ptr)
declare i1 @polyml_number_f16(ptr, ptr)
declare i1 @polyml_number_bf16(ptr, ptr)
declare i1 @polyml_number_c64(ptr, ptr)
declare i1 @polyml_number_c128(ptr, ptr)
declare ptr @polyml_empty(ptr, i32, ptr)
declare ptr @polyml_empty_aligned(ptr, i32, ptr, i64)
declare ptr @polyml_empty_sized(ptr, i32, ptr, ptr, i64)
declare ptr @polyml_empty_strided(ptr, i32, ptr, ptr)
declare ptr @polyml_scalar(ptr, ptr)
declare ptr @polyml_none()
declare ptr @polyml_fault(ptr, i32)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
"""


def entry_objects(
    signature: KernelSignature, slow: Callable[..., object], fault: Callable[[int], object]
) -> tuple[object, ...]:
    """The `self` of an entry point: `slow` takes over unusual calls, `fault(status)` raises; the one keyword that it knows; the dtypes; what
    makes each large result."""
    makers = (_maker(result) for result in _recycled(signature))
    return (slow, fault, sys.intern("out"), *(dtype.numpy for dtype in dtypes_of(signature)), *makers)


def _recycled(signature: KernelSignature) -> list[Result]:
    """The results that live in recycled memory, or do so at sizes at which they are large."""
    return [r for r in signature.results if r.strides is None and r.shape and _bytes(r) >= LARGE]


def _bytes(result: Result) -> float:
    """The size, infinite where it depends on symbolic sizes."""
    known = is_known(result.shape)
    return element_count(result.shape) * result.dtype.itemsize if known else inf


def _maker(result: Result) -> Callable[..., object]:
    """What makes the result: called with nothing, or with the address of its extents where they depend on symbolic sizes."""
    if _bytes(result) == inf:
        return partial(empty_at, len(result.shape), result.dtype.numpy)
    return partial(empty, tuple(extent.constant for extent in result.shape), result.dtype.numpy)


def emit_entry(signature: KernelSignature, *, host: str, header: ArrayHeader, name: str = "entry") -> str:
    """The text of `ptr @name(ptr self, ptr args, i64 nargs, ptr kwnames)`, which calls the host function `@host`: it goes behind that function's module.

    Args:
        header: offsets of NumPy's array header in this interpreter.
    """
    call = check_arguments(signature, header)
    results = _allocate(call)
    _call_host(call, host, results)
    _give(call, results)
    call.ir.label("slow")
    callee = call.own_object(0)
    answer = call.ir.value(f"call ptr @PyObject_Vectorcall(ptr {callee}, ptr %args, i64 %nargs, ptr %kwnames)")
    call.ir.do(f"ret ptr {answer}")
    body = "\n".join(call.ir.lines)
    head = f"define ptr @{name}(ptr %self, ptr %args, i64 %nargs, ptr %kwnames)"
    return f"{_DECLARATIONS}\n{head} {{\n{body}\n}}\n"


def _allocate(call: Checked) -> dict[str, str]:
    """The new arrays by name, or those given as `out=`: references that this function owns."""
    ir = call.ir
    given: list[str] = []
    if call.takes_out:
        ir.do(f"br i1 {ir.value(f'icmp eq ptr {call.objects[OUT]}, null')}, label %no.out, label %out")
        ir.label("out")
        given = check_out(call)
        for place in given:
            ir.do(f"call void @Py_IncRef(ptr {place})")
        ir.do("br label %out.taken")
        ir.label("out.taken")
        ir.do("br label %ready")
        ir.label("no.out")
    made: dict[str, str] = {}
    recycled = _recycled(call.signature)
    for result in call.signature.results:
        maker = 3 + len(dtypes_of(call.signature)) + recycled.index(result) if result in recycled else None
        array = _make(call, result, maker)
        _fail_if_null(call, array, list(made.values()))
        made[result.name] = array
    if call.takes_out:
        ir.do("br label %made")
        ir.label("made")
        ir.do("br label %ready")
        ir.label("ready")
        for place, (name, fresh) in zip(given, [*made.items()], strict=True):
            made[name] = ir.value(f"phi ptr [ {place}, %out.taken ], [ {fresh}, %made ]", "result")
    return made


def _make(call: Checked, result: Result, maker: int | None) -> str:
    """A new array for the result, or null. maker: the position of what makes it where it is large."""
    ir = call.ir
    if maker is not None and _bytes(result) < inf:
        return ir.value(
            f"call ptr @PyObject_Vectorcall(ptr {call.own_object(maker)}, ptr %args, i64 0, ptr null)", "result"
        )
    for k, extent in enumerate(result.shape):
        ir.do(f"store i64 {ir.affine(extent, call.sizes)}, ptr {ir.offset('%dims', 8 * k)}")
    made_of = f"ptr {call.own_dtype(result.dtype)}, i32 {len(result.shape)}, ptr %dims"
    if result.strides is not None:
        for k, stride in enumerate(result.strides):
            ir.do(f"store i64 {stride * result.dtype.itemsize}, ptr {ir.offset('%strides', 8 * k)}")
        return ir.value(f"call ptr @polyml_empty_strided({made_of}, ptr %strides)", "result")
    if maker is None and _bytes(result) >= ALIGNED:
        return ir.value(f"call ptr @polyml_empty_aligned({made_of}, i64 {_bytes(result)})", "result")
    if maker is None:
        return ir.value(f"call ptr @polyml_empty({made_of})", "result")
    limit = LARGE // result.dtype.itemsize
    return ir.value(f"call ptr @polyml_empty_sized({made_of}, ptr {call.own_object(maker)}, i64 {limit})", "result")


def _fail_if_null(call: Checked, pointer: str, owned: list[str]) -> None:
    """Returns NULL, an exception being set, after giving up the references in `owned`."""
    ir = call.ir
    failed, onward = ir.fresh("failed"), ir.fresh("on")
    ir.do(f"br i1 {ir.value(f'icmp eq ptr {pointer}, null')}, label %{failed}, label %{onward}")
    ir.label(failed)
    for earlier in owned:
        ir.do(f"call void @Py_DecRef(ptr {earlier})")
    ir.do("ret ptr null")
    ir.label(onward)


def _call_host(call: Checked, host: str, results: dict[str, str]) -> None:
    """Runs the host function without the GIL; its faults become exceptions."""
    ir, signature = call.ir, call.signature
    addresses = [
        call.numbers[p.name] if isinstance(p, ScalarParameter) else call.data[p.name] for p in signature.buffers
    ]
    addresses += [ir.load("ptr", results[r.name], call.header.data) for r in signature.results]
    for k, address in enumerate(addresses):
        ir.do(f"store ptr {address}, ptr {ir.offset('%arrays', 8 * k)}")
    for k, size in enumerate(signature.sizes):
        ir.do(f"store i64 {call.sizes[size]}, ptr {ir.offset('%sizes', 8 * k)}")
    thread = ir.value("call ptr @PyEval_SaveThread()", "thread")
    status = ir.value(f"call i32 @{host}(ptr %arrays, ptr %sizes)", "status")
    ir.do(f"call void @PyEval_RestoreThread(ptr {thread})")
    failed, onward = ir.fresh("failed"), ir.fresh("on")
    ir.do(f"br i1 {ir.value(f'icmp eq i32 {status}, 0')}, label %{onward}, label %{failed}")
    ir.label(failed)
    for result in results.values():
        ir.do(f"call void @Py_DecRef(ptr {result})")
    # Nothing is written yet where elements of an argument are checked: the slow path runs into it again, and has the arguments to look for them.
    again = [k for k, indices in enumerate(signature.indices, start=1) if indices is not None]
    if again:
        fault = ir.fresh("fault")
        ir.do(f"switch i32 {status}, label %{fault} [ {' '.join(f'i32 {k}, label %slow' for k in again)} ]")
        ir.label(fault)
    ir.do(f"ret ptr {ir.value(f'call ptr @polyml_fault(ptr {call.own_object(1)}, i32 {status})')}")
    ir.label(onward)


def _give(call: Checked, results: dict[str, str]) -> None:
    """Returns None, the one object, or a tuple; in-place parameters as the objects that came in."""
    ir, signature = call.ir, call.signature
    given = call.objects.get(OUT, "null")
    owned = {
        r.name: results[r.name] if r.shape else ir.value(f"call ptr @polyml_scalar(ptr {results[r.name]}, ptr {given})")
        for r in signature.results
    }
    if not signature.returned:
        ir.do(f"ret ptr {ir.value('call ptr @polyml_none()')}")
        return
    items: list[str] = []
    for k, name in enumerate(signature.returned):
        item = owned[name] if name in owned else call.objects[name]
        if name not in owned or name in signature.returned[:k]:  # the caller gets a reference of its own
            ir.do(f"call void @Py_IncRef(ptr {item})")
        items.append(item)
    assert set(owned) <= set(signature.returned), "internal: a result that is not returned"
    if len(items) == 1:
        ir.do(f"ret ptr {items[0]}")
        return
    bundle = ir.value(f"call ptr @PyTuple_New(i64 {len(items)})", "tuple")
    _fail_if_null(call, bundle, items)
    for k, item in enumerate(items):
        ir.do(f"call i32 @PyTuple_SetItem(ptr {bundle}, i64 {k}, ptr {item})")
    ir.do(f"ret ptr {bundle}")
