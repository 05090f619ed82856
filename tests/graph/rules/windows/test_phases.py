"""Contractions into windows as convolutions with filters for each phase: the same numbers for any stride, layout and size, cropped, on top of others, and whatever the filters hold."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import polyml
from polyml.graph.reference import execute
from polyml.graph.verify import verify
from polyml.target import Target
from tests.graph.rules.windows.transposed import FIRST, LAST, Array, transposed

ROWS = """
def f(x: f64["K P Q"], w: f64["K C R"]):
    y: f64["C {s}*P+R-{s} Q"] = 0
    y[c, {s}*p + r, q] += x[k, p, q] * w[k, c, r]
    return y
"""
CROPPED = """
def f(x: f64["K P Q"], w: f64["K C 4 4"]):
    y: f64["C 2*P 2*Q"] = 0
    if 0 <= 2*p + r - 1 < 2*P and 0 <= 2*q + s - 1 < 2*Q:
        y[c, 2*p + r - 1, 2*q + s - 1] += x[k, p, q] * w[k, c, r, s]
    return y
"""
ADDED = """
def f(x: f64["K P"], w: f64["K C 4"], y: f64["C N"]):
    y[c, p + r + 3] += x[k, p] * w[k, c, r]
    return y
"""
BESIDE = """
def f(x: f64["K P"], w: f64["K C 4"]):
    y: f64["C P+9"] = 0
    y[c, p + r + 3] += x[k, p] * w[k, c, r]
    return y
