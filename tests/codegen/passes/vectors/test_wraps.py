"""Rows that go round (`x[i, (j - 1) % n]`): whole vectors in the middle, quotients at the edges alone."""

from __future__ import annotations

import numpy as np
import pytest

import polyml

RING = """
def ring(x: T["H W"], steps: int):
    for t in range(steps):
        x[i, j] = x[i, (j + 1) % W] - 2 * x[i, (j - B) % W] + x[(i - 1) % H, j] + x[i, (C - 2 * j) % W] * 0.25
    return x
"""


def _reference(x: np.ndarray, steps: int, back: int, start: int) -> np.ndarray:
    turned = (start - 2 * np.arange(x.shape[1])) % x.shape[1]
    for _ in range(steps):
        x = np.roll(x, -1, 1) - 2 * np.roll(x, back, 1) + np.roll(x, 1, 0) + x[:, turned] * x.dtype.type(0.25)
    return x


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("back", [1, 3, 9])
@pytest.mark.few(1)
def test_values(dtype: str, back: int) -> None:
    text = RING.replace("T", dtype).replace("B", str(back)).replace("C", "5")
    program = polyml.einsum(text, threads=1, dynamic=False)
    for width in (1, 7, 33, 104) if dtype == "f32" else (2, 16, 50, 131):
        x = np.random.default_rng(width).random((3, width)).astype({"f32": np.float32, "f64": np.float64}[dtype])
        want = _reference(x.astype(np.float64), 2, back, 5)
        np.testing.assert_allclose(program(x, 2), want, rtol=1e-4 if dtype == "f32" else 1e-12, atol=1e-5)


def test_the_middle_has_no_quotients() -> None:
    """A loop over all of the row has a quotient in each vector, whose lanes may lie in two places."""
    text = """
def ring(x: f64["H W"], steps: int):
    for t in range(steps):
        if 0 < i < H - 1:
            x[i, j] = x[i, (j + 1) % W] + x[i, (j - 1) % W] + x[i + 1, j] + x[i - 1, j]
    return x
"""
    loops = polyml.einsum(text, threads=1).lower(np.ones((50, 104)), 3).text("loops").splitlines()
    sums = [line for line in loops if line.count("+") > 4 and " = " in line and "for" not in line]
    middle = [line for line in sums if "//" not in line]
    assert middle
    assert len(sums) - len(middle) == 2  # a vector at each edge
