"""The tensors and sizes of a growing random program, and what is known of the values in them."""

from __future__ import annotations

import math
from dataclasses import field, replace

import numpy as np

from polyml.dtypes import DTYPES, DType, boolean, f32, f64, i32
from polyml.einsum_frontend.interpreter.types import Type
from polyml.records import dataclass
from polyml.testing.cases import LAYOUTS, Argument, Chooser, lay_out, sample

__all__ = ["Tensor", "Tensors", "Value", "settle"]

_INTEGERS = tuple(d for d in DTYPES.values() if d.is_integer)
_SIZE_NAMES = ("N", "M", "K", "L")
_FEW = (3, 2, 1, 4, 5)
_SMALL_SIZES = ((*_FEW, 7, 8, 9, 13, 16, 17, 0), _FEW, _FEW)
_LARGE_SIZES = ((33, 48, 64, 65), (17, 16, 24), _FEW)


@dataclass(frozen=True)
class Tensor:
    """dims: texts of sizes. bound: no element is larger in magnitude. grain: elements are multiples of 2**-grain, or None when rounded.
    rough: some f32 was rounded on the way to it. weak: a 0-d one of nothing but numbers, which takes the type of what it meets."""

    name: str
    dtype: DType
    dims: tuple[str, ...]
    bound: float
    grain: int | None
    parameter: bool = False
    rough: bool = False
    weak: bool = False


@dataclass(frozen=True)
class Value:
    """An expression's text and what is known of it. plain: the indices that it uses as plain subscripts, outside any condition.
    rough: some f32 was rounded in a part of it."""

    text: str
    type: Type
    bound: float
    grain: int | None
    plain: frozenset[str] = frozenset()
    rough: bool = False

    @property
    def coarse(self) -> bool:
        """Whether some f32 was rounded, so that even an f64 has the digits of an f32."""
        return self.rough or (self.type.dtype == f32 and not self.exact)

    @property
    def exact(self) -> bool:
        """Whether it is computed without rounding, in any order."""
        digits = 22 if self.type.dtype == f32 else 50
        return self.grain is not None and self.grain + math.log2(self.bound + 1) <= digits


def settle(value: Value) -> Value:
    """The value, scaled down where it has grown too large to compare or to use."""
    dtype = value.type.dtype
    if dtype.is_float:
        if value.exact or value.bound <= 64:
            return value if value.exact else replace(value, grain=None)
        shift = math.ceil(math.log2(value.bound / 64))
        return replace(value, text=f"({value.text}) * {2.0**-shift!r}", bound=value.bound * 2.0**-shift, grain=None)
    if dtype.is_integer:
        if dtype.bits < 32:
            return replace(value, bound=min(value.bound, 2.0**dtype.bits))
        if value.bound > 2**24:
            return replace(value, text=f"({value.text}) % 97", bound=96)
    return value


@dataclass
class Tensors:
    """What a growing program has: sizes, parameters, tensors, and the arguments that it will be called with."""

    chooser: Chooser
    large: bool = False
    sizes: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    arguments: dict[str, Argument] = field(default_factory=dict)
    loops: dict[str, str] = field(default_factory=dict)
    rounding: int = 1
    _count: int = 0

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def extent(self, size: str) -> int:
        return int(size) if size.isdigit() else self.sizes[size]

    def size(self) -> str:
        """A symbolic size, new or old. At most the first (`large`: the first two) is large, so that programs stay quick to check."""
        ch = self.chooser
        if self.sizes and (len(self.sizes) == len(_SIZE_NAMES) or not ch.flag(50)):
            return ch.pick(list(self.sizes))
        position = len(self.sizes)
        name = _SIZE_NAMES[position]
        self.sizes[name] = ch.pick((_LARGE_SIZES if self.large else _SMALL_SIZES)[min(position, 2)])
        return name

    def parameter(self, dims: tuple[str, ...], dtype: DType | None = None, high: int | None = None) -> Tensor:
        """A new tensor parameter; `high`: integers in 0 .. high - 1 (an index tensor)."""
        ch = self.chooser
        if dtype is None:
            dtype = ch.pick((f32, f32, f64, ch.pick(_INTEGERS), boolean)) if ch.flag(40) else f32
        name = self.fresh("x")
        shape = tuple(map(self.extent, dims))
        seed = ch.integer(0, 255)
        values = sample(dtype, shape, seed) if high is None else _indices(dtype, shape, seed, high)
        self.arguments[name] = lay_out(values, ch.pick(LAYOUTS) if ch.flag(40) else "contiguous")
        bound, grain = {"f": (2.0, 1), "i": (3.0, 0), "u": (4.0, 0), "b": (1.0, 0)}[dtype.kind]
        return self.add(Tensor(name, dtype, dims, bound if high is None else high, grain, parameter=True))

    def scalar(self) -> Tensor:
        dtype = self.chooser.pick((f32, f64, i32))
        name = self.fresh("a")
        self.arguments[name] = dtype.numpy.type(self.chooser.pick((2, 1, 3))).item()
        return self.add(Tensor(name, dtype, (), 3.0, 0, parameter=True))

    def integer(self, low: int, high: int) -> str:
        """A new `int` parameter with a value in low .. high."""
        name = self.fresh("c")
        self.arguments[name] = self.chooser.integer(low, high)
        self.order.append(name)
        return name

    def add(self, tensor: Tensor) -> Tensor:
        self.tensors[tensor.name] = tensor
        if tensor.parameter and tensor.name not in self.order:
            self.order.append(tensor.name)
        return tensor

    def read(self, tensor: Tensor, subscripts: str, plain: frozenset[str] = frozenset()) -> Value:
        text = f"{tensor.name}[{subscripts}]" if tensor.dims else tensor.name
        return Value(text, Type(tensor.dtype, tensor.weak), tensor.bound, tensor.grain, plain, tensor.rough)


def _indices(
    dtype: DType, shape: tuple[int, ...], seed: int, high: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    return np.random.default_rng(seed).integers(0, high, size=shape).astype(dtype.numpy)
