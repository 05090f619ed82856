"""What NumPy decides about a call before it computes: the element type, the sizes, whether casts are allowed, and the memory order of the result.

numpy.einsum hands all of this to its iterator, so the same iterator is asked here, without a single element being read: `numpy.nditer` with the
flags that numpy/_core/src/multiarray/einsum.cpp uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from polyml.einsum_numpy.subscripts import Labels
from polyml.errors import ShapeError
from polyml.records import dataclass

__all__ = ["Array", "Decision", "Settings", "decide", "label_sizes"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Settings:
    """The keywords `dtype`, `order` and `casting` as they were given."""

    dtype: Any = None
    order: Any = "K"
    casting: Any = "safe"


@dataclass(frozen=True, slots=True)
class Decision:
    """dtype: of the computation, in native byte order. sizes: by label. strides: of the new result in bytes, or of `out`."""

    dtype: np.dtype[Any]
    sizes: Mapping[str, int]
    strides: tuple[int, ...]


def label_sizes(labels: Labels, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The extent of each label; 1 in one operand fits any in another, but not within one operand.

    Raises:
        ShapeError: they do not agree.
    """
    sizes: dict[str, int] = {}
    given_by: dict[str, int] = {}
    for position, (operand, shape) in enumerate(zip(labels.operands, shapes, strict=True)):
        own: dict[str, int] = {}
        for label, extent in zip(operand, shape, strict=True):
            if own.setdefault(label, extent) != extent:
                raise ShapeError(f"operand {position} has sizes {own[label]} and {extent} for its repeated {label!r}")
        for label, extent in own.items():
            known = sizes.get(label, 1)
            if extent != known and 1 not in (extent, known):
                where = f"operand {given_by[label]}, and {extent} in operand {position}"
                raise ShapeError(f"{label!r} has size {known} in {where}")
            if known == 1:
                sizes[label], given_by[label] = extent, position
    return sizes


def decide(labels: Labels, arrays: Sequence[Array], out: Array | None, settings: Settings) -> Decision:
    """What NumPy would do.

    Raises:
        ShapeError: sizes that do not agree. ValueError, TypeError: NumPy's own.
    """
    sizes = label_sizes(labels, [a.shape for a in arrays])
    order = [*labels.result, *sorted(label for label in sizes if label not in labels.result)]  # as NumPy numbers them
    views = [_diagonal(operand, array) for operand, array in zip(labels.operands, arrays, strict=True)]
    axes = [[_place(label, operand) for label in order] for operand in map(_distinct, labels.operands)]
    flags = ["external_loop", "buffered", "delay_bufalloc", "reduce_ok", "refs_ok", "zerosize_ok"]
    if settings.dtype is None:
        flags.append("common_dtype")
    count = len(views)
    if out is not None and out.ndim != len(labels.result):
        raise ShapeError(f"out= has {out.ndim} dimensions, and the result {len(labels.result)}")
    make: Any = np.nditer  # its stub knows neither lists of flags nor op_axes
    iterator = make(
        [*views, None if out is None else _stand_in(out)],
        flags=flags,
        op_flags=[["readonly", "nbo", "aligned"]] * count
        + [["readwrite", "nbo", "aligned", "allocate", "no_broadcast"]],
        op_dtypes=None if settings.dtype is None else [settings.dtype] * (count + 1),
        order=settings.order,
        casting=settings.casting,
        op_axes=[*axes, [k if k < len(labels.result) else -1 for k in range(len(order))]],
    )
    with iterator:
        made = iterator.operands[-1]
        return Decision(iterator.dtypes[-1], sizes, made.strides)


def _stand_in(out: Array) -> Array:
    """An array that looks like `out`, whose elements nobody touches; read-only where `out` is."""
    return as_strided(np.empty(1, out.dtype), out.shape, out.strides, writeable=out.flags.writeable)


def _distinct(operand: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(operand))


def _place(label: str, operand: tuple[str, ...]) -> int:
    return operand.index(label) if label in operand else -1


def _diagonal(operand: tuple[str, ...], array: Array) -> Array:
    """The view with each label once."""
    if len(set(operand)) == len(operand):
        return array
    shape = dict(zip(operand, array.shape, strict=True))
    strides = dict.fromkeys(operand, 0)
    for label, stride in zip(operand, array.strides, strict=True):
        strides[label] += stride
    return as_strided(array, tuple(shape.values()), tuple(strides.values()), writeable=False)
