"""Columns that are left beside whole vectors: sums of their own with lanes along them. Results are compared with NumPy's in float64 (small integers, so that they are exact)."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.pairs import pairwise

PRODUCT = """
def f(x: {t}["N K"], y: {t}["K M"]):
    z[n, m] = x[n, k] * y[k, m]
    return z
"""
ALONG = """
def f(x: {t}["N K"], y: {t}["M K"]):
    z[n, m] = x[n, k] * y[m, k]
    return z
"""
LAYER = """
def f(x: f32["B N K"], y: f32["B K M"], b: f32["M"]):
    h[i, n, m] = x[i, n, k] * y[i, k, m]
    z[i, n, m] = max(h[i, n, m] + b[m], 0.0)
    return z
"""
LEFT = "with lanes along k"
WIDE = Target("x86-64-v4")
SMALL = Target("host", l1_bytes=8 << 10, l2_bytes=32 << 10, cores=2)


def integers(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(0).integers(-9, 10, shape).astype(dtype)


def blocks(function: polyml.api.Function, *arrays: np.ndarray) -> str:
    return next((line for line in str(function.explain(*arrays)).splitlines() if "blocking" in line), "")


@pytest.mark.parametrize(("level", "lanes", "most"), [("x86-64-v3", 4, 12), ("x86-64-v4", 8, 24)])
def test_sums_side_by_side_leave_registers_for_their_terms(level: str, lanes: int, most: int) -> None:
    """Those of six rows and three columns would be 18, of 16 registers."""
    x, y = integers(397, 301, dtype=np.float64), integers(301, 2 * lanes + 3, dtype=np.float64)
    function = polyml.einsum(PRODUCT.format(t="f64"), target=Target(level, l2_bytes=512 << 10, cores=1), threads=1)
    loops = function.lower(x, y).text("loops").split(f"vector({lanes}")
    assert most / 2 < max(len(re.findall(r"z_part\w* = 0;", part)) for part in loops) <= most


@pairwise(
    ("left", [0, 1, 2, 3, 4, 5]),
    ("rows, depth, target", [(37, 112, None), (29, 131, SMALL), (100, 700, SMALL)]),
    ("whole, source", [(32, PRODUCT), (96, PRODUCT), (32, ALONG), (96, ALONG)]),
    ("dtype, name", [(np.float32, "f32"), (np.float64, "f64")]),
)
@pytest.mark.few(2)
def test_any_number_of_columns(
    left: int, rows: int, depth: int, target: Target | None, whole: int, source: str, dtype: type, name: str
) -> None:
    """In one block, in several of the sum and of the columns, where they lie and in panels."""
    x = integers(rows, depth, dtype=dtype)
    y = integers(depth, whole + left, dtype=dtype)
    expected = x.astype(float) @ y.astype(float)
    y = y if source is PRODUCT else np.ascontiguousarray(y.T)
    function = polyml.einsum(source.format(t=name), target=target, threads=1, verify=True)
    np.testing.assert_array_equal(function(x, y), expected)


@pairwise(
    ("columns", [33, 36, 49, 55, 100]),
    ("rows, depth, target", [(37, 112, None), (100, 100, None), (50, 700, SMALL)]),
    ("y_first, threads", [("K M", 1), ("M K", 1), ("K M", 2), ("M K", 2)]),
    ("dtype, name", [(np.float32, "f32"), (np.float64, "f64")]),
)
@pytest.mark.few(2)
def test_rows_that_are_contiguous(
    columns: int, rows: int, depth: int, target: Target | None, y_first: str, threads: int, dtype: type, name: str
) -> None:
    """Lanes across the rows for what is left, in whole vectors and in ones that overlap."""
    text = PRODUCT.format(t=name).replace("N K", "K N").replace("x[n, k]", "x[k, n]")
    if y_first == "M K":
        text = text.replace("K M", "M K").replace("y[k, m]", "y[m, k]")
    function = polyml.einsum(text, target=target, threads=threads, verify=True)
    x, y = integers(depth, rows, dtype=dtype), integers(depth, columns, dtype=dtype)
    expected = x.T.astype(float) @ y.astype(float)
    y = y if y_first == "K M" else np.ascontiguousarray(y.T)
    np.testing.assert_array_equal(function(x, y), expected)


def test_it_is_said_across_rows() -> None:
    text = PRODUCT.format(t="f32").replace("N K", "K N").replace("x[n, k]", "x[k, n]")
    function = polyml.einsum(text, target=WIDE, threads=1)
    assert "4 more m with lanes along n" in blocks(function, integers(100, 100), integers(100, 100))


def test_where_it_pays() -> None:
    function = polyml.einsum(PRODUCT.format(t="f32"), target=WIDE)
    found = {m: LEFT in blocks(function, integers(64, 112), integers(112, m)) for m in (31, 32, 33, 34, 37, 47, 49)}
    assert found == {31: False, 32: False, 33: True, 34: True, 37: False, 47: False, 49: True}
    short, few = (
        blocks(function, integers(64, 24), integers(24, 33)),
        blocks(function, integers(8, 112), integers(112, 33)),
    )
    assert LEFT not in short + few
    precise = polyml.einsum(PRODUCT.format(t="f32"), target=WIDE, precise=True)
    assert LEFT not in str(precise.explain(integers(64, 112), integers(112, 33)))


def test_longer_vectors_are_chosen_for_it() -> None:
    target = Target("x86-64-v4", split_vectors=True)
    lowered = polyml.einsum(PRODUCT.format(t="f32"), target=target).lower(integers(64, 112), integers(112, 33))
    assert "vector(16)" in lowered.text("loops")
    assert "vector(8)" not in lowered.text("loops")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("target", [None, SMALL])
@pytest.mark.few(2)
def test_batches_and_what_follows(threads: int, target: Target | None) -> None:
    x, y, b = integers(5, 45, 200), integers(5, 200, 49), integers(49)
    function = polyml.einsum(LAYER, target=target, threads=threads, verify=True)
    expected = np.maximum(x.astype(float) @ y.astype(float) + b, 0)
    np.testing.assert_array_equal(function(x, y, b), expected)


def test_strips() -> None:
    x, y = integers(64, 40), integers(40, 16 * 12 + 1)
    function = polyml.einsum(PRODUCT.format(t="f32"), target=WIDE, verify=True)
    text = blocks(function, x, y)
    assert "strips" in text
    assert LEFT in text
    np.testing.assert_array_equal(
        polyml.einsum(PRODUCT.format(t="f32"), verify=True)(x, y), x.astype(float) @ y.astype(float)
    )


def test_a_tensor_may_be_called_like_the_rest_of_another() -> None:
    text = PRODUCT.format(t="f32").replace("return z", "z_rest[n, m] = z[n, m] * z[n, m]\n    return z_rest")
    x, y = integers(37, 112), integers(112, 33)
    function = polyml.einsum(text, target=Target("x86-64-v3"), threads=1)
    assert LEFT in blocks(function, x, y)
    np.testing.assert_array_equal(polyml.einsum(text, threads=1)(x, y), (x @ y) ** 2)


def test_nothing_else_is_read() -> None:
    """Infinities and NaN beside a column stay there."""
    x, y = integers(40, 112), integers(112, 33)
    y[:, 31] = np.nan
    x[7] = np.inf
    y[:, 32] = 1
    with np.errstate(all="ignore"):
        expected = x.astype(float) @ y.astype(float)
        got = polyml.einsum(PRODUCT.format(t="f32"))(x, y)
    np.testing.assert_array_equal(got, expected)
