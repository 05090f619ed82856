"""Prefetches on a walk down columns: which rows are asked for, once per strip, and where there are none."""

from __future__ import annotations

import re

import numpy as np

import polyml
from polyml.target import Target

WIDE = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20, cores=2)

BOTH_WAYS = """
def f(x: f64["N M"]):
    y: f64["N M"] = 0
    z: f64["N M"] = 0
    for i in range(1, N):
        for j in range(M):
            y[i, j] = x[i, j] + x[i - 1, j] + 0.5 * y[i - 1, j]
    for i in range(N - 2, -1, -1):
        for j in range(M):
            z[i, j] = x[i + 1, j] + 0.5 * z[i + 1, j]
    out[i, j] = y[i, j] + z[i, j]
    return out
"""


def asked(rows: int, columns: int, level: int = 2) -> list[tuple[int, int]]:
    """(rows ahead, columns ahead) of each prefetch into that cache."""
    program = polyml.einsum(BOTH_WAYS, target=WIDE, threads=1)
    text = program.lower(np.zeros((rows, columns))).text("loops")
    found = re.findall(rf"prefetch L{level} x\[(-?)i\w* \+ (\d+), \w+(?: \+ (\d+))?\]", text)
    return [(-int(row) if sign else int(row), int(column or 0)) for sign, row, column in found]


def test_one_walk_asks_for_the_strip() -> None:
    """The first one forwards; what comes backwards behind it finds the strip in L2."""
    found = asked(2000, 1600)
    assert found
    assert {row for row, _ in found} == {16_384 // 64 // len(found)}
    assert sorted(column for _, column in found) == [8 * k for k in range(len(found))]
    # The way back goes from row N - 1 to the first: 16 rows on are 16 rows less.
    again = asked(2000, 1600, level=1)
    assert {row for row, _ in again} == {-(1999 - 16)}
    assert sorted(column for _, column in again) == sorted(column for _, column in found)
    # Rows that are no whole lines: the last one is for the end of the last vector.
    found = asked(2000, 1602)
    assert sorted(column for _, column in found) == [0, *(8 * k - 1 for k in range(1, len(found)))]


def test_short_rows_and_small_arrays_need_nothing() -> None:
    assert not asked(100_000, 16), "the hardware follows rows of 128 bytes"
    assert not asked(500, 512), "it stays in L2"
    assert not asked(48, 16_384), "too short a walk"
    assert not asked(2000, 16, level=1)


def test_every_row_of_an_unrolled_walk() -> None:
    text = 'def f(a: f64["N M"], y: f64["N"]):\n    x[m] = a[n, m] * y[n]\n    return x\n'
    # Else it would go through rows from end to end, as it does with more columns.
    program = polyml.einsum(text, target=WIDE, threads=1, precise=True)
    text = program.lower(np.zeros((5000, 600))[:, :64], np.zeros(5000)).text("loops")
    loop = re.search(r"for \(n = 0; n < 5000; n \+= (\d+)\) \{\n((?:\s+prefetch .*\n)+)", text)
    assert loop is not None
    rows = [int(row) for row in re.findall(r"a\[n \+ (\d+), m\]", loop[2])]
    assert len(rows) == int(loop[1])
    assert max(rows) - min(rows) == int(loop[1]) - 1


SOLVE = """
def f(u: f64["N N"]):
    v: f64["N N"] = 0
    for t in range(3):  # more would run in time tiles
        for i in range(1, N - 1):
            v[0, i] = 1
            for j in range(1, N):
                v[j, i] = 0.5 * v[j - 1, i] + u[j, i - 1] - u[j, i + 1]
            for j in range(N - 2, -1, -1):
                v[j, i] = v[j, i] - 0.5 * v[j + 1, i]
        for i in range(1, N - 1):
            for j in range(1, N):
                u[i, j] = 0.5 * u[i, j - 1] + v[i, j]
    return u
"""


def test_a_row_that_is_written_is_asked_for() -> None:
    """What other loops write is read ahead; and what is written below others' rows was not read before."""
    text = polyml.einsum(SOLVE, target=WIDE, threads=1).lower(np.zeros((1000, 1000))).text("loops")
    first, *_ = re.findall(r"for \(j = 1; j < 1000; j\+\+\) \{\n((?:\s+prefetch .*\n)+)", text)
    lines = [line.strip() for line in first.splitlines()]
    reads = [line for line in lines if line.startswith("prefetch L2 u[j + ")]
    writes = [line for line in lines if re.match(r"prefetch L1 v\[j \+ \d+, i(?: \+ \d+)?\] to write;", line)]
    assert reads
    assert len(reads) + len(writes) == len(lines)
    # A vector's neighbours on both sides share its lines.
    assert len(reads) == len(writes)
    small = polyml.einsum(SOLVE, target=WIDE, threads=1).lower(np.zeros((400, 400))).text("loops")
    assert "prefetch" not in small


def test_arrays_of_any_size_that_are_small_in_the_first_call_need_nothing() -> None:
    text = 'def f(a: f32["N M"], x: f32["M"], y: f32["N"]):\n    e[n] = a[n, m] * x[m] - y[n]\n    g[m] = a[n, m] * e[n]\n    return g\n'
    program = polyml.einsum(text, target=WIDE, threads=1, dynamic=True)

    def loops_for(n: int, m: int) -> str:
        return program.lower(*(np.zeros(shape, np.float32) for shape in ((n, m), m, n))).text("loops")

    # What is left asks for rows in the version for more than L2 holds.
    assert loops_for(300, 100).count("prefetch") < loops_for(3000, 1000).count("prefetch")
    assert "to write" not in loops_for(300, 100)
