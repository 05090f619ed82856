"""One row or a few times a matrix that is read once, in order: narrow numbers, rows that are made in the same region, and several such products."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import polyml
from polyml.target import Target

SMALL = Target("host", l1_bytes=2048, l2_bytes=16 * 1024, cores=2)
"""This machine with caches that do not hold operands of test sizes."""

IN_ORDER = "read once, in order"
NUMPY = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "i8": np.int8, "u8": np.uint8, "i16": np.int16}


def whole(*shape: int, dtype: object = np.float32, least: int = -3) -> np.ndarray:
    """Small integers, so that sums of products are exact."""
    return np.random.default_rng(sum(shape)).integers(least, 4, shape).astype(dtype)


def in_order(function: polyml.api.Einsum, *arrays: np.ndarray) -> int:
    """How many matrices are read so."""
    return str(function.explain(*arrays)).count(IN_ORDER)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "bf16", "f16"])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 151, 2003), (3, 64, 1024)])
@pytest.mark.few(1)
def test_narrow_numbers(rows: int, depth: int, columns: int, dtype: str, threads: int) -> None:
    text = f'def f(x: f32["N K"], w: {dtype}["K M"], s: f32["M"]):\n    y[n, m] = x[n, k] * (f32(w[k, m]) * s[m])\n    return y\n'
    x, s = whole(rows, depth), whole(columns)
    w = whole(depth, columns, dtype=NUMPY[dtype], least=0 if dtype == "u8" else -3)
    function = polyml.einsum(text, target=SMALL, threads=threads, verify=True)
    assert in_order(function, x, w, s) == 1
    np.testing.assert_array_equal(function(x, w, s), x @ w.astype(np.float32) * s)
    every_other = np.repeat(w, 2, axis=0)[::2]
    np.testing.assert_array_equal(function(x, every_other, s), x @ w.astype(np.float32) * s)


@pytest.mark.parametrize("value", ["sum[k](f32(w[k, m]) - 1)", "max[k](f32(w[k, m]))", "x[k] * f64(w[k, m])"])
def test_other_reductions_of_narrow_numbers(value: str) -> None:
    kind = "f64" if "f64" in value else "f32"
    x, w = whole(97).astype(kind.replace("f", "float")), whole(97, 1301, dtype=np.int8)
    function = polyml.einsum(f'def f(x: {kind}["K"], w: i8["K M"]):\n    y[m] = {value}\n    return y\n', target=SMALL)
    assert in_order(function, x, w) == 1
    wide = w.astype(np.float64)
    exact = {"s": wide.sum(0) - len(w), "m": wide.max(0), "x": x @ wide}[value[0]]
    np.testing.assert_array_equal(function(x, w), exact)


def test_many_rows_of_narrow_numbers_are_not_read_so() -> None:
    x, w = whole(40, 64), whole(64, 1024, dtype=np.int8)
    function = polyml.einsum(
        'def f(x: f32["N K"], w: i8["K M"]):\n    y[n, m] = x[n, k] * f32(w[k, m])\n    return y\n', target=SMALL
    )
    assert in_order(function, x, w) == 0
    np.testing.assert_array_equal(function(x, w), x @ w.astype(np.float32))


NORMED = """
def f(x: f32["K"], g: f32["K"], w: f32["K M"]):
    r = rsqrt(sum[k](x[k] * x[k]) / K + 1e-5)
    h[k] = x[k] * r * g[k]
    y[m] = h[k] * w[k, m]
    return y
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_that_is_made_in_the_region(threads: int) -> None:
    x, g, w = whole(151), whole(151), whole(151, 2003)
    function = polyml.einsum(NORMED, target=SMALL, threads=threads, verify=True)
    assert in_order(function, x, g, w) == 1
    exact = (x / np.sqrt((x.astype(np.float64) ** 2).mean() + 1e-5) * g) @ w.astype(np.float64)
    np.testing.assert_allclose(function(x, g, w), exact, rtol=1e-5, atol=1e-5)


GATED = """
def f(x: f32["K"], g: {t}["K M"], u: {t}["K M"], d: {t}["M L"]):
    a[m] = x[k] * f32(g[k, m])
    b[m] = x[k] * f32(u[k, m])
    h[m] = max(a[m], 0.0) * b[m]
    y[l] = h[m] * f32(d[m, l])
    return y
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["f32", "i8"])
@pytest.mark.few(1)
def test_several_products_are_apart(dtype: str, threads: int) -> None:
    """Each matrix comes from memory in its own order: gates of one token."""
    number = {"f32": np.float32, "i8": np.int8}[dtype]
    x, g, u, d = (
        whole(301),
        whole(301, 1203, dtype=number),
        whole(301, 1203, dtype=number),
        whole(1203, 301, dtype=number),
    )
    function = polyml.einsum(GATED.format(t=dtype), target=SMALL, threads=threads, verify=True)
    assert in_order(function, x, g, u, d) == 3
    a, b = (x.astype(np.float64) @ w.astype(np.float64) for w in (g, u))
    np.testing.assert_allclose(
        function(x, g, u, d), (np.maximum(a, 0) * b) @ d.astype(np.float64), rtol=1e-5, atol=1e-2
    )


def test_sums_over_the_same_matrix_stay_together() -> None:
    text = 'def f(x: f32["N M"]):\n    a[m] = sum[n](x[n, m])\n    b[m] = sum[n](x[n, m] * x[n, m])\n    return a, b\n'
    x = whole(50, 1203)
    function = polyml.einsum(text, target=SMALL)
    assert "in 1 region" in str(function.explain(x))
    for found, exact in zip(function(x), (x.sum(0), (x * x).sum(0)), strict=True):
        np.testing.assert_array_equal(found, exact)


PRODUCT = """
def f(x: {0}["M K"], w: {0}["K N"]):
    y[m, n] = x[m, k] * w[k, n]
    return y
