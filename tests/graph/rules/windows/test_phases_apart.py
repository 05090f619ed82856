"""Phases of windows are made apart and put between each other: the same sums for any stride, crop and rest, nothing added to elements that have no terms, and other forms where lanes have no gaps."""

from __future__ import annotations

import numpy as np
import pytest

import polyml

PLANE = """
def f(d: {t}["C P P"], w: {t}["C {k} {k}"]):
    x: {t}["C {n} {n}"] = {base}
    if 0 <= {s}*p+r-{c} < {n} and 0 <= {s}*q+t-{c} < {n}:
        x[c, {s}*p+r-{c}, {s}*q+t-{c}] += d[c, p, q] * w[c, r, t]
    return x
"""
ROW = """
def f(d: f32["N"], w: f32["K"]):
    y: f32["{s}*N+K-{s}"] = 0
    y[{s}*n+k] += d[n] * w[k]
    return y
"""


def expected(d: np.ndarray, w: np.ndarray, s: int, crop: int, n: int, base: float = 0.0) -> np.ndarray:
    c, p, _ = d.shape
    k = w.shape[1]
    whole = np.zeros((c, max(n + crop, s * p + k), max(n + crop, s * p + k)))
    for r in range(k):
        for t in range(k):
            whole[:, r : r + s * p : s, t : t + s * p : s] += d.astype(np.float64) * w[:, r, t, None, None]
    return base + whole[:, crop : crop + n, crop : crop + n]


def plane(t: str, k: int, s: int, crop: int, n: int, base: float = 0.0) -> str:
    return PLANE.format(t=t, k=k, s=s, c=crop, n=n, base=base)


def numbers(*shape: int, t: str = "f32") -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype({"f32": np.float32, "f64": np.float64}[t])


# The last three: the last row and column have no terms; three phases each of one row have two or one terms; elements are not zero ahead.
@pytest.mark.parametrize(
    ("k", "s", "crop", "n", "p", "base"),
    [
        (3, 2, 1, 40, 20, 0),
        (4, 2, 1, 42, 21, 0),
        (5, 2, 2, 35, 18, 0),
        (7, 3, 2, 52, 17, 0),
        (3, 2, 0, 42, 20, 0),
        (5, 4, 1, 71, 18, 0),
        (3, 2, 1, 40, 20, 1),
    ],
)
@pytest.mark.few(1)
def test_planes(k: int, s: int, crop: int, n: int, p: int, base: float) -> None:
    t = "f64" if s == 3 else "f32"
    d, w = numbers(3, p, p, t=t), numbers(3, k, k, t=t)
    got = polyml.einsum(plane(t, k, s, crop, n, base), verify=True)(d, w)
    np.testing.assert_allclose(got, expected(d, w, s, crop, n, base), rtol=0, atol=1e-5 if t == "f32" else 1e-13)


@pytest.mark.parametrize(("k", "s"), [(3, 2), (5, 3), (9, 4), (7, 5)])
def test_rows(k: int, s: int) -> None:
    d, w = numbers(53), numbers(k)
    y = np.zeros(s * 53 + k)
    for i in range(k):
        y[i : i + s * 53 : s] += d.astype(np.float64) * w[i]
    np.testing.assert_allclose(polyml.einsum(ROW.format(s=s), verify=True)(d, w), y[: s * 53 + k - s], atol=1e-5)


@pytest.mark.parametrize("k", [3, 4])
def test_lanes_have_no_gaps(k: int) -> None:
    lowered = polyml.einsum(plane("f32", k, 2, 1, 64)).lower(numbers(4, 32, 32), numbers(4, k, k))
    assert "masked.scatter" not in lowered.text("llvm")
    assert "//2" in lowered.text("graph")


def test_phases_that_no_cache_holds_stay_in_their_places() -> None:
    text = str(polyml.einsum(ROW.format(s=2)).trace(np.zeros(8 << 20, np.float32), numbers(3)))
    assert "//2" not in text


def test_nothing_is_added_to_elements_without_the_term() -> None:
    """An infinite element beside a padded place, and zeros among the weights, would be NaN there."""
    d, w = numbers(1, 20, 20), np.zeros((1, 3, 3), np.float32)
    w[0, 0, 0] = 1
    d[0, 0, 0] = d[0, 19, 19] = np.inf
    got = polyml.einsum(plane("f32", 3, 2, 1, 40))(d, w)
    with np.errstate(invalid="ignore"):
        want = expected(d, w, 2, 1, 40)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


def test_sums_of_channels_and_what_follows() -> None:
    d, w, b = numbers(5, 12, 12), numbers(5, 3, 3, 3), numbers(3)
    source = """
def f(d: f32["F P P"], w: f32["F C K K"], b: f32["C"]):
    x: f32["C 24 24"] = 0
    if 0 <= 2*p+r-1 < 24 and 0 <= 2*q+t-1 < 24:
        x[c, 2*p+r-1, 2*q+t-1] += d[f, p, q] * w[f, c, r, t]
    y[c, i, j] = relu(x[c, i, j] + b[c])
    return y
"""
    x = sum(expected(d[f : f + 1].repeat(3, 0), w[f], 2, 1, 24) for f in range(5))
    got = polyml.einsum(source, verify=True)(d, w, b)
    np.testing.assert_allclose(got, np.maximum(x + b[:, None, None], 0), atol=1e-5)
