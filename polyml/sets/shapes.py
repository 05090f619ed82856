"""Shapes of arrays, whose extents are numbers or symbolic: how many elements they have, and how far neighbours are apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from polyml.sets.affine import Affine

__all__ = ["element_count", "is_known", "row_major_strides"]


def is_known(shape: Iterable[Affine]) -> bool:
    """Whether all extents are numbers."""
    return all(extent.is_constant for extent in shape)


def element_count(shape: Iterable[Affine], unknown: int | None = None) -> int:
    """How many elements there are. unknown: what a symbolic extent counts as; without it extents are numbers."""
    return prod(unknown if unknown is not None and not e.is_constant else e.constant for e in shape)


def row_major_strides(shape: Sequence[Affine]) -> tuple[int | None, ...]:
    """Elements between neighbours per dimension, of an array without gaps; None where that depends on sizes."""
    strides: list[int | None] = []
    step: int | None = 1
    for extent in reversed(shape):
        strides.append(step)
        step = step * extent.constant if step is not None and extent.is_constant else None
    return tuple(reversed(strides))
