"""Sums and maxima of several registers' lanes at once: all numbers of them, with NaN, in every type."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml

PRODUCT = 'def f(x: {kind}["N K"], y: {kind}["M K"]):\n    z[i, j] = x[i, k] * y[j, k]\n    return z\n'
LARGEST = 'def f(x: {kind}["N K"], y: {kind}["M K"]):\n    z[i, j] = {op}[k](x[i, k] + y[j, k])\n    return z\n'
DTYPES = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64}
SHAPES = [(1, 2), (1, 3), (2, 2), (3, 2), (5, 1), (7, 3), (8, 4), (13, 5)]


def numbers(kind: str, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(DTYPES[kind])


@pytest.mark.parametrize("kind", DTYPES)
def test_sums(kind: str) -> None:
    made = polyml.einsum(PRODUCT.format(kind=kind))
    for rows, columns in SHAPES:
        for terms in (35, 64):
            x, y = numbers(kind, rows, terms), numbers(kind, columns, terms, seed=1)
            np.testing.assert_array_equal(made(x, y), x @ y.T)


@pytest.mark.parametrize("kind", ["f32", "f64", "i32"])
@pytest.mark.parametrize("op", ["max", "min"])
def test_largest_and_smallest(kind: str, op: str) -> None:
    made = polyml.einsum(LARGEST.format(kind=kind, op=op))
    for rows, columns in SHAPES[2:6]:
        x, y = numbers(kind, rows, 77), numbers(kind, columns, 77, seed=1)
        if kind != "i32":
            x[0, 40], y[-1, 3] = np.nan, np.inf
        np.testing.assert_array_equal(made(x, y), getattr(np, op)(x[:, None] + y, axis=2))


@pytest.mark.parametrize(("kind", "first"), [("f32", "0, i32 4, i32 1, i32 5"), ("f64", "0, i32 4, i32 2, i32 6")])
def test_lanes_of_two_registers_share_a_vector(kind: str, first: str) -> None:
    x, y = numbers(kind, 8, 64), numbers(kind, 3, 64, seed=1)
    text = polyml.einsum(PRODUCT.format(kind=kind), target=polyml.Target("x86-64-v4")).lower(x, y).text("llvm")
    assert re.search(rf"shufflevector <4 x \w+> %\S+, <4 x \w+> %\S+, <4 x i32> <i32 {first}>", text)
