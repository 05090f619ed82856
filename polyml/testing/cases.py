"""A test case: the text of a program and arguments for it, in any memory layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from polyml.dtypes import DType
from polyml.records import dataclass

__all__ = ["LAYOUTS", "Argument", "Case", "Chooser", "Layout", "copy_with_layout", "lay_out", "sample"]

Array = npt.NDArray[np.generic]
Argument = Array | np.generic | int | float
Layout = Literal["contiguous", "transposed", "strided", "negative", "inner"]
LAYOUTS: tuple[Layout, ...] = ("contiguous", "transposed", "strided", "negative", "inner")
T = TypeVar("T")


class Chooser(Protocol):
    """Where a generator takes its choices from: Hypothesis, or a random number generator."""

    def pick(self, options: Sequence[T]) -> T:
        """One of the options; the first is the simplest."""

    def integer(self, low: int, high: int) -> int:
        """An integer in low .. high; low is the simplest."""

    def flag(self, percent: int) -> bool:
        """True in about so many of 100 cases; False is the simplest."""


@dataclass(frozen=True)
class Case:
    """A program and arguments for it.

    For `assert_close`: reduction_length: how many roundings a result may depend on; computed_in: f32, where an f64 depends on rounded f32.
    """

    text: str
    arguments: tuple[Argument, ...]
    reduction_length: int = 1
    computed_in: DType | None = None

    def fresh_arguments(self) -> tuple[Argument, ...]:
        """Copies of the arguments with the same strides, for a run that may write them."""
        return tuple(copy_with_layout(a) if isinstance(a, np.ndarray) else a for a in self.arguments)

    def __repr__(self) -> str:
        shown = []
        for a in self.arguments:
            shown.append(f"  {_described(a) if isinstance(a, np.ndarray) else repr(a)}")
        return "\n".join(["Case:", self.text.rstrip(), *shown])


_SHOWN = 100
"""Elements of an array up to which a case shows them: the seed tells the others."""


def _described(array: Array) -> str:
    text = f"{array.dtype} {array.shape} strides {array.strides}"
    return f"{text}: {array.tolist()}" if array.size <= _SHOWN else text


def sample(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Values that arithmetic keeps exact for long: halves in -2 .. 2, small integers, bools."""
    rng = np.random.default_rng(seed)
    match dtype.kind:
        case "f":
            return rng.choice([0.5, 1.0, -1.0, 2.0, 0.0, 1.5, -0.5, -2.0], size=shape).astype(dtype.numpy)
        case "i":
            return rng.integers(-3, 4, size=shape).astype(dtype.numpy)
        case "u":
            return rng.integers(0, 5, size=shape).astype(dtype.numpy)
        case "b":
            return rng.integers(0, 2, size=shape).astype(dtype.numpy)
        case "c":
            parts = rng.choice([0.5, 1.0, -1.0, 2.0, 0.0, -2.0], size=(2, *shape))
            return np.asarray(parts[0] + 1j * parts[1]).astype(dtype.numpy)


def lay_out(values: Array, layout: Layout) -> Array:
    """The same elements as a view of the given kind."""
    match layout:
        case "contiguous":
            return np.ascontiguousarray(values).reshape(values.shape)
        case "transposed":
            return np.ascontiguousarray(values.T).T if values.ndim > 1 else values.copy()
        case "strided":
            base = np.zeros(tuple(2 * d for d in values.shape), values.dtype)
            view = base[tuple(slice(None, None, 2) for _ in values.shape)]
        case "negative":
            base = np.zeros(values.shape, values.dtype)
            view = base[tuple(slice(None, None, -1) for _ in values.shape)]
        case "inner":
            base = np.zeros(tuple(d + 2 for d in values.shape), values.dtype)
            view = base[tuple(slice(1, -1) for _ in values.shape)]
    view[...] = values
    return view


def copy_with_layout(array: Array) -> Array:
    """A copy with the same strides, within a copy of the whole buffer that the array views."""
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    if base is array or not (base.flags.c_contiguous or base.flags.f_contiguous):
        return array.copy(order="K")
    buffer = base.copy(order="K")
    offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    flat = buffer.reshape(-1, order="A").view(np.uint8)  # some element types have no buffers
    return np.ndarray(array.shape, array.dtype, flat.data, offset if array.size else 0, array.strides)
