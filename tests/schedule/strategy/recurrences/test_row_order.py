"""Recurrences down the columns of what L2 does not hold: a row at a time, in pieces for the threads; right for every size, and only where one loop walks."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.target import Target
from tests.pairs import pairwise

Array = npt.NDArray[np.float64]

SMALL = Target("host", l1_bytes=1024, l2_bytes=4096)
LARGE = Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20)
"""For what is said of loops over matrices of many sizes."""
"""Whose caches hold next to nothing: pieces are narrow, and small matrices large."""

SUMS = """
def f(x: f64["N K"]):
    y: f64["N K"]
    y[0, k] = x[0, k]
    for n in range(1, N):
        y[n, k] = y[n - 1, k] + x[n, k]
    return y
"""
GATED = """
def f(x: f64["N K"], g: f64["K"]):
    h: f64["N K"]
    h[0, k] = x[0, k]
    for n in range(1, N):
        h[n, k] = g[k] * h[n - 1, k] + x[n, k]
    y[n, k] = 2 * h[n, k] + x[n, k]
    return y
"""
STATE = """
def f(x: f64["N K"], g: f64["K"]):
    h: f64["K"] = 1
    y: f64["N K"]
    for n in range(N):
        h[k] = g[k] * h[k] + x[n, k]
        y[n, k] = tanh(h[k])
    return y, h
"""
BATCHES = """
def f(x: f64["B N K"]):
    for n in range(2, N):
        x[b, n, k] += 0.5 * x[b, n - 1, k] - 0.25 * x[b, n - 2, k]
    return x
"""
BACKWARDS = """
def f(x: f64["N K"]):
    y: f64["N K"] = 0
    for n in range(N - 2, -1, -1):
        y[n, k] = 0.5 * y[n + 1, k] + x[n, k]
    return y
"""


def expected(source: str, x: Array, g: Array) -> list[Array]:
    if source == SUMS:
        return [np.cumsum(x, 0)]
    if source == BATCHES:
        made = x[None].repeat(3, 0)
        for n in range(2, len(x)):
            made[:, n] += 0.5 * made[:, n - 1] - 0.25 * made[:, n - 2]
        return [made]
    made = np.zeros_like(x)
    if source == BACKWARDS:
        for n in range(len(x) - 2, -1, -1):
            made[n] = 0.5 * made[n + 1] + x[n]
        return [made]
    h = np.ones_like(g) if source == STATE else np.zeros_like(g)
    for n in range(len(x)):
        h = g * h + x[n]
        made[n] = h
    return [np.tanh(made), h] if source == STATE else [2 * made + x]


def arguments(source: str, rows: int, columns: int) -> tuple[list[Array], Array, Array]:
    rng = np.random.default_rng(rows + columns)
    x, g = rng.standard_normal((rows, columns)), rng.random(columns)
    given = [x[None].repeat(3, 0)] if source == BATCHES else [x, g] if "g:" in source else [x]
    return given, x, g


@pairwise(
    ("size", [(1, 1), (2, 65), (3, 64), (40, 63), (40, 66), (17, 130), (9, 1000), (200, 128)]),
    ("options", [{"threads": 1}, {"threads": 2}, {"threads": 2, "dynamic": True}]),
    ("source", [SUMS, GATED, STATE, BATCHES, BACKWARDS]),
)
@pytest.mark.few(3)
def test_results(size: tuple[int, int], options: dict[str, object], source: str) -> None:
    given, x, g = arguments(source, *size)
    found = polyml.einsum(source, target=SMALL, **options)(*given)  # type: ignore[arg-type]
    for result, right in zip(found if isinstance(found, tuple) else (found,), expected(source, x, g), strict=True):
        np.testing.assert_allclose(result, right, rtol=1e-11, atol=1e-12)


def loops(source: str, rows: int, columns: int, **options: object) -> list[str]:
    """The loops around the recurrence's first statement, outermost first; those over columns as "k"."""
    x, g = np.empty((rows, columns)), np.empty(columns)
    given = [np.empty((3, rows, columns))] if source == BATCHES else [x, g] if "g:" in source else [x]
    text = polyml.einsum(source, **{"target": LARGE, **options}).lower(*given).text("loops")  # type: ignore[arg-type]
    found: list[tuple[int, str]] = []
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        found = [loop for loop in found if loop[0] < indent]
        if loop := re.search(r"^\s*(parallel |vector)?.*for \((\w+) = ", line):
            found.append((indent, "k" if loop[1] == "vector" else (loop[1] or "") + loop[2]))
        elif "n" in (names := [name for _, name in found]) and "k" in names:
            return names
    raise AssertionError(text)


@pytest.mark.parametrize("source", [SUMS, GATED, STATE, BACKWARDS])
@pytest.mark.few(2)
def test_what_l2_does_not_hold_goes_row_by_row(source: str) -> None:
    assert loops(source, 2000, 500, threads=1, target=SMALL)[-2:] == ["n", "k"]
    assert loops(source, 20_000, 500, threads=1)[-2:] == ["n", "k"]
    assert loops(source, 200, 50, threads=1)[-2:] == ["k", "n"], "it stays in L2"
    assert loops(source, 200_000, 50, threads=1)[-2:] == ["k", "n"], "few columns are walked down in order"


def test_threads_take_pieces_of_rows_or_other_loops() -> None:
    assert loops(SUMS, 4000, 5000, threads=2)[-3:] == ["parallel k_tile", "n", "k"]
    assert loops(BATCHES, 4000, 5000, threads=2)[-3:] == ["parallel b", "n", "k"]
    one_batch = polyml.einsum(BATCHES, threads=2, target=LARGE).lower(np.zeros((1, 4000, 5000))).text("schedule")
    assert "parallel" in one_batch
    assert one_batch.index("band[n") < one_batch.rindex("band[k")


@pytest.mark.parametrize("threads", [1, 2])
def test_what_follows_joins_the_loop(threads: int) -> None:
    """Its operand lives in two rows that take turns, each thread's in its own."""
    x = np.ones((20_000, 500))
    lowered = polyml.einsum(GATED, threads=threads, target=LARGE).lower(x, np.ones(500))
    assert "local f64 h[2, 500];" in lowered.text("loops")
    tree = lowered.text("schedule")
    assert tree.index("parallel" if threads == 2 else "domain") < tree.index("allocate:h:window")


def test_narrow_matrices_take_all_their_vectors_at_once() -> None:
    """What one loop walks over comes by once, and need not stay in L2 for another."""
    lanes = Target.host().lanes(8)
    text = polyml.einsum(SUMS, threads=1).lower(np.ones((200_000, 4 * lanes))).text("schedule")
    assert "vector:4" in text
