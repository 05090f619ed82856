"""Loops whose iterations wait for ones further back than a vector is long: lanes where that is so, and the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target
from polyml.testing import verify

AVX2 = Target("x86-64-v3")

COMB = """
def comb(x: {dtype}["C T"], L: int):
    y: {dtype}["C T"]
    for t in range(T):
        y[c, t] = x[c, t]
        if t >= L:
            y[c, t] += 3 * y[c, t - L]
    return y
"""
NUMBERED = """
def numbered(x: {dtype}["C T"]):
    y[c, t] = x[c, t]
    z[c, t] = x[c, T - 1 - t]
    for t in range(24, T - 24):
        z[c, t] = y[c, t - {lag}] + x[c, t]
        y[c, t] = z[c, t - {own}] - y[c, t + {later}]
    return y, z
"""


def numbers(dtype: str, columns: int) -> np.ndarray:
    return np.random.default_rng(columns).integers(0, 4, (2, columns)).astype(polyml.dtypes.DTYPES[dtype].numpy)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "u8", "c64"])
@pytest.mark.parametrize("lag", [1, 3, 4, 7, 8, 16, 33])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.some(7)
def test_lags_that_calls_tell(dtype: str, lag: int, dynamic: bool) -> None:
    comb = polyml.einsum(COMB.format(dtype=dtype), threads=1, dynamic=dynamic)
    assert verify(comb, numbers(dtype, 101), lag)


@pytest.mark.parametrize(
    ("lag", "own", "later", "lanes"),
    [
        (8, 8, 8, True),
        (20, 7, 5, True),  # z of all lanes is made before any y
        (7, 9, 5, False),  # y of a vector's first lane is for the last lane's z, which is made before it
        (9, 9, 3, True),  # read before it is written
    ],
)
def test_numbers(lag: int, own: int, later: int, lanes: bool) -> None:
    program = polyml.einsum(NUMBERED.format(dtype="f32", lag=lag, own=own, later=later), threads=1, target=AVX2)
    x = numbers("f32", 101)
    assert verify(program, x)
    assert ("further back" in str(program.explain(x))) == lanes


def test_loops_with_other_lanes_keep_them() -> None:
    text = 'def f(y: f32["T N"]):\n    for t in range(24, T):\n        y[t, n] += y[t - 24, n]\n    return y\n'
    program = polyml.einsum(text, threads=1, target=AVX2)
    assert "further back" not in str(program.explain(np.ones((50, 64), np.float32)))
