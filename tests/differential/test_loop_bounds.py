"""Loops that begin at the largest of several places and end before the smallest: tiles, bands and diagonals by hand, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import polyml
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.errors import NotAffineError, PolymlError
from polyml.source import Source

BAND = """
def band(a: f64["N M"], x: f64["M"]):
    y: f64["N"] = 0
    for i in range(N):
        for j in range(max(0, i - 2), min(M, i + 3)):
            y[i] += a[i, j] * x[j]
    return y
"""

DIAGONALS = """
def path(a: f64["N M"]):
    d: f64["N M"] = 0
    for s in range(N + M - 1):
        for i in range(max(0, s - M + 1), min(N, s + 1)):
            if i > 0 and i < s:
                d[i, s - i] = a[i, s - i] + max(d[i - 1, s - i], d[i, s - i - 1])
            if i == 0 or i == s:
                d[i, s - i] = a[i, s - i]
    return d
"""


def _same(text: str, *arguments: object, **options: object) -> None:
    wanted = interpret(parse(Source(text)), *arguments)
    found = polyml.einsum(text, **options)(*arguments)  # type: ignore[call-overload]
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-12)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(7, 7), (9, 4), (3, 11), (1, 5)])
@pytest.mark.few(3)
def test_bands_and_diagonals(shape: tuple[int, int], dynamic: bool) -> None:
    rng = np.random.default_rng(1)
    a, x = rng.standard_normal(shape), rng.standard_normal(shape[1])
    _same(BAND, a, x, dynamic=dynamic)
    _same(DIAGONALS, a, dynamic=dynamic)


_BOUNDS = st.sampled_from(["0", "1", "i", "i - 3", "N // 2", "N - 2", "2 * i - 4", "5"])


@given(
    low=st.lists(_BOUNDS, min_size=1, max_size=3),
    high=st.lists(_BOUNDS, min_size=1, max_size=3),
    step=st.sampled_from([1, 1, 2, -1, -3]),
    count=st.integers(1, 12),
)
@example(low=["i"], high=["0"], step=1, count=2)  # none at all
@settings(max_examples=6, deadline=None)
def test_the_loop_takes_the_steps_of_pythons_range(low: list[str], high: list[str], step: int, count: int) -> None:
    first = ", ".join(low) if step == 1 else low[0]  # other steps begin at one place
    start = f"max({first})" if "," in first else first
    stop = f"{'min' if step > 0 else 'max'}({', '.join(high)})" if len(high) > 1 else high[0]
    text = f"""
def f(x: f64["N"]):
    y: f64["N 40"] = 0
    s = 0.0
    for i in range(N):
        for j in range({start}, {stop}, {step}):
            s = 0.5 * s + x[i]
            y[i, j + 10] += s
    return y
"""
    _same(text, np.random.default_rng(count).standard_normal(count))


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ("min(i, 3), N", "a loop begins at more than one place"),
        ("max(i, 3), N, 2", "a loop begins at more than one place"),
        ("0, max(i, 3)", "a loop ends at more than one place"),
        ("0, N - min(i, 3)", "a loop ends at more than one place"),
        ("i, min(i, 3), -1", "a loop ends at more than one place"),
    ],
)
def test_ranges_that_are_no_convex_set_are_refused(bounds: str, message: str) -> None:
    text = f'def f(x: f32["N"]):\n    for i in range(N):\n        for j in range({bounds}):\n            x[i] += j\n    return x\n'
    with pytest.raises(NotAffineError, match=message) as caught:
        polyml.einsum(text)(np.ones(5, np.float32))
    assert "range(" in str(caught.value), "it shows the line"


def test_bounds_of_numbers_and_sizes_are_numbers() -> None:
    text = """
def f(x: f64["N"]):
    s = 0.0
    for i in range(min(N, 3), N + 2**3 - 9):
        s += x[i] * 2**min(3, 1)
    return s
"""
    _same(text, np.arange(7.0))
    with pytest.raises(PolymlError, match="begins at more than one place"):
        polyml.einsum(text, dynamic=True)(np.arange(7.0))
