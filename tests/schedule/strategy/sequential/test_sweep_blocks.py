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
    return [note.text for note in found if "from before them in register tiles" in note.text]


@pytest.mark.parametrize(("n", "threads"), [(23, 2), (48, 1), (67, 2), (101, 1)])
@pytest.mark.few(1)
def test_nussinov(n: int, threads: int) -> None:
    kernel = KERNELS["nussinov"]
    bases, table = kernel.data({"N": n}, np.random.default_rng(n))
    program = kernel.program(target=SMALL, threads=threads, verify=True)
    assert blocks(program, bases, table.copy())
    np.testing.assert_array_equal(program(bases, table.copy()), kernel.reference(bases, table.copy())[0])


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_nussinov_of_any_size(threads: int) -> None:
    """Sizes around those of tiles and blocks, and around the least that has them."""
    kernel = KERNELS["nussinov"]
    program = kernel.program(target=SMALL, threads=threads, dynamic=True)
    for n in (1, 2, 3, 17, 65, 255, 257):
        bases, table = kernel.data({"N": n}, np.random.default_rng(n))
        if not program.kernels:
            assert blocks(program, bases, table.copy())
        np.testing.assert_array_equal(program(bases, table.copy()), kernel.reference(bases, table.copy())[0])
    assert len(program.kernels) == 1


def test_scalars_get_no_more_room_than_an_argument_has() -> None:
    """A sum in a loop of any length: in an array as large as one of the caller's at most."""
    sums = "def f(a: f64['N N'], T: int):\n    for t in range(T):\n        a[0, 0] = sum[k](a[t % 1, k]) / 2\n    return a\n"
    for text in (KERNELS["nussinov"].text, sums.replace("'", '"')):
        program = polyml.einsum(text, dynamic=True)
        given = (np.zeros(9), np.zeros((9, 9))) if "nussinov" in text else (np.zeros((9, 9)), 5)
        for region in program.lower(*given).stages.regions:
            local = [array for array in region.scop.arrays.values() if array.kind == "local"]
            assert all(len(array.shape) == (2 if "nussinov" in text else 0) for array in local)


def test_large_tiles_on_any_number_of_threads() -> None:
    """Pipelined rows of tiles give the bits that one tile after the other gives, of sums as well."""
    kernel = KERNELS["nussinov"]
    bases, table = kernel.data({"N": 263}, np.random.default_rng(0))
    w = np.random.default_rng(1).random(263) / 263
    folding = kernel.program(target=SMALL, threads=3)
    assert blocks(folding, bases, table)[0].startswith("tiles of 64")
    assert "pipelined for" in folding.lower(bases, table).text("loops")
    np.testing.assert_array_equal(folding(bases, table.copy()), kernel.reference(bases, table.copy())[0])
    one, three = (polyml.einsum(COUNT, target=SMALL, threads=n)(np.zeros((263, 263)), w) for n in (1, 3))
    np.testing.assert_array_equal(three, one)


def test_strips_of_columns_are_fetched_ahead() -> None:
    """Of an array that the function itself writes: rows of more than a page."""
    target = Target("x86-64-v4", l1_bytes=32 << 10, l2_bytes=1 << 20)
    program = KERNELS["nussinov"].program(target=target, threads=1)
    assert "prefetch L2 table[k + " in program.lower(np.zeros(520), np.zeros((520, 520))).text("loops")


@pytest.mark.parametrize("n", [pytest.param(40, marks=pytest.mark.slow), 83])
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


@pytest.mark.parametrize("n", [pytest.param(40, marks=pytest.mark.slow), 83])
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
