"""Contractions into windows as a convolution for each phase: phases of several lengths, cropped results, every layout, and filters that are not finite."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.graph.reference import execute
from polyml.graph.verify import verify
from polyml.target import Target
from tests.graph.rules.windows.transposed import FIRST, LAST, Array, transposed
from tests.pairs import pairwise

CROPPED = """
def f(x: f64["B K P Q"], w: f64["K C R S"]):
    z: f64["B C {s}*P+R-{s} {s}*Q+S-{s}"] = 0
    z[b, c, {s}*p + r, {s}*q + s] += x[b, k, p, q] * w[k, c, r, s]
    y: f64["B C {s}*P+R-{s}-{low}-{high} {s}*Q+S-{s}-{low}-{high}"]
    y[b, c, h, v] = z[b, c, h + {low}, v + {low}]
    return y
"""


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype("f8")


def phases(source: str, *args: Array, **options: object) -> int:
    """Convolutions that there are, on a machine of full vectors."""
    options = {"target": Target("x86-64-v4"), **options}
    lines = str(polyml.einsum(source, **options).trace(*args)).splitlines()  # type: ignore[arg-type]
    return sum("_padded" in line and " sum_" in line for line in lines)


@pairwise(
    ("size", [(5, 3), (4, 4), (3, 3), (2, 7)]),
    ("s", [2, 1]),
    ("crop", [(1, 0), (1, 1), (0, 0), (0, 2)]),
    ("places", [(9, 11), (17, 16)]),
    ("threads", [1, 2]),
)
@pytest.mark.few(1)
def test_cropped(size: tuple[int, int], s: int, crop: tuple[int, int], places: tuple[int, int], threads: int) -> None:
    x, w = numbers(1, 40, *places), numbers(40, 33, *size)
    source = CROPPED.format(s=s, low=crop[0], high=crop[1])
    expected = transposed(x, w, s)
    expected = expected[:, :, crop[0] : expected.shape[2] - crop[1], crop[0] : expected.shape[3] - crop[1]]
    np.testing.assert_array_equal(polyml.einsum(source, threads=threads, verify=True)(x, w), expected)


@pytest.mark.parametrize(
    ("size", "s", "count"),
    [(3, 2, 4), pytest.param(5, 2, 4, marks=pytest.mark.slow), pytest.param(4, 2, 4, marks=pytest.mark.slow)],
)
def test_phases_of_several_lengths(size: int, s: int, count: int) -> None:
    x, w = numbers(2, 64, 24, 25), numbers(64, 48, size, size)
    first = FIRST.format(t="f64", s=s)
    assert phases(first, x, w) == count
    expected = transposed(x, w, s)
    np.testing.assert_array_equal(polyml.einsum(first, verify=True)(x, w), expected)
    turned = np.ascontiguousarray(x.transpose(0, 2, 3, 1)), np.ascontiguousarray(w.transpose(2, 3, 0, 1))
    found = polyml.einsum(LAST.format(t="f64", s=s))(*turned)
    np.testing.assert_array_equal(found.transpose(0, 3, 1, 2), expected)


def test_filters_that_are_not_finite_stay_where_they_belong() -> None:
    """A place that such an element of a filter has no term for is not touched by it."""
    x, w = np.abs(numbers(1, 64, 24, 23)) + 1, numbers(64, 48, 3, 3)
    source = FIRST.format(t="f64", s=2)
    assert phases(source, x, w) == 4
    program = polyml.einsum(source)
    for bad in (np.nan, np.inf, -np.inf):
        w[3, 4, 0, 2] = w[0, 7, 2, 2] = bad
        expected = transposed(x, w, 2)
        np.testing.assert_array_equal(program(x, w), expected)
        assert np.isfinite(expected[0, 4]).any()
        assert not np.isfinite(expected[0, 4]).all()
    np.testing.assert_array_equal(polyml.einsum(source).bind(w=w)(x), expected)


def test_the_graph_means_the_same() -> None:
    x, w = numbers(1, 64, 24, 23), numbers(64, 48, 3, 3)
    w[0, 0, 1, 1] = np.inf
    graph = polyml.einsum(FIRST.format(t="f64", s=2), target=Target("x86-64-v4")).trace(x, w)
    verify(graph)
    for filters in (w, np.nan_to_num(w, posinf=2)):
        with np.errstate(all="ignore"):
            expected = transposed(x, filters, 2)
        np.testing.assert_array_equal(execute(graph, (x, filters))[0], expected)


def test_what_has_convolutions() -> None:
    x, w = numbers(1, 64, 24, 25), numbers(64, 48, 3, 3)
    source = FIRST.format(t="f64", s=2)
    assert phases(source, x, w) == 4
    assert phases(source, x, w, precise=True) == 0, "another order of terms"
    assert phases(source, x, w, dynamic=True) == 0, "phases of sizes that are not known"
    assert phases(source, x, w[:, :1]) == 0, "a filter is no vector"
    assert phases(FIRST.format(t="f64", s=3), x, w) == 0, "as many places as terms"


def test_equal_phases_are_one_region() -> None:
    x, w = numbers(2, 64, 24, 25), numbers(64, 48, 4, 4)
    source = FIRST.format(t="f64", s=2)
    program = polyml.einsum(source, target=Target("x86-64-v4"))
    for lowered in (program.lower(x, w), program.bind(w=w).lower(x)):
        assert "launched 4 times" in lowered.explain()
    expected = transposed(x, w, 2)
    np.testing.assert_array_equal(polyml.einsum(source, verify=True).bind(w=w)(x), expected)
