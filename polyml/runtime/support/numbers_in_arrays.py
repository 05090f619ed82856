"""The text of the functions by which entry points read scalar arguments: numbers, and arrays of no dimensions that hold one."""

from __future__ import annotations

__all__ = ["emit_numbers_in_arrays"]

_KINDS = ("f64", "i64", "u64", "bool", "f16", "bf16", "c64", "c128")


def emit_numbers_in_arrays() -> str:
    """`@polyml_number_f64` etc.: what `@number_f64` takes, or a 0-d ndarray whose NumPy scalar it takes, whatever the array's byte order and alignment are."""
    return _IN_ARRAY + "".join(_KIND.format(kind=kind) for kind in _KINDS)


_IN_ARRAY = """
; The scalar in an ndarray of rank 0, a new reference; null for anything else. PyArray_Return takes over one reference to the array.
define internal ptr @in_array(ptr %object) {
  %ndarray = load ptr, ptr @object_ndarray
  %is.array = call i1 @is_a(ptr %object, ptr %ndarray)
  br i1 %is.array, label %array, label %no
array:
  %rank.p = getelementptr i8, ptr %object, i64 {rank}
  %rank = load i32, ptr %rank.p
  %is.number = icmp eq i32 %rank, 0
  br i1 %is.number, label %take, label %no
take:
  call void @Py_IncRef(ptr %object)
  %make = load ptr, ptr @numpy_return
  %scalar = call ptr %make(ptr %object)
  %failed = icmp eq ptr %scalar, null
  br i1 %failed, label %forget, label %yes
forget:
  call void @PyErr_Clear()
  br label %no
yes:
  ret ptr %scalar
no:
  ret ptr null
}
"""

_KIND = """
define i1 @polyml_number_{kind}(ptr %object, ptr %to) {{
  %plain = call i1 @number_{kind}(ptr %object, ptr %to)
  br i1 %plain, label %yes, label %other
other:
  %scalar = call ptr @in_array(ptr %object)
  %none = icmp eq ptr %scalar, null
  br i1 %none, label %no, label %convert
convert:
  %good = call i1 @number_{kind}(ptr %scalar, ptr %to)
  call void @Py_DecRef(ptr %scalar)
  ret i1 %good
yes:
  ret i1 true
no:
  ret i1 false
}}
"""
