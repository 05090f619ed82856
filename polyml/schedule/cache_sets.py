"""How many lines of an operand meet in one set of a cache, which has room for a few: rows at multiples of powers of two fall into few sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from polyml.schedule.cost import AccessModel

__all__ = ["L2_WAYS", "lines_in_set", "places_of"]

L2_WAYS = 8
"""Of L2, at least. What counts is how many lines its bytes hold of those that meet: twice as many ways of half as many sets hold as many of rows at powers of two."""


def places_of(access: AccessModel, extents: Mapping[str, int], size: int) -> NDArray[np.int64]:
    """Where elements of `size` bytes lie along indices of these extents, in bytes behind the first one."""
    at = np.zeros(1, np.int64)
    for index, extent in extents.items():
        at = np.add.outer(at, (access.stride(index) or 0) * size * np.arange(extent)).ravel()
    return at


def lines_in_set(places: Sequence[int] | NDArray[np.int64], length: int, way: int, line: int) -> int:
    """Lines that meet in one set, at most, of pieces of `length` bytes at these places. way: bytes that one line of each set makes; line: bytes of one."""
    starts = np.asarray(places, np.int64) // line
    lines = np.add.outer(starts, np.arange(ceil(length / line)))
    return int(np.bincount(lines.ravel() % (way // line), minlength=1).max())
