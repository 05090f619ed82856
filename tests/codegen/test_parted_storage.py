"""Storage whose loop isl gives to two parts: what one hands on to the other is in one place, and values by cases are loop bounds."""

from __future__ import annotations

import numpy as np
import pytest

import polyml

PARTED = """
def f(x: f32["N"], z: f32["N"]):
    a: f32["N N"]
    if j >= 1:
        a[i, j] = x[i]
    else:
        a[i, j] = f32(abs(i32((i % 2 == 0) and (z[i] > 0))))
    b[h, j] = sum[r < 1](a[h + r, j])
    y[i] = b[0, i]
    for n in range(1, N):
        y[n] = (y[n] + y[n - 1]) / 2
    return y
"""
BY_CASES = """
def f(y: f32["A B C"], x: f32["A P K"], w: f32["R K C"]):
    if r <= p:
        y[b, 3*p + r, c] += x[b, p, k] * w[r, k, c]
"""


@pytest.mark.parametrize("scheduler", ["isl", "ilp"])
@pytest.mark.parametrize("n", [1, 3, 20])
@pytest.mark.few(3)
def test_a_part_that_writes_under_a_condition_reads_what_the_other_wrote(scheduler: str, n: int) -> None:
    x, z = np.random.default_rng(n).random((2, n)).astype("f4")
    expected = np.full(n, x[0])
    expected[0] = 1
    for k in range(1, n):
        expected[k] = (expected[k] + expected[k - 1]) / 2
    np.testing.assert_allclose(polyml.einsum(PARTED, scheduler=scheduler, threads=1)(x, z), expected, rtol=1e-6)


@pytest.mark.parametrize("scheduler", ["isl", "ilp"])
def test_loops_that_begin_by_cases(scheduler: str) -> None:
    rng = np.random.default_rng(0)
    y, x, w = (rng.integers(-3, 4, s).astype("f4") for s in ((2, 19, 3), (2, 5, 33), (5, 33, 3)))
    expected = y.copy()
    for p in range(5):
        for r in range(p + 1):
            expected[:, 3 * p + r] += x[:, p] @ w[r]
    polyml.einsum(BY_CASES, scheduler=scheduler, threads=1)(y, x, w)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.slow
def test_complex_sums_of_any_size_in_a_loop() -> None:
    """Lanes of an array that is no row of theirs are fetched ahead, too: those of the first one."""
    source = """
    def f(y: c128["Y0 Y1 Y2"], x: c128["K P0 B P1"], w: c128["R1 K R0"]):
        for t in range(2):
            y[2*p1 + r1 + 3, p0 + 3*r0 + 1, b] += x[k, p0, b, p1] * w[r1, k, r0]
    """
    rng = np.random.default_rng(0)
    y, x, w = (rng.integers(-3, 4, s) + 1j * rng.integers(-3, 4, s) for s in ((8, 98, 17), (3, 1, 17, 2), (1, 3, 33)))
    expected = y.copy()
    for p, r in np.ndindex(2, 33):
        expected[2 * p + 3, 3 * r + 1] += 2 * np.einsum("kb,k->b", x[:, 0, :, p], w[0, :, r])
    polyml.einsum(source, dynamic=True)(y, x, w)
    np.testing.assert_array_equal(y, expected)
