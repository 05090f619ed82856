"""Reads at neighbouring places of a row: one load per vector, the others shifted out of two; bit by bit what loads give."""

from __future__ import annotations

import numpy as np
import pytest

import polyml as pm

AVX512 = pm.Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2048 * 1024)
AVX2 = pm.Target("x86-64-v3", l1_bytes=48 * 1024, l2_bytes=2048 * 1024)

ROWS = """
def rows(x: {dtype}["N M"]):
    y: {dtype}["N M"] = 0
    if 1 <= i < N - 1 and 3 <= j < M - 6:
        y[i, j] = {value}
    return y
"""

VALUES = {
    "both sides": ("x[i, j - 1] + 3 * x[i, j] + x[i, j + 1]", 2),
    "no centre": ("x[i, j - 1] * x[i, j + 1] + x[i - 1, j] + x[i + 1, j]", 1),
    "one side": ("x[i, j + 6] - x[i, j] * x[i, j + 1]", 2),
    "three rows": ("x[i - 1, j - 3] + x[i - 1, j] + x[i, j] + x[i, j + 2] + x[i + 1, j - 1] + x[i + 1, j - 2]", 3),
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("dtype", ["f64", "f32", "i32", "i64"])
@pytest.mark.few(3)
def test_shifted_vectors_are_what_loads_give(value: str, dtype: str) -> None:
    text, _ = VALUES[value]
    rng = np.random.default_rng(3)
    make = pm.einsum(ROWS.format(dtype=dtype, value=text), threads=1)
    for columns in (
        (9, 10, 17, 26, 90) if dtype[1:] == "64" else (9, 10, 25, 41, 137)
    ):  # none, one, whole vectors, and some
        x = rng.integers(-9, 9, (5, columns)).astype({"f": "f", "i": "i"}[dtype[0]] + str(int(dtype[1:]) // 8))
        padded = np.pad(x, 8).astype(np.float64)

        def at(i: int, j: int, padded: np.ndarray = padded, columns: int = columns) -> np.ndarray:
            return padded[9 + i : 12 + i, 11 + j : 2 + columns + j]

        expected = np.zeros((5, columns))
        places = text.replace("x[i", "at(0").replace(", j", ", 0")
        for sign in "+-":
            places = places.replace(f"at(0 {sign} 1", f"at({sign}1")
        expected[1:-1, 3:-6] = eval(places.replace("]", ")"), {"at": at})
        assert np.array_equal(make(x), expected), columns


@pytest.mark.parametrize("value", VALUES)
def test_one_load_a_row(value: str) -> None:
    text, shifts = VALUES[value]
    x = np.zeros((40, 1000))
    made = pm.einsum(ROWS.format(dtype="f64", value=text), target=AVX512, threads=1).lower(x)
    assert made.text("llvm").count("shufflevector <8 x i64>") == shifts
    narrow = pm.einsum(ROWS.format(dtype="f64", value=text), target=AVX2, threads=1).lower(x)
    assert "shufflevector <4 x i64>" not in narrow.text("llvm")


@pytest.mark.parametrize(
    "value",
    [
        "where(i > 0, x[i - 1], 0) + x[i] + where(i < N - 1, x[i + 1], 0)",
        "where(i > 0, x[i - 1] + x[i], 0) + where(i > 1, x[i - 2] + x[i - 1], 0)",
    ],
)
def test_what_conditions_on_indices_choose_is_loaded_under_them(value: str) -> None:
    """Ahead of the first element there may be no memory."""
    text = f'def f(x: f32["N"]):\n    y[i] = {value}\n    return y\n'
    made = pm.einsum(text, target=AVX512, threads=1).lower(np.zeros(100, np.float32))
    assert "%row." not in made.text("llvm")


def test_short_rows_are_loaded_on_one_side() -> None:
    """In L1 shuffles and arithmetic are what such a loop waits for."""
    program = """
def sweep(x: f64["N"]):
    y: f64["N"] = 0
    if 1 <= i < N - 1:
        y[i] = 0.5 * (x[i - 1] + x[i] + x[i + 1])
    return y
"""
    short, long = (
        pm.einsum(program, target=AVX512, threads=1).lower(np.zeros(n)).text("llvm") for n in (1000, 100_000)
    )
    assert short.count("shufflevector <8 x i64>") < long.count("shufflevector <8 x i64>")
    make = pm.einsum(program, threads=1)
    for size in (3, 9, 10, 17, 18, 40, 1999, 2000):
        x = np.random.default_rng(size).random(size)
        expected = np.zeros(size)
        expected[1:-1] = 0.5 * (x[:-2] + x[1:-1] + x[2:])
        assert np.array_equal(make(x), expected), size


def test_what_the_loop_writes_is_loaded() -> None:
    program = """
def both(x: f64["N"], y: f64["N"]):
    if 1 <= i < N - 1:
        y[i] = x[i - 1] + x[i + 1]
        x[i] = y[i]
    return x, y
"""
    for size in (3, 20, 100):
        x, y = np.random.default_rng(1).random((2, size))
        old = x.copy()
        got, _ = pm.einsum(program, threads=1)(x, y)
        assert np.array_equal(got[1:-1], old[:-2] + old[2:])


def test_elements_that_a_condition_on_indices_guards_stay_loads_of_their_own() -> None:
    """Without the condition x[-63] would be read."""
    program = """
def shifted(x: f64["N+1"], H: int):
    y: f64["H N"]
    y[h, i] = where(i >= h, x[i - h] + x[i - h + 1], 0)
    return y
"""
    made = pm.einsum(program, target=AVX512, threads=1)
    assert "shufflevector <8 x i64>" not in made.lower(np.zeros(100_001), 64).text("llvm")
    always = program.replace("    y[h, i] = ", "    if i < N:\n        y[h, i] = x[i] * x[i + 1] + ")
    shifted = pm.einsum(always, target=AVX512, threads=1)
    assert (
        shifted.lower(np.zeros(100_001), 64).text("llvm").count("shufflevector <8 x i64>") == 2
    )  # with stores of two kinds
