"""Sweeps down columns and back: how many vectors of columns go at once, and the results against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import polyml as pm

SWEEPS = """
def f(x: f64["N M"], a: f64):
    y: f64["N M"] = 0
    z: f64["N M"] = 0
    for j in range(M):
        for i in range(2, N):
            y[i, j] = x[i, j] + a * y[i - 1, j] - 0.25 * y[i - 2, j]
        for i in range(N - 3, -1, -1):
            z[i, j] = x[i + 1, j] + a * z[i + 1, j] - 0.25 * z[i + 2, j]
    r[i, j] = y[i, j] + z[i, j]
    return r
"""
SHORT = pm.Target("x86-64-v3", l2_bytes=512 << 10)
"""Two vectors are a line."""
LONG = pm.Target("x86-64-v4", l2_bytes=512 << 10)
"""One vector is."""


def _reference(x: np.ndarray, a: float) -> np.ndarray:
    y, z = np.zeros_like(x), np.zeros_like(x)
    for i in range(2, len(x)):
        y[i] = x[i] + a * y[i - 1] - 0.25 * y[i - 2]
    for i in range(len(x) - 3, -1, -1):
        z[i] = x[i + 1] + a * z[i + 1] - 0.25 * z[i + 2]
    return y + z


@pytest.mark.parametrize(
    ("target", "rows", "columns", "vectors"),
    [
        (SHORT, 900, 200, 4),
        (SHORT, 1500, 200, 2),
        (LONG, 900, 200, 2),
        (LONG, 4000, 200, 1),
        (SHORT, 4000, 200, 8),  # four lines
        (SHORT, 4000, 216, 6),  # three, which leave nothing over
        (SHORT, 4000, 208, 8),  # two would be too few
        (SHORT, 20_000, 200, 6),  # what the last level holds
        (SHORT, 4000, 16, 4),  # all there are
    ],
)
@pytest.mark.few(4)
def test_strips_are_whole_lines(target: pm.Target, rows: int, columns: int, vectors: int) -> None:
    """As many as stay in L2, of which lines have several vectors; where no line stays, several lines."""
    text = pm.einsum(SWEEPS, target=target, parallel=False).explain(np.zeros((rows, columns)), 0.5)
    assert f"lanes along j, {vectors} vector{'s' if vectors > 1 else ''} at once" in text


@pytest.mark.parametrize(
    ("rows", "columns", "alone"),
    [
        (900, 200, True),  # L2 holds a strip
        (4000, 100, False),  # the last level holds all of it
        (4000, 200, True),  # it holds a strip
    ],
)
def test_a_strip_has_its_own_room(rows: int, columns: int, *, alone: bool) -> None:
    """What one sweep leaves for the next lies in a strip of scratch memory, not in lines of a large matrix, where a cache holds the one and not the other."""
    text = pm.einsum(SWEEPS, target=SHORT, parallel=False).explain(np.zeros((rows, columns)), 0.5)
    assert (f"y: contracted to {rows}x1" in text) == alone


@pytest.mark.skipif(not SHORT.runs_here, reason="this machine has no AVX2")
@pytest.mark.parametrize("shape", [(4200, 131), (4096, 216), (5000, 102)])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(1)
def test_results_of_strips_from_far(shape: tuple[int, int], threads: int) -> None:
    x = np.random.default_rng(2).standard_normal(shape)
    program = pm.einsum(SWEEPS, target=SHORT, threads=threads, verify=True)
    for rows in (x, np.repeat(x, 2, axis=1)[:, ::2]):
        np.testing.assert_allclose(program(rows, 0.5), _reference(x, 0.5), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(60, 37), (41, 16), (3, 5), (50, 1), (2049, 6)])
@pytest.mark.few(2)
def test_results(shape: tuple[int, int]) -> None:
    target = pm.Target("host", l1_bytes=1024, l2_bytes=2048)
    x = np.random.default_rng(1).standard_normal(shape)
    program = pm.einsum(SWEEPS, target=target, parallel=False, verify=True)
    for rows in (x, np.repeat(x, 2, axis=1)[:, ::2])[: 2 if shape[1] > 6 else 1]:
        np.testing.assert_allclose(program(rows, 0.5), _reference(x, 0.5), rtol=1e-12, atol=1e-12)
