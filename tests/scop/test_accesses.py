"""Reads under conditions: which elements they reach, where indices and data decide together."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.testing import verify

PROGRAM = """
def f(x: f32["4"], m: bool["7 9"], c: bool["1"]):
    y: f32["7 9"]
    y[i, j] = {}
    return y
"""

ROWS, COLUMNS = np.ogrid[:7, :9]
X = np.arange(1.0, 5, dtype=np.float32)
M = (ROWS * 5 + COLUMNS * 3) % 4 < 2


@pytest.mark.parametrize(
    ("value", "read", "at"),
    [
        ("where(1 <= i < 5 and c[0], x[i - 1], 9)", (ROWS >= 1) & (ROWS < 5), ROWS - 1),
        ("where(m[i, j] and 1 <= j < 5, x[j - 1], 9)", M & (COLUMNS >= 1) & (COLUMNS < 5), COLUMNS - 1),
        ("where(not m[i, j] or j < 1 or j >= 5, 9, x[j - 1])", M & (COLUMNS >= 1) & (COLUMNS < 5), COLUMNS - 1),
        ("where(not (m[i, j] or i >= 4), x[i], 9)", ~M & (ROWS < 4), ROWS),
        (
            "where(m[i, j] and (i < 2 and i + j < 4), x[i + j], 9)",
            M & (ROWS < 2) & (ROWS + COLUMNS < 4),
            ROWS + COLUMNS,
        ),
        # Conditions that nothing meets: which of both subscripts of max is read is nobody's question.
        ("where(j < 3 and c[0] and j >= 6, x[max(i - 1, 0)], 9)", M & False, ROWS),
        ("where(j < 3 and m[i, j] and j >= 6, x[i - 100], 9)", M & False, ROWS),
    ],
)
def test_conditions_of_indices_beside_data_keep_reads_in_bounds(value: str, read: np.ndarray, at: np.ndarray) -> None:
    expected = np.where(read, X[np.clip(at, 0, 3)], np.float32(9))
    program = polyml.einsum(PROGRAM.format(value), verify=True)
    assert np.array_equal(program(X, M, np.array([True])), np.broadcast_to(expected, (7, 9)))


@pytest.mark.parametrize("condition", ["u32(i - 5) < 3", "u64(i - 5) < 3", "i32(i * 1000000000) < 3"])
def test_index_values_that_wrap_say_nothing_of_indices(condition: str) -> None:
    """Neither where a sum skips terms, nor which elements are read."""
    text = f"""
    def f(x: f32["N"], z: f32["N"]):
        s = sum[i](where({condition}, x[i], 0) * z[i])
        x[i] = where({condition}, z[i], x[N - 1 - i])
        return s
    """
    assert verify(text, np.arange(40, dtype=np.float32), np.ones(40, np.float32))
