"""Loops that only add to a tensor become sums over their variable; whatever reads what they add to, or does more, stays a loop."""

from __future__ import annotations

import numpy as np
import pytest

import polyml

PROGRAMS = {
    "taps": 'y: f64["34"] = 0\n    for r in range(7):\n        y[n] += sum[c](x[c, n + r] * w[c, r])',
    "from two on": 'y: f64["34"] = 2\n    for r in range(2, 7):\n        y[n] += sum[c](x[c, n + r] * w[c, r] * (r + 1))',
    "scattered": 'y: f64["46"] = 0\n    for r in range(7):\n        y[n + r] += sum[c](x[c, n] * w[c, r])',
    "nested": 'y: f64["34"] = 0\n    for c in range(5):\n        for r in range(7):\n            y[n] += x[c, n + r] * w[c, r]',
    "triangular": 'y: f64["46"] = 0\n    for t in range(3):\n        for r in range(t, 7):\n            y[n + r - t] += x[t, n] * w[t, r]',
    "of rank one": 'y: f64["N R"] = 0\n    for c in range(5):\n        y[n, r] += x[c, n] * w[c, r]',
    "of one row each": 'y: f64["5 N"] = 0\n    for t in range(5):\n        y[t, n] += sum[c](x[c, n] * w[c, t])',
    "subtracted": 'y: f64["N R"] = 0\n    for c in range(5):\n        y[n, r] -= x[c, n] * w[c, r]',
    "largest": 'y: f64["34"] = -inf\n    for r in range(7):\n        y[n] = max(y[n], x[1, n + r])',
    "smallest from somewhere on": 'y: f64["34"] = 1\n    for r in range(2, 7):\n        y[n] = min(x[1, n + r] * r, y[n])',
    "largest, some without any": 'y: f64["50"] = -inf\n    for r in range(7):\n        if 0 <= n + r - 9 < 40:\n            y[n] = max(y[n], x[1, n + r - 9])',
    "smallest of two": 'y: f64["4 34"] = inf\n    for c in range(2):\n        for r in range(7):\n            y[i, n] = min(y[i, n], x[i + c, n + r])',
    "window of one": 'y: f64["34"] = 0\n    for r in range(7):\n        y[n] += x[2, n + r]',
}
LOOPS = {
    "rows of one": 'y: f64["N"] = 0\n    for c in range(5):\n        y[n] += x[c, n]',
    "largest of itself": 'y: f64["34"] = 0\n    for r in range(7):\n        y[n] = max(y[n], x[1, n + r] + y[r])',
    "itself": 'y: f64["34"] = 0\n    for r in range(7):\n        y[n] += sum[c](x[c, n + r] * w[c, r]) + y[r]',
    "a factor": 'y: f64["34"] = 0\n    for r in range(7):\n        y[n] = 2 * y[n] + sum[c](x[c, n + r] * w[c, r])',
    "two": 'y: f64["34"] = 0\n    z: f64["34"] = 1\n    for r in range(7):\n        y[n] += x[0, n + r] * w[0, r]\n        z[n] = z[n] * y[n]\n    y[n] += z[n]',
}


def function(body: str, **options: object) -> object:
    return polyml.einsum(f'def f(x: f64["C N"], w: f64["C R"]):\n    {body}\n    return y\n', **options)


def arguments() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(-2, 3, (5, 40)).astype(float), rng.integers(-2, 3, (5, 7)).astype(float)


@pytest.mark.parametrize("name", [*PROGRAMS, *LOOPS])
@pytest.mark.few(3)
def test_the_same_numbers(name: str) -> None:
    """As in the written order, of numbers whose sums are exact."""
    body, given = (PROGRAMS | LOOPS)[name], arguments()
    expected = function(body, precise=True)(*given)
    for options in ({"verify": True}, {"threads": 2, "dynamic": True}):
        np.testing.assert_array_equal(function(body, **options)(*given), expected)


@pytest.mark.parametrize("name", [*PROGRAMS, *LOOPS])
def test_which_loops_are_left(name: str) -> None:
    text = str(function((PROGRAMS | LOOPS)[name]).trace(*arguments()))
    # The bounds of a loop inside are numbers, too.
    assert (" in range(" in text) == (name in LOOPS or name in ("triangular", "subtracted"))


@pytest.mark.parametrize("dtype", ["f32", "i32", "i8"])
def test_extrema_of_every_kind_and_no_number(dtype: str) -> None:
    """On what changes nothing they need no start; a NaN wins."""
    low, high = (
        (-np.inf, np.inf)
        if dtype == "f32"
        else (np.iinfo(dtype.replace("i", "int")).min, np.iinfo(dtype.replace("i", "int")).max)
    )
    x = np.random.default_rng(0).integers(-100, 100, 50).astype("f4" if dtype == "f32" else dtype.replace("i", "int"))
    if dtype == "f32":
        x[20] = np.nan
    windows = np.lib.stride_tricks.sliding_window_view(x, 5)
    for name, start, reduced in (("max", low, windows.max(1)), ("min", high, windows.min(1))):
        text = str(start) if dtype == "f32" else f"{start}"
        source = f'def f(x: {dtype}["N"]):\n    y: {dtype}["46"] = {text}\n    for r in range(5):\n        y[i] = {name}(y[i], x[i + r])\n    return y\n'
        program = polyml.einsum(source)
        np.testing.assert_array_equal(program(x), reduced)
        assert program.lower(x).text("graph").count(" = ") == 1


def test_numbers_that_grow_by_a_part_of_themselves() -> None:
    """A tensor of no dimensions whose terms it is a factor of was no sum, and was taken for one."""
    text = 'def f(x: f64["N"], w: f64["N"]):\n    s = 1.0\n    for t in range(7):\n        s = s + s * x[t] * w[t]\n    return s\n'
    x, w = arguments()[1][:2]
    assert polyml.einsum(text)(x, w) == np.prod(1 + x * w)
