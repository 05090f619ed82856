"""Copies of packed operands in the loops of a batch: how large they are, and values around edges."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.codegen.llvm.support import guarded

TRANSPOSED = """
def f(x: {0}["B I J"], y: {0}["B K J"]):
    z[b, i, k] = x[b, i, j] * y[b, k, j]
    return z
"""
HEADS = """
def f(x: {0}["B I H J"], y: {0}["B K H J"]):
    z[b, h, i, k] = x[b, i, h, j] * y[b, k, h, j]
    return z
"""
DISTANCES = """
def f(x: {0}["B I J"], y: {0}["B K J"]):
    z[b, i, k] = sum[j]((x[b, i, j] - y[b, k, j]) ** 2)
    return z
"""
FOLLOWED = """
def f(x: {0}["B I J"], y: {0}["B K J"], w: {0}["K"]):
    z[b, i, k] = x[b, i, j] * y[b, k, j]
    r[b, i, k] = relu(z[b, i, k]) + w[k]
    return r
"""
SHARED = """
def f(x: {0}["B I J"], y: {0}["K J"]):
    z[b, i, k] = x[b, i, j] * y[k, j]
    return z
"""


def numbers(*shape: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(-9, 10, shape).astype({"f32": "f4", "f64": "f8"}[dtype])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(("i", "j", "k"), [(16, 16, 16), (17, 13, 19), (33, 5, 40)])
@pytest.mark.few(3)
def test_a_matrix_of_the_batch_at_a_time(i: int, j: int, k: int, dtype: str, threads: int) -> None:
    x, y = numbers(150, i, j, dtype=dtype), numbers(150, k, j, dtype=dtype)
    function = polyml.einsum(TRANSPOSED.format(dtype), threads=threads, verify=True)
    text = str(function.explain(x, y))
    assert "copied into rows" in text
    assert f"y_by_1: contracted to 1x{j}x" in text
    assert "parallel for" in function.lower(x, y).text("loops") or threads == 1 or i * j * k < 10_000
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), np.einsum("bij,bkj->bik", x, y))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_several_indices_of_a_batch(dtype: str) -> None:
    x, y = numbers(9, 17, 3, 13, dtype=dtype), numbers(9, 24, 3, 13, dtype=dtype)
    function = polyml.einsum(HEADS.format(dtype), threads=1, verify=True)
    assert "y_by_1: contracted to 1x1x13x24" in str(function.explain(x, y))
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), np.einsum("bihj,bkhj->bhik", x, y))


@pytest.mark.parametrize("b", [5, 0])
@pytest.mark.parametrize("text", [DISTANCES, FOLLOWED, TRANSPOSED])
@pytest.mark.few(1)
def test_what_else_reads_such_copies(text: str, b: int) -> None:
    x, y = numbers(b, 17, 16, dtype="f64"), numbers(b, 24, 16, dtype="f64")
    rest = [numbers(24, dtype="f64")] if text is FOLLOWED else []
    exact = {
        TRANSPOSED: lambda: np.einsum("bij,bkj->bik", x, y),
        FOLLOWED: lambda: np.maximum(np.einsum("bij,bkj->bik", x, y), 0) + rest[0],
        DISTANCES: lambda: ((x[:, :, None] - y[:, None]) ** 2).sum(-1),
    }
    assert b == 0 or "y_by_1: contracted to 1x16x24" in str(
        polyml.einsum(text.format("f64"), threads=1).explain(x, y, *rest)
    )
    for sizes in ({}, {"dynamic": ("B", "I", "J", "K")}, {"precise": True}):
        function = polyml.einsum(text.format("f64"), threads=1, **sizes)
        np.testing.assert_array_equal(function(x, y, *rest), exact[text]())


def test_an_operand_without_the_batch_is_copied_once() -> None:
    x, y = numbers(150, 17, 16, dtype="f64"), numbers(24, 16, dtype="f64")
    function = polyml.einsum(SHARED.format("f64"), threads=1, target=Target("host", cores=1), verify=True)
    assert "contracted" not in str(function.explain(x, y))
    np.testing.assert_array_equal(function(x, y), np.einsum("bij,kj->bik", x, y))
