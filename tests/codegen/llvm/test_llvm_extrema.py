"""Minima and maxima in the hope that no NaN comes along: NaN wins wherever it is, as in NumPy, and infinities and what was there before count."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import polyml as pm

AVX512 = pm.Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2048 * 1024)
AVX2 = pm.Target("x86-64-v3", l1_bytes=48 * 1024, l2_bytes=2048 * 1024)

BEST_PATHS = """
def best_paths(a: {dtype}["N K"], b: {dtype}["K M"]):
    c[i, j] = {op}[k](a[i, k] + b[k, j])
    return c
"""

FROM_THERE_ON = """
def from_there_on(a: {dtype}["N K"], b: {dtype}["K M"], c: {dtype}["N M"]):
    for k in range(K):
        c[i, j] = {op}(c[i, j], a[i, k] + b[k, j])
    return c
"""

ROWS = """
def rows(a: {dtype}["N K"]):
    r[i] = {op}[k](a[i, k])
    return r
"""

SPOILERS: dict[str, Callable[[np.ndarray, np.random.Generator], None]] = {
    "nothing": lambda x, rng: None,
    "one NaN": lambda x, rng: x.flat.__setitem__(rng.integers(x.size), np.nan),
    "some NaN": lambda x, rng: x.flat.__setitem__(rng.integers(x.size, size=5), np.nan),
    "first and last": lambda x, rng: x.flat.__setitem__([0, -1], np.nan),
    "infinities": lambda x, rng: x.flat.__setitem__(rng.integers(x.size, size=6), [np.inf, -np.inf] * 3),
    "all NaN": lambda x, rng: x.fill(np.nan),
}


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("op", ["max", "min"])
def test_nan_wins_as_in_numpy(op: str, dtype: str) -> None:
    best = {"max": np.maximum, "min": np.minimum}[op]
    products, loops, rows = (
        pm.einsum(text.format(op=op, dtype=dtype), threads=1) for text in (BEST_PATHS, FROM_THERE_ON, ROWS)
    )
    rng = np.random.default_rng(5)
    for n, k, m in ((17, 23, 45), (9, 1, 7), (3, 40, 130)):
        for name, spoil in SPOILERS.items():
            a, b, c = (rng.standard_normal(s).astype(f"f{int(dtype[1:]) // 8}") for s in ((n, k), (k, m), (n, m)))
            for x in (a, b, c) if name != "all NaN" else (b,):
                spoil(x, rng)
            sums = a[:, :, None] + b
            expected = best.reduce(sums, axis=1)
            case = f"{name}: {n} {k} {m}"
            np.testing.assert_array_equal(products(a, b), expected, err_msg=case)
            np.testing.assert_array_equal(loops(a, b, c.copy()), best(c, expected), err_msg=case)
            np.testing.assert_array_equal(rows(a), best.reduce(a, axis=1), err_msg=case)


def test_one_instruction_for_each_and_a_mask_for_two() -> None:
    x = np.zeros((64, 64))
    lowered = pm.einsum(BEST_PATHS.format(op="max", dtype="f64"), target=AVX512, threads=1).lower(x, x)
    assert "vcmpordpd" in lowered.text("asm")
    lowered = pm.einsum(BEST_PATHS.format(op="max", dtype="f64"), target=AVX2, threads=1).lower(x, x)
    assert "fcmp ord" not in lowered.text("llvm")


def test_a_loop_that_reads_what_it_writes_runs_as_written() -> None:
    """Run again, it would start from other numbers."""
    text = """
def steps(x: f64["N"]):
    top: f64 = 0
    for i in range(N):
        top = max(top, x[i] - 0.5 * top)
    return top
"""
    x = np.random.default_rng(1).standard_normal(50)
    x[[3, 30]] = [np.nan, 2]
    x[3] = 1
    expected = 0.0
    for value in x:
        expected = max(expected, value - 0.5 * expected)
    assert pm.einsum(text, threads=1)(x) == pytest.approx(expected)
    x[7] = np.nan
    assert np.isnan(pm.einsum(text, threads=1)(x))
