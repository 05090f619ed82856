"""Element types: one frozen `DType` per type of docs/language.md, and NumPy's promotion between them."""

from __future__ import annotations

import functools
import importlib
from typing import Literal

import numpy as np

from polyml.errors import DTypeError
from polyml.records import dataclass

__all__ = [
    "COMPUTED",
    "DTYPES",
    "DType",
    "bf16",
    "boolean",
    "c64",
    "c128",
    "f16",
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

Kind = Literal["f", "i", "u", "b", "c"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. `name` as in programs ("f32"); `kind`: f(loat), i (signed), u(nsigned), b(ool), c(omplex); `bits`: size in memory.

    In a decorated function's annotations `f32["N K"]` is evaluated by Python before polyml reads the source, so a DType can be subscripted;
    the result is the annotation's text.
    """

    name: str
    kind: Kind
    bits: int

    def __hash__(self) -> int:
        """Names are enough, and strings keep their hashes: every access in a table asks for this one."""
        return hash(self.name)

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy dtype, in native byte order (bf16: of the package ml_dtypes).

        Raises:
            DTypeError: ml_dtypes is needed, and not installed.
        """
        if self.name == "bf16":
            return _bfloat16()
        return np.dtype("?") if self.kind == "b" else np.dtype(f"{self.kind}{self.bits // 8}")

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.bits // 8

    @property
    def alignment(self) -> int:
        """Bytes that the address of an element is a multiple of: for complex numbers, those of a part."""
        return self.itemsize // 2 if self.kind == "c" else self.itemsize

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned; bool is not."""
        return self.kind in "iu"

    @property
    def is_complex(self) -> bool:
        return self.kind == "c"

    @property
    def is_half(self) -> bool:
        """A float of 16 bits: a type of memory only, whose values are computed in f32."""
        return self.kind == "f" and self.bits == 16

    @property
    def part(self) -> DType:
        """The type that its values are computed in: f32 for half precision, that of the real and imaginary part for complex types, else itself."""
        if self.kind == "c":
            return f32 if self.bits == 64 else f64
        return f32 if self.is_half else self

    def is_normal(self, value: float) -> bool:
        """Whether this type, a float that is computed in, has the number to its full precision: it is neither zero nor infinite there, nor subnormal."""
        limits = np.finfo(np.float32 if self.bits == 32 else np.float64)
        return float(limits.tiny) <= abs(value) <= float(limits.max)

    def __getitem__(self, shape: str) -> str:
        return f"{self.name}[{shape!r}]"

    def __str__(self) -> str:
        return self.name


f16, bf16 = DType("f16", "f", 16), DType("bf16", "f", 16)
f32, f64 = DType("f32", "f", 32), DType("f64", "f", 64)
c64, c128 = DType("c64", "c", 64), DType("c128", "c", 128)
i8, i16, i32, i64 = (DType(f"i{bits}", "i", bits) for bits in (8, 16, 32, 64))
u8, u16, u32, u64 = (DType(f"u{bits}", "u", bits) for bits in (8, 16, 32, 64))
boolean = DType("bool", "b", 8)

DTYPES: dict[str, DType] = {
    d.name: d for d in (f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, boolean, c64, c128)
}
COMPUTED: dict[str, DType] = {name: d for name, d in DTYPES.items() if d.part == d}
"""Those that values are computed in; the others are only read and written."""
_BY_NUMPY: dict[np.dtype[np.generic], DType] = {d.numpy: d for d in DTYPES.values() if d != bf16}


@functools.cache
def _bfloat16() -> np.dtype[np.generic]:
    try:
        module = importlib.import_module("ml_dtypes")
    except ImportError:
        raise DTypeError("bf16 arrays need the package ml_dtypes", hint="pip install ml_dtypes") from None
    dtype: np.dtype[np.generic] = np.dtype(module.bfloat16)
    return dtype


def from_numpy(dtype: np.dtype[np.generic]) -> DType:
    """The DType of a NumPy dtype (byte order ignored).

    Raises:
        DTypeError: when there is none.
    """
    found = _BY_NUMPY.get(dtype.newbyteorder("="))
    if found is None and dtype.name == "bfloat16":
        return bf16
    if found is None:
        raise DTypeError(f"element type {dtype} is not supported", hint=f"supported: {', '.join(DTYPES)}")
    return found


def promote(*dtypes: DType) -> DType:
    """NumPy's promotion of strong types: `promote(i32, f32)` is f64.

    Raises:
        DTypeError: they have no common type (bf16 beside f16, or beside integers of 16 bits and more).
    """
    try:
        return from_numpy(np.result_type(*(d.numpy for d in dtypes)))
    except TypeError as error:
        if isinstance(error, DTypeError):
            raise
        names = " and ".join(dict.fromkeys(map(str, dtypes)))
        raise DTypeError(f"{names} have no common type", hint="convert one of them, e.g. f32(..)") from None
