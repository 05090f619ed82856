"""The support module: functions that all kernels of a process share, compiled once.

Checks and conversions of Python objects for entry points, and the threads of polyml.runtime.threads. The objects that they need (NumPy's array type, Python's number types) are in
globals filled here.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from polyml.codegen.llvm.machine import Loaded, load_object
from polyml.runtime.layout import ArrayHeader, array_header
from polyml.runtime.load import compile_plainly
from polyml.runtime.threads import OpenMP, emit_threads, find_openmp, thread_count

__all__ = ["Support", "parallel_limited", "support"]

_FUNCTIONS = (
    "polyml_is_array polyml_number_f64 polyml_number_i64 polyml_number_u64 polyml_number_bool polyml_empty polyml_scalar polyml_none polyml_fault"
    " polyml_parallel polyml_parallel_limited"
).split()
_PYTHON_FUNCTIONS = (
    "PyEval_SaveThread PyEval_RestoreThread Py_IncRef Py_DecRef PyTuple_New PyTuple_SetItem PyObject_Vectorcall PyObject_CallOneArg PyErr_Occurred PyErr_Clear "
    "PyFloat_AsDouble PyLong_AsDouble PyLong_AsLongLong PyLong_AsUnsignedLongLong PyLong_FromLong"
).split()
_PYTHON_OBJECTS: dict[str, object] = {
    "float64": np.float64, "float32": np.float32, "int64": np.int64, "np_true": np.True_, "np_false": np.False_,
    "ndarray": np.ndarray, "long": int, "float": float, "true": True, "false": False, "none": None,
}  # fmt: skip
_GLOBALS = (
    "polyml_thread_count", "polyml_plain_threads", "polyml_openmp_used", "numpy_empty", "numpy_return", *(f"object_{name}" for name in _PYTHON_OBJECTS),
)  # fmt: skip
_SYSTEM_FUNCTIONS = ("pthread_create", "pthread_join", "posix_memalign", "free", "malloc")
_GOMP_FUNCTIONS = ("omp_get_thread_num", "omp_get_num_threads", "GOMP_parallel")
_KMP_FUNCTIONS = (
    "omp_get_thread_num",
    "omp_get_num_threads",
    "__kmpc_fork_call",
    "__kmpc_global_thread_num",
    "__kmpc_push_num_threads",
)
_EMPTY_SLOT, _RETURN_SLOT = 184, 76  # of NumPy's C API table: PyArray_Empty, PyArray_Return (fixed since NumPy 1.0)


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

    @property
    def threads(self) -> int:
        return ctypes.c_int32.from_address(self.loaded.addresses["polyml_thread_count"]).value

    def use_plain_threads(self, plain: bool) -> None:
        """Whether to leave OpenMP alone."""
        ctypes.c_uint8.from_address(self.loaded.addresses["polyml_plain_threads"]).value = plain


@functools.cache
def support() -> Support:
    """The process's support module, compiled at the first call."""
    header, openmp = array_header(), find_openmp()
    python = {name: _address(ctypes.pythonapi, name) for name in _PYTHON_FUNCTIONS}
    process = ctypes.CDLL(None)
    system = {name: _address(process, name) for name in _SYSTEM_FUNCTIONS}
    threads: dict[str, int] = {}
    if openmp is not None:
        wanted = _GOMP_FUNCTIONS if openmp.interface == "gomp" else _KMP_FUNCTIONS
        threads = {name: _address(openmp.library, name) for name in wanted}
    code = compile_plainly(emit_support(header, openmp))
    loaded = load_object(code, (*_FUNCTIONS, *_GLOBALS), {**python, **system, **threads})
    table = _numpy_api()
    pointers = {f"object_{name}": id(thing) for name, thing in _PYTHON_OBJECTS.items()}
    pointers |= {"numpy_empty": table[_EMPTY_SLOT], "numpy_return": table[_RETURN_SLOT]}
    for name, pointer in pointers.items():
        ctypes.c_size_t.from_address(loaded.addresses[name]).value = pointer
    symbols = {**python, **system, **{name: loaded.addresses[name] for name in _FUNCTIONS}}
    made = Support(loaded, symbols, header, openmp)
    made.set_threads(thread_count())
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
    loaded = load_object(compile_plainly(text), ("limited",), support().symbols)
    return loaded.addresses["limited"], loaded


def _survive_fork(made: Support) -> None:
    """A child of a process whose libgomp has run a team uses plain threads; so do its kernels that exist already."""
    if made.openmp is None or made.openmp.fork_safe or not hasattr(os, "register_at_fork"):
        return
    used = ctypes.c_uint8.from_address(made.loaded.addresses["polyml_openmp_used"])
    plain = ctypes.c_uint8.from_address(made.loaded.addresses["polyml_plain_threads"])

    def in_child() -> None:
        if used.value:
            plain.value = 1

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
    return (ctypes.c_size_t * (_EMPTY_SLOT + 1)).from_address(get(capsule, None))


