"""Register tiles whose lanes run across the rows of the result: blocks are transposed in registers before they are stored. Results are compared with NumPy's in float64 (small integers, so that they are exact)."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.pairs import pairwise

TEXT = """
def f(x: {t}["{x}"], y: {t}["{y}"]):
    z[n, m] = x[{i}] * y[{j}]
    return z
"""
LAYOUTS = {"tn": ("K N", "K M", "k, n", "k, m"), "tt": ("K N", "M K", "k, n", "m, k")}
TYPES = {"f32": np.float32, "f64": np.float64}
WIDE = Target("x86-64-v4")


def source(layout: str, dtype: str) -> str:
    x, y, i, j = LAYOUTS[layout]
    return TEXT.format(t=dtype, x=x, y=y, i=i, j=j)


def operands(layout: str, dtype: str, n: int, m: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-9, 10, shape).astype(TYPES[dtype]) for shape in ((k, n), (k, m)))
    expected = x.T.astype(float) @ y.astype(float)
    return x, y if layout == "tn" else np.ascontiguousarray(y.T), expected


@pairwise(
    ("m", [1, 2, 3, 4, 5, 7, 9, 13, 18, 19, 27, 50]),
    ("n", [16, 32, 47, 64, 112]),
    ("layout", LAYOUTS),
    ("dtype", TYPES),
)
@pytest.mark.few(5)
def test_blocks_of_columns(m: int, n: int, layout: str, dtype: str) -> None:
    """Columns in powers of two, in blocks that overlap, one alone; rows that are whole vectors, and some that are left."""
    function = polyml.einsum(source(layout, dtype), threads=1, verify=True)
    x, y, expected = operands(layout, dtype, n, m, 40)
    np.testing.assert_array_equal(function(x, y), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(3)
def test_long_sums_across(layout: str, threads: int) -> None:
    x, y, expected = operands(layout, "f32", 320, 50, 763)
    function = polyml.einsum(source(layout, "f32"), threads=threads, verify=True)
    np.testing.assert_array_equal(function(x, y), expected)


@pytest.mark.parametrize(
    ("n", "m", "k", "lanes"),
    [(320, 50, 300, "n"), (64, 19, 384, "n"), (50, 320, 300, "m"), (64, 64, 64, "m")],
)
def test_lanes_across_where_they_are_whole(n: int, m: int, k: int, lanes: str) -> None:
    x, y, _ = operands("tn", "f32", n, m, k)
    explained = str(polyml.einsum(source("tn", "f32"), target=WIDE, threads=1).explain(x, y))
    assert f"vectors of {lanes}" in explained or f"lanes along {lanes}" in explained


def test_rows_of_eight_are_stored_together() -> None:
    x, y, _ = operands("tn", "f32", 64, 8, 64)
    text = polyml.einsum(source("tn", "f32"), target=WIDE, threads=1).lower(x, y).text("llvm")
    assert "masked.scatter" not in text
    assert "store <8 x float>" in text


def test_what_follows_keeps_lanes_along_the_rows() -> None:
    x, y, expected = operands("tn", "f32", 64, 19, 300)
    text = source("tn", "f32").replace("    return z", "    w[n, m] = max(z[n, m], 0)\n    return w")
    function = polyml.einsum(text, threads=1, verify=True)
    np.testing.assert_array_equal(function(x, y), np.maximum(expected, 0))


def test_batches_and_padding() -> None:
    """NaN in other rows or columns stays there."""
    text = 'def f(x: f32["B K N"], y: f32["B K M"]):\n    z[b, n, m] = x[b, k, n] * y[b, k, m]\n    return z\n'
    rng = np.random.default_rng(1)
    x, y = (rng.integers(-9, 10, shape).astype(np.float32) for shape in ((3, 128, 70), (3, 128, 27)))
    x[1, :, 69] = np.nan
    y[2, :, 26] = np.inf
    with np.errstate(all="ignore"):
        expected = np.swapaxes(x, 1, 2) @ y
        got = polyml.einsum(text, threads=1, verify=True)(x, y)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))
    np.testing.assert_array_equal(got[np.isfinite(got)], expected[np.isfinite(expected)])
