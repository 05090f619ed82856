"""The host function of a kernel: its Plan as LLVM IR.

    i32 @name(ptr arrays, ptr sizes)

polyml.runtime.signature says what both hold and what it returns. It calls each region's function with the addresses of its arrays and then the sizes (`i32`: not 0 where it found no memory), and needs
neither the GIL nor Python. Small temporaries live on the stack, the others are scratch memory
(polyml.runtime.support.scratch_text) and are given back on every way out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import assert_never

from polyml.codegen.loops import Function, Variable
from polyml.graph.plan import ALIGNMENT, Allocate, Argument, Buffer, CheckFlag, Free, Launch, Plan
from polyml.runtime.ir_text import IrWriter
from polyml.runtime.signature import NO_MEMORY, KernelSignature
from polyml.sets.affine import Affine

__all__ = ["emit_host"]

STACK_BYTES = 4096
"""Temporaries up to this many bytes, all together, live on the stack."""

_DECLARATIONS = """\
declare ptr @polyml_scratch(i64)
declare void @polyml_scratch_free(ptr)
declare { i64, i1 } @llvm.umul.with.overflow.i64(i64, i64)
"""


def emit_host(signature: KernelSignature, plan: Plan, functions: Sequence[Function], *, name: str = "run") -> str:
    """The text of the host function's module; the functions are declared, to be found where it is loaded.

    Args:
        functions: the code of region 0, 1, ...; an argument has the name of the array in Launch.arguments.
    """
    ir = IrWriter()
    ir.label("start")
    addresses = [b.name for b in signature.buffers] + [r.name for r in signature.results]
    buffers = {buffer: ir.load("ptr", "%arrays", 8 * k, "a") for k, buffer in enumerate(addresses)}
    sizes = {size: ir.load("i64", "%sizes", 8 * k, "size") for k, size in enumerate(signature.sizes)}
    slots = _declare_temporaries(ir, plan, buffers)
    checks = 0
    for step in plan.steps:
        match step:
            case Allocate(buffer=buffer):
                if buffer in slots:
                    _allocate(ir, plan.buffers[buffer], slots[buffer], sizes)
                    buffers[buffer] = ir.value(f"load ptr, ptr {slots[buffer]}")
            case Launch():
                _launch(ir, step, functions[step.region], buffers, sizes)
            case CheckFlag(buffer=buffer):
                checks += 1
                flag = ir.value(f"icmp ne i8 {ir.value(f'load i8, ptr {buffers[buffer]}')}, 0")
                _leave_if(ir, flag, checks)
            case Free(buffer=buffer):
                if buffer in slots:
                    ir.do(f"call void @polyml_scratch_free(ptr {buffers[buffer]})")
                    ir.do(f"store ptr null, ptr {slots[buffer]}")
            case _:
                assert_never(step)
    assert checks == len(signature.checks), "internal: the signature has another number of checks than the plan"
    _leave(ir, slots)
    body = "\n".join(ir.lines)
    return f"{_DECLARATIONS}{_declare(functions)}\ndefine i32 @{name}(ptr %arrays, ptr %sizes) {{\n{body}\n}}\n"


def _launch(
    ir: IrWriter, step: Launch, function: Function, buffers: Mapping[str, str], sizes: Mapping[str, str]
) -> None:
    place = {argument.array: argument for argument in step.arguments}
    known = {**sizes, **{name: _product(ir, factors, sizes) for name, factors in function.products.items()}}
    onward = ""
    if step.only_if is not None:
        flag = ir.value(f"icmp ne i8 {ir.value(f'load i8, ptr {buffers[step.only_if]}')}, 0")
        wanted, onward = ir.fresh("wanted"), ir.fresh("on")
        ir.do(f"br i1 {flag}, label %{wanted}, label %{onward}")
        ir.label(wanted)
    values = [f"ptr {_address(ir, place[v.name], v, buffers)}" for v in function.arguments]
    values += [f"i64 {known[s]}" for s in function.sizes]
    status = ir.value(f"call i32 @{function.name}({', '.join(values)})")
    _leave_if(ir, ir.value(f"icmp ne i32 {status}, 0"), NO_MEMORY)
    if onward:
        ir.do(f"br label %{onward}")
        ir.label(onward)


def _address(ir: IrWriter, argument: Argument, variable: Variable, buffers: Mapping[str, str]) -> str:
    """Where the array begins."""
    start = buffers[argument.buffer]
    distance = argument.offset * variable.dtype.itemsize
    return ir.value(f"getelementptr i8, ptr {start}, i64 {distance}") if distance else start


def _product(ir: IrWriter, factors: Sequence[Affine], sizes: Mapping[str, str]) -> str:
    """No larger than memory: some array has as many elements, or more."""
    first, *others = (ir.affine(factor, sizes) for factor in factors)
    for other in others:
        first = ir.value(f"mul i64 {first}, {other}")
    return first


def _declare(functions: Sequence[Function]) -> str:
    kinds = {f.name: ", ".join(["ptr"] * len(f.arguments) + ["i64"] * len(f.sizes)) for f in functions}
    return "".join(f"declare i32 @{function}({kind})\n" for function, kind in kinds.items())


def _declare_temporaries(ir: IrWriter, plan: Plan, buffers: dict[str, str]) -> dict[str, str]:
    """Puts small temporaries into `buffers`, on the stack; gives the others a slot for their address, null while they do not exist."""
    slots: dict[str, str] = {}
    used = 0
    for step in plan.steps:
        if not isinstance(step, Allocate):
            continue
        if step.bytes is not None and used + step.bytes <= STACK_BYTES:
            used += -(-step.bytes // ALIGNMENT) * ALIGNMENT
            buffers[step.buffer] = ir.value(f"alloca i8, i64 {max(step.bytes, 1)}, align {ALIGNMENT}", "small")
        else:
            slots[step.buffer] = ir.value("alloca ptr", "slot")
            ir.do(f"store ptr null, ptr {slots[step.buffer]}")
    ir.do("%status = alloca i32")
    ir.do("store i32 0, ptr %status")
    return slots


def _allocate(ir: IrWriter, buffer: Buffer, slot: str, sizes: Mapping[str, str]) -> None:
    total = str(prod((e.constant for e in buffer.shape if e.is_constant), start=buffer.dtype.itemsize))
    for extent in (e for e in buffer.shape if not e.is_constant):
        both = ir.value(f"call {{ i64, i1 }} @llvm.umul.with.overflow.i64(i64 {total}, i64 {ir.affine(extent, sizes)})")
        _leave_if(ir, ir.value(f"extractvalue {{ i64, i1 }} {both}, 1"), NO_MEMORY)
        total = ir.value(f"extractvalue {{ i64, i1 }} {both}, 0")
    address = ir.value(f"call ptr @polyml_scratch(i64 {total})")
    ir.do(f"store ptr {address}, ptr {slot}")
    _leave_if(ir, ir.value(f"icmp eq ptr {address}, null"), NO_MEMORY)


def _leave_if(ir: IrWriter, condition: str, status: int) -> None:
    """Leaves with `status`."""
    out, onward = ir.fresh("out"), ir.fresh("on")
    ir.do(f"br i1 {condition}, label %{out}, label %{onward}")
    ir.label(out)
    ir.do(f"store i32 {status}, ptr %status")
    ir.do("br label %leave")
    ir.label(onward)


def _leave(ir: IrWriter, slots: Mapping[str, str]) -> None:
    """The one exit: what still exists is freed."""
    ir.do("br label %leave")
    ir.label("leave")
    for slot in slots.values():
        pointer = ir.value(f"load ptr, ptr {slot}")
        ir.do(f"call void @polyml_scratch_free(ptr {pointer})")
    ir.do(f"ret i32 {ir.value('load i32, ptr %status')}")
