"""Rows of linear programs in which most coefficients are zero: a row is as wide as its entries are many, not as the program.

A dependence has coefficients of its two statements alone. Of a hundred statements that depend on each other, rows of all columns would be zeros but for two or three in a hundred.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyml.records import dataclass

__all__ = ["Block", "Rows", "distinct_rows", "rows_of_blocks"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

Block = tuple[Integers, Integers]
"""Columns, ascending, and a matrix with a column for each of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The entries of each row: their columns, ascending, and their values; behind them zeros of column 0."""

    columns: Integers
    values: Integers

    def part(self, keep: NDArray[np.bool_] | Sequence[int]) -> Rows:
        """Some of the rows."""
        return Rows(self.columns[keep], self.values[keep])

    def times(self, point: Floats | Integers) -> Floats:
        """The rows' values at a point."""
        found: Floats = (self.values * point[self.columns]).sum(1)
        return found


def rows_of_blocks(blocks: Sequence[Block]) -> Rows:
    """The rows of all blocks: equal rows are equal here too, whatever blocks they come from."""
    height, width = sum(len(values) for _, values in blocks), max((len(columns) for columns, _ in blocks), default=0)
    places, entries = np.zeros((height, width), np.int64), np.zeros((height, width), np.int64)
    top = 0
    for columns, values in blocks:
        bottom, used = top + len(values), len(columns)
        places[top:bottom, :used] = columns
        entries[top:bottom, :used] = values
        top = bottom
    if not height or not width:
        return Rows(places, entries)
    most = int(np.count_nonzero(entries, axis=1).max())
    zeros_last = np.argsort(entries == 0, axis=1, kind="stable")[:, :most]
    places, entries = np.take_along_axis(places, zeros_last, 1), np.take_along_axis(entries, zeros_last, 1)
    places[entries == 0] = 0
    return Rows(places, entries)


def distinct_rows(matrix: Integers) -> list[int]:
    """The numbers of the rows that no earlier row equals.

    By their bytes: np.unique compares column by column, which takes ten times as long, and imports numpy.ma (20 ms).
    """
    text, width = np.ascontiguousarray(matrix).tobytes(), matrix.shape[1] * matrix.itemsize
    numbers: dict[bytes, int] = {}
    for number in range(len(matrix)):
        numbers.setdefault(text[number * width : (number + 1) * width], number)
    return list(numbers.values())
