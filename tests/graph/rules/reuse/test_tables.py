"""Functions of index values that become tables: when they do, and that results are the same."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.expressions import Const
from polyml.graph.ir import Equation
from polyml.graph.traverse import read_names

FOURIER = """
def fourier(x: f64["B N"]):
    y: c128["B N"]
    y[b, f] = sum[n](x[b, n] * exp(-2j * pi * f * n / N))
    return y
"""
COSINE = """
def cosine(x: f32["B N"]):
    y: f32["B N"]
    y[b, f] = sum[n, 0 <= n < N](x[b, n] * cos(pi * (n + 0.5) * f / N))
    return y
"""
SHIFTED = """
def shifted(x: f32["B N"]):
    y: f32["B N"] = 0
    if 3 <= f < N - 2:
        y[b, f] = exp(f * -0.1) * x[b, f - 3] + log(f32(f))
    return y
"""
DIVIDED = """
def divided(x: f32["B N"]):
    y[b, n] = where(n > 0, sqrt(f32(100 // max(n, 1))), 2.0) * x[b, n]
    return y
"""
POSITIONS = """
def positions(x: f32["B S D"]):
    y[b, s, d] = x[b, s, d] + sin(0.01 * s * d)
    return y
"""


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def tables(source: str, *args: np.ndarray) -> list[tuple[int, ...]]:
    """The extents of tensors that are made of nothing but their indices."""
    ops = (op for op in polyml.einsum(source).trace(*args).ops if isinstance(op, Equation))
    made = [op.result.shape for op in ops if not read_names(op) and not isinstance(op.body, Const)]
    return sorted(tuple(extent.constant for extent in shape) for shape in made)


def test_a_transform_of_a_batch_is_a_product() -> None:
    assert tables(FOURIER, numbers(20, 30)) == [(30, 30)] * 2
    assert tables(COSINE, numbers(20, 30).astype("f4")) == [(30, 30)]


def test_what_is_used_a_few_times_stays() -> None:
    assert tables(FOURIER, numbers(15, 30)) == []
    assert tables(POSITIONS, numbers(3, 20, 8).astype("f4")) == []
    assert tables(POSITIONS, numbers(16, 20, 8).astype("f4")) == [(20, 8)]


def test_integer_divisions_stay_where_they_are() -> None:
    assert tables(DIVIDED, numbers(40, 9).astype("f4")) == []


@pytest.mark.parametrize("n", [1, 2, 16, 37])
@pytest.mark.parametrize("precise", [False, True])
def test_fourier(n: int, precise: bool) -> None:
    x = numbers(20, n)
    np.testing.assert_allclose(polyml.einsum(FOURIER, precise=precise)(x), np.fft.fft(x), atol=1e-11)


@pytest.mark.parametrize("n", [1, 17, 40])
def test_cosine(n: int) -> None:
    x, k = numbers(33, n), np.arange(n)
    whole = x @ np.cos(np.pi * np.outer(k + 0.5, k) / n)
    np.testing.assert_allclose(polyml.einsum(COSINE, verify=True)(x.astype("f4")), whole, atol=1e-4)


def test_a_table_of_indices_that_do_not_begin_at_zero() -> None:
    x = numbers(40, 12).astype("f4")
    made = polyml.einsum(SHIFTED, verify=True)
    f = np.arange(3, 10)
    whole = np.zeros((40, 12))
    whole[:, 3:10] = np.exp(-0.1 * f) * x[:, :7] + np.log(f)
    np.testing.assert_allclose(made(x), whole, rtol=1e-5, atol=1e-6)
    assert (7,) in tables(SHIFTED, x)


def test_positions() -> None:
    x = numbers(18, 21, 8).astype("f4")
    angle = 0.01 * np.outer(np.arange(21), np.arange(8))
    np.testing.assert_allclose(polyml.einsum(POSITIONS, verify=True)(x), x + np.sin(angle), atol=1e-5)


def test_symbolic_sizes_have_no_tables() -> None:
    made = polyml.einsum(COSINE, dynamic=True)
    for n in (3, 20):
        x, k = numbers(33, n), np.arange(n)
        np.testing.assert_allclose(made(x.astype("f4")), x @ np.cos(np.pi * np.outer(k + 0.5, k) / n), atol=1e-4)
