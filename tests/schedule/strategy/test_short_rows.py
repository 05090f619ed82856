"""Short rows that are swept several times: some run side by side, for any number of rows; long ones, single sweeps and sums in order do not."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.target import Target
from tests.pairs import pairwise

Array = npt.NDArray[np.float64]

SOFTMAX = """
def f(x: f64["N M"]):
    m[n] = max[j](x[n, j])
    e[n, j] = exp(x[n, j] - m[n])
    y[n, j] = e[n, j] / sum[j](e[n, j])
    return y
"""
NORM = """
def f(x: f64["B N M"], g: f64["M"]):
    s[b, n] = sum[j](x[b, n, j]) / M
    v[b, n] = sum[j]((x[b, n, j] - s[b, n]) * (x[b, n, j] - s[b, n])) / M
    y[b, n, j] = (x[b, n, j] - s[b, n]) / sqrt(v[b, n] + 1e-5) * g[j]
    return y
"""
LARGEST = """
def f(x: f64["N M"]):
    m[n] = max[j](abs(x[n, j]))
    c[n] = sum[j](where(2 * abs(x[n, j]) > m[n], 1, 0))
    return c
"""
SUM = """
def f(x: f64["N M"]):
    y[n] = sum[j](x[n, j])
    return y
"""
SEARCH = """
def f(x: f64["N M"]):
    y[n] = argmax[j](x[n, j])
    return y
"""
BOTH = """
def f(x: f64["N M"]):
    m[n] = max[j](x[n, j])
    e[n, j] = exp(x[n, j] - m[n])
    p[n, j] = e[n, j] / sum[j](e[n, j])
    y[n] = argmin[j](p[n, j])
    return p, y
"""
V4 = Target("x86-64-v4")


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def norm(x: Array, g: Array) -> Array:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * g)


def side_by_side(source: str, *shapes: tuple[int, ...], **options: object) -> bool:
    lowered = polyml.einsum(source, target=V4, **options).lower(*(np.empty(shape) for shape in shapes))  # type: ignore[call-overload]
    return re.search(r"4 \w+ side by side", lowered.explain()) is not None


def test_where_rows_are_short() -> None:
    assert side_by_side(SOFTMAX, (100, 24))
    assert side_by_side(SOFTMAX, (100, 64))
    assert not side_by_side(SOFTMAX, (100, 65))
    assert not side_by_side(SOFTMAX, (7, 24))
    assert side_by_side(NORM, (2, 100, 24), (24,))
    assert side_by_side(LARGEST, (100, 24))


def test_any_number_of_short_rows() -> None:
    """The length of a row is a number, how many there are is none; where the call's results outgrow caches is asked of these."""
    assert side_by_side(SOFTMAX.replace("M", "24"), (100, 24), dynamic=("N",))
    assert side_by_side(SEARCH, (100, 24), dynamic=("N",))
    assert side_by_side(NORM, (2, 100, 24), (24,), dynamic=("B", "N"))
    assert not side_by_side(SOFTMAX, (10_000, 64), dynamic=("N",))
    assert not side_by_side(SOFTMAX, (100, 24), dynamic=("N", "M"))
    assert not side_by_side(SEARCH, (100, 24), dynamic=("M",))


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_one_kernel_for_any_number_of_rows(threads: int) -> None:
    f, g = (polyml.einsum(source, dynamic=("N",), threads=threads) for source in (SOFTMAX, SEARCH))
    for rows in (100, 1, 2, 3, 4, 5, 7, 1001, 0, 2048):
        x = np.random.default_rng(rows).standard_normal((rows, 11))
        if rows:
            np.testing.assert_allclose(f(x), softmax(x), rtol=1e-12)
        np.testing.assert_array_equal(g(x), x.argmax(-1))
    strided = np.random.default_rng(0).standard_normal((50, 22))[:, ::2]
    np.testing.assert_allclose(f(strided), softmax(strided), rtol=1e-12)


def test_results_that_no_cache_holds_are_written_in_order() -> None:
    assert not side_by_side(SOFTMAX, (10_000, 64))
    assert side_by_side(SOFTMAX, (10_000, 24))
    assert side_by_side(LARGEST, (10_000, 64))


def test_a_single_sweep_does_not_wait() -> None:
    assert not side_by_side(SUM, (100, 24))


def test_searches_take_longer_to_end() -> None:
    assert side_by_side(SEARCH, (100, 24))
    assert side_by_side(SEARCH, (1000, 512))
    assert not side_by_side(SEARCH, (1000, 513))
    assert not side_by_side(SEARCH, (7, 24))
    assert side_by_side(BOTH, (1000, 64))
    assert not side_by_side(BOTH, (10_000, 64))


@pairwise(("columns", [1, 8, 33, 200]), ("rows", [1, 9, 203]), ("threads", [1, 2]))
@pytest.mark.few(2)
def test_searches_of_any_number_of_rows(columns: int, rows: int, threads: int) -> None:
    x = np.random.default_rng(rows).integers(0, 20, (rows, columns)).astype(float)
    x[rows // 2, columns // 3 :] = np.nan
    np.testing.assert_array_equal(polyml.einsum(SEARCH, threads=threads)(x), x.argmax(-1))
    x[rows // 2] = 0.0
    p, where = polyml.einsum(BOTH, threads=threads)(x)
    np.testing.assert_array_equal(where, p.argmin(-1))


def test_sums_in_order_stay_in_order() -> None:
    assert not side_by_side(SOFTMAX, (100, 24), precise=True)


@pairwise(("rows", [1, 7, 8, 9, 10, 11, 12, 101]), ("columns", [1, 3, 8, 24, 33, 64]), ("source", [SOFTMAX, LARGEST]))
@pytest.mark.few(4)
def test_any_number_of_rows(rows: int, columns: int, source: str) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, columns))
    found = polyml.einsum(source)(x)
    if source == SOFTMAX:
        np.testing.assert_allclose(found, softmax(x), rtol=1e-12)
    else:
        np.testing.assert_array_equal(found, (2 * abs(x) > abs(x).max(-1, keepdims=True)).sum(-1))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", [(3, 1, 40), (1, 1000, 40), (5, 203, 17)])
@pytest.mark.few(2)
def test_batches_and_threads(threads: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(threads)
    x, g = rng.standard_normal(shape), rng.standard_normal(shape[-1])
    expected = norm(x, g)
    found = polyml.einsum(NORM, threads=threads)(x, g)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    strided = np.repeat(x, 2, axis=2)[:, :, ::2]
    np.testing.assert_allclose(polyml.einsum(NORM, threads=threads)(strided, g), expected, rtol=1e-10, atol=1e-12)


def test_numbers_that_are_none() -> None:
    x = np.random.default_rng(0).standard_normal((9, 24))
    x[3, 5], x[4, 6], x[5] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        expected = softmax(x)
    np.testing.assert_allclose(polyml.einsum(SOFTMAX)(x), expected, rtol=1e-12)
