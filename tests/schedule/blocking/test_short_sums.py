"""Few rows times a matrix that is contiguous along the sum: where the sum is short it is turned for them. Results are compared with NumPy's in float64 (small integers, so that they are exact)."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target

TEXT = 'def f(x: f32["B N K"], y: f32["B M K"]):\n    z[b, n, m] = x[b, n, k] * y[b, m, k]\n    return z\n'


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-9, 10, shape).astype(np.float32)


@pytest.mark.parametrize(("n", "m", "k"), [(8, 120, 25), (6, 97, 20), (9, 141, 64), (5, 60, 30), (12, 33, 65)])
@pytest.mark.few(3)
def test_results(n: int, m: int, k: int) -> None:
    x, y = integers(7, n, k), integers(7, m, k)
    expected = x.astype(float) @ y.astype(float).swapaxes(1, 2)
    np.testing.assert_array_equal(polyml.einsum(TEXT, verify=True)(x, y), expected)


@pytest.mark.parametrize(("n", "k", "copied"), [(8, 25, True), (8, 200, False), (3, 25, False)])
def test_turned_where_the_end_of_a_sum_is_most_of_it(n: int, k: int, copied: bool) -> None:
    target = Target("x86-64-v4")
    explained = str(polyml.einsum(TEXT, target=target, threads=1).explain(integers(7, n, k), integers(7, 120, k)))
    assert ("lanes of S_z along m" in explained or "vectors of m" in explained) == copied