"""
NARROW = Target("x86-64-v3", l2_bytes=512 * 1024)
"""Register tiles of a line or a line and a half."""
FROM_MEMORY = Target("x86-64-v3", l2_bytes=512 * 1024, l3_bytes=4 << 20)


@pytest.mark.parametrize(
    ("rows", "columns", "target", "ordered"),
    [
        (12, 1024, NARROW, False),
        (6, 1000, NARROW, True),  # rows that do not meet in L1; of more, strips are read
        (4, 1024, NARROW, True),  # one tile
        (8, 1024, NARROW, True),  # no more rows at a time than ways
        (10, 1024, FROM_MEMORY, False),
        (8, 1024, FROM_MEMORY, True),  # sums have memory of their own (graph/rules/layouts/sums_apart.py)
        (12, 1024, Target("x86-64-v4"), True),  # several lines of each row at a time
    ],
)
def test_what_would_come_to_l1_again_is_packed(rows: int, columns: int, target: Target, ordered: bool) -> None:
    x, w = np.zeros((rows, 1024), np.float32), np.zeros((1024, columns), np.float32)
    text = str(polyml.einsum(PRODUCT.format("f32"), target=target, threads=1).explain(x, w))
    assert (IN_ORDER in text) == ordered
    assert ("packed in panels" in text) != ordered


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(12, 64, 1024), (7, 131, 2048), (15, 33, 3072)])
@pytest.mark.few(1)
def test_rows_that_meet_in_l1(rows: int, depth: int, columns: int, dtype: str, threads: int) -> None:
    number = {"f32": np.float32, "f64": np.float64}[dtype]
    x, w = whole(rows, depth, dtype=number), whole(depth, columns, dtype=number)
    function = polyml.einsum(PRODUCT.format(dtype), target=SMALL, threads=threads, verify=True)
    np.testing.assert_array_equal(function(x, w), x @ w)
    every_other = np.repeat(w, 2, axis=0)[::2]
    np.testing.assert_array_equal(function(np.asfortranarray(x), every_other), x @ w)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("value", ["x[k, m] * y[k, m]", "w[k] * x[k, m] * y[k, m]", "max[k](x[k, m] - y[k, m])"])
@pytest.mark.parametrize("shape", [(97, 1301), (1, 9001), (803, 33)])
@pytest.mark.few(3)
def test_matrices_that_lie_alike(shape: tuple[int, int], value: str, threads: int) -> None:
    """Sums down the columns of two matrices read both from end to end, four rows of each side by side."""
    text = f'def f(x: f32["K M"], y: f32["K M"], w: f32["K"]):\n    z[m] = {value}\n    return z\n'
    x, y, w = whole(*shape), whole(*shape)[:, ::-1].copy(), whole(shape[0])
    function = polyml.einsum(text, target=SMALL, threads=threads, verify=True)
    fixed = Target("x86-64-v3", l1_bytes=2048, l2_bytes=16 * 1024, cores=2)
    note = str(polyml.einsum(text, target=fixed, threads=threads).explain(x, y, w))
    assert (IN_ORDER in note and "blocks of k by 4" in note) or shape[0] == 1
    exact = (x - y).max(0) if "max" in value else (x * y * (w[:, None] if "w" in value else 1)).sum(0)
    np.testing.assert_array_equal(function(x, y, w), exact)
    wide = np.repeat(x, 2, axis=0)[::2]
    np.testing.assert_array_equal(function(wide, y, w), exact)


def test_matrices_that_lie_otherwise_are_not_read_so() -> None:
    x, y = whole(97, 1301), whole(1301, 97)
    function = polyml.einsum(
        'def f(x: f32["K M"], y: f32["M K"]):\n    z[m] = x[k, m] * y[m, k]\n    return z\n', target=SMALL
    )
    assert in_order(function, x, y) == 0
    np.testing.assert_array_equal(function(x, y), (x * y.T).sum(0))


def test_each_thread_has_one_piece_of_long_rows() -> None:
    """Columns that are no multiple of a tile leave no third piece for two threads."""
    x, y = np.zeros((1, 2000), "f4"), np.zeros((2000, 5000), "f4")
    text = 'def f(x: f32["I K"], y: f32["K J"]):\n    z[i, j] = x[i, k] * y[k, j]\n    return z\n'
    loops = polyml.einsum(text, target=Target("x86-64-v4", cores=2), threads=2).lower(x, y).text("loops")
    assert re.findall(r"parallel for \(j_tile = 0; j_tile < (\d+); j_tile \+= (\d+)\)", loops) == [("5120", "2560")]
