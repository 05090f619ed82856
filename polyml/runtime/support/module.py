"""The support module: functions that all kernels of a process share, compiled once.

Checks and conversions of Python objects for entry points, and the threads of polyml.runtime.threads.parallel. The objects that they need (NumPy's array type, Python's number types) are in
globals filled here.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
from collections.abc import Mapping

import numpy as np

from polyml.codegen.llvm.machine import LLVM_LOCK, Loaded, load_object
from polyml.dtypes import bf16
from polyml.forks import wait_at_forks
from polyml.records import dataclass
from polyml.runtime.entry.layout import ArrayHeader, array_header
from polyml.runtime.load import compile_plainly
from polyml.runtime.recycle import KEPT
from polyml.runtime.support.integer_text import INTEGERS
from polyml.runtime.support.text import emit_support
from polyml.runtime.threads.parallel import OpenMP, find_openmp, spins, thread_count

__all__ = ["Support", "load_support", "parallel_limited", "support"]

_FUNCTIONS = (
    "polyml_is_array polyml_number_f64 polyml_number_i64 polyml_number_u64 polyml_number_bool polyml_number_f16 polyml_number_bf16 polyml_number_c64 polyml_number_c128 polyml_empty polyml_empty_aligned polyml_empty_sized polyml_empty_strided polyml_scalar polyml_none polyml_fault"
    " polyml_parallel polyml_parallel_limited polyml_pipeline polyml_row polyml_stage polyml_row_done polyml_pool_reset polyml_scratch polyml_scratch_free"
).split()
_PYTHON_FUNCTIONS = (
    "PyEval_SaveThread PyEval_RestoreThread Py_IncRef Py_DecRef PyTuple_New PyTuple_SetItem PyObject_Vectorcall PyObject_CallOneArg PyErr_Occurred PyErr_Clear "
    "PyFloat_AsDouble PyLong_AsDouble PyLong_AsLongLong PyLong_AsUnsignedLongLong PyLong_FromLong PyLong_FromVoidPtr"
).split()
_PYTHON_OBJECTS: dict[str, object] = {
    "float64": np.float64, "float32": np.float32, "float16": np.float16, "complex64": np.complex64, "complex128": np.complex128, "complex": complex, "np_true": np.True_, "np_false": np.False_,
    **INTEGERS,
    "ndarray": np.ndarray, "bytes": np.dtype(np.uint8), "long": int, "float": float, "true": True, "false": False, "none": None,
}  # fmt: skip
_GLOBALS = (
    "polyml_thread_count", "polyml_spins", "polyml_scratch_most", "polyml_avoid_openmp", "polyml_openmp_used", "numpy_empty", "numpy_new", "numpy_return", "numpy_base", "object_bfloat16", *(f"object_{name}" for name in _PYTHON_OBJECTS),
)  # fmt: skip
_SYSTEM_FUNCTIONS = ("pthread_create", "pthread_detach", "pthread_self", "posix_memalign", "free", "malloc")
_SOME_FUNCTIONS = (
    "madvise syscall sched_yield pthread_mutex_init pthread_mutex_lock pthread_mutex_unlock pthread_cond_init pthread_cond_wait pthread_cond_broadcast"
).split()
"""Of which some are needed, by the system."""
_GOMP_FUNCTIONS = ("omp_get_thread_num", "omp_get_num_threads", "GOMP_parallel")
_KMP_FUNCTIONS = (
    "omp_get_thread_num",
    "omp_get_num_threads",
    "__kmpc_fork_call",
    "__kmpc_global_thread_num",
    "__kmpc_push_num_threads",
)
_EMPTY_SLOT, _NEW_SLOT, _RETURN_SLOT, _BASE_SLOT = 184, 94, 76, 282
"""Of NumPy's C API table: PyArray_Empty, PyArray_NewFromDescr, PyArray_Return (fixed since NumPy 1.0), PyArray_SetBaseObject (since 1.7)."""


wait_at_forks(LLVM_LOCK)

_LOADED: list[Loaded] = []
"""Workers of a pool sleep in its code, which therefore stays."""


