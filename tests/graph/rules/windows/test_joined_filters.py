"""Filters with several indices that say where between others a result goes: one index, and the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyml

Array = np.ndarray[Any, Any]

SUBPIXELS = """
def f(x: {t}["C H W"], w: {t}["K C 3 3"]):
    y: {t}["{c} {a}*H-2*{a} {b}*W-2*{b}"]
    y[c, {a}*h + a, {b}*v + b] = sum[i, r, s](x[i, h + r, v + s] * w[{ab}*c + {b}*a + b, i, r, s])
    return y
"""
SIGNAL = """
def f(x: {t}["C N"], w: {t}["K C R"]):
    y: {t}["3*N-3*R+3"]
    y[3*n + a] = sum[i, r](x[i, n + r] * w[a, i, r])
    return y
"""
BLOCKS = """
def f(x: f32["N K"], w: f32["M K"]):
    y: f32["6 4 N"]
    y[c, a, n] = sum[k](x[n, k] * w[4*c + a, k])
    return y
"""


def numbers(t: str, *shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(polyml.dtypes.DTYPES[t].numpy)


def convolved(x: Array, w: Array) -> Array:
    size = w.shape[-1]
    high, wide = (n - size + 1 for n in x.shape[1:])
    y = np.zeros((len(w), high, wide), x.dtype)
    for r in range(size):
        for s in range(size):
            y += np.einsum("kc,chw->khw", w[:, :, r, s], x[:, r : r + high, s : s + wide])
    return y


@pytest.mark.parametrize("t", ["f32", "f64", "i32"])
@pytest.mark.parametrize(("c", "a", "b", "high", "wide"), [(3, 2, 2, 7, 9), (2, 3, 4, 5, 20), (1, 2, 3, 4, 4)])
@pytest.mark.few(3)
def test_subpixels(t: str, c: int, a: int, b: int, high: int, wide: int) -> None:
    x, w = numbers(t, 5, high, wide), numbers(t, c * a * b, 5, 3, 3)
    parts = convolved(x, w).reshape(c, a, b, high - 2, wide - 2)
    expected = parts.transpose(0, 3, 1, 4, 2).reshape(c, a * (high - 2), b * (wide - 2))
    f = polyml.einsum(SUBPIXELS.format(t=t, c=c, a=a, b=b, ab=a * b), verify=True)
    assert "filtered" in f.lower(x, w).text("graph")
    np.testing.assert_array_equal(f(x, w), expected)


def test_one_index_stays_as_it_is() -> None:
    """A phase by itself, and filters that are told apart in the result, by dimensions of their own."""
    x, w = numbers("f32", 4, 30), numbers("f32", 3, 4, 5)
    expected = np.stack([np.einsum("cnr,cr->n", np.lib.stride_tricks.sliding_window_view(x, 5, 1), v) for v in w], 1)
    np.testing.assert_array_equal(polyml.einsum(SIGNAL.format(t="f32"), verify=True)(x, w), expected.reshape(-1))
    x, w = numbers("f32", 9, 20), numbers("f32", 24, 20)
    f = polyml.einsum(BLOCKS, verify=True)
    assert "filtered" not in f.lower(x, w).text("graph")
    np.testing.assert_array_equal(f(x, w).reshape(24, 9), w @ x.T)
