"""When statements one behind the other go down strips of columns together, and when each goes along its rows."""

from __future__ import annotations

import numpy as np

import polyml
from polyml import Target

DIFFUSION = """
def diffusion(f: f64["I+4 J+4 K"], c: f64["I J K"]):
    l: f64["I+2 J+2 K"]
    fx: f64["I+1 J K"]
    y: f64["I J K"]
    if i < I + 2 and j < J + 2:
        l[i, j, k] = 4 * f[i + 1, j + 1, k] - f[i + 2, j + 1, k] - f[i, j + 1, k] - f[i + 1, j + 2, k] - f[i + 1, j, k]
    if i < I + 1 and j < J:
        fx[i, j, k] = where((l[i + 1, j + 1, k] - l[i, j + 1, k]) * (f[i + 2, j + 2, k] - f[i + 1, j + 2, k]) > 0, 0, l[i + 1, j + 1, k] - l[i, j + 1, k])
    if i < I and j < J:
        y[i, j, k] = f[i + 2, j + 2, k] - c[i, j, k] * (fx[i + 1, j, k] - fx[i, j, k])
    return y
"""

POSITIONS = """
def positions(x: f32["B T D"], P: int):
    y: f32["B T D"]
    y[b, t, 2*i] = x[b, t, 2*i] + sin(t / 100.0 ** (i / P))
    y[b, t, 2*i + 1] = x[b, t, 2*i + 1] + cos(t / 100.0 ** (i / P))
    return y
"""


def _reference(f: np.ndarray, c: np.ndarray) -> np.ndarray:
    n, m = c.shape[:2]
    l = 4 * f[1:-1, 1:-1] - f[2:, 1:-1] - f[:-2, 1:-1] - f[1:-1, 2:] - f[1:-1, :-2]
    step = l[1:, 1 : m + 1] - l[:-1, 1 : m + 1]
    flow = np.where(step * (f[2 : n + 3, 2:-2] - f[1 : n + 2, 2:-2]) > 0, 0, step)
    return f[2:-2, 2:-2] - c * (flow[1:] - flow[:-1])


def test_strips_that_l2_does_not_hold() -> None:
    """Rows of 32 elements: a strip of columns, a line of each row wide, would be what stays in cache."""
    rng = np.random.default_rng(0)
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
    program = polyml.einsum(DIFFUSION, threads=1)
    for planes in (64, 7, 1):
        f, c = rng.random((planes + 4, planes + 5, 32)), rng.random((planes, planes + 1, 32))
        np.testing.assert_allclose(program(f, c), _reference(f, c), rtol=1e-12, atol=1e-12)
        if planes == 64:
            explained = str(polyml.einsum(DIFFUSION, threads=1, target=target).explain(f, c))
            assert "S_l: loops i, j; lanes along k" in explained


def test_results_side_by_side_go_along_rows_beside_tables() -> None:
    """Both statements write every other element; a power for each column and its sines are no reason to go down columns."""
    x = np.random.default_rng(0).random((6, 130, 128), dtype=np.float32)
    angles = np.arange(130)[:, None] / 100.0 ** (np.arange(64) / 64)
    whole = x + np.stack((np.sin(angles), np.cos(angles)), -1).reshape(130, 128)
    program = polyml.einsum(POSITIONS, threads=1)
    np.testing.assert_allclose(program(x, 64), whole, atol=1e-5)
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
    explained = str(polyml.einsum(POSITIONS, threads=1, target=target).explain(x, 64))
    assert "S_y_1 S_y_2: loops b, t; lanes along i" in explained
