"""Contractions into windows compute their terms first: the same numbers for any layout, type and size, one image at a time where terms take much memory."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.graph.rules.windows import terms_first
from polyml.graph.rules.windows.terms_first import DEPTH, RAGGED_DEPTH
from tests.graph.rules.windows.transposed import FIRST, LAST, Array, transposed


def arguments(shape: tuple[int, ...], dtype: str) -> tuple[Array, Array]:
    b, k, p, q, c, height, width = shape
    rng = np.random.default_rng(sum(shape))
    x, w = (rng.integers(-4, 5, s).astype(dtype) for s in ((b, k, p, q), (k, c, height, width)))
    return x, w


def graph_of(source: str, *args: Array, **options: object) -> str:
    return str(polyml.einsum(source, **options).trace(*args))  # type: ignore[arg-type]


@pytest.mark.parametrize("s", [1, 2, 3, 6])
@pytest.mark.parametrize(
    "shape", [(2, 33, 5, 6, 4, 3, 3), (1, 32, 1, 1, 1, 1, 1), (1, 40, 9, 21, 20, 4, 2), (2, 64, 1, 7, 17, 5, 5)]
)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(2)
def test_layouts(s: int, shape: tuple[int, ...], threads: int) -> None:
    x, w = arguments(shape, "f8")
    expected = transposed(x, w, s)
    np.testing.assert_array_equal(polyml.einsum(FIRST.format(t="f64", s=s), threads=threads)(x, w), expected)
    turned = np.ascontiguousarray(x.transpose(0, 2, 3, 1)), np.ascontiguousarray(w.transpose(2, 3, 0, 1))
    found = polyml.einsum(LAST.format(t="f64", s=s), threads=threads)(*turned)
    np.testing.assert_array_equal(found.transpose(0, 3, 1, 2), expected)


@pytest.mark.parametrize("t", ["f16", "f32", "i32", "i64", "c64"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.few(1)
def test_types(t: str, dynamic: bool) -> None:
    x, w = (abs(a).astype(polyml.dtypes.DTYPES[t].numpy) for a in arguments((1, 35, 4, 9, 3, 3, 2), "i8"))
    found = polyml.einsum(FIRST.format(t=t, s=2), threads=1, dynamic=dynamic)(x, w)
    np.testing.assert_allclose(found, transposed(x, w, 2).astype(found.dtype), rtol=1e-3 if t == "f16" else 1e-6)


def test_places_that_no_term_reaches_are_no_numbers() -> None:
    """Weights that are infinite or no numbers stay where they belong."""
    x, w = arguments((1, 32, 6, 6, 3, 3, 3), "f8")
    w[0, 0, 2, 1], w[1, 1, 0, 0], x[:, :2] = np.nan, np.inf, 1
    np.testing.assert_array_equal(polyml.einsum(FIRST.format(t="f64", s=1))(x, w), transposed(x, w, 1))


CROPPED = """
def gradient(d: {t}["B K P Q"], w: {t}["K C R S"]):
    x: {t}["B C {height} {width}"] = 0
    if 0 <= {s}*p + r - {before} < {height} and 0 <= {s}*q + t - {before} < {width}:
        x[b, c, {s}*p + r - {before}, {s}*q + t - {before}] += d[b, k, p, q] * w[k, c, r, t]
    return x
"""


@pytest.mark.parametrize(("height", "width", "before"), [(9, 11, 1), (7, 8, 2), (12, 30, 1), (5, 4, 3)])
@pytest.mark.parametrize("s", [1, 2, 3])
@pytest.mark.parametrize("t", ["f32", "f64"])
@pytest.mark.few(2)
def test_terms_beside_the_result(height: int, width: int, before: int, s: int, t: str) -> None:
    """The gradient of a padded convolution's input: terms are whole boxes, as all of a register tile are, and those beside the result are left."""
    d, w = arguments((2, 37, 7, 6, 5, 3, 4), t.replace("f32", "f4").replace("f64", "f8"))
    source = CROPPED.format(t=t, s=s, before=before, height=height, width=width)
    whole = transposed(d.astype("f8"), w.astype("f8"), s)
    expected = np.zeros((2, 5, before + max(height, whole.shape[2]), before + max(width, whole.shape[3])))
    expected[:, :, : whole.shape[2], : whole.shape[3]] = whole
    expected = expected[:, :, before : before + height, before : before + width]
    np.testing.assert_array_equal(polyml.einsum(source, verify=True)(d, w), expected)
    text = graph_of(source, d, w)
    terms = [line for line in text.splitlines() if "_terms[" in line.split("=")[0]]
    # Places that nothing of the first image row reaches begin no box.
    assert len(terms) == (before < 3)
    assert all(re.fullmatch(r"(0 <= \w+ < \d+( and )?)+", line.split("   for ")[1]) for line in terms)


