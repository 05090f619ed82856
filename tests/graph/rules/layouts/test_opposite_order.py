"""Rows that the steps of a loop read backwards: which are copied, and values."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.testing import verify
from tests.codegen.llvm.support import guarded

LEVINSON = """
def levinson(r: {dtype}["N"], b: {dtype}["N"]):
    y: {dtype}["N"] = 0
    x: {dtype}["N"] = 0
    y[0] = -r[0]
    x[0] = b[0]
    alpha = -r[0]
    beta = 1 + 0 * r[0]
    for k in range(1, N):
        beta = (1 - alpha * alpha) * beta
        mu = (b[k] - sum[i, i < k](r[k - i - 1] * x[i])) / beta
        if i < k:
            x[i] += mu * y[k - i - 1]
        x[k] = mu
        alpha = -(r[k] + sum[i, i < k](r[k - i - 1] * y[i])) / beta
        if i < k:
            y[i] += alpha * y[k - i - 1]
        y[k] = alpha
    return x
"""
"""Toeplitz systems of any right side: two sums in each step read r backwards."""


def _toeplitz(r: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The solution for the matrix of ones on its diagonal and r beside it."""
    column = np.concatenate([[1], r[:-1]])
    rows = np.arange(len(r))
    return np.linalg.solve(column[abs(rows[:, None] - rows)], b)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("n", [131, 64, 65])
@pytest.mark.few(1)
def test_levinson(n: int, dtype: str) -> None:
    rng = np.random.default_rng(n)
    kind = np.dtype({"f32": "f4", "f64": "f8"}[dtype])
    r, b = (0.3 * rng.random(n) / (2 + np.arange(n)) ** 2).astype(kind), rng.random(n).astype(kind)
    function = polyml.einsum(LEVINSON.format(dtype=dtype), threads=1, verify=True)
    text = function.lower(r, b).text("graph")
    assert "r_back[i0]" in text
    assert "r_back_2" not in text
    assert text.index("r_back[i0]") < text.index("for k")
    tolerance = 1e-4 if dtype == "f32" else 1e-11
    expected = _toeplitz(r.astype("f8"), b.astype("f8"))
    np.testing.assert_allclose(function(guarded(r), guarded(b)), expected, rtol=tolerance, atol=tolerance)
    views = np.repeat(r, 3)[::3], np.flip(b.copy()[::-1])
    np.testing.assert_allclose(function(*views), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("n", [1, 2, 3, 9])
@pytest.mark.few(2)
def test_short_rows_stay(n: int) -> None:
    r, b = np.full(n, 0.1), np.arange(1.0, n + 1)
    function = polyml.einsum(LEVINSON.format(dtype="f64"), threads=1)
    assert "back" not in function.lower(r, b).text("graph")
    np.testing.assert_allclose(function(r, b), _toeplitz(r, b), rtol=1e-12)


def test_sizes_that_are_not_known() -> None:
    function = polyml.einsum(LEVINSON.format(dtype="f64"), threads=1, dynamic=True)
    for n in (64, 5, 200):
        r, b = np.full(n, 0.5) / (3 + np.arange(n)) ** 2, np.ones(n)
        np.testing.assert_allclose(function(r, b), _toeplitz(r, b), rtol=1e-11)


STEPS = """
def steps(T: int, x: f64["N"], y: f64["N"], z: f64["N"]):
    for t in range(T):
        {body}
    return z
"""


@pytest.mark.parametrize(
    ("body", "copied"),
    [
        ("z[i] = z[i] * 0.5 + x[N - 1 - i] * y[i]", True),
        ("z[i] = z[i] * 0.5 + x[N - 1 - i]", True),  # beside what is updated
        ("z[t] = sum[i](x[N - 1 - i] * z[i])", True),
        ("z[t] = sum[i](x[N - 1 - i] * z[N - 1 - i])", False),  # nothing goes forwards
        ("z[i] = z[N - 1 - i] * 0.5 + y[i]", False),  # it changes
        ("z[N - 1 - i] = x[N - 1 - i] * 0.5 + y[N - 1 - i]", False),
        ("z[t] = sum[i, i < 20](x[N - 1 - i] * z[i])", False),  # a part of it
    ],
)
@pytest.mark.few(2)
def test_which_rows_are_copied(body: str, *, copied: bool) -> None:
    rng = np.random.default_rng(3)
    x, y, z = 0.1 * rng.standard_normal((3, 100))
    function = polyml.einsum(STEPS.format(body=body), threads=1)
    assert ("x_back" in function.lower(16, x, y, z).text("graph")) == copied
    assert "z_back" not in function.lower(16, x, y, z).text("graph")
    assert verify(function, 16, x, y, z.copy())


def test_few_steps_copy_nothing() -> None:
    x, y, z = np.random.default_rng(3).standard_normal((3, 100))
    function = polyml.einsum(STEPS.format(body="z[i] = z[i] * 0.5 + x[N - 1 - i] * y[i]"), threads=1)
    assert "back" not in function.lower(7, x, y, z).text("graph")
    expected = z * 0.5**7 + sum(0.5**k for k in range(7)) * x[::-1] * y
    np.testing.assert_allclose(function(7, x, y, z.copy()), expected, rtol=1e-12)


def test_a_row_of_an_outer_step_is_copied_in_it() -> None:
    """What an outer loop makes anew for its inner one."""
    text = """
def f(x: f64["T N"], y: f64["N"]):
    z: f64["T N"] = 0
    for t in range(T):
        w[i] = x[t, i] * y[i]
        v: f64["N"] = 0
        for k in range(N):
            v[i] = 0.5 * v[i] + w[N - 1 - i] * y[i]
        z[t, i] = v[i]
    return z
"""
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((3, 70)), rng.standard_normal(70)
    expected = (2 - 2 * 0.5**70) * (x * y)[:, ::-1] * y
    np.testing.assert_allclose(polyml.einsum(text, threads=1, verify=True)(x, y), expected, rtol=1e-11)


@pytest.mark.parametrize(
    ("dtype", "kind"), [("f16", "f2"), ("c64", "c8"), ("c128", "c16"), ("i32", "i4"), ("i64", "i8")]
)
@pytest.mark.few(1)
def test_other_types(dtype: str, kind: str) -> None:
    text = STEPS.format(body="z[i] = z[i] + x[N - 1 - i] * y[i]\n        z[t] = sum[i](x[N - 1 - i] * z[i])")
    x, y, z = np.random.default_rng(5).integers(-2, 3, (3, 100)).astype(kind)
    function = polyml.einsum(text.replace("f64", dtype), threads=1)
    assert "x_back" in function.lower(8, x, y, z).text("graph")
    assert verify(function, 8, x, y, z)
    assert verify(function, 8, x[::-1], np.repeat(y, 2)[::2], z)
