"""Fewer parameters of tests: every two values still meet, and the rest is there for `-m slow`."""

from __future__ import annotations

from itertools import combinations, product
from math import prod

import pytest

from tests.pairs import cover, pairwise

SIZES = [(6, 3, 4, 2), (12, 5, 2, 2), (2, 2, 2, 2, 2, 2), (3, 3, 3), (5, 4), (7,), (1, 4, 1, 3)]


@pytest.mark.parametrize("sizes", SIZES)
def test_any_two_values_meet(sizes: tuple[int, ...]) -> None:
    chosen = cover(sizes)
    for a, b in combinations(range(len(sizes)), 2):
        assert {(point[a], point[b]) for point in chosen} == set(product(range(sizes[a]), range(sizes[b])))
    for axis, size in enumerate(sizes):
        assert {point[axis] for point in chosen} == set(range(size))
    most = sorted(sizes)[-2:]
    assert len(chosen) <= 1.5 * prod(most) + 1


def test_what_is_left_is_slow() -> None:
    mark = pairwise(("n", [1, 2, 3]), ("a, b", [(4, "x"), (5, "y")]), ("t", "uv")).mark
    names, cases = mark.args
    assert names == "n, a, b, t"
    assert [case.values for case in cases] == [
        (n, a, b, t) for n, (a, b), t in product([1, 2, 3], [(4, "x"), (5, "y")], "uv")
    ]
    quick = [case.values for case in cases if not case.marks]
    assert len(quick) == 6
    assert all([mark.name for mark in case.marks] == ["slow"] for case in cases if case.values not in quick)


def test_the_same_ones_in_every_process() -> None:
    """Workers must collect the same tests."""
    assert cover((3, 2, 2)) == cover((3, 2, 2)) == {(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0), (2, 0, 0), (2, 1, 1)}