def emit_support(header: ArrayHeader | None, openmp: OpenMP | None) -> str:
    """The module's text."""
    offsets = header or ArrayHeader(**dict.fromkeys(_OFFSETS, 0))
    text = _OBJECTS
    for name in _OFFSETS:
        text = text.replace(f"{{{name}}}", str(getattr(offsets, name)))
    return text + emit_threads(openmp)


_OFFSETS = (
    "type",
    "scalar",
    "tuple_size",
    "tuple_items",
    "data",
    "rank",
    "dimensions",
    "strides",
    "dtype",
    "flags",
    "byteorder",
    "type_number",
)

_OBJECTS = """\
@polyml_thread_count = global i32 1
@polyml_plain_threads = global i8 0
@polyml_openmp_used = global i8 0
@object_ndarray = global ptr null
@object_long = global ptr null
@object_float = global ptr null
@object_float64 = global ptr null
@object_float32 = global ptr null
@object_int64 = global ptr null
@object_np_true = global ptr null
@object_np_false = global ptr null
@object_true = global ptr null
@object_false = global ptr null
@object_none = global ptr null
@numpy_empty = global ptr null
@numpy_return = global ptr null
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_Clear()
declare double @PyFloat_AsDouble(ptr)
declare double @PyLong_AsDouble(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare i64 @PyLong_AsUnsignedLongLong(ptr)
declare ptr @PyLong_FromLong(i64)

; Exactly an ndarray of that dtype (the same object, or the same native builtin type), rank and flags.
define i1 @polyml_is_array(ptr %object, ptr %dtype, i32 %rank, i32 %flags) {
  %type.p = getelementptr i8, ptr %object, i64 {type}
  %type = load ptr, ptr %type.p
  %ndarray = load ptr, ptr @object_ndarray
  %exact = icmp eq ptr %type, %ndarray
  br i1 %exact, label %array, label %no
array:
  %rank.p = getelementptr i8, ptr %object, i64 {rank}
  %rank.is = load i32, ptr %rank.p
  %rank.ok = icmp eq i32 %rank.is, %rank
  %flags.p = getelementptr i8, ptr %object, i64 {flags}
  %flags.is = load i32, ptr %flags.p
  %flags.had = and i32 %flags.is, %flags
  %flags.ok = icmp eq i32 %flags.had, %flags
  %both = and i1 %rank.ok, %flags.ok
  br i1 %both, label %typed, label %no
typed:
  %dtype.p = getelementptr i8, ptr %object, i64 {dtype}
  %dtype.is = load ptr, ptr %dtype.p
  %same = icmp eq ptr %dtype.is, %dtype
  br i1 %same, label %yes, label %closer
closer:
  %number.p = getelementptr i8, ptr %dtype, i64 {type_number}
  %number = load i32, ptr %number.p
  %number.is.p = getelementptr i8, ptr %dtype.is, i64 {type_number}
  %number.is = load i32, ptr %number.is.p
  %number.ok = icmp eq i32 %number.is, %number
  %order.p = getelementptr i8, ptr %dtype, i64 {byteorder}
  %order = load i8, ptr %order.p
  %order.is.p = getelementptr i8, ptr %dtype.is, i64 {byteorder}
  %order.is = load i8, ptr %order.is.p
  %order.ok = icmp eq i8 %order.is, %order
  %equal = and i1 %number.ok, %order.ok
  ret i1 %equal
yes:
  ret i1 true
no:
  ret i1 false
}

define internal i1 @is_a(ptr %object, ptr %wanted) {
  %type.p = getelementptr i8, ptr %object, i64 {type}
  %type = load ptr, ptr %type.p
  %exact = icmp eq ptr %type, %wanted
  ret i1 %exact
}

; Whether a conversion that gave the value of its error really failed; clears the error.
define internal i1 @went_well() {
  %error = call ptr @PyErr_Occurred()
  %none = icmp eq ptr %error, null
  br i1 %none, label %good, label %bad
good:
  ret i1 true
bad:
  call void @PyErr_Clear()
  ret i1 false
}

; A Python float or int, np.float64 or np.float32, as a double.
define i1 @polyml_number_f64(ptr %object, ptr %to) {
  %float = load ptr, ptr @object_float
  %is.float = call i1 @is_a(ptr %object, ptr %float)
  br i1 %is.float, label %from.float, label %long
long:
  %long.type = load ptr, ptr @object_long
  %is.long = call i1 @is_a(ptr %object, ptr %long.type)
  br i1 %is.long, label %from.long, label %double
double:
  %float64 = load ptr, ptr @object_float64
  %is.float64 = call i1 @is_a(ptr %object, ptr %float64)
  br i1 %is.float64, label %from.float, label %single
single:
  %float32 = load ptr, ptr @object_float32
  %is.float32 = call i1 @is_a(ptr %object, ptr %float32)
  br i1 %is.float32, label %from.float32, label %no
from.float:
  %value = call double @PyFloat_AsDouble(ptr %object)
  store double %value, ptr %to
  ret i1 true
from.long:
  %wide = call double @PyLong_AsDouble(ptr %object)
  store double %wide, ptr %to
  %good = call i1 @went_well()
  ret i1 %good
from.float32:
  %value32.p = getelementptr i8, ptr %object, i64 {scalar}
  %value32 = load float, ptr %value32.p
  %value64 = fpext float %value32 to double
  store double %value64, ptr %to
  ret i1 true
no:
  ret i1 false
}

; A Python int or np.int64.
define i1 @polyml_number_i64(ptr %object, ptr %to) {
  %long = load ptr, ptr @object_long
  %is.long = call i1 @is_a(ptr %object, ptr %long)
  br i1 %is.long, label %convert, label %other
convert:
  %value = call i64 @PyLong_AsLongLong(ptr %object)
  store i64 %value, ptr %to
  %suspect = icmp eq i64 %value, -1
  br i1 %suspect, label %check, label %yes
check:
  %good = call i1 @went_well()
  ret i1 %good
other:
  %int64 = load ptr, ptr @object_int64
  %is.int64 = call i1 @is_a(ptr %object, ptr %int64)
  br i1 %is.int64, label %take, label %no
take:
  %taken.p = getelementptr i8, ptr %object, i64 {scalar}
  %taken = load i64, ptr %taken.p
  store i64 %taken, ptr %to
  br label %yes
yes:
  ret i1 true
no:
  ret i1 false
}

define i1 @polyml_number_u64(ptr %object, ptr %to) {
  %long = load ptr, ptr @object_long
  %is.long = call i1 @is_a(ptr %object, ptr %long)
  br i1 %is.long, label %convert, label %no
convert:
  %value = call i64 @PyLong_AsUnsignedLongLong(ptr %object)
  store i64 %value, ptr %to
  %suspect = icmp eq i64 %value, -1
  br i1 %suspect, label %check, label %yes
check:
  %good = call i1 @went_well()
  ret i1 %good
yes:
  ret i1 true
no:
  ret i1 false
}

; Python's and NumPy's True and False.
define i1 @polyml_number_bool(ptr %object, ptr %to) {
  %true = load ptr, ptr @object_true
  %is.true = icmp eq ptr %object, %true
  %np.true = load ptr, ptr @object_np_true
  %is.np.true = icmp eq ptr %object, %np.true
  %holds = or i1 %is.true, %is.np.true
  %byte = zext i1 %holds to i8
  store i8 %byte, ptr %to
  %false = load ptr, ptr @object_false
  %is.false = icmp eq ptr %object, %false
  %np.false = load ptr, ptr @object_np_false
  %is.np.false = icmp eq ptr %object, %np.false
  %fails = or i1 %is.false, %is.np.false
  %either = or i1 %holds, %fails
  ret i1 %either
}

; A new array; PyArray_Empty takes over one reference to the dtype.
define ptr @polyml_empty(ptr %dtype, i32 %rank, ptr %dims) {
  call void @Py_IncRef(ptr %dtype)
  %make = load ptr, ptr @numpy_empty
  %array = call ptr %make(i32 %rank, ptr %dims, ptr %dtype, i32 0)
  ret ptr %array
}

; The NumPy scalar in a 0-d array, which it takes over.
define ptr @polyml_scalar(ptr %array) {
  %make = load ptr, ptr @numpy_return
  %scalar = call ptr %make(ptr %array)
  ret ptr %scalar
}

define ptr @polyml_none() {
  %none = load ptr, ptr @object_none
  call void @Py_IncRef(ptr %none)
  ret ptr %none
}

; Raises what `fault(status)` raises.
define ptr @polyml_fault(ptr %fault, i32 %status) {
  %wide = sext i32 %status to i64
  %number = call ptr @PyLong_FromLong(i64 %wide)
  %missing = icmp eq ptr %number, null
  br i1 %missing, label %done, label %raise
raise:
  %answer = call ptr @PyObject_CallOneArg(ptr %fault, ptr %number)
  call void @Py_DecRef(ptr %number)
  ret ptr %answer
done:
  ret ptr null
}

"""
