"""Rows in as many pieces as a vector has lanes: which loops get them, and results of sizes that do not divide."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target

JACOBI = """
def jacobi(T: int, a: f64["N"], b: f64["N"]):
    for t in range(T):
        if 1 <= i < N - 1:
            b[i] = 0.33333 * (a[i - 1] + a[i] + a[i + 1])
            a[i] = 0.33333 * (b[i - 1] + b[i] + b[i + 1])
    return a, b
"""
WIDE = """
def wide(T: int, a: f64["M N"], b: f64["M N"], c: f64["N"]):
    for t in range(T):
        if 1 <= k < M - 1 and 3 <= i < N - 1:
            b[k, i] = c[i] * a[k, i - 3] + 0.25 * (a[k, i + 1] + a[k - 1, i]) + 0.1 * a[k + 1, i - 1]
        if 3 <= i < N - 1:
            a[k, i] = 0.5 * (b[k, i] + b[k, i - 2])
    return a, b
"""


def jacobi(steps: int, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
    for _ in range(steps):
        b[1:-1] = 0.33333 * (a[:-2] + a[1:-1] + a[2:])
        a[1:-1] = 0.33333 * (b[:-2] + b[1:-1] + b[2:])
    return a, b


def wide(steps: int, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, ...]:
    for _ in range(steps):
        own = c[3:-1] * a[1:-1, :-4] + 0.25 * (a[1:-1, 4:] + a[:-2, 3:-1]) + 0.1 * a[2:, 2:-2]
        b[1:-1, 3:-1] = own
        a[:, 3:-1] = 0.5 * (b[:, 3:-1] + b[:, 1:-3])
    return a, b


def data(*shapes: tuple[int, ...], dtype: str = "f64") -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.random(shape).astype({"f64": np.float64, "f32": np.float32}[dtype]) / 4 for shape in shapes]


def loops(text: str, *arguments: object, **options: object) -> str:
    return polyml.einsum(text, target=Target("x86-64-v4"), **options).lower(*arguments).text("loops")


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("length", [1, 3, 66, 143, 303])
@pytest.mark.few(2)
def test_results(length: int, dtype: str) -> None:
    """Rows shorter than a vector, pieces of all lengths, no step, a few, and enough."""
    text = JACOBI.replace("f64", dtype)
    function = polyml.einsum(text, verify=True)
    for steps in (0, 1, 31, 32, 41):
        want = jacobi(steps, *data((length,), (length,)))
        for got, expected in zip(function(steps, *data((length,), (length,), dtype=dtype)), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5 if dtype == "f32" else 1e-12)


@pytest.mark.parametrize("length", [pytest.param(71, marks=pytest.mark.slow), 77])
def test_several_rows_and_longer_reach(length: int) -> None:
    shapes = ((5, length), (5, length), (length,))
    text = loops(WIDE, 40, *data(*shapes))
    assert "a_pieces" in text
    assert "c_pieces" in text
    function = polyml.einsum(WIDE, verify=True)
    for steps in (0, 1, 31, 32, 40):
        want = wide(steps, *data(*shapes))
        for got, expected in zip(function(steps, *data(*shapes)), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-11)


def test_which_loops() -> None:
    row = data((199,), (199,))
    text = loops(JACOBI, 9, *row)
    assert "a_pieces" in text
    assert "if (T >= 32)" in text
    assert "_pieces" not in loops(JACOBI, 9, *data((65,), (65,))), "pieces are short"
    assert "_pieces" not in loops(JACOBI, 9, *data((2600,), (2600,))), "they do not stay in L1"
    assert "_pieces" in loops(JACOBI, 9, *data((1950,), (1950,))), "what keeps two arrays apart is not touched"
    assert "_pieces" not in loops(JACOBI, 9, *row, vectorize=False)
    assert "_pieces" not in loops(JACOBI.replace("a[i] = 0.3", "if 2 <= i: a[i] = 0.3"), 9, *row), "ranges differ"
    assert "_pieces" not in loops(JACOBI.replace("b[i] = ", "b[i] = i + "), 9, *row), "the index is a value"
    assert "_pieces" not in loops(JACOBI.replace("b[i - 1]", "b[N - 1 - i]"), 9, *row), "a row is read backwards"
    sequential = JACOBI.replace("if 1 <= i < N - 1:", "for i in range(1, N - 1):")
    assert "_pieces" not in loops(sequential, 9, *row), "what is computed is read in the same sweep"