@dataclass(frozen=True, slots=True)
class Support:
    """The loaded module. symbols: what emitted code may call, by name. header: None when entry points cannot be used in this interpreter."""

    loaded: Loaded
    symbols: Mapping[str, int]
    header: ArrayHeader | None
    openmp: OpenMP | None

    def set_threads(self, count: int) -> None:
        """How many threads parallel loops use from now on, at least 1."""
        ctypes.c_int32.from_address(self.loaded.addresses["polyml_thread_count"]).value = count
        ctypes.c_int32.from_address(self.loaded.addresses["polyml_spins"]).value = spins(count)

    @property
    def threads(self) -> int:
        return ctypes.c_int32.from_address(self.loaded.addresses["polyml_thread_count"]).value

    def know_bfloat16(self) -> None:
        """From now on entry points take its scalars, too."""
        ctypes.c_size_t.from_address(self.loaded.addresses["object_bfloat16"]).value = id(bf16.numpy.type)

    def avoid_openmp(self, avoid: bool) -> None:
        """Whether to use the pool although there is an OpenMP runtime."""
        ctypes.c_uint8.from_address(self.loaded.addresses["polyml_avoid_openmp"]).value = avoid


@functools.cache
def support() -> Support:
    """The process's support module, compiled at the first call.

    Raises:
        PolymlError: POLYML_THREADS or POLYML_NUM_THREADS is at fault.
    """
    return load_support(find_openmp())


def load_support(openmp: OpenMP | None) -> Support:
    """A support module of its own, with parallel loops on the OpenMP runtime or on a pool of its own."""
    header = array_header()
    python = {name: _address(ctypes.pythonapi, name) for name in _PYTHON_FUNCTIONS}
    process = ctypes.CDLL(None)
    system = {name: _address(process, name) for name in _SYSTEM_FUNCTIONS}
    system |= {name: _address(process, name) for name in _SOME_FUNCTIONS if hasattr(process, name)}
    threads: dict[str, int] = {}
    if openmp is not None:
        wanted = _GOMP_FUNCTIONS if openmp.interface == "gomp" else _KMP_FUNCTIONS
        threads = {name: _address(openmp.library, name) for name in wanted}
    code = compile_plainly(emit_support(header, openmp), keep=True)
    loaded = load_object(code, (*_FUNCTIONS, *_GLOBALS), {**python, **system, **threads})
    _LOADED.append(loaded)
    table = _numpy_api()
    pointers = {f"object_{name}": id(thing) for name, thing in _PYTHON_OBJECTS.items()}
    pointers |= {"numpy_empty": table[_EMPTY_SLOT], "numpy_new": table[_NEW_SLOT], "numpy_return": table[_RETURN_SLOT]}
    pointers["numpy_base"] = table[_BASE_SLOT]
    for name, pointer in pointers.items():
        ctypes.c_size_t.from_address(loaded.addresses[name]).value = pointer
    symbols = {**python, **system, **{name: loaded.addresses[name] for name in _FUNCTIONS}}
    made = Support(loaded, symbols, header, openmp)
    made.set_threads(thread_count())
    ctypes.c_int64.from_address(loaded.addresses["polyml_scratch_most"]).value = KEPT
    _survive_fork(made)
    return made


@functools.cache
def parallel_limited(threads: int) -> tuple[int, Loaded]:
    """A `polyml_parallel` that uses at most so many threads: its address, and the owner of its code."""
    text = (
        "declare void @polyml_parallel_limited(ptr, ptr, i64, i64, i64, i64)\n"
        "define void @limited(ptr %body, ptr %ctx, i64 %lower, i64 %upper, i64 %step) {\n"
        f"  call void @polyml_parallel_limited(ptr %body, ptr %ctx, i64 %lower, i64 %upper, i64 %step, i64 {threads})\n"
        "  ret void\n}\n"
    )
    loaded = load_object(compile_plainly(text, keep=True), ("limited",), support().symbols)
    return loaded.addresses["limited"], loaded


def _survive_fork(made: Support) -> None:
    """A child of a fork has no workers: the pool starts afresh. Where libgomp has run a team before the fork, the child uses the pool."""
    if not hasattr(os, "register_at_fork"):
        return
    reset = ctypes.CFUNCTYPE(None)(made.loaded.addresses["polyml_pool_reset"])
    used = ctypes.c_uint8.from_address(made.loaded.addresses["polyml_openmp_used"])

    def in_child() -> None:
        reset()
        if made.openmp is not None and not made.openmp.fork_safe and used.value:
            made.avoid_openmp(True)

    os.register_at_fork(after_in_child=in_child)


def _address(library: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None, "internal: a function without an address"
    return address


def _numpy_api() -> ctypes.Array[ctypes.c_size_t]:
    """NumPy's C API table: what its C headers read from this capsule."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = vars(importlib.import_module("numpy._core._multiarray_umath"))["_ARRAY_API"]
    return (ctypes.c_size_t * (_BASE_SLOT + 1)).from_address(get(capsule, None))