"""


def numbers(*shape: int, dtype: str = "f8") -> Array:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)


def arguments(shape: tuple[int, ...], dtype: str = "f8") -> tuple[Array, Array]:
    b, k, p, q, c, height, width = shape
    return numbers(b, k, p, q, dtype=dtype), numbers(k, c, height, width, dtype=dtype)


def text(source: str, *args: Array, **options: object) -> str:
    return str(polyml.einsum(source, **options).trace(*args))  # type: ignore[arg-type]


def is_convolved(source: str, *args: Array, **options: object) -> bool:
    """On a machine of full vectors: shorter ones are worth it for other sizes."""
    found = text(source, *args, **{"target": Target("x86-64-v4"), **options})
    return "terms" not in found and "with_zeros" in found


@pytest.mark.parametrize(
    ("shape", "s", "threads"),
    [
        ((1, 17, 27, 23, 33, 3, 3), 1, 1),
        ((2, 40, 25, 19, 40, 4, 4), 2, 2),
        ((1, 33, 22, 40, 7, 6, 6), 3, 2),
        ((1, 32, 31, 24, 41, 4, 6), 2, 1),
    ],
)
@pytest.mark.few(1)
def test_layouts(shape: tuple[int, ...], s: int, threads: int) -> None:
    x, w = arguments(shape)
    expected = transposed(x, w, s)
    first = FIRST.format(t="f64", s=s)
    assert is_convolved(first, x, w)
    np.testing.assert_array_equal(polyml.einsum(first, threads=threads, verify=True)(x, w), expected)
    if threads == 1:
        np.testing.assert_array_equal(polyml.einsum(first).bind(w=w)(x), expected)
        return
    turned = np.ascontiguousarray(x.transpose(0, 2, 3, 1)), np.ascontiguousarray(w.transpose(2, 3, 0, 1))
    last = LAST.format(t="f64", s=s)
    found = polyml.einsum(last, threads=threads)(*turned)
    np.testing.assert_array_equal(found.transpose(0, 3, 1, 2), expected)


@pytest.mark.parametrize("t", ["f16", "f32", "i32", "c64"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.few(1)
def test_types(t: str, dynamic: bool) -> None:
    x, w = (abs(a).astype(polyml.dtypes.DTYPES[t].numpy) for a in arguments((1, 35, 24, 19, 30, 4, 4), "i8"))
    found = polyml.einsum(FIRST.format(t=t, s=2), threads=1, dynamic=dynamic)(x, w)
    np.testing.assert_allclose(found, transposed(x, w, 2).astype(found.dtype), rtol=1e-3 if t == "f16" else 1e-6)


def test_one_of_the_dimensions() -> None:
    x, w = numbers(33, 40, 21), numbers(33, 38, 4)
    source = ROWS.format(s=2)
    assert is_convolved(source, x, w)
    y = np.zeros((38, 82, 21))
    for p in range(40):
        y[:, 2 * p : 2 * p + 4] += np.einsum("kq,kcr->crq", x[:, p], w)
    np.testing.assert_array_equal(polyml.einsum(source)(x, w), y)


@pytest.mark.parametrize(("s", "size"), [(1, 3), pytest.param(2, 4, marks=pytest.mark.slow)])
def test_filters_that_are_not_finite_stay_where_they_belong(s: int, size: int) -> None:
    """A place that such an element of a filter has no term for is not touched by it."""
    x, w = arguments((1, 36, 22, 21, 20, size, size))
    x = np.abs(x) + 1
    source = FIRST.format(t="f64", s=s)
    assert is_convolved(source, x, w)
    program = polyml.einsum(source)
    for bad in (np.nan, np.inf, -np.inf):
        w[3, 4, 0, size - 1] = w[0, 7, size - 1, size - 1] = bad
        expected = transposed(x, w, s)
        np.testing.assert_array_equal(program(x, w), expected)
        assert np.isfinite(expected[0, 4]).any()
        assert not np.isfinite(expected[0, 4]).all()
    if s == 1:
        np.testing.assert_array_equal(polyml.einsum(source).bind(w=w)(x), expected)


def test_cropped() -> None:
    x, w = numbers(40, 24, 23), numbers(40, 20, 4, 4)
    assert is_convolved(CROPPED, x, w)
    expected = transposed(x[None], w, 2)[0][:, 1:-1, 1:-1]
    np.testing.assert_array_equal(polyml.einsum(CROPPED)(x, w), expected)


def test_on_top_of_others() -> None:
    x, w, y = numbers(64, 700), numbers(64, 40, 4), numbers(40, 720)
    assert is_convolved(ADDED, x, w, y)
    expected = y.copy()
    for p in range(700):
        expected[:, p + 3 : p + 7] += np.einsum("k,kcr->cr", x[:, p], w)
    polyml.einsum(ADDED)(x, w, y)
    np.testing.assert_array_equal(y, expected)


def test_beside_zeros() -> None:
    x, w = numbers(64, 700), numbers(64, 40, 4)
    assert is_convolved(BESIDE, x, w)
    expected = np.zeros((40, 709))
    for p in range(700):
        expected[:, p + 3 : p + 7] += np.einsum("k,kcr->cr", x[:, p], w)
    np.testing.assert_array_equal(polyml.einsum(BESIDE)(x, w), expected)


def test_the_graph_means_the_same() -> None:
    """Of the filters that are finite and of those that are not, in the reference of graphs."""
    x, w = arguments((1, 36, 22, 21, 20, 4, 4))
    w[0, 0, 1, 1] = np.inf
    source = FIRST.format(t="f64", s=2)
    graph = polyml.einsum(source).trace(x, w)
    verify(graph)
    for filters in (w, np.nan_to_num(w, posinf=2)):
        with np.errstate(all="ignore"):
            expected = transposed(x, filters, 2)
        np.testing.assert_array_equal(execute(graph, (x, filters))[0], expected)


def test_in_a_loop() -> None:
    """Sums over windows in loops are not arranged, so terms come first there."""
    source = """
    def f(x: f64["T K P"], w: f64["K C 3"], y: f64["C N"]):
        for t in range(T):
            y[c, p + r + t] += x[t, k, p] * w[k, c, r]
    """
    x, w, y = numbers(3, 64, 300), numbers(64, 40, 3), numbers(40, 310)
    assert not is_convolved(source, x, w, y)
    expected = y.copy()
    for t, p in itertools.product(range(3), range(300)):
        expected[:, p + t : p + t + 3] += np.einsum("k,kcr->cr", x[t, :, p], w)
    polyml.einsum(source)(x, w, y)
    np.testing.assert_array_equal(y, expected)


def test_what_has_phases() -> None:
    x, w = arguments((1, 32, 24, 24, 20, 4, 4))
    source = FIRST.format(t="f64", s=2)
    assert is_convolved(source, x, w)
    assert not is_convolved(source, x, w, precise=True), "another order of terms"
    assert not is_convolved(source, x, w, target="cuda"), "no lanes to arrange"
    assert not is_convolved(source, x[:, :1], w[:1]), "sums are too short"
    assert not is_convolved(source, x[..., :2, :2], w), "as many edges as places"
    assert not is_convolved(source, x, w[..., :3, :3]), "phases of more and of fewer terms"
    assert not is_convolved(FIRST.format(t="i64", s=2), x.astype("i8"), w.astype("i8")), (
        "whole numbers have no lanes for it"
    )
