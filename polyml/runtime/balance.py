"""The machine's balance, measured with emitted loops: its FMA peak and its memory bandwidth on one core.

For benchmarks and `python -m polyml doctor --measure`; compilation never measures.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable

from polyml.codegen.llvm.machine import compile_object, host, load_object
from polyml.dtypes import DType, f32
from polyml.target import Target

__all__ = ["fma_peak", "fma_work", "read_bandwidth"]

REPEATS = 5


@functools.cache
def fma_peak(dtype: DType = f32) -> float:
    """Floating-point operations per second of one core with all its vector units busy: independent chains of fused multiply-adds, best of several runs."""
    lanes, chains = _fma_shape(dtype)
    rounds = 200_000
    seconds = _best_time(_fma_loop(dtype, lanes, chains, fused=Target.host().fma), rounds, 0)
    return 2.0 * lanes * chains * rounds / seconds


def fma_work(dtype: DType, operations: float) -> Callable[[], object]:
    """A call that does about so many operations at the FMA peak: to be timed in turns with a kernel, under the clock and the load that the kernel meets."""
    lanes, chains = _fma_shape(dtype)
    loaded = load_object(compile_object(_fma_loop(dtype, lanes, chains, fused=Target.host().fma), host()), ("measure",))
    call = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_void_p)(loaded.addresses["measure"])
    rounds = max(1, round(operations / (2.0 * lanes * chains)))

    def run() -> object:
        return call(rounds, 0), loaded

    return run


def _fma_shape(dtype: DType) -> tuple[int, int]:
    """Lanes, and independent chains."""
    target = Target.host()
    return target.lanes(dtype.itemsize), 12 if target.fma else 8


@functools.cache
def read_bandwidth(megabytes: int | None = None) -> float:
    """Bytes per second that one core reads from a block of that size; None: one that no private cache holds (64 MiB or more)."""
    target = Target.host()
    size = max(64 << 20, 8 * target.l2_bytes) if megabytes is None else megabytes << 20
    size -= size % (8 * target.vector_bytes)
    block = ctypes.create_string_buffer(size)
    ctypes.memset(block, 1, size)  # its pages exist
    seconds = _best_time(_read_loop(target.vector_bytes), size, ctypes.addressof(block))
    return size / seconds


def _best_time(text: str, count: int, address: int) -> float:
    loaded = load_object(compile_object(text, host()), ("measure",))
    call = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_void_p)(loaded.addresses["measure"])
    call(count, address)
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        call(count, address)
        best = min(best, time.perf_counter() - start)
    return best


def _fma_loop(dtype: DType, lanes: int, chains: int, *, fused: bool) -> str:
    """`double measure(i64 rounds, ptr)`: chains x = x * a + b, with a and b that the compiler does not know."""
    element = "float" if dtype.bits == 32 else "double"
    vector = f"<{lanes} x {element}>"
    names = range(chains)
    phis = "".join(f"  %x{k} = phi {vector} [%b, %start], [%y{k}, %loop]\n" for k in names)
    if fused:
        name = f"@llvm.fma.v{lanes}f{dtype.bits}"
        steps = "".join(f"  %y{k} = call {vector} {name}({vector} %x{k}, {vector} %a, {vector} %b)\n" for k in names)
        declared = f"declare {vector} {name}({vector}, {vector}, {vector})\n"
    else:
        steps = "".join(f"  %m{k} = fmul {vector} %x{k}, %a\n  %y{k} = fadd {vector} %m{k}, %b\n" for k in names)
        declared = ""
    sums = "".join(f"  %s{k} = fadd {vector} %{f's{k - 1}' if k > 1 else 'y0'}, %y{k}\n" for k in names if k)
    return f"""{declared}
define double @measure(i64 %rounds, ptr %unused) {{
start:
  %seed = sitofp i64 %rounds to {element}
  %one = fdiv {element} %seed, %seed
  %first = insertelement {vector} poison, {element} %one, i32 0
  %b = shufflevector {vector} %first, {vector} poison, <{lanes} x i32> zeroinitializer
  %a = fsub {vector} %b, zeroinitializer
  br label %loop
loop:
  %i = phi i64 [0, %start], [%next, %loop]
{phis}{steps}  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %rounds
  br i1 %more, label %loop, label %end
end:
{sums}  %v = extractelement {vector} %s{chains - 1}, i32 0
  %r = {"fpext float %v to double" if dtype.bits == 32 else "fadd double %v, 0.0"}
  ret double %r
}}
"""


def _read_loop(vector_bytes: int) -> str:
    """`double measure(i64 bytes, ptr block)`: sums the block, four vectors a step."""
    vector = f"<{vector_bytes // 8} x i64>"
    phis = "".join(f"  %x{k} = phi {vector} [zeroinitializer, %start], [%y{k}, %loop]\n" for k in range(4))
    loads = "".join(
        f"  %o{k} = add i64 %i, {k * vector_bytes}\n  %p{k} = getelementptr i8, ptr %block, i64 %o{k}\n"
        f"  %v{k} = load {vector}, ptr %p{k}, align 8\n  %y{k} = add {vector} %x{k}, %v{k}\n"
        for k in range(4)
    )
    return f"""
define double @measure(i64 %bytes, ptr %block) {{
start:
  br label %loop
loop:
  %i = phi i64 [0, %start], [%next, %loop]
{phis}{loads}  %next = add i64 %i, {4 * vector_bytes}
  %more = icmp slt i64 %next, %bytes
  br i1 %more, label %loop, label %end
end:
  %s0 = add {vector} %y0, %y1
  %s1 = add {vector} %y2, %y3
  %s = add {vector} %s0, %s1
  %v = extractelement {vector} %s, i32 0
  %r = sitofp i64 %v to double
  ret double %r
}}
"""
