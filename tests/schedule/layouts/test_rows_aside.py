"""Recurrences from row to row of a large result: its rows are made aside and copied out past the caches, and what comes out is the same."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target

SMALL_CACHES = Target("x86-64-v3", l1_bytes=8 * 1024, l2_bytes=16 * 1024, l3_bytes=64 * 1024, cores=2)

SUMS = """
def f(x: {dtype}["N K"]):
    y: {dtype}["N K"]
    y[0, k] = x[0, k]
    for n in range(1, N):
        y[n, k] = y[n - 1, k] + x[n, k]
    return y
"""
GATED = """
def f(x: {dtype}["B N K"], a: {dtype}["B N K"]):
    y: {dtype}["B N K"]
    y[b, 0, k] = x[b, 0, k]
    for n in range(1, N):
        y[b, n, k] = a[b, n, k] * y[b, n - 1, k] + x[b, n, k]
    return y
"""
SECOND = """
def f(x: {dtype}["N K"]):
    y: {dtype}["N K"]
    y[0, k] = x[0, k]
    y[1, k] = 2 * x[1, k]
    for n in range(2, N):
        y[n, k] = 0.5 * y[n - 1, k] - 0.25 * y[n - 2, k] + x[n, k]
    return y
"""


def sums(x: np.ndarray) -> np.ndarray:
    y = x.copy()
    for n in range(1, len(x)):
        y[n] += y[n - 1]
    return y


def gated(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    y = x.copy()
    for n in range(1, x.shape[1]):
        y[:, n] += a[:, n] * y[:, n - 1]
    return y


def second(x: np.ndarray) -> np.ndarray:
    y = x.copy()
    y[1] = 2 * x[1]
    for n in range(2, len(x)):
        y[n] += 0.5 * y[n - 1] - 0.25 * y[n - 2]
    return y


def loops(source: str, *arrays: np.ndarray, **options: object) -> str:
    program = polyml.einsum(
        source.format(dtype=f"f{8 * arrays[0].itemsize}"), **{"target": SMALL_CACHES, "threads": 1, **options}
    )  # type: ignore[arg-type]
    return str(program.lower(*arrays).text("loops"))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.few(1)
def test_results(dtype: type, precise: bool, threads: int) -> None:
    rng = np.random.default_rng(3)
    target = SMALL_CACHES if SMALL_CACHES.runs_here else Target("host")
    for source, reference, count, shape in (
        (SUMS, sums, 1, (70, 256)),
        (GATED, gated, 2, (3, 40, 320)),
        (SECOND, second, 1, (41, 256)),
    ):
        arrays = [rng.standard_normal(shape).astype(dtype) for _ in range(count)]
        program = polyml.einsum(
            source.format(dtype=f"f{8 * arrays[0].itemsize}"),
            target=target,
            threads=threads,
            precise=precise,
            verify=True,
        )
        for lead in (0, 1):  # wherever the operand begins
            given = [np.concatenate([a.ravel()[:1]] * lead + [a.ravel()])[lead:].reshape(shape) for a in arrays]
            np.testing.assert_allclose(
                program(*given),
                reference(*arrays),
                rtol=1e-4 if dtype == np.float32 else 1e-12,
                atol=1e-5 if dtype == np.float32 else 1e-12,
            )


def test_the_result_is_written_only_and_past_the_caches() -> None:
    for source, arrays in ((SUMS, [np.zeros((70, 256))]), (GATED, [np.zeros((3, 70, 128))] * 2)):
        text = loops(source, *arrays)
        (result,) = set(re.findall(r"local \w+ (\w+)_rows\[(?:1, )?2, ", text))
        stores = [line for line in text.splitlines() if line.lstrip().startswith(f"{result}[")]
        assert stores
        assert all(f"= {result}_rows[" in line for line in stores)
        assert any("/* streaming */" in line for line in stores)  # all but the ends of rows


def test_as_many_places_as_the_recurrence_looks_back() -> None:
    assert "_rows[3, 128]" in loops(SECOND, np.zeros((70, 128)))


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((8, 128), "stays in cache"),
        ((70, 129), "no whole lines"),
        ((300, 24), "short rows"),
        ((20, 512), "L1 does not hold them"),
    ],
)
def test_others_stay_as_they_are(shape: tuple[int, int], why: str) -> None:
    assert "_rows[" not in loops(SUMS, np.zeros(shape)), why


def test_a_result_that_something_else_reads_stays() -> None:
    source = SUMS.replace("return y", "z[k] = sum[n](y[n, k])\n    return y, z")
    assert "_rows[" not in loops(source, np.zeros((70, 256)))


def test_scans_along_rows_carry_their_element() -> None:
    source = """
def f(x: {dtype}["N K"]):
    y: {dtype}["N K"]
    y[n, 0] = x[n, 0]
    for k in range(1, K):
        y[n, k] = y[n, k - 1] + x[n, k]
    return y
"""
    assert "_rows[2" not in loops(source, np.zeros((70, 256)))
