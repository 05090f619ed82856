"""The text of the support module: what entry points need from Python and NumPy objects, and the threads."""

from __future__ import annotations

import sys

from polyml.runtime.entry.layout import ArrayHeader
from polyml.runtime.recycle import LARGE
from polyml.runtime.support.integer_text import emit_integers
from polyml.runtime.support.number_text import NARROW_NUMBERS
from polyml.runtime.support.numbers_in_arrays import emit_numbers_in_arrays
from polyml.runtime.support.scratch_text import emit_scratch
from polyml.runtime.threads.parallel import OpenMP, emit_threads

__all__ = ["emit_support"]


def emit_support(header: ArrayHeader | None, openmp: OpenMP | None) -> str:
    """The module's text."""
    offsets = header or ArrayHeader(**dict.fromkeys(_OFFSETS, 0))
    text = _OBJECTS + emit_integers() + NARROW_NUMBERS + emit_numbers_in_arrays()
    for name in _OFFSETS:
        text = text.replace(f"{{{name}}}", str(getattr(offsets, name)))
    text = text.replace("{large}", str(LARGE))
    return text + emit_scratch(linux=sys.platform.startswith("linux")) + emit_threads(openmp)


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
@polyml_spins = global i32 0
@polyml_avoid_openmp = global i8 0
@polyml_openmp_used = global i8 0
@object_ndarray = global ptr null
@object_long = global ptr null
@object_float = global ptr null
@object_float64 = global ptr null
@object_float32 = global ptr null
@object_np_true = global ptr null
@object_np_false = global ptr null
@object_true = global ptr null
@object_false = global ptr null
@object_none = global ptr null
@numpy_empty = global ptr null
@numpy_new = global ptr null
@numpy_base = global ptr null
@object_bytes = global ptr null
@numpy_return = global ptr null
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare ptr @PyLong_FromVoidPtr(ptr)
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

; A Python float or int, np.float64, np.float32 or one of NumPy's integers, as a double.
define internal i1 @number_f64(ptr %object, ptr %to) {
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
  br i1 %is.float32, label %from.float32, label %integer
integer:
  %is.integer = call i1 @integer_f64(ptr %object, ptr %to)
  ret i1 %is.integer
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
}

; A Python int, or one of NumPy's.
define internal i1 @number_i64(ptr %object, ptr %to) {
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
yes:
  ret i1 true
other:
  %is.integer = call i1 @integer_i64(ptr %object, ptr %to)
  ret i1 %is.integer
}

define internal i1 @number_u64(ptr %object, ptr %to) {
  %long = load ptr, ptr @object_long
  %is.long = call i1 @is_a(ptr %object, ptr %long)
  br i1 %is.long, label %convert, label %other
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
other:
  %is.integer = call i1 @integer_u64(ptr %object, ptr %to)
  ret i1 %is.integer
}

; Python's and NumPy's True and False.
define internal i1 @number_bool(ptr %object, ptr %to) {
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

; The same for an array of so many bytes, which starts at a page: a view of an array of bytes. PyArray_SetBaseObject takes over the reference to it, even when it fails.
define ptr @polyml_empty_aligned(ptr %dtype, i32 %rank, ptr %dims, i64 %bytes) {
  %extents = alloca i64, align 8
  %more = add i64 %bytes, 4096
  store i64 %more, ptr %extents
  %of_bytes = load ptr, ptr @object_bytes
  %buffer = call ptr @polyml_empty(ptr %of_bytes, i32 1, ptr %extents)
  %missing = icmp eq ptr %buffer, null
  br i1 %missing, label %failed, label %view
view:
  %where = getelementptr i8, ptr %buffer, i64 {data}
  %start = load i64, ptr %where
  %beyond = add i64 %start, 4095
  %page = and i64 %beyond, -4096
  %data = inttoptr i64 %page to ptr
  call void @Py_IncRef(ptr %dtype)
  %make = load ptr, ptr @numpy_new
  %ndarray = load ptr, ptr @object_ndarray
  %array = call ptr %make(ptr %ndarray, ptr %dtype, i32 %rank, ptr %dims, ptr null, ptr %data, i32 1281, ptr null)
  %none = icmp eq ptr %array, null
  br i1 %none, label %drop, label %own
own:
  %set = load ptr, ptr @numpy_base
  %status = call i32 %set(ptr %array, ptr %buffer)
  %refused = icmp slt i32 %status, 0
  br i1 %refused, label %lost, label %done
done:
  ret ptr %array
lost:
  call void @Py_DecRef(ptr %array)
  br label %failed
drop:
  call void @Py_DecRef(ptr %buffer)
  br label %failed
failed:
  ret ptr null
}

; A new array; what has `limit` elements or more is made by `maker`, which is called with the address of the extents; what has a 64th of that or more starts at a page.
define ptr @polyml_empty_sized(ptr %dtype, i32 %rank, ptr %dims, ptr %maker, i64 %limit) {
  br label %next
next:
  %k = phi i32 [ 0, %0 ], [ %k.next, %count ]
  %total = phi double [ 1.0, %0 ], [ %product, %count ]
  %more = icmp slt i32 %k, %rank
  br i1 %more, label %count, label %counted
count:
  %place = getelementptr i64, ptr %dims, i32 %k
  %extent = load i64, ptr %place
  %wide = sitofp i64 %extent to double
  %product = fmul double %total, %wide
  %k.next = add i32 %k, 1
  br label %next
counted:
  %most = sitofp i64 %limit to double
  %large = fcmp oge double %total, %most
  br i1 %large, label %make, label %small
small:
  %parts = fmul double %total, 64.0
  %short = fcmp olt double %parts, %most
  br i1 %short, label %plain, label %aligned
aligned:
  %item = udiv i64 {large}, %limit
  %elements = fptoui double %total to i64
  %bytes = mul i64 %elements, %item
  %view = call ptr @polyml_empty_aligned(ptr %dtype, i32 %rank, ptr %dims, i64 %bytes)
  ret ptr %view
plain:
  %array = call ptr @polyml_empty(ptr %dtype, i32 %rank, ptr %dims)
  ret ptr %array
make:
  %address = call ptr @PyLong_FromVoidPtr(ptr %dims)
  %missing = icmp eq ptr %address, null
  br i1 %missing, label %failed, label %call
call:
  %made = call ptr @PyObject_CallOneArg(ptr %maker, ptr %address)
  call void @Py_DecRef(ptr %address)
  ret ptr %made
failed:
  ret ptr null
}

; A new array with these strides in bytes, which leave no gap; PyArray_NewFromDescr takes over one reference to the dtype.
define ptr @polyml_empty_strided(ptr %dtype, i32 %rank, ptr %dims, ptr %strides) {
  call void @Py_IncRef(ptr %dtype)
  %make = load ptr, ptr @numpy_new
  %ndarray = load ptr, ptr @object_ndarray
  %array = call ptr %make(ptr %ndarray, ptr %dtype, i32 %rank, ptr %dims, ptr %strides, ptr null, i32 0, ptr null)
  ret ptr %array
}

; The NumPy scalar in a 0-d array, which it takes over.
; The number in a new array of rank 0; the array itself where the caller has given it, in `out`.
define ptr @polyml_scalar(ptr %array, ptr %out) {
  %new = icmp eq ptr %out, null
  br i1 %new, label %number, label %given
given:
  ret ptr %array
number:
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
