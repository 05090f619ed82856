"""Device arrays through DLPack: for libraries, or element types (bf16), that `__cuda_array_interface__` leaves out.

The layout is that of dlpack.h (DLTensor in DLManagedTensor, and since version 1.0 in DLManagedTensorVersioned).
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from polyml.dtypes import bf16
from polyml.errors import ArgumentError
from polyml.records import dataclass

__all__ = ["DeviceTensor", "dlpack_tensor", "speaks_dlpack"]

CUDA, LEGACY_STREAM, READ_ONLY = 2, 1, 1
"""DLDeviceType; what a consumer on the legacy default stream asks with; DLPACK_FLAG_BITMASK_READ_ONLY."""


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeviceTensor:
    """What a capsule holds. strides: in bytes. owner: keeps the memory."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...] | None
    writeable: bool
    owner: object


def speaks_dlpack(value: Any) -> bool:
    """Whether it is an array in a CUDA device's memory, by DLPack's word."""
    try:
        return int(value.__dlpack_device__()[0]) == CUDA
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return False


def dlpack_tensor(value: Any) -> DeviceTensor:
    """The array as its capsule says; its library makes the legacy default stream wait for what is under way.

    Raises:
        ArgumentError: it gives none, or of an element type that is unknown here.
    """
    try:
        try:
            capsule = value.__dlpack__(stream=LEGACY_STREAM, max_version=(1, 0))
        except TypeError:  # older than version 1.0
            capsule = value.__dlpack__(stream=LEGACY_STREAM)
    except (BufferError, RuntimeError, TypeError, ValueError) as fault:
        raise ArgumentError(f"this device array cannot be used: {fault}") from None
    tensor, writeable = _opened(capsule)
    shape = tuple(tensor.shape[k] for k in range(tensor.ndim))
    dtype = _dtype(tensor)
    strides = tuple(tensor.strides[k] * dtype.itemsize for k in range(tensor.ndim)) if tensor.strides else None
    return DeviceTensor((tensor.data or 0) + tensor.byte_offset, shape, dtype, strides, writeable, capsule)


def _opened(capsule: object) -> tuple[_Tensor, bool]:
    pointer, valid = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_IsValid
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    valid.restype, valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
    if valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(pointer(capsule, b"dltensor_versioned"))
        return versioned.tensor, not versioned.flags & READ_ONLY
    return _Tensor.from_address(pointer(capsule, b"dltensor")), True


def _dtype(tensor: _Tensor) -> np.dtype[Any]:
    """By DLDataTypeCode."""
    if tensor.lanes == 1:
        if (tensor.code, tensor.bits) == (4, 16):
            return bf16.numpy
        kind = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}.get(tensor.code)
        if kind is not None and tensor.bits % 8 == 0:
            try:
                return np.dtype(f"{kind}{tensor.bits // 8}")
            except TypeError:
                pass
    raise ArgumentError(f"a device array has elements of an unknown type: DLPack's {tensor.code}, {tensor.bits} bits")
