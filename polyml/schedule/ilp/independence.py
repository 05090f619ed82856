"""Linear independence of successive schedule rows, in exact integer arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm

import numpy as np

from polyml.schedule.ilp.rows import Rows, distinct_rows

__all__ = ["RowSpace", "null_space", "rank"]

Vector = tuple[int, ...]
PRIME = 2**31 - 1


class RowSpace:
    """The rows' span modulo a prime: fast, exact but for a vanishing chance that the span looks smaller than it is.

    Distances are differences, so that most equations make two unknowns one: reduced rows stay short.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows: dict[int, dict[int, int]] = {}  # by their pivots, which no other row has, without those
        for number in distinct_rows(np.concatenate([rows.columns, rows.values], axis=1)):
            entries = zip(rows.columns[number].tolist(), rows.values[number].tolist(), strict=True)
            self._add(self._without({column: value for column, value in entries if value}))

    @property
    def rank(self) -> int:
        """How many rows are linearly independent."""
        return len(self._rows)

    def holds(self, vector: Mapping[int, int]) -> bool:
        """Whether the vector, by columns, is a combination of the rows."""
        return not self._without(vector)

    def _without(self, vector: Mapping[int, int]) -> dict[int, int]:
        """What the rows leave of a vector."""
        left: dict[int, int] = {}
        for column, value in vector.items():
            row = self._rows.get(column)
            if row is None:
                left[column] = left.get(column, 0) + value
            else:
                for other, factor in row.items():
                    left[other] = left.get(other, 0) - value * factor
        return {column: value % PRIME for column, value in left.items() if value % PRIME}

    def _add(self, row: dict[int, int]) -> None:
        if not row:
            return
        pivot, head = row.popitem()
        inverse = pow(head, -1, PRIME)
        row = {column: value * inverse % PRIME for column, value in row.items()}
        for other in self._rows.values():
            factor = other.pop(pivot, 0)
            if not factor:
                continue
            for column, value in row.items():
                other[column] = (other.get(column, 0) - factor * value) % PRIME
                if not other[column]:
                    del other[column]
        self._rows[pivot] = row


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
