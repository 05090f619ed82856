"""Elements that nobody reads: exponentials and sums of half a square are made for that half."""

from __future__ import annotations

import numpy as np
import pytest

import polyml

HALF = """
def f(q: f32["N D"], k: f32["N D"], v: f32["N C"]):
    m[i] = max[j, j <= i](sum[d](q[i, d] * k[j, d]))
    y[i, c] = sum[j, j <= i](exp(sum[d](q[i, d] * k[j, d]) - m[i]) * v[j, c])
    return y
"""
SCORES = """
def f(q: f32["N D"], k: f32["N D"]):
    s[i, j] = q[i, d] * k[j, d]
    y[i] = sum[j, {part}](s[i, j]){more}
    return y
"""


def operands(n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    return [rng.standard_normal((n, width), dtype=np.float32) for width in (8, 8, 40)]


def test_exponentials_ahead_of_a_product_are_of_the_half() -> None:
    text = str(polyml.einsum(HALF).trace(*operands(50)))
    (line,) = (line for line in text.splitlines() if "= exp(" in line)
    assert "i1 <= i0" in line


@pytest.mark.parametrize(("part", "half"), [("j <= i", True), ("j < 7", False)])
def test_a_box_stays_whole(part: str, half: bool) -> None:
    more = " + max[j, j <= i](s[i, j])" if half else " + max[j, j < 7](s[i, j])"
    text = str(polyml.einsum(SCORES.format(part=part, more=more)).trace(*operands(50)[:2]))
    line = next(line for line in text.splitlines() if "sum_d" in line)
    assert ("j <= i" in line) == half


def test_an_element_that_is_read_elsewhere_is_made() -> None:
    text = str(polyml.einsum(SCORES.format(part="j <= i", more=" + s[0, i]")).trace(*operands(50)[:2]))
    line = next(line for line in text.splitlines() if "sum_d" in line)
    assert "j <= i" not in line


@pytest.mark.parametrize("n", [1, 16, 37, 64])
@pytest.mark.few(2)
def test_results(n: int) -> None:
    q, k, v = (x.astype(np.float64) for x in operands(n))
    scores = np.where(np.tri(n, dtype=bool), q @ k.T, -np.inf)
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    np.testing.assert_allclose(polyml.einsum(HALF, verify=True)(*operands(n)), e @ v, rtol=1e-4, atol=1e-5)
