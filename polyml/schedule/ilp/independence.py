"""Linear independence of successive schedule rows, in exact integer arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

__all__ = ["null_space", "rank"]

Vector = tuple[int, ...]


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
