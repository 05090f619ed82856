"""Weights in bytes with a scale for each block of a sum, `f32(w[n, k]) * s[n, k // 32]`: made once ahead of products with many rows, once for all rows of a tile where they are few; right for all sizes and layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyml
from polyml.target import Target

Array = np.ndarray[Any, Any]

ALONG = """
def f(x: {t}["M K"], w: {b}["N K"], s: {t}["N B"]):
    y[m, n] = x[m, k] * ({t}(w[n, k]) * s[n, k // {block}])
    return y
"""
ACROSS = """
def f(x: {t}["M K"], w: {b}["K N"], s: {t}["B N"]):
    y[m, n] = x[m, k] * ({t}(w[k, n]) * s[k // {block}, n])
    return y
"""
FROM_ZERO = """
def f(x: f32["M K"], w: u8["N K"], s: f32["N B"], z: f32["N B"]):
    y[m, n] = x[m, k] * ((f32(w[n, k]) - z[n, k // 16]) * s[n, k // 16])
    return y
"""
NAMES = {"f32": "float32", "f64": "float64", "i8": "int8", "u8": "uint8", "i16": "int16"}


def given(m: int, n: int, k: int, blocks: int, t: str = "f32", b: str = "i8") -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(m + n + k)
    x, s = (rng.integers(-4, 5, shape).astype(NAMES[t]) for shape in ((m, k), (n, blocks)))
    return x, rng.integers(0 if b == "u8" else -8, 9, (n, k)).astype(NAMES[b]), s


def product(x: Array, w: Array, s: Array, block: int) -> Array:
    return x @ (w.astype(x.dtype) * np.repeat(s, block, 1)[:, : w.shape[1]]).T


@pytest.mark.parametrize(("t", "b"), [("f32", "i8"), ("f64", "i16")])
@pytest.mark.parametrize("m", [1, 3, 70])
@pytest.mark.parametrize(("n", "k", "block", "blocks"), [(17, 100, 32, 5), (20, 90, 7, 13)])
@pytest.mark.few(2)
def test_right(t: str, b: str, m: int, n: int, k: int, block: int, blocks: int) -> None:
    x, w, s = given(m, n, k, blocks, t, b)
    expected = product(x, w, s, block)
    along = polyml.einsum(ALONG.format(t=t, b=b, block=block), verify=True)
    np.testing.assert_array_equal(along(x, w, s), expected)
    across = polyml.einsum(ACROSS.format(t=t, b=b, block=block), verify=True)
    np.testing.assert_array_equal(across(x, w.T, s.T), expected)


def test_with_zero_points_and_strides() -> None:
    rng = np.random.default_rng(0)
    x, s, z = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((20, 128), (24, 8), (24, 8)))
    w = rng.integers(0, 16, (48, 128)).astype(np.uint8)[::2]
    whole = (w.astype(np.float32) - np.repeat(z, 16, 1)) * np.repeat(s, 16, 1)
    f = polyml.einsum(FROM_ZERO, verify=True)
    for rows in (1, 5, 20):
        np.testing.assert_array_equal(f(x[:rows], w, s, z), x[:rows] @ whole.T)
        np.testing.assert_array_equal(f.bind(w=w, s=s, z=z)(x[:rows]), x[:rows] @ whole.T)


def test_few_rows_have_lanes_along_the_sum_side_by_side() -> None:
    f = polyml.einsum(ALONG.format(t="f32", b="i8", block=32), target=Target("x86-64-v4"), threads=1)
    notes = [note.text for region in f.lower(*given(4, 64, 256, 8)).stages.regions for note in region.notes]
    assert any("4 m x" in text and "side by side" in text for text in notes), notes


def test_many_rows_have_a_tensor_of_weights() -> None:
    """Where blocks of scales are as long as vectors, and weights are used often; in the order of lanes a few instructions are no more than what a copy costs."""

    def graph(source: str, m: int, block: int) -> str:
        x, w, s = given(m, 64, 256, -(-256 // block))
        args = (x, w, s) if source is ALONG else (x, w.T, s.T)
        return str(polyml.einsum(source.format(t="f32", b="i8", block=block)).trace(*args))

    assert "w_mul" in graph(ALONG, 32, 32)
    assert "w_mul" not in graph(ALONG, 8, 32)
    assert "w_mul" not in graph(ALONG, 32, 8)
    assert "w_mul" not in graph(ACROSS, 32, 32)
    assert "w_mul" in graph(ACROSS, 64, 32)


@pytest.mark.parametrize("m", [1, 3, 70])
@pytest.mark.parametrize(
    "factors", ["x[m, k] * f32(w[n, k]) * s[n, k // 32]", "s[n, k // 32] * x[m, k] * f32(w[n, k]) * 2"]
)
@pytest.mark.few(2)
def test_scales_stand_beside_weights_however_they_are_written(factors: str, m: int) -> None:
    x, w, s = given(m, 64, 256, 8)
    source = f'def f(x: f32["M K"], w: i8["N K"], s: f32["N B"]):\n    y[m, n] = {factors}\n    return y\n'
    expected = product(x, w, s, 32) * (2 if factors.endswith("2") else 1)
    f = polyml.einsum(source, verify=True)
    assert ("w_mul" in f.lower(x, w, s).text("graph")) == (m == 70)
    np.testing.assert_array_equal(f(x, w, s), expected)
    exact = polyml.einsum(source, precise=True)
    assert "w_mul" not in exact.lower(x, w, s).text("graph")
    np.testing.assert_array_equal(exact(x, w, s), expected)
