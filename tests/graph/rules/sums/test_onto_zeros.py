"""Sums onto zeros are the elements themselves: which are, whatever they are moved by, and that others stay."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from tests.pairs import pairwise

MOVED = """
def f(x: f64["C N"], w: f64["C R"]):
    y: f64["{size}"] = {start}
    if 0 <= {place} < {size}:
        y[{place}] += x[c, {read}] * w[c, r]
    return y
"""


def graph_of(source: str, *args: np.ndarray) -> str:
    return str(polyml.einsum(source).trace(*args))


def arguments(terms: int = 5, size: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(terms + size)
    return rng.integers(-4, 5, (terms, size)).astype(float), rng.integers(-4, 5, (terms, 3)).astype(float)


def added(x: np.ndarray, w: np.ndarray, size: int, stride: int, step: int, ahead: int) -> np.ndarray:
    y = np.zeros(size)
    for n in range(x.shape[1]):
        for r in range(w.shape[1]):
            if 0 <= stride * n + step * r + ahead < size:
                y[stride * n + step * r + ahead] += x[:, n] @ w[:, r]
    return y


@pairwise(
    ("terms", [1, 5, 40]),
    ("size", [38, 40, 45]),
    ("stride, step", [(1, 1), (1, -1), (2, 1), (2, -1), (1, -2), (3, -2)]),
    ("ahead", [0, 1, -2]),
)
@pytest.mark.few(6)
def test_moved_windows(terms: int, size: int, stride: int, step: int, ahead: int) -> None:
    x, w = arguments(terms)
    place = f"{stride}*n + {ahead} " + (f"+ {step}*r" if step > 0 else f"- {-step}*r")
    found = polyml.einsum(MOVED.format(size=size, start=0, place=place, read="n"))(x, w)
    np.testing.assert_array_equal(found, added(x, w, size, stride, step, ahead))


def test_no_zeros_are_needed() -> None:
    x, w = arguments()
    conditions = MOVED.format(size=40, start=0, place="i", read="i + r - 1").replace("0 <= i <", "0 <= i + r - 1 <")
    text = graph_of(conditions, x, w)
    assert "+=" not in text
    assert " = 0   for" not in text
    padded = np.pad(x, ((0, 0), (1, 1)))
    expected = sum(padded[:, r : r + 40].T @ w[:, r] for r in range(3))
    np.testing.assert_array_equal(polyml.einsum(conditions)(x, w), expected)


def test_elements_without_terms_are_zeros() -> None:
    x, w = arguments(size=20)
    found = polyml.einsum(MOVED.format(size=50, start=0, place="n + r + 9", read="n"), verify=True)(x, w)
    np.testing.assert_array_equal(found, added(x, w, 50, 1, 1, 9))


@pytest.mark.parametrize("start", ["1", "x[0, 0]"])
def test_what_is_added_to_something_else(start: str) -> None:
    x, w = arguments()
    source = MOVED.format(size=40, start=0, place="n + r - 1", read="n").replace(" = 0\n", f"\n    y[i] = {start}\n")
    expected = added(x, w, 40, 1, 1, -1) + (1 if start == "1" else x[0, 0])
    np.testing.assert_array_equal(polyml.einsum(source, verify=True)(x, w), expected)


def test_sums_of_a_loop() -> None:
    """Its zeros are those of the first iteration alone."""
    source = """
    def f(x: f64["T N"], w: f64["N"]):
        y: f64["3"] = 0
        for t in range(T):
            y[i] += sum[n](x[t, n] * w[n]) * (i + 1)
        return y
    """
    x = np.random.default_rng(0).integers(-4, 5, (6, 20)).astype(float)
    w = np.arange(20.0)
    np.testing.assert_array_equal(polyml.einsum(source, verify=True)(x, w), (x @ w).sum() * np.arange(1, 4))


def test_gradients_of_depthwise_convolutions() -> None:
    source = """
    def gradient(d: f32["C H W"], w: f32["C 3 3"]):
        x: f32["C H W"] = 0
        if 0 <= h + r - 1 < H and 0 <= v + s - 1 < W:
            x[c, h + r - 1, v + s - 1] += d[c, h, v] * w[c, r, s]
        return x
    """
    rng = np.random.default_rng(0)
    d, w = rng.integers(-4, 5, (20, 13, 21)).astype(np.float32), rng.integers(-4, 5, (20, 3, 3)).astype(np.float32)
    padded = np.pad(d, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    expected = np.einsum("chvrs,crs->chv", windows, w[:, ::-1, ::-1])
    np.testing.assert_array_equal(polyml.einsum(source, verify=True)(d, w), expected)
