"""Blocks of rows and columns of recurrences that sum over splits of an interval: results around the size of the blocks, and where there are none."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from benchmarks.polybench import KERNELS
from polyml.target import Target

SMALL = Target("host", l1_bytes=1024, l2_bytes=4096, cores=2)
"""This machine with caches so small that blocks appear at test sizes."""

CHAIN = """
def chain(c: f64["N N"], w: f64["N"]):
    for i in range(N - 1, -1, -1):
        for j in range(i + 1, N):
            if i < j - 1:
                c[i, j] = w[i] * w[j] + min[k, i < k < j](c[i, k] + c[k, j])
            else:
                c[i, j] = w[i] * w[j]
    return c
"""

COUNT = """
def count(t: f64["N N"], w: f64["N"]):
    for i in range(N - 1, -1, -1):
        for j in range(i + 1, N):
            t[i, j] = w[j] + sum[k, i < k < j](t[i, k] * t[k, j])
    return t
"""


def blocks(function: polyml.Einsum, *arguments: object) -> list[str]:
    found = [note for region in function.lower(*arguments).stages.regions for note in region.notes]
    assert not [note for note in found if note.stage == "fallback"]
    return [note.text for note in found if "behind them in tiles" in note.text]


@pytest.mark.parametrize(("n", "threads"), [(23, 2), (48, 1), (67, 2), (101, 1)])
def test_nussinov(n: int, threads: int) -> None:
    kernel = KERNELS["nussinov"]
    bases, table = kernel.data({"N": n}, np.random.default_rng(n))
    program = kernel.program(target=SMALL, threads=threads, verify=True)
    assert blocks(program, bases, table.copy())
    np.testing.assert_array_equal(program(bases, table.copy()), kernel.reference(bases, table.copy())[0])


@pytest.mark.parametrize("n", [40, 83])
def test_chains_of_products(n: int) -> None:
    w = np.random.default_rng(0).random(n)
    c = np.zeros((n, n))
    expected = c.copy()
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            best = np.min(expected[i, i + 1 : j] + expected[i + 1 : j, j], initial=np.inf if i < j - 1 else 0)
            expected[i, j] = w[i] * w[j] + best
    program = polyml.einsum(CHAIN, target=SMALL, verify=True)
    np.testing.assert_allclose(program(c.copy(), w), expected)


@pytest.mark.parametrize("n", [40, 83])
def test_sums_over_splits(n: int) -> None:
    w = np.random.default_rng(0).random(n) / n
    expected = np.zeros((n, n))
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            expected[i, j] = w[j] + expected[i, i + 1 : j] @ expected[i + 1 : j, j]
    for options in ({}, {"precise": True}):
        program = polyml.einsum(COUNT, target=SMALL, verify=True, **options)
        assert not (options and blocks(program, np.zeros((n, n)), w))
        np.testing.assert_allclose(program(np.zeros((n, n)), w), expected, rtol=1e-12)


def test_what_fits_into_cache_stays() -> None:
    kernel = KERNELS["nussinov"]
    bases, table = kernel.data({"N": 60}, np.random.default_rng(0))
    assert not blocks(kernel.program(target=Target("host", l2_bytes=1 << 20)), bases, table)
