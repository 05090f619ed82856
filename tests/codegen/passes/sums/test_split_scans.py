"""Recurrences in lanes whose inhomogeneous part is made ahead, block by block: where, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

import polyml as pm

WIDE = pm.Target("x86-64-v4")
NARROW = pm.Target("x86-64-v3")

SWEEP = """
def sweep(x: {dtype}["N M"]):
    for i in range(1, N - 1):
        for j in range(1, M - 1):
            x[i, j] = {value}
    return x
"""
NINE = (
    "(x[i - 1, j - 1] + x[i - 1, j] + x[i - 1, j + 1] + x[i, j - 1] + x[i, j] + x[i, j + 1]"
    " + x[i + 1, j - 1] + x[i + 1, j] + x[i + 1, j + 1]) / 9.0"
)
FIVE = "0.25 * (x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])"
DISTANCE = "min(x[i, j], x[i - 1, j - 1] + 1.5, x[i - 1, j] + 1.0, x[i - 1, j + 1] + 1.5, x[i, j - 1] + 1.0)"
WHOLE = "min(x[i, j], x[i - 1, j - 1] + 3, x[i - 1, j] + 2, x[i - 1, j + 1] + 3, x[i + 1, j] + 5, x[i, j - 1] + 2)"
WARPED = "abs(x[i + 1, j] - x[i, j]) + min(x[i - 1, j - 1], x[i - 1, j], x[i, j - 1])"


def _is_split(value: str, columns: int, target: pm.Target, dtype: str = "f64") -> bool:
    program = pm.einsum(SWEEP.format(dtype=dtype, value=value), target=target, threads=1)
    return "_ahead[" in program.lower(np.zeros((9, columns), {"f64": "f8", "f32": "f4"}[dtype])).text("loops")


def test_what_waits_long_is_made_ahead() -> None:
    assert _is_split(NINE, 700, WIDE)
    assert _is_split(DISTANCE, 700, WIDE)
    assert _is_split(NINE, 700, NARROW, "f32")


def test_short_chains_stay_whole() -> None:
    """A few instructions; fewer lanes, whose scan has fewer steps; a row of a few vectors; a factor that is another one in each lane."""
    assert not _is_split(FIVE, 700, WIDE)
    assert not _is_split(NINE, 700, NARROW)
    assert not _is_split(NINE, 100, WIDE)
    assert not _is_split(WARPED, 700, WIDE)


@pytest.mark.parametrize(
    ("value", "dtype"), [(NINE, "f64"), (NINE, "f32"), (DISTANCE, "f64"), (DISTANCE, "f32"), (WHOLE, "i32")]
)
def test_the_values_are_those_of_one_element_after_another(value: str, dtype: str) -> None:
    numpy_type = {"f64": "f8", "f32": "f4", "i32": "i4"}[dtype]
    program = pm.einsum(SWEEP.format(dtype=dtype, value=value), threads=1)
    for columns in (257, 390, 411):
        given = (100 * np.random.default_rng(columns).random((5, columns))).astype(numpy_type)
        expected = given.copy()
        code = compile(value, "value", "eval")
        for i in range(1, 4):
            for j in range(1, columns - 1):
                expected[i, j] = eval(code, {"x": expected, "i": i, "j": j, "min": min})  # the text above
        np.testing.assert_allclose(program(given.copy()), expected, rtol=1e-5 if dtype == "f32" else 1e-13)
