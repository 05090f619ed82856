"""Kernels with hand-written regions, for tests of what surrounds the regions."""

from __future__ import annotations

from collections.abc import Sequence

from polyml.codegen.loops import Function, Variable
from polyml.dtypes import DType, f32
from polyml.graph.plan import Allocate, Argument, Buffer, CheckFlag, Free, Launch, Plan, Step
from polyml.runtime.build import build_kernel
from polyml.runtime.kernel import Kernel
from polyml.runtime.native import load_compiled
from polyml.runtime.signature import ArrayParameter, KernelSignature, Parameter, Result
from polyml.sets.affine import Affine, affine

__all__ = ["ADD", "add_kernel", "array", "function", "make_kernel", "result", "shape"]


def shape(*extents: int | str) -> tuple[Affine, ...]:
    return tuple(affine(extent) for extent in extents)


def array(
    name: str, *extents: int | str, dtype: DType = f32, strides: tuple[int, ...] | None = None, written: bool = False
) -> ArrayParameter:
    return ArrayParameter(name=name, dtype=dtype, shape=shape(*extents), strides=strides, written=written)


def result(name: str, *extents: int | str, dtype: DType = f32) -> Result:
    return Result(name=name, dtype=dtype, shape=shape(*extents))


def function(name: str, arguments: Sequence[str], sizes: Sequence[str] = ()) -> Function:
    variables = tuple(Variable(name=a, dtype=f32, shape=(), scope="global") for a in arguments)
    return Function(name=name, arguments=variables, written=frozenset(), sizes=tuple(sizes), body=())


def make_kernel(
    parameters: Sequence[Parameter],
    results: Sequence[Result],
    regions: str,
    functions: Sequence[Function],
    *,
    returned: Sequence[str] | None = None,
    sizes: Sequence[str] = (),
    temporaries: Sequence[Buffer] = (),
    checks: Sequence[tuple[str, str]] = (),
    threads: int | None = None,
    name: str = "handmade",
) -> Kernel:
    """Launches the functions in order; each check (flag buffer, message) follows the first launch."""
    signature = KernelSignature(
        name=name,
        parameters=tuple(parameters),
        results=tuple(results),
        returned=tuple(r.name for r in results) if returned is None else tuple(returned),
        sizes=tuple(sizes),
        checks=tuple(message for _, message in checks),
    )
    buffers = {t.name: t for t in temporaries}
    steps: list[Step] = []
    for t in temporaries:
        constant = all(extent.is_constant for extent in t.shape)
        steps.append(Allocate(t.name, t.size_in_bytes({}) if constant else None))
    for number, launched in enumerate(functions):
        steps.append(Launch(number, tuple(Argument(v.name, v.name) for v in launched.arguments)))
        if number == 0:
            steps += [CheckFlag(flag, message, "IndexError") for flag, message in checks]
    steps += [Free(t.name) for t in temporaries]
    plan = Plan(buffers=buffers, steps=tuple(steps), inputs=(), outputs=signature.returned, storage={})
    return load_compiled(build_kernel(signature, plan, functions, regions), threads=threads)


ADD = """
define i32 @add(ptr %a, ptr %b, ptr %o) {
start:
  br label %loop
loop:
  %i = phi i64 [0, %start], [%next, %loop]
  %pa = getelementptr float, ptr %a, i64 %i
  %pb = getelementptr float, ptr %b, i64 %i
  %po = getelementptr float, ptr %o, i64 %i
  %x = load <8 x float>, ptr %pa, align 4
  %y = load <8 x float>, ptr %pb, align 4
  %z = fadd <8 x float> %x, %y
  store <8 x float> %z, ptr %po, align 4
  %next = add i64 %i, 8
  %more = icmp slt i64 %next, 64
  br i1 %more, label %loop, label %end
end:
  ret i32 0
}
"""


def add_kernel() -> Kernel:
    """o[8, 8] = a + b."""
    return make_kernel([array("a", 8, 8), array("b", 8, 8)], [result("o", 8, 8)], ADD, [function("add", "abo")])


def buffer(name: str, *extents: int | str, dtype: DType = f32) -> Buffer:
    return Buffer(name=name, kind="temporary", dtype=dtype, shape=shape(*extents))


def copy_region(name: str, itemsize: int, count: int = 1) -> str:
    """`void @name(ptr from, ptr to)` copies so many elements."""
    size = itemsize * count
    return (
        f"define i32 @{name}(ptr %from, ptr %to) {{\n"
        f"  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 {size}, i1 false)\n  ret i32 0\n}}\n"
    )
