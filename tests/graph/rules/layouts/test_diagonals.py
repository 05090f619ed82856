"""Diagonals that a sum reads again and again: which are copied, and values."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from tests.codegen.llvm.support import guarded


def numbers(*shape: int, dtype: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 10, shape).astype({"f32": "f4", "f64": "f8", "c64": "c8"}[dtype])


@pytest.mark.parametrize("dtype", ["f32", "f64", "c64"])
@pytest.mark.parametrize(("a", "b", "i"), [(17, 19, 23), (1, 64, 65), (40, 8, 33)])
@pytest.mark.few(1)
def test_products_of_diagonals(a: int, b: int, i: int, dtype: str) -> None:
    x, y = numbers(a, i, i, dtype=dtype), numbers(b, i, i, dtype=dtype, seed=1)
    text = f'def f(x: {dtype}["A I I"], y: {dtype}["B I I"]):\n    z[a, b] = x[a, i, i] * y[b, i, i]\n    return z\n'
    function = polyml.einsum(text, threads=1, verify=True)
    loops = function.lower(x, y).text("graph")
    assert ("x_diagonal" in loops) == (b >= 8 and a * b * i >= 1 << 12)
    assert ("y_diagonal" in loops) == (a >= 8)
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), np.einsum("aii,bii->ab", x, y))
    views = numbers(a, 2 * i, 2 * i, dtype=dtype)[:, ::2, ::-2], y.transpose(0, 2, 1)
    np.testing.assert_array_equal(function(*views), np.einsum("aii,bii->ab", *views))
    exactly = polyml.einsum(text, threads=1, precise=True)
    np.testing.assert_array_equal(exactly(x, y), np.einsum("aii,bii->ab", x, y))


@pytest.mark.parametrize("sizes", [(16, 16, 40, 40), (16, 16, 33, 40)])
def test_a_diagonal_of_a_part(sizes: tuple[int, int, int, int]) -> None:
    """The index ends with the shorter dimension, of either operand."""
    a, b, i, j = sizes
    x, y = numbers(a, i, j, dtype="f64"), numbers(b, j, dtype="f64", seed=1)
    text = 'def f(x: f64["A I J"], y: f64["B J"]):\n    z[a, b] = sum[i, i < 33](x[a, i, i] * y[b, i])\n    return z\n'
    function = polyml.einsum(text, threads=1, verify=True)
    assert "x_diagonal" in function.lower(x, y).text("graph")
    np.testing.assert_array_equal(function(x, y), np.einsum("aii,bi->ab", x[:, :33, :33], y[:, :33]))


def test_one_tensor_twice_has_one_copy() -> None:
    x = numbers(24, 32, 32, dtype="f64")
    text = 'def f(x: f64["A I I"]):\n    z[a, b] = x[a, i, i] * x[b, i, i]\n    return z\n'
    function = polyml.einsum(text, threads=1, verify=True)
    assert "x_diagonal_2" not in function.lower(x).text("graph")
    assert "x_diagonal" in function.lower(x).text("graph")
    np.testing.assert_array_equal(function(x), np.einsum("aii,bii->ab", x, x))


def test_rows_beside_a_diagonal_stay() -> None:
    x, y = numbers(64, 64, 32, dtype="f64"), numbers(32, 48, dtype="f64")
    text = 'def f(x: f64["I I J"], y: f64["J K"]):\n    z[i, k] = x[i, i, j] * y[j, k]\n    return z\n'
    function = polyml.einsum(text, threads=1)
    assert "diagonal" not in function.lower(x, y).text("graph")
    np.testing.assert_array_equal(function(x, y), np.einsum("iij,jk->ik", x, y))


def test_two_parts_of_one_diagonal() -> None:
    """Copies of two lengths, both of which are read."""
    x, y = numbers(9, 12, 12, dtype="f64"), numbers(9, 12, 12, dtype="f64", seed=1)
    text = 'def f(x: f64["A N N"], y: f64["B N N"]):\n    z[a, b] = sum[i < 7, j < 9](x[a, i, i] * x[a, j, j] * y[b, i, j])\n    return z\n'
    exactly = polyml.einsum(text, threads=1, precise=True)
    assert "x_diagonal_2" in exactly.lower(x, y).text("graph")
    d = np.einsum("aii->ai", x)
    np.testing.assert_array_equal(exactly(x, y), np.einsum("ai,aj,bij->ab", d[:, :7], d[:, :9], y[:, :7, :9]))