def test_windows_side_by_side_are_assigned() -> None:
    source = """
    def f(x: f64["N K"], w: f64["K 4"]):
        y: f64["4*N"]
        y[4*n + r] = x[n, k] * w[k, r]
        return y
    """
    rng = np.random.default_rng(0)
    x, w = rng.random((13, 50)), rng.random((50, 4))
    assert "terms" in graph_of(source, x, w)
    np.testing.assert_allclose(polyml.einsum(source)(x, w), (x @ w).ravel(), rtol=1e-13)


@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.slow), ("B",)])
def test_one_image_at_a_time(dynamic: bool | tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms_first, "MOST_BYTES", 100_000)
    source, (x, w) = FIRST.format(t="f64", s=2), arguments((9, 40, 11, 6, 5, 3, 3), "f8")
    f = polyml.einsum(source, threads=1, dynamic=dynamic)
    np.testing.assert_array_equal(f(x, w), transposed(x, w, 2))
    text = graph_of(source, x, w)
    assert "for b_ in" in text
    assert "terms" in text


def test_what_has_terms() -> None:
    deep, flat = arguments((1, DEPTH, 6, 6, 3, 3, 3), "f8"), arguments((1, DEPTH - 1, 6, 6, 3, 3, 3), "f8")
    source = FIRST.format(t="f64", s=1)
    assert "terms" in graph_of(source, *deep)
    assert "terms" not in graph_of(source, *flat), "sums are too short"
    assert "terms" not in graph_of(source, *deep, precise=True), "another order of terms"
    ragged = arguments((1, RAGGED_DEPTH, 12, 12, 3, 8, 8), "f8")
    assert "terms" in graph_of(FIRST.format(t="f64", s=5), *ragged)
    assert "terms" not in graph_of(FIRST.format(t="f64", s=4), *ragged), "two terms for each element"
    plain = 'def f(x: f64["N K"], w: f64["K M"]):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n'
    assert "terms" not in graph_of(plain, np.ones((40, 40)), np.ones((40, 40))), "no windows"


def test_onto_zeros_of_each_iteration() -> None:
    """The loop's variable moves the windows, and what they are added to begins with zeros each time."""
    source = """
    def f(x: f64["T K P"], w: f64["K C 3"], y: f64["C N"]):
        for t in range(3):
            z: f64["C N"] = 0
            z[c, p + r + t] += x[t, k, p] * w[k, c, r]
            y[c, n] += z[c, n]
    """
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, shape).astype("f8") for shape in ((3, 64, 30), (64, 20, 3)))
    y, expected = np.zeros((20, 40)), np.zeros((20, 40))
    for t, p in np.ndindex(3, 30):
        expected[:, p + t : p + t + 3] += np.einsum("k,kcr->cr", x[t, :, p], w)
    polyml.einsum(source)(x, w, y)
    np.testing.assert_array_equal(y, expected)


def test_windows_of_symbolic_sizes_lie_along_the_longer_index() -> None:
    """Which of two indices of unknown extent is the window's place and which its inside is told by the call's numbers: places stay neighbours, as they are in x."""
    source = """
    def gradient(d: f32["K P Q"], w: f32["K C R S"]):
        y: f32["C P+R-1 Q+S-1"] = 0
        y[c, p + r, q + s] += d[k, p, q] * w[k, c, r, s]
        return y
    """
    d, w = np.ones((40, 30, 20), "f4"), np.ones((40, 8, 3, 5), "f4")
    assert "y_1_terms[c, r, s, p, q]" in graph_of(source, d, w, dynamic=True)
    small, large = np.ones((40, 3, 2), "f4"), np.ones((40, 8, 13, 15), "f4")
    assert "y_1_terms[c, p, q, r, s]" in graph_of(source, small, large, dynamic=True)
