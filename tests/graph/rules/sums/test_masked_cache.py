"""One query over the first positions of a cache, of which an `int` says how many: what is behind them is not computed, for any number of them."""

from __future__ import annotations

import numpy as np
import pytest

import polyml

WHERE = """
def step(q: f32["H D"], k: f32["H S D"], v: f32["H S D"], n: int):
    s[h, j] = where({mask}, q[h, d] * k[h, j, d] / sqrt(D), -inf)
    m[h] = max[j](s[h, j])
    e[h, j] = exp(s[h, j] - m[h])
    z[h] = e[h, j]
    y[h, d] = sum[j](e[h, j] * v[h, j, d]) / z[h]
    return y
"""
PART = """
def step(q: f32["H D"], k: f32["H S D"], v: f32["H S D"], n: int):
    s[h, j] = q[h, d] * k[h, j, d] / sqrt(D)
    m[h] = max[j < n](s[h, j])
    e[h, j] = exp(s[h, j] - m[h])
    z[h] = sum[j < n](e[h, j])
    y[h, d] = sum[j < n](e[h, j] * v[h, j, d]) / z[h]
    return y
"""
KEPT = {
    "j < n": lambda j, n: j < n,
    "j <= n": lambda j, n: j <= n,
    "j <= n and j > n - 30": lambda j, n: (j <= n) & (j > n - 30),
    "not (j >= n)": lambda j, n: j < n,
    "j >= n": lambda j, n: j >= n,
}


def operands(heads: int = 3, positions: int = 100, depth: int = 16) -> list[np.ndarray]:
    rng = np.random.default_rng(positions)
    shapes = (heads, depth), (heads, positions, depth), (heads, positions, depth)
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """NaN where no position is kept."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    with np.errstate(invalid="ignore"):
        s = np.where(kept, np.einsum("hd,hjd->hj", q, k) / np.sqrt(q.shape[1]), -np.inf)
        e = np.exp(s - s.max(axis=1, keepdims=True))
        return np.einsum("hj,hjd->hd", e, v) / e.sum(axis=1)[:, None]


def graph(source: str, n: int) -> str:
    return str(polyml.einsum(source).trace(*operands(), n))


@pytest.mark.parametrize("mask", KEPT)
@pytest.mark.few(1)
def test_any_number_of_positions(mask: str) -> None:
    q, k, v = operands()
    step = polyml.einsum(WHERE.format(mask=mask), verify=True)
    for n in (37, 1, 64, 99, 100, 130, 0, -5):
        kept = KEPT[mask](np.arange(k.shape[1]), n)
        np.testing.assert_allclose(step(q, k, v, n), exact(q, k, v, kept), rtol=1e-4, atol=1e-5)
    assert len(step.kernels) <= 4


@pytest.mark.parametrize("mask", ["j < n", "j <= n", "not (j >= n)"])
def test_what_is_behind_is_left_out(mask: str) -> None:
    text = graph(WHERE.format(mask=mask), 37)
    assert "where" not in text
    lines = [line for line in text.splitlines() if "j" in line.partition("=")[2] and " for " in line]
    assert len(lines) == 5
    assert all("j < n" in line or "j <= n" in line for line in lines)
    # No row keeps a score, and all of it is NaN.
    assert "where" in graph(WHERE.format(mask=mask), -1)


def test_heads_that_share_keys() -> None:
    q, k, v = operands(heads=8)
    source = WHERE.format(mask="j <= n").replace('k: f32["H', 'k: f32["G').replace('v: f32["H', 'v: f32["G')
    step = polyml.einsum(source.replace("k[h,", "k[h // 4,").replace("v[h,", "v[h // 4,"), verify=True)
    assert "where" not in step.lower(q, k[:2], v[:2], 37).text("graph")
    for n in (37, 0, 99, 120):
        shared = (np.repeat(x[:2], 4, axis=0) for x in (k, v))
        np.testing.assert_allclose(
            step(q, k[:2], v[:2], n), exact(q, *shared, np.arange(100) <= n), rtol=1e-4, atol=1e-5
        )


def test_one_kernel_has_the_numbers_for_which_rows_keep_a_score() -> None:
    q, k, v = operands()
    step = polyml.einsum(WHERE.format(mask="j < n"))
    for n in (5, 1, 40, 100, 200):
        step(q, k, v, n)
    assert len(step.kernels) == 1
    assert "where n >= 1" in str(step.explain(q, k, v, 5))


def test_what_only_a_part_is_read_of_is_made_in_part() -> None:
    q, k, v = operands()
    step = polyml.einsum(PART, verify=True)
    text = step.lower(q, k, v, 37).text("graph")
    lines = [line for line in text.splitlines() if line.strip().startswith(("s[", "s_sum[", "e["))]
    assert lines
    assert all("j < n" in line for line in lines)
    for n in (37, 1, 64, 100):
        np.testing.assert_allclose(step(q, k, v, n), exact(q, k, v, np.arange(100) < n), rtol=1e-4, atol=1e-5)


def test_of_a_tensor_of_symbolic_size_a_box_stays_whole() -> None:
    text = """
def f(x: f32["N"], w: f32["N"]):
    s[i] = x[i] * w[i]
    y = sum[i, i < N - 1](s[i]) * max[i, i < N - 1](s[i])
    return y
"""
    x = np.arange(9, dtype=np.float32)
    function = polyml.einsum(text, dynamic=True)
    assert "0 <= i < N - 1" not in next(
        line for line in function.lower(x, x).text("graph").splitlines() if " s[" in line
    )
    np.testing.assert_allclose(function(x, x), np.sum((x * x)[:-1]) * 49)
