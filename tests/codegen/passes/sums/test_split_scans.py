"""Recurrences in lanes whose inhomogeneous part is made ahead, block by block: where, and that nothing else changes."""

from __future__ import annotations

import re

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


def _loops(value: str, columns: int, target: pm.Target, dtype: str = "f64") -> str:
    program = pm.einsum(SWEEP.format(dtype=dtype, value=value), target=target, threads=1)
    return str(program.lower(np.zeros((9, columns), {"f64": "f8", "f32": "f4"}[dtype])).text("loops"))


def _is_split(value: str, columns: int, target: pm.Target, dtype: str = "f64") -> bool:
    return "_ahead[" in _loops(value, columns, target, dtype)


def test_what_waits_long_is_made_ahead() -> None:
    assert _is_split(NINE, 700, WIDE)
    assert _is_split(DISTANCE, 700, WIDE)


def test_short_chains_stay_whole() -> None:
    """A few instructions; a row of a few vectors; a factor that is another one in each lane."""
    for target in (WIDE, NARROW):
        assert "_ahead" not in _loops(NINE, 66, target)
        assert "_ahead" not in _loops(WARPED, 700, target)
    assert not _is_split(FIVE, 700, WIDE)


@pytest.mark.parametrize(("value", "dtype"), [(NINE, "f64"), (NINE, "f32"), (FIVE, "f64"), (DISTANCE, "f32")])
def test_short_vectors_are_one_ahead_in_a_register(value: str, dtype: str) -> None:
    """The first before the loop, the last one behind it, where nothing beyond the row is read."""
    loops = _loops(value, 700, NARROW, dtype)
    lanes = 4 if dtype == "f64" else 8
    assert f"register {dtype}x{lanes} x_ahead;" in loops
    assert "x_ahead[" not in loops
    assert "_following" not in _loops(value, 700, WIDE, dtype)
    *_, scanned = re.findall(r"vector\(\d+\) for \(j = .*\{\n((?: {2,}x.*;\n)+)", loops)
    assert scanned.count("x_following = ") < scanned.count("scan_")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("value", "dtype"), [(NINE, "f64"), (NINE, "f32"), (DISTANCE, "f64"), (DISTANCE, "f32"), (WHOLE, "i32")]
)
@pytest.mark.few(2)
def test_the_values_are_those_of_one_element_after_another(value: str, dtype: str, dynamic: bool) -> None:
    numpy_type = {"f64": "f8", "f32": "f4", "i32": "i4"}[dtype]
    program = pm.einsum(SWEEP.format(dtype=dtype, value=value), threads=1, dynamic=dynamic)
    for columns in (257, 390, 411, *((0, 1, 2, 3, 7, 10, 19, 40) if dynamic else ())):
        given = (100 * np.random.default_rng(columns).random((5, columns))).astype(numpy_type)
        expected = given.copy()
        code = compile(value, "value", "eval")
        for i in range(1, 4):
            for j in range(1, columns - 1):
                expected[i, j] = eval(code, {"x": expected, "i": i, "j": j, "min": min})  # the text above
        np.testing.assert_allclose(program(given.copy()), expected, rtol=1e-5 if dtype == "f32" else 1e-13)
