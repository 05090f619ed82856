"""Elements that are moved between each other are fetched from rows in turn: the same elements for any number of rows, shift, type and size, and nothing outside of the arrays is read."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.einsum_numpy.guard_pages import guarded
from tests.pairs import pairwise

PLACED = """
def f(t: {t}["A B C P Q"]):
    y: {t}["C {s}*P {s}*Q"]
    y[c, {s}*p + a, {s}*q + b] = t[a, b, c, p, q]
    return y
"""
FETCHED = """
def f(t: {t}["A B C P Q"]):
    y: {t}["C {s}*P {s}*Q"]
    y[c, h, w] = t[h % {s}, w % {s}, c, h // {s}, w // {s}]
    return y
"""
REPEATED = """
def f(x: {t}["C P"]):
    y: {t}["C {s}*P-{k}"]
    y[c, i] = x[c, (i + {k}) // {s}]
    return y
"""
CROPPED = """
def f(t: f32["B C Q"], d: f32["C"]):
    y: f32["C 2*Q-{k}"]
    if 0 <= 2*q + b - {k} < 2*Q - {k}:
        y[c, 2*q + b - {k}] = 2 * t[b, c, q] + d[c]
    return y
"""


def numbers(dtype: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 100, shape).astype(polyml.dtypes.DTYPES[dtype].numpy)


def loops(source: str, *args: np.ndarray) -> str:
    return polyml.einsum(source).lower(*args).text("loops")


@pairwise(
    ("t", ["f32", "f64", "i8", "i64", "bool", "c64"]),
    ("s", [2, 3, 4, 5]),
    ("extents", [(3, 5, 37), (1, 1, 1), (2, 3, 64), (0, 2, 3), (2, 4, 0)]),
    ("source", [PLACED, FETCHED]),
)
@pytest.mark.few(10)
def test_places(t: str, s: int, extents: tuple[int, int, int], source: str) -> None:
    c, p, q = extents
    x = numbers(t, s, s, c, p, q)
    expected = x.transpose(2, 3, 0, 4, 1).reshape(c, s * p, s * q)
    np.testing.assert_array_equal(polyml.einsum(source.format(t=t, s=s), verify=True)(x), expected)


@pytest.mark.parametrize("s", [2, 4])
def test_lanes_run_along_the_rows_of_the_result(s: int) -> None:
    x = numbers("f32", s, s, 3, 5, 64)
    text = loops(PLACED.format(t="f32", s=s), x)
    assert "vector" in text
    assert f"//{s}" in text
    llvm = polyml.einsum(PLACED.format(t="f32", s=s), target=polyml.Target("x86-64-v3")).lower(x).text("llvm")
    assert "masked.gather" not in llvm
    assert "masked.scatter" not in llvm


@pairwise(("t", ["f32", "f64", "i16"]), ("s", [2, 3, 4]), ("k", [0, 1, 2, 3]))
@pytest.mark.few(3)
def test_repeated_elements_from_any_place(t: str, s: int, k: int) -> None:
    x = numbers(t, 4, 71)
    expected = x.repeat(s, 1)[:, k:]
    np.testing.assert_array_equal(polyml.einsum(REPEATED.format(t=t, s=s, k=k), verify=True)(x), expected)
    for behind in (False, True):
        inside = guarded(x, behind)
        np.testing.assert_array_equal(polyml.einsum(REPEATED.format(t=t, s=s, k=k))(inside), expected)


@pytest.mark.parametrize("k", [0, 1, 2])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.few(3)
def test_what_is_computed_on_the_way(k: int, dynamic: bool) -> None:
    t, d = numbers("f32", 2, 6, 85), numbers("f32", 6)
    expected = (2 * t + d[:, None]).transpose(1, 2, 0).reshape(6, -1)[:, k:]
    np.testing.assert_array_equal(polyml.einsum(CROPPED.format(k=k), dynamic=dynamic)(t, d), expected)


def test_what_stays() -> None:
    t = numbers("f32", 2, 3, 5, 40)
    beside = (
        'def f(t: f32["B C P Q"]):\n    y: f32["C P 2*Q+1"] = 0\n    y[c, p, 2*q + b] = t[b, c, p, q]\n    return y\n'
    )
    assert "//" not in loops(beside, t), "an element that nothing is moved to"
    expected = np.zeros((3, 5, 81), np.float32)
    expected[..., :80] = t.transpose(1, 2, 3, 0).reshape(3, 5, 80)
    np.testing.assert_array_equal(polyml.einsum(beside)(t), expected)
    rows = 'def f(t: f32["B P C"]):\n    y: f32["2*P C"]\n    y[2*p + b, c] = t[b, p, c]\n    return y\n'
    x = numbers("f32", 2, 30, 40)
    assert "//" not in loops(rows, x), "whole rows"
    np.testing.assert_array_equal(polyml.einsum(rows)(x), x.transpose(1, 0, 2).reshape(60, 40))


@pytest.mark.parametrize("t", ["f64", "i64", "f32"])
def test_as_many_rows_as_lanes(t: str) -> None:
    """A vector has one element of each row: nothing to shuffle."""
    f = polyml.einsum(FETCHED.format(t=t, s=4), target=Target("x86-64-v3"))
    x = numbers(t, 4, 4, 2, 3, 40)
    assert f.lower(x).text("asm")
    if f.lower(x).stages.options.machine.runs_here:
        np.testing.assert_array_equal(f(x), x.transpose(2, 3, 0, 4, 1).reshape(2, 12, 160))


POOLED = """
def f(x: f32["C H H"], m: f32["C P P"], d: f32["C P P"]):
    y: f32["C H H"] = 0
    y[c, 2*p + a, 2*q + b] += where(x[c, 2*p + a, 2*q + b] == m[c, p, q], d[c, p, q], 0.0)
    return y
"""
SCALED = """
def f(d: f32["C P P"], w: f32["C {s} {s}"]):
    y: f32["C {s}*P {s}*P"] = 0
    y[c, {s}*p + a, {s}*q + b] += d[c, p, q] * w[c, a, b]
    return y
"""


@pytest.mark.parametrize("p", [32, 15])
def test_repeated_elements_that_values_choose(p: int) -> None:
    """All lanes read, those of a vector's rest under a mask, and nothing outside of the arrays."""
    x = numbers("f32", 3, 2 * p, 2 * p)
    m, d = x.reshape(3, p, 2, p, 2).max((2, 4)), numbers("f32", 3, p, p) + 1
    at = np.repeat(np.repeat(d, 2, 1), 2, 2)
    expected = np.where(x == np.repeat(np.repeat(m, 2, 1), 2, 2), at, 0)
    np.testing.assert_array_equal(polyml.einsum(POOLED, verify=True)(x, m, d), expected)
    for behind in (False, True):
        np.testing.assert_array_equal(polyml.einsum(POOLED)(x, guarded(m, behind), guarded(d, behind)), expected)
    assert "masked.gather" not in polyml.einsum(POOLED).lower(x, m, d).text("llvm")


@pytest.mark.parametrize("s", [2, 3])
def test_elements_that_go_round_are_put_where_they_belong(s: int) -> None:
    """One term for each element: no zeros ahead, and no row that is read by a load for each lane."""
    d, w = numbers("f32", 3, 20, 20), numbers("f32", 3, s, s)
    expected = (d[:, :, None, :, None] * w[:, None, :, None, :]).reshape(3, s * 20, s * 20)
    source = SCALED.format(s=s)
    np.testing.assert_array_equal(polyml.einsum(source, verify=True)(d, w), expected)
    lowered = polyml.einsum(source).lower(d, w)
    assert lowered.text("graph").count(" = ") == 1
    assert "masked.gather" not in lowered.text("llvm")


def test_elements_that_lanes_share_are_loaded_once_however_long_rows_are() -> None:
    """Rows of any length, none of which is the lanes'; the last vector asks for the elements that its lanes want. Rows that begin where memory lets them in a version for large results are gathered."""
    source = 'def f(x: f32["C H W"]):\n    y: f32["C 2*H 2*W"]\n    y[c, h, w] = x[c, h//2, w//2]\n    return y\n'
    program = polyml.einsum(source, dynamic=True, threads=1)
    for shape in ((2, 3, 5), (1, 2, 16), (3, 1, 33), (2, 2, 7)):
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        for behind in (False, True):
            np.testing.assert_array_equal(program(guarded(x, behind)), x.repeat(2, 1).repeat(2, 2))
    wide = polyml.einsum(source, dynamic=True, target=Target("x86-64-v4", features="-prefer-256-bit"))
    assert "@llvm.masked.load.v8f32" in wide.lower(np.zeros((2, 3, 5), np.float32)).text("llvm")
