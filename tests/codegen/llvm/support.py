"""Runs hand-written Loops through the LLVM emitter on arrays that end at a guard page, so that touching what lies behind faults."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.llvm.functions.outline import PARALLEL
from polyml.codegen.llvm.ir import Instructions
from polyml.codegen.llvm.machine import Loaded, Machine, compile_object, host, load_object
from polyml.codegen.llvm.memory.storage import SCRATCH, SCRATCH_FREE
from polyml.codegen.loops import Assign, For, Function, Node, Place, Scope, Variable
from polyml.dtypes import DType, from_numpy
from polyml.expressions import Apply, Const, Expr, Read, Subscript
from polyml.runtime.support.module import support
from polyml.sets.affine import Affine, affine

__all__ = [
    "apply", "compile_functions", "const", "function_of", "guarded", "loop", "read", "run", "run_each", "run_function", "store", "variable", "vector",
]  # fmt: skip

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


shared_loops: list[range] = []
"""The parallel loops that threads were asked for so far."""


@_PARALLEL
def _in_chunks(body: int, context: int, lower: int, upper: int, step: int) -> None:
    """Stands for the runtime: two chunks aligned to the step, the second one first."""
    shared_loops.append(range(lower, upper, step))
    middle = lower + (upper - lower) // step // 2 * step
    _BODY(body)(context, middle, upper)
    _BODY(body)(context, lower, middle)


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy whose memory lies between pages that fault: it ends exactly at one."""
    page = mmap.PAGESIZE
    pages = -(-max(array.nbytes, 1) // page)
    memory = mmap.mmap(-1, (pages + 2) * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (start, start + (pages + 1) * page):
        assert _LIBC.mprotect(guard, page, 0) == 0
    offset = (pages + 1) * page - array.nbytes
    copy = np.frombuffer(memory, array.dtype, array.size, offset).reshape(array.shape)
    copy[...] = array
    return copy


def variable(name: str, dtype: DType, *shape: int | str, scope: Scope = "global", **more: object) -> Variable:
    return Variable(name=name, dtype=dtype, shape=tuple(map(affine, shape)), scope=scope, **more)  # type: ignore[arg-type]


def read(name: str, dtype: DType, *subscripts: Subscript | str | int) -> Read:
    return Read(name, _subscripts(subscripts), dtype)


def const(value: float, dtype: DType) -> Const:
    return Const(value, dtype)


def apply(op: str, *args: Expr, dtype: DType | None = None) -> Apply:
    return Apply(op, args, args[-1].dtype if dtype is None else dtype)


def store(name: str, subscripts: Sequence[Subscript | str | int], value: Expr, **more: object) -> Assign:
    return Assign(target=Place(name, _subscripts(subscripts)), value=value, **more)  # type: ignore[arg-type]


def _subscripts(subscripts: Sequence[Subscript | str | int]) -> tuple[Subscript, ...]:
    return tuple(affine(s) if isinstance(s, str | int | Affine) else s for s in subscripts)


def loop(name: str, lower: Affine | str | int, upper: Affine | str | int, *body: Node, **more: object) -> For:
    return For(variable=name, lower=affine(lower), upper=affine(upper), body=body, **more)  # type: ignore[arg-type]


def vector(name: str, upper: Affine | str | int, width: int, *body: Node) -> For:
    """A masked vector loop from 0."""
    return loop(name, 0, upper, *body, kind="vector", step=width, width=width, masked=True)


def run(
    body: Sequence[Node],
    arrays: Mapping[str, np.ndarray],
    sizes: Mapping[str, int] | None = None,
    *,
    written: Sequence[str] = ("y",),
    variables: Sequence[Variable] | None = None,
    machine: Machine | None = None,
    precise: bool = False,
    parallel: bool = True,
) -> dict[str, np.ndarray]:
    """Compiles and calls the loops on guarded copies of the arrays, and returns these."""
    sizes = sizes or {}
    function = function_of(body, arrays, tuple(sizes), written=written, variables=variables)
    return run_function(function, arrays, sizes, machine=machine, precise=precise, parallel=parallel)


def run_each(
    bodies: Sequence[Sequence[Node]],
    arrays: Mapping[str, np.ndarray],
    *,
    written: Sequence[str] = ("y",),
    precise: bool = False,
) -> list[dict[str, np.ndarray]]:
    """What `run` gives for each of the bodies, which are compiled as one module."""
    made = compile_functions([function_of(body, arrays, written=written) for body in bodies], precise=precise)
    return [call(arrays, {}) for call in made]


def function_of(
    body: Sequence[Node],
    arrays: Mapping[str, np.ndarray],
    sizes: Sequence[str] = (),
    *,
    written: Sequence[str] = ("y",),
    variables: Sequence[Variable] | None = None,
) -> Function:
    """The loops as a function of arrays like these."""
    arguments = tuple(variables or (variable(name, from_numpy(a.dtype), *a.shape) for name, a in arrays.items()))
    return Function(
        name="kernel", arguments=arguments, written=frozenset(written), sizes=tuple(sizes), body=tuple(body)
    )


def run_function(
    function: Function,
    arrays: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
    *,
    machine: Machine | None = None,
    precise: bool = False,
    parallel: bool = True,
) -> dict[str, np.ndarray]:
    """Compiles and calls the function on guarded copies of the arrays, and returns these."""
    (call,) = compile_functions([function], machine=machine, precise=precise, parallel=parallel)
    return call(arrays, sizes)


Call = Callable[[Mapping[str, np.ndarray], Mapping[str, int]], dict[str, np.ndarray]]
"""Calls a function on guarded copies of the arrays, and returns these."""


def compile_functions(
    functions: Sequence[Function],
    *,
    machine: Machine | None = None,
    instructions: Instructions | None = None,
    precise: bool = False,
    parallel: bool = True,
) -> list[Call]:
    """The functions as one module, under names of its own: a second function costs LLVM a twentieth of the first."""
    named = [replace(function, name=f"kernel{number}") for number, function in enumerate(functions)]
    text = emit_module(named, instructions, precise=precise, parallel=parallel)
    address = ctypes.cast(_in_chunks, ctypes.c_void_p).value
    assert address is not None
    imports = {PARALLEL: address, **{name: support().symbols[name] for name in (SCRATCH, SCRATCH_FREE)}}
    loaded = load_object(compile_object(text, machine or host()), tuple(f.name for f in named), imports)
    return [_call(function, loaded) for function in named]


def _call(function: Function, loaded: Loaded) -> Call:
    parameters = [ctypes.c_void_p] * len(function.arguments) + [ctypes.c_int64] * len(function.sizes)
    kernel = ctypes.CFUNCTYPE(None, *parameters)(loaded.addresses[function.name])

    def call(arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
        assert loaded is not None  # the code lives as long as this
        copies = {v.name: guarded(arrays[v.name]) for v in function.arguments}
        kernel(*(a.ctypes.data for a in copies.values()), *(sizes[name] for name in function.sizes))
        return copies

    return call
