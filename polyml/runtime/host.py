"""The host function of a kernel: its plan (allocate, launch, check, free) as LLVM IR.

    i32 @name(ptr arrays, ptr sizes)

polyml.runtime.signature says what both hold and what it returns. It calls each region's function with the buffers' addresses and then the sizes. It needs no GIL and no Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from polyml.runtime.ir_text import IrWriter
from polyml.runtime.signature import NO_MEMORY, Signature
from polyml.sets.affine import Affine

__all__ = ["Allocate", "CheckFlag", "Free", "Launch", "Step", "emit_host"]

ALIGNMENT = 64
STACK_BYTES = 4096
"""Temporaries up to this many bytes, all together, live on the stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocate:
    """`buffer` exists from here on, uninitialized. extents: elements per dimension, affine in the sizes. itemsize: bytes."""

    buffer: str
    extents: tuple[Affine, ...]
    itemsize: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Calls `void @function(ptr per buffer, i64 per size)`."""

    function: str
    buffers: tuple[str, ...]
    sizes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFlag:
    """Leaves with `status` when the bool in `buffer` is true."""

    buffer: str
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """`buffer` is not needed any more."""

    buffer: str


Step = Allocate | Launch | CheckFlag | Free

_DECLARATIONS = """\
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
"""


def emit_host(signature: Signature, steps: Sequence[Step], *, name: str = "run", threads: int | None = None) -> str:
    """The text of the host function's module; the launched functions are declared, to be linked to it.

    Args:
        threads: the most that parallel loops of the regions may use; None: what the process has set.
    """
    ir = IrWriter()
    ir.label("start")
    addresses = [b.name for b in signature.buffers] + [r.name for r in signature.results]
    buffers = {buffer: ir.load("ptr", "%arrays", 8 * k, "a") for k, buffer in enumerate(addresses)}
    sizes = {size: ir.load("i64", "%sizes", 8 * k, "size") for k, size in enumerate(signature.sizes)}
    slots = _declare_temporaries(ir, steps, buffers)
    for step in steps:
        match step:
            case Allocate():
                if step.buffer in slots:
                    _allocate(ir, step, slots[step.buffer], sizes)
                    buffers[step.buffer] = ir.value(f"load ptr, ptr {slots[step.buffer]}")
            case Launch():
                values = [f"ptr {buffers[b]}" for b in step.buffers] + [f"i64 {sizes[s]}" for s in step.sizes]
                ir.do(f"call void @{step.function}({', '.join(values)})")
            case CheckFlag():
                flag = ir.value(f"icmp ne i8 {ir.value(f'load i8, ptr {buffers[step.buffer]}')}, 0")
                _leave_if(ir, flag, step.status)
            case Free():
                if step.buffer in slots:
                    ir.do(f"call void @free(ptr {buffers[step.buffer]})")
                    ir.do(f"store ptr null, ptr {slots[step.buffer]}")
            case _:
                assert_never(step)
    _leave(ir, slots)
    body = "\n".join(ir.lines)
    return f"{_DECLARATIONS}{_declare_launches(steps)}{_limit_threads(threads)}\ndefine i32 @{name}(ptr %arrays, ptr %sizes) {{\n{body}\n}}\n"


def _declare_launches(steps: Sequence[Step]) -> str:
    kinds = {
        s.function: ", ".join(["ptr"] * len(s.buffers) + ["i64"] * len(s.sizes)) for s in steps if isinstance(s, Launch)
    }
    return "".join(f"declare void @{function}({kind})\n" for function, kind in kinds.items())


def _limit_threads(threads: int | None) -> str:
    """A `polyml_parallel` of this kernel's own, which its regions call instead of the process's."""
    if threads is None:
        return ""
    return (
        "declare void @polyml_parallel_limited(ptr, ptr, i64, i64, i64, i64)\n"
        "define void @polyml_parallel(ptr %body, ptr %ctx, i64 %lower, i64 %upper, i64 %step) {\n"
        f"  call void @polyml_parallel_limited(ptr %body, ptr %ctx, i64 %lower, i64 %upper, i64 %step, i64 {threads})\n"
        "  ret void\n}\n"
    )


def _declare_temporaries(ir: IrWriter, steps: Sequence[Step], buffers: dict[str, str]) -> dict[str, str]:
    """Puts small temporaries into `buffers`, on the stack; gives the others a slot for their address, null while they do not exist."""
    slots: dict[str, str] = {}
    used = 0
    for step in steps:
        if not isinstance(step, Allocate):
            continue
        size = _constant_bytes(step)
        if size is not None and used + size <= STACK_BYTES:
            used += -(-size // ALIGNMENT) * ALIGNMENT
            buffers[step.buffer] = ir.value(f"alloca i8, i64 {max(size, 1)}, align {ALIGNMENT}", "small")
        else:
            slots[step.buffer] = ir.value("alloca ptr", "slot")
            ir.do(f"store ptr null, ptr {slots[step.buffer]}")
    ir.do("%status = alloca i32")
    ir.do("store i32 0, ptr %status")
    return slots


def _constant_bytes(step: Allocate) -> int | None:
    total = step.itemsize
    for extent in step.extents:
        if not extent.is_constant:
            return None
        total *= extent.constant
    return total


def _allocate(ir: IrWriter, step: Allocate, slot: str, sizes: Mapping[str, str]) -> None:
    count = str(step.itemsize)
    for extent in step.extents:
        factor = ir.affine(extent, sizes)
        count = (
            str(int(count) * int(factor))
            if count.isdigit() and factor.isdigit()
            else ir.value(f"mul i64 {count}, {factor}")
        )
    failed = ir.value(f"call i32 @posix_memalign(ptr {slot}, i64 {ALIGNMENT}, i64 {count})")
    _leave_if(ir, ir.value(f"icmp ne i32 {failed}, 0"), NO_MEMORY, undefined=slot)


def _leave_if(ir: IrWriter, condition: str, status: int, *, undefined: str | None = None) -> None:
    """Leaves with `status`; `undefined` is a slot whose content a failed allocation left open."""
    out, onward = ir.fresh("out"), ir.fresh("on")
    ir.do(f"br i1 {condition}, label %{out}, label %{onward}")
    ir.label(out)
    if undefined is not None:
        ir.do(f"store ptr null, ptr {undefined}")
    ir.do(f"store i32 {status}, ptr %status")
    ir.do("br label %leave")
    ir.label(onward)


def _leave(ir: IrWriter, slots: Mapping[str, str]) -> None:
    """The one exit: what still exists is freed."""
    ir.do("br label %leave")
    ir.label("leave")
    for slot in slots.values():
        pointer = ir.value(f"load ptr, ptr {slot}")
        ir.do(f"call void @free(ptr {pointer})")
    ir.do(f"ret i32 {ir.value('load i32, ptr %status')}")
