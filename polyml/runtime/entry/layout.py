"""Where this interpreter and this NumPy keep the fields that emitted code reads.

The offsets follow from the public C structs (PyArrayObject_fields and PyArray_Descr of NumPy 2); `array_header` compares them with a real array once and gives
None when they do not fit, so that a strange build falls back to Python instead of crashing.
"""

from __future__ import annotations

import ctypes
import functools

import numpy as np

from polyml.records import dataclass

__all__ = ["ArrayHeader", "array_header"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayHeader:
    """Byte offsets in an ndarray object (data .. flags) and in a dtype object (byteorder, type_number), and NumPy's flag bits.

    type: of any object's type pointer. scalar: of a NumPy scalar's value. tuple_size, tuple_items: of a tuple's length and its first item.
    """

    type: int
    scalar: int
    tuple_size: int
    tuple_items: int
    data: int
    rank: int
    dimensions: int
    strides: int
    dtype: int
    flags: int
    byteorder: int
    type_number: int
    aligned: int = 0x0100
    writeable: int = 0x0400


@functools.cache
def array_header() -> ArrayHeader | None:
    """The offsets, or None when a sample array contradicts them."""
    base = object.__basicsize__  # 16; the type pointer is the head's last field
    header = ArrayHeader(
        type=base - 8,
        scalar=base,
        tuple_size=base,
        tuple_items=tuple.__basicsize__,
        data=base,
        rank=base + 8,
        dimensions=base + 16,
        strides=base + 24,
        dtype=base + 40,
        flags=base + 48,
        byteorder=base + 10,
        type_number=base + 12,
    )
    return header if ctypes.sizeof(ctypes.c_void_p) == 8 and _fits(header) else None


def _fits(header: ArrayHeader) -> bool:
    sample = np.zeros((3, 5), np.float32)[:, ::2]
    swapped = np.dtype(np.int16).newbyteorder()

    def word(owner: object, offset: int) -> int:
        return ctypes.c_int64.from_address(id(owner) + offset).value

    def half(owner: object, offset: int) -> int:
        return ctypes.c_int32.from_address(id(owner) + offset).value

    if np.ndarray.__basicsize__ < header.flags + 4 or np.dtype.__basicsize__ < header.type_number + 4:
        return False
    single, whole = np.float32(1.5), np.int64(-7)
    pair_of_objects = (sample, swapped)
    known = (
        (ctypes.c_float.from_address(id(single) + header.scalar).value, 1.5),
        (word(whole, header.scalar), -7),
        (word(pair_of_objects, header.tuple_size), 2),
        (word(pair_of_objects, header.tuple_items + 8), id(swapped)),
        (word(sample, header.type), id(np.ndarray)),
        (word(sample, header.data), sample.ctypes.data),
        (half(sample, header.rank), 2),
        (word(sample, header.dtype), id(sample.dtype)),
        (half(sample.dtype, header.type_number), sample.dtype.num),
        (ctypes.c_char.from_address(id(swapped) + header.byteorder).value, swapped.str[0].encode()),
        (half(sample, header.flags) & (header.aligned | header.writeable), header.aligned | header.writeable),
    )
    if any(found != wanted for found, wanted in known):
        return False
    dimensions, strides = word(sample, header.dimensions), word(sample, header.strides)
    pair = ctypes.c_int64 * 2
    return tuple(pair.from_address(dimensions)) == (3, 3) and tuple(pair.from_address(strides)) == (20, 8)
