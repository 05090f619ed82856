"""Sums of terms that an index says nothing of are products with the number of its values: where ends are affine and every element has a term."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import polyml as pm

Numbers = NDArray[np.float64]

WINDOW = "i - 2 <= r <= i + 2, 0 <= r < H, j - 1 <= t <= j + 3, 0 <= t < W"


def program(condition: str, term: str, indices: str = "r, t") -> str:
    return f"""
def f(x: f64["H W"]):
    y: f64["H W"]
    y[i, j] = sum[{indices}, {condition}]({term})
    return y
"""


def counted(x: Numbers, text: str, **options: bool) -> tuple[Numbers, bool]:
    """The result, and whether no sum is left."""
    made = pm.einsum(text, **options)
    return np.asarray(made(x)), "sum_" not in made.lower(x).text("graph")


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"precise": True}])
@pytest.mark.parametrize("shape", [(1, 1), (7, 9), (0, 3)])
def test_elements_of_a_window_within_the_image(shape: tuple[int, int], options: dict[str, bool]) -> None:
    height, width = (np.arange(n) for n in shape)
    rows = np.minimum(height + 3, shape[0]) - np.maximum(height - 2, 0)
    columns = np.minimum(width + 4, shape[1]) - np.maximum(width - 1, 0)
    found, without = counted(np.ones(shape), program(WINDOW, "2.5"), **options)
    assert np.array_equal(found, 2.5 * np.outer(rows, columns))
    assert without != options.get("precise", False) or found.size < 2


def test_terms_of_other_indices_are_summed_as_before() -> None:
    x = np.random.default_rng(0).random((6, 11))
    found, without = counted(x, program("r <= i, 0 <= r < H", "x[i, t]"))
    assert not without
    np.testing.assert_allclose(found, np.outer(np.arange(1, 7), np.ones(11)) * x.sum(1)[:, None])


@pytest.mark.parametrize("condition", ["r < i, 0 <= r < H", "2 * r <= i, 0 <= r < H", "r != i, 0 <= r < H"])
def test_elements_without_terms_and_other_ranges_stay(condition: str) -> None:
    """An infinite number times none would be NaN; ends with quotients, and two ranges, are no affine count; nor is there one where nothing has a term."""
    x = np.full((4, 3), np.inf)
    found, without = counted(x, program(condition, "x[i, j]", "r"))
    assert not without
    assert np.array_equal(np.isinf(found), [[n > 0] * 3 for n in (0, 1, 2, 3)] if "<" in condition[:3] else np.isinf(x))
    found, _ = counted(x, program("r > i + 3, 0 <= r < H", "x[i, j]", "r"))
    assert not found.any()


def test_an_index_that_another_ones_number_depends_on_stays() -> None:
    x = np.random.default_rng(0).random((5, 3))
    found, _ = counted(x, program("0 <= r < H, 0 <= t < H, r <= t", "x[i, j]"))
    np.testing.assert_allclose(found, 15 * x)
