"""Element types: one frozen `DType` per type of docs/language.md, and NumPy's promotion between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from polyml.errors import DTypeError

__all__ = [
    "DTYPES",
    "DType",
    "boolean",
    "f32",
    "f64",
    "from_numpy",
    "i8",
    "i16",
    "i32",
    "i64",
    "promote",
    "u8",
    "u16",
    "u32",
    "u64",
]

Kind = Literal["f", "i", "u", "b"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. `name` as in programs ("f32"); `kind`: f(loat), i (signed), u(nsigned), b(ool); `bits`: size in memory.

    In a decorated function's annotations `f32["N K"]` is evaluated by Python before polyml reads the source, so a DType can be subscripted;
    the result is the annotation's text.
    """

    name: str
    kind: Kind
    bits: int

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy dtype, in native byte order."""
        return np.dtype("?") if self.kind == "b" else np.dtype(f"{self.kind}{self.bits // 8}")

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned; bool is not."""
        return self.kind in "iu"

    def __getitem__(self, shape: str) -> str:
        return f"{self.name}[{shape!r}]"

    def __str__(self) -> str:
        return self.name


f32, f64 = DType("f32", "f", 32), DType("f64", "f", 64)
i8, i16, i32, i64 = (DType(f"i{bits}", "i", bits) for bits in (8, 16, 32, 64))
u8, u16, u32, u64 = (DType(f"u{bits}", "u", bits) for bits in (8, 16, 32, 64))
boolean = DType("bool", "b", 8)

DTYPES: dict[str, DType] = {d.name: d for d in (f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, boolean)}
_BY_NUMPY: dict[np.dtype[np.generic], DType] = {d.numpy: d for d in DTYPES.values()}


def from_numpy(dtype: np.dtype[np.generic]) -> DType:
    """The DType of a NumPy dtype (byte order ignored).

    Raises:
        DTypeError: when there is none.
    """
    found = _BY_NUMPY.get(dtype.newbyteorder("="))
    if found is None:
        raise DTypeError(f"element type {dtype} is not supported", hint=f"supported: {', '.join(DTYPES)}")
    return found


def promote(*dtypes: DType) -> DType:
    """NumPy's promotion of strong types: `promote(i32, f32)` is f64."""
    return from_numpy(np.result_type(*(d.numpy for d in dtypes)))
