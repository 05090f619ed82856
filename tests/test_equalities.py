"""Equations solved for variables: those that are equal in all solutions have equal values, and no others."""

from __future__ import annotations

import itertools

import islpy as isl
import pytest

from polyml.sets.equalities import solved_for
from polyml.sets.tables import table_of

RELATIONS = [
    "{ S[i, j] -> T[a, b] : a = i and b = j + 1 and 0 <= i, j < 9 }",
    "{ S[i, j] -> T[a, b] : 2a = i + j and 2b = 3i - j }",
    "{ S[i, j] -> T[a, b] : a = i + j and b = i and j = 0 }",
    "{ S[i, j, k] -> T[a, b, c] : i + a = 7 and j = 7 - a and b = 4 and k = 4 and c = 2k - 5 }",
    "[N] -> { S[i, j] -> T[a, b] : a = N - i and j = N - i and b = N }",
    "{ S[i] -> T[a] : (i + a) mod 2 = 0 and 3a = 2i }",
    "{ S[i, j] -> T[a, b] }",
]


@pytest.mark.parametrize("text", RELATIONS)
def test_equal_variables(text: str) -> None:
    hull = isl.Map(text).affine_hull()
    sources, sinks = hull.dim(isl.dim_type.in_), hull.dim(isl.dim_type.out)
    solved = solved_for(table_of(hull.wrap().flatten()).tolist(), sources + sinks)
    universe = isl.Map.universe(hull.get_space())
    for a, b in itertools.product(range(sources), range(sinks)):
        equal = hull.to_map().is_subset(universe.equate(isl.dim_type.in_, a, isl.dim_type.out, b))
        assert (solved[a] == solved[sources + b]) == equal


def test_values() -> None:
    """2 x + 4 y - 6 = 0 and z = 5."""
    found = solved_for([[0, 2, 4, 0, -6], [0, 0, 0, 1, -5], [1, 1, 0, 0, 0]], 3)
    assert found == [(2, (0, -4, 0, 6)), (1, (0, 1, 0, 0)), (1, (0, 0, 0, 5))]
