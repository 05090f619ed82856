"""Vector math as callable kernels, and errors in ulp: shared by the tests and the exhaustive benchmark."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.llvm.ir import Instructions
from polyml.codegen.llvm.machine import compile_object, load_object, machine_of
from polyml.codegen.loops import Function
from polyml.dtypes import DType
from polyml.expressions import Apply
from polyml.ops import OPS
from polyml.target import Target
from tests.codegen.llvm.support import loop, read, store, variable, vector

__all__ = ["libm_kernel", "math_kernel", "ulps"]


def math_kernel(op: str, dtype: DType, lanes: int, machine: str = "host", repeat: int = 1) -> Callable[..., np.ndarray]:
    """`y = op(a, ...)` over whole arrays with that many lanes; `repeat` times over, to be timed. Skips the test where code for the machine does not run."""
    if not Target(machine).runs_here:
        pytest.skip(f"this machine does not run code for {machine}")
    arguments = OPS[op].arity
    names = ("a", "b")[:arguments]
    assign = store("y", "i", Apply(op, tuple(read(name, dtype, "i") for name in names), dtype))
    over_all = vector("i", "N", lanes, assign) if lanes > 1 else loop("i", 0, "N", assign)
    function = Function(
        name="kernel",
        arguments=tuple(variable(name, dtype, "N") for name in ("y", *names)),
        written=frozenset("y"),
        sizes=("N",),
        body=(loop("r", 0, repeat, over_all),),
    )
    target = Target(machine)
    text = emit_module([function], Instructions.of(target))
    loaded = load_object(compile_object(text, machine_of(target)), ("kernel",))
    pointers = [ctypes.c_void_p] * (1 + arguments)
    kernel = ctypes.CFUNCTYPE(None, *pointers, ctypes.c_int64)(loaded.addresses["kernel"])

    def call(*arrays: np.ndarray) -> np.ndarray:
        assert loaded is not None  # the code lives as long as this
        y = np.empty_like(arrays[0])
        kernel(y.ctypes.data, *(a.ctypes.data for a in arrays), y.size)
        return y

    return call


def libm_kernel(function: str, arguments: int = 1) -> Callable[..., np.ndarray]:
    """The C library's function of doubles over whole arrays."""
    loads, names = [], []
    for k in range(arguments):
        loads.append(f"  %p{k} = getelementptr double, ptr %a{k}, i64 %i\n  %x{k} = load double, ptr %p{k}")
        names.append(f"double %x{k}")
    text = f"""declare double @{function}({", ".join(["double"] * arguments)})
define void @kernel(ptr %y, {", ".join(f"ptr %a{k}" for k in range(arguments))}, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
{chr(10).join(loads)}
  %r = call double @{function}({", ".join(names)})
  %q = getelementptr double, ptr %y, i64 %i
  store double %r, ptr %q
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  ret void
}}"""
    loaded = load_object(compile_object(text, machine_of(Target("host"))), ("kernel",))
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (1 + arguments), ctypes.c_int64)(loaded.addresses["kernel"])

    def call(*arrays: np.ndarray) -> np.ndarray:
        assert loaded is not None
        y = np.empty(arrays[0].shape)
        kernel(y.ctypes.data, *(a.ctypes.data for a in arrays), y.size)
        return y

    return call


def ulps(result: np.ndarray, exact: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Errors in units in the last place of the exact (wider) value, denormals counted in the smallest unit; and where NaN or infinity is wrong."""
    mantissa, lowest = (24, -125) if result.dtype == np.float32 else (53, -1021)
    rounded = exact.astype(result.dtype)
    finite = np.isfinite(result) & np.isfinite(rounded)
    _, exponent = np.frexp(np.where(finite, exact, 1))
    unit = np.ldexp(np.ones((), exact.dtype), np.maximum(exponent, lowest) - mantissa)
    errors = np.where(finite, np.abs(result.astype(exact.dtype) - np.where(finite, exact, 0)) / unit, 0)
    # The largest number and infinity are neighbours.
    near_overflow = (np.abs(exact) >= np.finfo(result.dtype).max) & (np.abs(result) >= np.finfo(result.dtype).max)
    same = (
        (np.isnan(result) & np.isnan(rounded))
        | (result == rounded)
        | (near_overflow & (np.sign(result) == np.sign(exact)))
    )
    return errors, ~finite & ~same
