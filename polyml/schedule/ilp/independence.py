"""Linear independence of successive schedule rows, in exact integer arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

__all__ = ["RowSpace", "distinct_rows", "null_space", "rank"]

Vector = tuple[int, ...]
Integers = NDArray[np.int64]

PRIME = 2**31 - 1
"""Products of two residues fit into 64 bits."""


class RowSpace:
    """The rows' span modulo a prime: fast, exact but for a vanishing chance that the span looks smaller than it is."""

    def __init__(self, rows: Integers) -> None:
        work = rows[distinct_rows(rows)] % PRIME
        self.pivots: list[int] = []
        for column in range(rows.shape[1]):
            top = len(self.pivots)
            candidates = np.nonzero(work[top:, column])[0]
            if not len(candidates):
                continue
            work[[top, top + candidates[0]]] = work[[top + candidates[0], top]]
            work[top] = work[top] * pow(int(work[top, column]), -1, PRIME) % PRIME
            others = np.nonzero(work[:, column])[0]
            others = others[others != top]
            work[others] = (work[others] - work[others, column, None] * work[top]) % PRIME
            self.pivots.append(column)
            if len(self.pivots) == len(work):
                break
        self.rows = work[: len(self.pivots)]

    def holds(self, vector: Integers) -> bool:
        """Whether the vector is a combination of the rows."""
        factors = vector[self.pivots] % PRIME
        used = np.nonzero(factors)[0]
        # Rows are zero at each other's pivots.
        combined = (factors[used, None] * self.rows[used] % PRIME).sum(axis=0)
        return not ((vector - combined) % PRIME).any()


def distinct_rows(matrix: Integers) -> list[int]:
    """The numbers of the rows that no earlier row equals.

    By their bytes: np.unique compares column by column, which takes ten times as long, and imports numpy.ma (20 ms).
    """
    text, width = np.ascontiguousarray(matrix).tobytes(), matrix.shape[1] * matrix.itemsize
    numbers: dict[bytes, int] = {}
    for number in range(len(matrix)):
        numbers.setdefault(text[number * width : (number + 1) * width], number)
    return list(numbers.values())


def null_space(rows: Sequence[Sequence[int]], dimension: int) -> list[Vector]:
    """Integer vectors v with `row . v == 0` for all rows, one per dimension that the rows leave open.

    A further row T is independent of `rows` exactly when `T . v != 0` for one of them.
    """
    if all(sum(map(bool, row)) == 1 for row in rows):  # loops along indices: what is left is the other indices
        taken = {k for row in rows for k, x in enumerate(row) if x}
        return [tuple(int(k == free) for k in range(dimension)) for free in range(dimension) if free not in taken]
    reduced, pivots = _echelon(rows, dimension)
    found: list[Vector] = []
    for free in range(dimension):
        if free in pivots:
            continue
        vector = [Fraction(0)] * dimension
        vector[free] = Fraction(1)
        for row, pivot in zip(reduced, pivots, strict=True):
            vector[pivot] = -row[free]
        scale = lcm(*(x.denominator for x in vector))
        found.append(tuple(int(x * scale) for x in vector))
    return found


def rank(rows: Sequence[Sequence[int]], dimension: int) -> int:
    """How many of the rows are linearly independent."""
    if all(sum(map(bool, row)) == 1 for row in rows):
        return len({k for row in rows for k, x in enumerate(row) if x})
    return len(_echelon(rows, dimension)[1])


def _echelon(rows: Sequence[Sequence[int]], dimension: int) -> tuple[list[list[Fraction]], list[int]]:
    """Reduced row echelon form without zero rows, and its pivot columns."""
    work = [[Fraction(x) for x in row] for row in rows]
    pivots: list[int] = []
    for column in range(dimension):
        top = len(pivots)
        pivot = next((k for k in range(top, len(work)) if work[k][column] != 0), None)
        if pivot is None:
            continue
        work[top], work[pivot] = work[pivot], work[top]
        head = work[top][column]
        work[top] = [x / head for x in work[top]]
        for k in range(len(work)):
            if k != top and (factor := work[k][column]) != 0:
                work[k] = [a - factor * b for a, b in zip(work[k], work[top], strict=True)]
        pivots.append(column)
    return work[: len(pivots)], pivots
