"""Many rows with a recurrence of first order each: scans where that is safe, in their own order where it is not; results past the caches."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.codegen.llvm.support import guarded

SMALL = Target("host", l1_bytes=2048, l2_bytes=16 * 1024, cores=2)
WIDE = Target("x86-64-v4", l1_bytes=2048, l2_bytes=16 * 1024, cores=2)
"""Its plans for full vectors, whatever vectors this machine has."""


def rows(step: str, *, first: str = "x[n, 0]", bounds: str = "range(1, K)", dtype: str = "f32") -> str:
    return (
        f'def f(x: {dtype}["N K"], g: {dtype}["N K"]):\n    y: {dtype}["N K"]\n    y[n, 0] = {first}\n'
        f"    for k in {bounds}:\n        y[n, k] = {step}\n    return y\n"
    )


def in_order(x: np.ndarray, g: np.ndarray, step: str) -> np.ndarray:
    y = x.astype(np.float64)
    for k in range(1, x.shape[1]):
        y[:, k] = eval(
            step, {"max": np.maximum, "p": y[:, k - 1], "x": y[:, k].copy(), "g": g[:, k].astype(np.float64)}
        )
    return y


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(1, 300), (5, 64), (37, 331), (130, 257)])
@pytest.mark.parametrize(
    ("step", "reference", "scanned"),
    [
        ("y[n, k - 1] + x[n, k]", "p + x", True),
        ("0.5 * y[n, k - 1] - x[n, k] * g[n, k]", "0.5 * p - x * g", True),
        ("max(x[n, k], y[n, k - 1])", "max(p, x)", True),
        ("g[n, k] * y[n, k - 1] + x[n, k]", "g * p + x", False),
        ("1e9 * y[n, k - 1] * 1e-9 + x[n, k]", "p + x", True),
    ],
)
@pytest.mark.few(3)
def test_rows(threads: int, shape: tuple[int, int], step: str, reference: str, scanned: bool) -> None:
    rng = np.random.default_rng(0)
    x, g = rng.standard_normal(shape, np.float32), rng.random(shape, np.float32)
    function = polyml.einsum(rows(step), target=SMALL, threads=threads)
    if shape[0] > 16:
        wide = polyml.einsum(rows(step), target=WIDE, threads=threads)
        assert ("scan: k" in str(wide.explain(x, g))) == scanned
    exact = in_order(x, g, reference)
    np.testing.assert_allclose(function(guarded(x), guarded(g)), exact, rtol=1e-4, atol=1e-4)


def test_what_may_not_be_reassociated_keeps_its_order() -> None:
    """Floating-point sums with precise=True; maxima are the same in any order."""
    x = np.random.default_rng(0).standard_normal((40, 300), np.float32)
    precise = polyml.einsum(rows("y[n, k - 1] + x[n, k]"), target=SMALL, precise=True)
    assert "scan: k" not in str(precise.explain(x, x))
    np.testing.assert_array_equal(precise(x, x), np.cumsum(x, axis=1))
    largest = polyml.einsum(rows("max(y[n, k - 1], x[n, k])"), target=SMALL, precise=True)
    np.testing.assert_array_equal(largest(x, x), np.maximum.accumulate(x, axis=1))


def test_a_large_factor_overflows_only_where_the_result_does() -> None:
    """1e30 * 0 is 0; products of sixteen such factors would be infinite, and 0 times that NaN."""
    x = np.zeros((40, 300), np.float32)
    for step in ("1e30 * y[n, k - 1] + x[n, k]", "g[n, k] * y[n, k - 1] + x[n, k]"):
        function = polyml.einsum(rows(step), target=SMALL)
        assert (function(x, np.full_like(x, 1e30)) == 0).all()


def test_running_sums_bypass_the_caches() -> None:
    x = np.ones((64, 1024), np.float32)
    function = polyml.einsum(rows("y[n, k - 1] + x[n, k]"), target=SMALL)
    assert "stores bypass caches" in str(function.explain(x, x))
    np.testing.assert_array_equal(function(x, x), np.cumsum(x, axis=1))


def test_columns_are_read_again_and_do_not() -> None:
    text = (
        'def f(x: f32["N K"]):\n    y: f32["N K"]\n    y[0, k] = x[0, k]\n'
        "    for n in range(1, N):\n        y[n, k] = y[n - 1, k] + x[n, k]\n    return y\n"
    )
    x = np.ones((64, 1000), np.float32)
    function = polyml.einsum(text, target=SMALL)
    assert "stores bypass caches" not in str(function.explain(x))
    np.testing.assert_array_equal(function(x), np.cumsum(x, axis=0))


@pytest.mark.parametrize("step", ["g[n, 0] * y[n, k - 1] + x[n, k]", "max(y[n, k - 1] - g[n, k], x[n, k])"])
@pytest.mark.few(1)
def test_long_rows_of_several_threads(step: str) -> None:
    """What a step multiplies or adds is there in each thread."""
    rng = np.random.default_rng(0)
    x, g = rng.standard_normal((3, 100000), np.float32), rng.random((3, 100000), np.float32)
    function = polyml.einsum(rows(step), threads=2)
    assert "scan: k" in str(function.explain(x, g))
    expected = x.astype(np.float64)
    for k in range(1, x.shape[1]):
        before = expected[:, k - 1]
        moved = g[:, 0] * before + x[:, k] if "*" in step else np.maximum(before - g[:, k], x[:, k])
        expected[:, k] = moved
    np.testing.assert_allclose(function(x, g), expected, rtol=1e-4, atol=1e-4)
