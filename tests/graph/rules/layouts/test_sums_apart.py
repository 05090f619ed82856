"""Few rows times a large matrix, rows of which lie a multiple of a page apart: sums have memory of their own, whose rows do not."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target

AVX2 = Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=64 * 1024, l3_bytes=256 * 1024, fills_l2=False)
HOST = Target("host", l1_bytes=32 * 1024, l2_bytes=64 * 1024, l3_bytes=256 * 1024)

PRODUCT = 'def f(x: {0}["N K"], w: {0}["K M"]):\n    z[n, m] = x[n, k] * w[k, m]\n    return z\n'
THEN = 'def f(x: {0}["N K"], w: {0}["K M"]):\n    t[n, m] = x[n, k] * w[k, m]\n    z[n, m] = max(t[n, m], 0)\n    return z\n'


def whole(*shape: int, dtype: object = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(dtype)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "apart"),
    [
        (8, 1024, "f32", True),
        (5, 2048, "f32", True),
        (6, 512, "f64", True),
        (4, 1024, "f32", True),
        (3, 1024, "f32", False),
        (9, 1024, "f32", False),
        (8, 1000, "f32", False),
        (8, 512, "f32", False),
    ],
)
def test_where(rows: int, columns: int, dtype: str, apart: bool) -> None:
    kind = {"f32": np.float32, "f64": np.float64}[dtype]
    x, w = whole(rows, 80, dtype=kind), whole(80, columns, dtype=kind)
    loops = polyml.einsum(PRODUCT.format(dtype), target=AVX2, threads=1).lower(x, w).text("loops")
    more = 4096 // rows // 64 * 64 // w.itemsize
    assert (f"local {dtype} z_sums[{rows}, {columns + more}];" in loops) == apart
    # Eight rows of w side by side, of which all rows use what a tile has.
    assert ("k_tile += 8" in loops and "for (n" not in loops) or not apart


def test_longer_vectors_are_whole_lines() -> None:
    target = Target("x86-64-v4", l1_bytes=32 * 1024, l2_bytes=64 * 1024, l3_bytes=256 * 1024)
    lowered = polyml.einsum(PRODUCT.format("f32"), target=target, threads=1).lower(whole(8, 80), whole(80, 1024))
    assert "z_sums" not in lowered.text("loops")


def test_sums_that_others_read_have_rows_apart() -> None:
    loops = polyml.einsum(THEN.format("f32"), target=AVX2, threads=1).lower(whole(8, 80), whole(80, 1024)).text("loops")
    assert "local f32 t[8, 1152];" in loops


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("text", [PRODUCT, THEN])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(8, 80, 1024), (5, 83, 2048), (7, 129, 1024), (6, 80, 1056)])
@pytest.mark.few(1)
def test_results(rows: int, depth: int, columns: int, text: str, threads: int) -> None:
    x, w = whole(rows, depth), whole(depth, columns)
    function = polyml.einsum(text.format("f32"), target=HOST, threads=threads, verify=True)
    exact = x @ w if text is PRODUCT else np.maximum(x @ w, 0)
    np.testing.assert_array_equal(function(x, w), exact)
    np.testing.assert_array_equal(function(np.repeat(x, 2, axis=1)[:, ::2], w), exact)
