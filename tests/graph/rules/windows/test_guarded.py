"""Sums that leave terms out beside a tensor, computed with zeros there: the same numbers, also where the other factor is infinite or no number."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import polyml
from polyml.graph.ir import Graph
from polyml.graph.printer import graph_text
from polyml.graph.reference import execute

DENSE = """
def f(x: f32["C H W"], w: f32["F C R S"]):
    y: f32["F H W"]
    y[f, h, v] = sum[c, r, s, 0 <= h + r - 1 < H, 0 <= v + s - 1 < W](x[c, h + r - 1, v + s - 1] * w[f, c, r, s])
    return y
"""
DEEP = """
def f(x: f32["C H W"], w: f32["C R S"]):
    y: f32["C H W"]
    y[c, h, v] = sum[r, s, 0 <= h + r - 1 < H, 0 <= v + s - 1 < W](x[c, h + r - 1, v + s - 1] * w[c, r, s])
    return y
"""
FLIPPED = DENSE.replace("w[f, c, r, s]", "w[f, c, R - 1 - r, S - 1 - s]").replace("[c, r, s,", "[c, r < R, s < S,")
FOLLOWED = DENSE.replace("    return y", "    z[f, h, v] = relu(y[f, h, v] + 1)\n    return z")
SHIFTED = """
def f(x: f32["C H W"], w: f32["C H W"]):
    y: f32["9 9 H W"]
    y[p, q, h, v] = sum[c, 0 <= h + p - 4 < H, 0 <= v + q - 4 < W](w[c, h, v] * x[c, h + p - 4, v + q - 4])
    return y
"""
EMPTY = """
def f(x: f32["C N"], w: f32["F C R"]):
    y: f32["F N+8"]
    y[f, n] = sum[c, r, 0 <= n + r - 8 < N](x[c, n + r - 8] * w[f, c, r])
    return y
"""


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32)


CASES = {
    "dense": (DENSE, (33, 23, 21), (40, 33, 3, 3)),
    "few filters": (DENSE, (64, 40, 50), (2, 64, 5, 5)),
    "one for each channel": (DEEP, (70, 60, 61), (70, 3, 3)),
    "backwards": (FLIPPED, (33, 23, 21), (40, 33, 3, 3)),
    "followed": (FOLLOWED, (33, 23, 21), (40, 33, 3, 3)),
    "moved by the result": (SHIFTED, (16, 30, 41), (16, 30, 41)),
    "places without terms": (EMPTY, (64, 300), (50, 64, 4)),
}


@cache
def compiled(case: str, **options: object) -> tuple[polyml.api.Einsum, Graph]:
    """The program, and its graph for these shapes: for all values, which do not decide about them."""
    source, *shapes = CASES[case]
    f = polyml.einsum(source, **options)
    return f, f.lower(*(numbers(*shape) for shape in shapes)).stages.graph


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bad", [None, np.nan, np.inf])
@pytest.mark.few(1)
def test_filters(case: str, bad: float | None) -> None:
    _, one, other = CASES[case]
    x, w = numbers(*one), numbers(*other)
    if bad is not None:
        w[(1, 0, *(0 for _ in w.shape[2:]))] = w[0, ..., -1] = bad
        x[:] = np.abs(x) + 1
    expected = compiled(case, precise=True)[0](x, w)
    assert bad is None or not np.isfinite(expected).all()
    f, graph = compiled(case, threads=1 + [*CASES].index(case) % 2)
    assert "if w_is_not_finite" in graph_text(graph)
    np.testing.assert_array_equal(f(x, w), expected)
    np.testing.assert_array_equal(f.bind(w=w)(x), expected)
    np.testing.assert_array_equal(execute(graph, (x, w))[0], expected)


@pytest.mark.parametrize("bad", [None, np.inf])
@pytest.mark.few(1)
def test_of_what_it_overwrites(bad: float | None) -> None:
    """An argument that is updated in place is read until the exact sums are made: the others wait elsewhere."""
    source = """
    def f(y: f32["C N"], w: f32["C C 3"]):
        y[d, n] = sum[c, r, 0 <= n + r - 1 < N](y[c, n + r - 1] * w[d, c, r])
        y[0, n] += 1
    """
    y, w = np.abs(numbers(64, 400)), numbers(64, 64, 3)
    w[2, 3, 0] = 1 if bad is None else bad
    expected = y.copy()
    polyml.einsum(source, precise=True)(expected, w)
    f = polyml.einsum(source)
    assert "if w_is_not_finite" in f.lower(y, w).text("graph")
    f(y, w)
    np.testing.assert_array_equal(y, expected)


def test_any_size() -> None:
    source, one, other = CASES["dense"]
    x, w = numbers(*one), numbers(*other)
    written, any_size = polyml.einsum(source, precise=True), polyml.einsum(source, dynamic=True)
    for first in (1, np.nan):
        w[0, 0, 0, 0] = first
        np.testing.assert_array_equal(any_size(x, w), written(x, w))


def test_the_plan_runs_the_exact_sums_only_where_they_are_wanted() -> None:
    source, one, other = CASES["dense"]
    kernel = polyml.einsum(source).kernel_for(numbers(*one), numbers(*other))
    assert [line.endswith(" if w_is_not_finite") for line in kernel.plan.splitlines() if "launch" in line].count(
        True
    ) == 1


def test_what_has_no_guard() -> None:
    source, _, other = CASES["dense"]
    w = numbers(*other)
    assert "is_not_finite" not in str(polyml.einsum(source).trace(numbers(33, 4, 5), w)), "little work"
    padded = 'def f(x: f32["C H W"], w: f32["F C 3 3"]):\n    y[f, h, v] = pad(x, ((0, 0), (1, 1), (1, 1)))[c, h + r, v + s] * w[f, c, r, s]\n    return y\n'
    assert "is_not_finite" not in str(polyml.einsum(padded).trace(numbers(33, 23, 21), w)), "padding has a value"
    assert "is_not_finite" not in str(polyml.einsum(source, precise=True).trace(numbers(33, 23, 21), w))


def test_padding_with_a_value_is_not_taken_for_none() -> None:
    """Both sums have one domain, and only one of them may multiply zeros with what is not finite."""
    source = """
def f(x: f32["C H W"], w: f32["F C R S"]):
    u: f32["F H W"]
    v: f32["F H W"]
    u[f, h, q] = pad(x, ((0, 0), (1, 1), (1, 1)))[c, h + r, q + s] * w[f, c, r, s]
    v[f, h, q] = sum[c, r, s, 0 <= h + r - 1 < H, 0 <= q + s - 1 < W](x[c, h + r - 1, q + s - 1] * w[f, c, r, s])
    return u, v
"""
    x, w = np.abs(numbers(33, 23, 21)) + 1, numbers(40, 33, 3, 3)
    w[1, 0, 0, 0] = np.inf
    np.testing.assert_array_equal(polyml.einsum(source)(x, w)[1], polyml.einsum(source, precise=True)(x, w)[1])
