"""Index grids: expressions and accesses evaluated at all points of a box at once, for the NumPy reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt

from polyml.dtypes import DType
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript
from polyml.ops import OPS
from polyml.sets.affine import Affine, Extremum, FloorDiv
from polyml.sets.from_isl import Constraint

__all__ = ["Array", "Box", "Grid", "numpy_dtype"]

Array = npt.NDArray[Any]
Box = tuple[tuple[int, int], ...]
"""Per index: its first value, and the one behind its last."""


def numpy_dtype(dtype: DType, wide: bool) -> np.dtype[Any]:
    """The NumPy dtype to compute in; `wide`: every float is f64, every complex number c128."""
    if wide and (dtype.is_float or dtype.is_complex):
        return np.dtype(np.complex128 if dtype.is_complex else np.float64)
    return dtype.numpy


class Grid:
    """The points of a box as open index grids: index number d varies along axis d, and values broadcast over the other axes."""

    def __init__(
        self, indices: Sequence[str], box: Box, values: Mapping[str, Array], numbers: Mapping[str, int], wide: bool
    ) -> None:
        self.values, self.wide, self.sizes, self.box = values, wide, numbers, box
        self.shape = tuple(stop - start for start, stop in box)
        self.indices = tuple(indices)
        rank = len(box)
        self.numbers: dict[str, Array | int] = dict(numbers)
        for axis, (name, (start, stop)) in enumerate(zip(indices, box, strict=True)):
            self.numbers[name] = np.arange(start, stop).reshape([-1 if d == axis else 1 for d in range(rank)])

    def value(self, expr: Expr, active: Array | None) -> Array:
        """The expression over the grid (broadcastable to its shape); reads only have to be in bounds where `active` (None: everywhere)."""
        dtype = numpy_dtype(expr.dtype, self.wide)
        match expr:
            case Const():
                return np.asarray(expr.value, dtype)
            case IndexValue():
                return np.asarray(_affine(expr.affine, self.numbers)).astype(dtype)
            case Read():
                return self._read(expr, active)
            case Apply(op="select"):
                condition = self.value(expr.args[0], active).astype(bool)
                yes = self.value(expr.args[1], condition if active is None else active & condition)
                no = self.value(expr.args[2], ~condition if active is None else active & ~condition)
                return np.where(condition, yes, no)
            case Apply():
                args = [self.value(arg, active) for arg in expr.args]
                if OPS[expr.op].rule in ("float", "true_divide"):
                    args = [arg.astype(dtype, copy=False) for arg in args]
                return np.asarray(OPS[expr.op].meaning(*args)).astype(dtype, copy=False)
            case _:
                assert_never(expr)

    def _read(self, read: Read, active: Array | None) -> Array:
        array = self.values[read.tensor]
        view = self.view(array, read.subscripts)
        if view is not None:
            return view
        if not array.size:  # no instance reads it
            return np.zeros((), array.dtype)
        return np.asarray(array[tuple(self.positions(read.subscripts, active, array.shape))])

    def positions(self, subscripts: Sequence[Subscript], active: Array | None, shape: tuple[int, ...]) -> list[Array]:
        """The subscripts as index arrays, clamped into `shape`; clamping an active point is a broken invariant."""
        found = []
        for subscript, extent in zip(subscripts, shape, strict=True):
            if isinstance(subscript, Affine):
                position = np.asarray(_affine(subscript, self.numbers))
            else:
                position = self.value(subscript, active).astype(np.int64)
            outside = (position < 0) | (position >= extent)
            if outside.any():
                live = outside if active is None else outside & active
                assert not live.any(), f"internal: subscript {subscript} leaves its dimension of {extent}"
                position = np.clip(position, 0, extent - 1)
            found.append(position)
        return found

    def view(self, array: Array, subscripts: Sequence[Subscript]) -> Array | None:
        """The accessed elements as a view with one axis per index (of length 1 where the access does not move), or None when the
        access is not a linear one that stays in the array over the whole box."""
        corner, strides = list[slice](), [0] * len(self.indices)
        for subscript, extent, stride in zip(subscripts, array.shape, array.strides, strict=True):
            if not isinstance(subscript, Affine) or not all(isinstance(atom, str) for atom, _ in subscript.terms):
                return None
            factors = [subscript.stride(name) or 0 for name in self.indices]
            ends = [(f * start, f * (stop - 1)) for f, (start, stop) in zip(factors, self.box, strict=True)]
            rest = subscript.evaluate({**self.sizes, **dict.fromkeys(self.indices, 0)})
            if rest + sum(map(min, ends)) < 0 or rest + sum(map(max, ends)) >= extent:
                return None
            corner.append(slice(rest + sum(first for first, _ in ends), None))
            strides = [total + f * stride for total, f in zip(strides, factors, strict=True)]
        shape = [n if step else 1 for n, step in zip(self.shape, strides, strict=True)]
        first: tuple[slice | EllipsisType, ...] = (*corner, ...)
        return np.lib.stride_tricks.as_strided(array[first], shape, strides)

    def mask(self, pieces: Sequence[Sequence[Constraint]]) -> Array | None:
        """Which points lie in the union of the pieces (broadcastable to the grid); None when all do."""
        total: Array | None = None
        for piece in pieces:
            inside: Array | None = None
            for constraint in piece:
                value = np.asarray(_affine(constraint.value, self.numbers))
                holds = value == 0 if constraint.equality else value >= 0
                if not holds.all():
                    inside = holds if inside is None else inside & holds
            if inside is None:
                return None
            total = inside if total is None else total | inside
        assert total is not None, "internal: a domain without pieces"
        return total


def _affine(value: Affine, numbers: Mapping[str, Array | int]) -> Array | int:
    """The value of a quasi-affine expression over index grids."""
    total: Array | int = value.constant
    for atom, factor in value.terms:
        match atom:
            case str():
                part = numbers[atom]
            case FloorDiv():
                part = _affine(atom.numerator, numbers) // atom.denominator
            case Extremum():
                parts = [np.asarray(_affine(operand, numbers)) for operand in atom.operands]
                part = parts[0]
                for other in parts[1:]:
                    part = np.minimum(part, other) if atom.kind == "min" else np.maximum(part, other)
            case _:
                assert_never(atom)
        total = total + part * factor
    return total
