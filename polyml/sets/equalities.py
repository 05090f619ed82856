"""Equations solved for variables."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

__all__ = ["solved_for"]

Row = tuple[int, ...]


def solved_for(table: Sequence[Sequence[int]], count: int) -> list[tuple[int, Row]]:
    """Each of the first `count` variables as a factor and what it times the variable is, as factors of variables that are free: equal for variables that are equal in all solutions.

    Args:
        table: consistent equations, a row for each: 0, the variables' factors, the constant, which add up to 0 (`tables.py`). Rows that begin with something else are no equations.
    """
    pivots: dict[int, list[int]] = {}
    for kind, *row in table:
        if kind:
            continue
        for column, pivot in pivots.items():
            if row[column]:
                row = _without(row, pivot, column)
        used = [k for k, factor in enumerate(row[:-1]) if factor]
        if not used:
            continue
        first = used[0]
        pivots = {k: _without(other, row, first) if other[first] else other for k, other in pivots.items()}
        pivots[first] = row
    found: list[tuple[int, Row]] = []
    for variable in range(count):
        if variable in pivots:
            row = pivots[variable]
            sign = 1 if row[variable] > 0 else -1
            value = tuple(0 if k == variable else -sign * factor for k, factor in enumerate(row))
            found.append((sign * row[variable], value))
        else:
            width = len(table[0]) - 1 if table else count
            found.append((1, tuple(int(k == variable) for k in range(width))))
    return found


def _without(row: list[int], pivot: list[int], column: int) -> list[int]:
    """The row minus as much of another one as takes its variable out, without a common divisor."""
    made = [factor * pivot[column] - other * row[column] for factor, other in zip(row, pivot, strict=True)]
    common = gcd(*made)
    return [factor // common for factor in made] if common > 1 else made
