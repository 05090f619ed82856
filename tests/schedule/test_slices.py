"""A contraction and what follows it, slice by slice: one slice of what it makes is alive."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.pairs import pairwise

POOLED = """
def f(x: {t}["B N K"], w: {t}["K M"]):
    h[b, i, j] = max(sum[k](x[b, i, k] * w[k, j]), 0)
    y[b, j] = {reduce}[i](h[b, i, j])
    return y
"""
FACTORS = """
def f(x: {t}["I J K"], b: {t}["J R"], c: {t}["K R"]):
    y[i, r] = x[i, j, k] * b[j, r] * c[k, r]
    return y
"""
ROWS = """
def f(x: f32["B N K"], w: f32["K M"]):
    h[b, i, j] = max(sum[k](x[b, i, k] * w[k, j]), 0)
    y[b, i] = sum[j](h[b, i, j])
    return y
"""
TARGET = Target("x86-64-v4", l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=16 << 20)


def integers(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    return rng.integers(-3, 4, shape).astype(dtype)


def loops(text: str, *arrays: np.ndarray, target: Target = TARGET) -> str:
    return polyml.einsum(text, target=target, threads=1).lower(*arrays).text("loops")


@pairwise(
    ("slices, rows, depth, columns", [(16, 97, 33, 130), (9, 129, 64, 100), (41, 164, 65, 49)]),
    ("dtype, reduce", [("f32", "max"), ("f64", "sum")]),
    ("threads", [1, 2]),
)
@pytest.mark.few(2)
def test_pooled_products(
    slices: int, rows: int, depth: int, columns: int, dtype: str, reduce: str, threads: int
) -> None:
    rng = np.random.default_rng(rows)
    x, w = (integers(rng, dtype.replace("f", "float"), *shape) for shape in ((slices, rows, depth), (depth, columns)))
    target = Target("host", l2_bytes=256 << 10)
    f = polyml.einsum(POOLED.format(t=dtype, reduce=reduce), target=target, threads=threads)
    given = x.copy()
    want = np.maximum(x @ w, 0)
    assert "2 equations in 1 region" in f.explain(x, w)
    np.testing.assert_array_equal(f(x, w), want.max(1) if reduce == "max" else want.sum(1))
    np.testing.assert_array_equal(x, given)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(30, 61, 70, 32), (24, 64, 96, 17)])
@pytest.mark.few(1)
def test_factors(shape: tuple[int, ...], threads: int) -> None:
    i, j, k, r = shape
    rng = np.random.default_rng(i)
    x, b, c = integers(rng, "f4", i, j, k), integers(rng, "f4", j, r), integers(rng, "f4", k, r)
    f = polyml.einsum(FACTORS.format(t="f32"), target=Target("host", l2_bytes=256 << 10), threads=threads)
    np.testing.assert_array_equal(f(x, b, c), np.einsum("ijk,jr,kr->ir", x, b, c))
    target = replace(TARGET, l2_bytes=256 << 10)
    assert "local f32 y_inner[" in loops(FACTORS.format(t="f32"), x, b, c, target=target)


def test_one_slice_is_alive() -> None:
    x, w = np.zeros((50, 200, 64), np.float32), np.zeros((64, 256), np.float32)
    text = loops(POOLED.format(t="f32", reduce="max"), x, w)
    assert "local f32 h_sum[1, 200, 256];" in text
    assert "local f32 w_panels" in text
    assert "f_1(" not in text


@pytest.mark.parametrize("threads", [1, 2])
def test_panels_that_all_slices_share_are_packed_once(threads: int) -> None:
    given = [np.zeros(shape, np.float32) for shape in ((200, 180, 190), (180, 32), (190, 32))]
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10, l3_bytes=32 << 20)
    f = polyml.einsum(FACTORS.format(t="f32"), target=target, threads=threads)
    ahead, found, behind = f.lower(*given).text("loops").partition("for (i = 0; i < 200; i++)")
    assert found
    assert "c_panels[-(-r_tile)//16, k, r - r_tile] = c[k, r];" in ahead
    assert "= c[" not in behind
    assert "local f32 y_inner[1, 180, 32];" in behind
    assert "parallel for" in (ahead[-20:] + found) or threads == 1


@pytest.mark.parametrize(("depth", "regions"), [(80, 1), (128, 1), (144, 2)])
def test_slices_of_short_sums_pack_once(depth: int, regions: int) -> None:
    """What 300 slices would pack again is more than they save, but their panels hold all terms."""
    given = [np.zeros(shape) for shape in ((300, 60, depth), (60, 64), (depth, 64))]
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10, l3_bytes=32 << 20)
    f = polyml.einsum(FACTORS.format(t="f64"), target=target, threads=1)
    assert f"in {regions} region" in f.explain(*given)
    assert "fallback" not in f.explain(*given)


def test_blocks_of_rows_are_better_slices() -> None:
    x, w = np.zeros((50, 200, 64), np.float32), np.zeros((64, 256), np.float32)
    assert "local f32 h_sum[1, 200, 256];" not in loops(ROWS, x, w)


@pytest.mark.parametrize(
    ("x", "w"),
    [((3, 200, 64), (64, 256)), ((50, 2000, 64), (64, 256)), ((50, 200, 640), (640, 256)), ((20, 10, 64), (64, 25))],
    ids=["few slices", "large slices", "large weights", "all in the cache"],
)
def test_what_stays_apart(x: tuple[int, ...], w: tuple[int, ...]) -> None:
    text = loops(POOLED.format(t="f32", reduce="max"), np.zeros(x, "f4"), np.zeros(w, "f4"))
    assert f"h_sum[{x[0]}, {x[1]}, {w[1]}]" in text
    assert f"local f32 h_sum[1, {x[1]}" not in text


@pytest.mark.parametrize(("slices", "sliced"), [(27, False), (28, True)])
def test_threads_have_four_slices_each(slices: int, sliced: bool) -> None:
    given = [np.zeros(shape, np.float32) for shape in ((slices, 180, 190), (180, 32), (190, 32))]
    target = Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20)
    explained = polyml.einsum(FACTORS.format(t="f32"), target=target, threads=7).explain(*given)
    assert ("y_inner: contracted to 1x180x32" in explained) == sliced
    assert "fallback" not in explained


def test_threads_share_no_panels() -> None:
    """(The proof refused what was proposed.)"""
    x, w = np.zeros((50, 200, 64), np.float32), np.zeros((64, 256), np.float32)
    explained = polyml.einsum(POOLED.format(t="f32", reduce="max"), target=TARGET, threads=2).explain(x, w)
    assert "1 region" in explained
    assert "fallback" not in explained


def test_any_sizes() -> None:
    rng = np.random.default_rng(0)
    f = polyml.einsum(POOLED.format(t="f32", reduce="max"), dynamic=True)
    for shape in ((40, 70, 64, 90), (1, 1, 1, 1), (0, 3, 4, 5)):
        b, n, k, m = shape
        x, w = integers(rng, "f4", b, n, k), integers(rng, "f4", k, m)
        np.testing.assert_array_equal(f(x, w), np.maximum(x @ w, 0).max(1))
