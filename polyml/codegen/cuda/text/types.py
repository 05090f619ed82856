"""Element types and constants as CUDA C."""

from __future__ import annotations

import math

import numpy as np

from polyml.dtypes import DType

__all__ = ["COMPLEX_TYPES", "C_TYPES", "c_constant", "c_type"]

C_TYPES: dict[str, str] = {
    "f32": "float", "f64": "double", "i8": "signed char", "i16": "short", "i32": "int", "i64": "long long", "u8": "unsigned char",
    "u16": "unsigned short", "u32": "unsigned int", "u64": "unsigned long long", "bool": "bool",
    "f16": "unsigned short", "bf16": "unsigned short", "c64": "c64", "c128": "c128",
}  # fmt: skip


COMPLEX_TYPES: dict[str, str] = {
    "c64": "struct c64 { float re, im; };",
    "c128": "struct c128 { double re, im; };",
}


def c_type(dtype: DType) -> str:
    """The C type of an element: half precision as its bits, complex numbers as pairs."""
    return C_TYPES[dtype.name]


def c_constant(value: int | float | bool, dtype: DType) -> str:
    """A literal of exactly that value (as the element type rounds it) and type."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.is_float:
        return _float(float(value), dtype)
    number = int(value)
    match dtype.name:
        case "i64":
            return f"(-{2**63 - 1}LL - 1)" if number == -(2**63) else f"{number}LL"
        case "u64":
            return f"{number % 2**64}ULL"
        case "u32":
            return f"{number % 2**32}u"
        case "i32":
            return f"(-{2**31 - 1} - 1)" if number == -(2**31) else str(number)
        case _:
            return f"({c_type(dtype)}){number}"


def _float(value: float, dtype: DType) -> str:
    single = dtype.bits == 32
    if single:
        with np.errstate(over="ignore"):
            value = float(np.float32(value))
    if math.isnan(value):
        return "__int_as_float(0x7fc00000)" if single else "__longlong_as_double(0x7ff8000000000000LL)"
    if math.isinf(value):
        text = "__int_as_float(0x7f800000)" if single else "__longlong_as_double(0x7ff0000000000000LL)"
        return f"(-{text})" if value < 0 else text
    text = repr(value)
    text = text if "." in text or "e" in text else f"{text}.0"
    return f"{text}f" if single else text
