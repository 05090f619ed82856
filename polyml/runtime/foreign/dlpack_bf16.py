"""bf16 arrays through DLPack: NumPy takes and gives none, so the same memory is passed as integers of 16 bits, by the type code in the capsule.

The layout is that of dlpack.h (DLManagedTensor and, since version 1.0, DLManagedTensorVersioned), which is stable.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from polyml.dtypes import bf16

__all__ = ["giving", "taking"]

Array = np.ndarray[Any, Any]

_UNSIGNED, _BFLOAT = 1, 4
"""DLDataTypeCode."""

_CODE_IN_TENSOR = 20
"""Behind the data's address, the device and the rank."""

_TENSOR_IN_VERSIONED = 32
"""Behind the version, the manager's context, the deleter and the flags."""


class _Recast:
    """The array of `owner`, whose elements have another type code."""

    def __init__(self, owner: Any, code: int) -> None:
        self.owner, self.code = owner, code

    def __dlpack_device__(self) -> object:
        return self.owner.__dlpack_device__()

    def __dlpack__(self, *, max_version: object = None, **ignored: object) -> object:
        """The capsule; whoever asks gets what the owner gives for NumPy: host memory, without a stream. Who names no version knows none (JAX)."""
        try:
            capsule = self.owner.__dlpack__() if max_version is None else self.owner.__dlpack__(max_version=(1, 0))
        except TypeError:  # older than version 1.0
            capsule = self.owner.__dlpack__()
        _set_code(capsule, self.code)
        return capsule


def _set_code(capsule: object, code: int) -> None:
    pointer, valid = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_IsValid
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    valid.restype, valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
    versioned = bool(valid(capsule, b"dltensor_versioned"))
    start = pointer(capsule, b"dltensor_versioned" if versioned else b"dltensor")
    tensor = start + (_TENSOR_IN_VERSIONED if versioned else 0)
    ctypes.c_uint8.from_address(tensor + _CODE_IN_TENSOR).value = code


def taking(take: Callable[[Any], Array]) -> Callable[[Any], Array]:
    """`take`, a function that gives a NumPy view of another library's array, for bf16 too."""

    def taken(value: Any) -> Array:
        if not str(getattr(value, "dtype", "")).endswith("bfloat16"):
            return take(value)
        bits: Any = _Recast(value, _UNSIGNED)
        return np.from_dlpack(bits).view(bf16.numpy)

    return taken


def giving(give: Callable[[Any], object], from_dlpack: Callable[[Any], object]) -> Callable[[Any], object]:
    """`give`, a function that makes another library's array of a NumPy one, for bf16 too."""

    def given(array: Any) -> object:
        if array.dtype.name != "bfloat16":
            return give(array)
        return from_dlpack(_Recast(array.view(np.uint16), _BFLOAT))

    return given
