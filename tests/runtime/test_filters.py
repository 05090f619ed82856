"""Recursive filters of second order over one row: in lanes, and at least as near to the exact values as one element after another."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import polyml

Array = npt.NDArray[np.floating]

RESONATOR = """
def f(x: T["N"], a: T, b: T):
    y: T["N"] = 0
    for i in range(2, N):
        y[i] = x[i] + a * y[i-1] - b * y[i-2]
    return y
"""
FIXED = """
def f(x: T["N"]):
    y: T["N"]
    y[0] = x[0]
    y[1] = x[1]
    for i in range(2, N):
        y[i] = 0.25 * x[i] + 0.5 * x[i-1] + 0.25 * x[i-2] + 1.2 * y[i-1] - 0.5 * y[i-2]
    return y
"""


def in_order(x: Array, a: float, b: float, kind: type) -> Array:
    y = np.zeros(len(x), kind)
    x, a, b = x.astype(kind), kind(a), kind(b)
    for i in range(2, len(x)):
        y[i] = x[i] + a * y[i - 1] - b * y[i - 2]
    return y


@pytest.mark.parametrize("size", [3, 30, 33, 64, 101, 1000])
@pytest.mark.parametrize(("radius", "angle"), [(0.5, 1.0), (0.9, 0.3), (0.99, 0.1), (0.9999, 3.0), (-0.9, 0.0)])
@pytest.mark.few(4)
def test_as_exact_as_in_order(size: int, radius: float, angle: float) -> None:
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    a, b = float(np.float32(2 * radius * np.cos(angle))), float(np.float32(radius**2))
    exact = in_order(x, a, b, np.longdouble)
    scale = float(np.abs(exact).max()) + 1
    found = polyml.einsum(RESONATOR.replace("T", "f32"))(x, a, b)
    off = float(np.abs(in_order(x, a, b, np.float32) - exact).max())
    assert float(np.abs(found - exact).max()) <= off + 6e-7 * scale
    doubled = polyml.einsum(RESONATOR.replace("T", "f64"))(x.astype(np.float64), a, b)
    assert float(np.abs(doubled - exact).max()) <= 1e-11 * scale


@pytest.mark.parametrize("dynamic", [False, True])
def test_fixed_factors(dynamic: bool) -> None:
    x = np.random.default_rng(0).standard_normal(777)
    y = x.copy()
    for i in range(2, len(x)):
        y[i] = 0.25 * x[i] + 0.5 * x[i - 1] + 0.25 * x[i - 2] + 1.2 * y[i - 1] - 0.5 * y[i - 2]
    np.testing.assert_allclose(polyml.einsum(FIXED.replace("T", "f64"), dynamic=dynamic)(x), y, rtol=1e-11, atol=1e-12)


def test_lanes() -> None:
    x = np.zeros(1000, np.float32)
    assert "scan_sum" in polyml.einsum(FIXED.replace("T", "f32")).lower(x).text("loops")
    assert "scan_sum" not in polyml.einsum(FIXED.replace("T", "f32"), precise=True).lower(x).text("loops")
    text = polyml.einsum(RESONATOR.replace("T", "f32"), threads=1).lower(x, 1.0, 0.5).text("llvm")
    assert text.count("fmul double") < 64, "what follows from the factors alone is computed once"


@pytest.mark.parametrize(("a", "b"), [(1e3, -0.1), (1e20, 1e20), (3.0, 1e30), (np.inf, 0.0)])
def test_factors_whose_powers_overflow_make_no_nan_where_steps_in_order_do_not(a: float, b: float) -> None:
    in_turn, made = (polyml.einsum(RESONATOR.replace("T", "f32"), precise=precise) for precise in (True, False))
    for x in (np.zeros(200, np.float32), np.eye(1, 200, 160, np.float32)[0]):
        with np.errstate(all="ignore"):
            expected = in_turn(x, a, b)
        found = made(x, a, b)
        assert np.isfinite(expected).any()
        # Beyond what f32 holds, steps in f64 may still be numbers where those in f32 are none.
        assert np.isfinite(found[np.isfinite(expected)]).all()
        np.testing.assert_allclose(found[:161], expected[:161], rtol=1e-5)
