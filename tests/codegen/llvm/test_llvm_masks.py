"""Lanes that act because of where they are: compared in numbers of 32 bits, where places of 64 bits may take several registers."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target

CONDITIONS = {
    "j <= i": lambda i, j, n: j <= i,
    "j > i + 2": lambda i, j, n: j > i + 2,
    "2*j + 3 < n": lambda i, j, n: 2 * j + 3 < n,
    "i + 9 >= 3*j": lambda i, j, n: i + 9 >= 3 * j,
    "n - 2 <= i + j": lambda i, j, n: n - 2 <= i + j,
}


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i8"])
@pytest.mark.few(5)
def test_places_compared_in_lanes(condition: str, dtype: str) -> None:
    text = f'def f(x: {dtype}["M N"], n: int):\n    y[i, j] = where({condition}, x[i, j], -1)\n    return y\n'
    f = polyml.einsum(text, dynamic=True, threads=1)
    for rows, columns, n in ((5, 40, 33), (1, 1, 1), (0, 3, 5), (70, 67, 100), (9, 16, -7), (3, 131, 500)):
        x = np.random.default_rng(0).integers(-9, 9, (rows, columns)).astype(getattr(polyml.dtypes, dtype).numpy)
        i, j = np.indices(x.shape)
        np.testing.assert_array_equal(f(x, n), np.where(CONDITIONS[condition](i, j, n), x, -1).astype(x.dtype))


def test_no_places_of_64_bits_in_eight_lanes() -> None:
    text = 'def f(x: f32["M N"]):\n    y[i, j] = where(j <= i, x[i, j], 0)\n    return y\n'
    f = polyml.einsum(text, dynamic=True, threads=1, target=Target("x86-64-v3"))
    assert "<8 x i64>" not in f.lower(np.ones((40, 50), np.float32)).text("llvm")
