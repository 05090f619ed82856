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


def test_short_rows_and_small_arrays_need_nothing() -> None:
    assert not asked(100_000, 16), "the hardware follows rows of 128 bytes"
    assert not asked(500, 512), "it stays in L2"
    assert not asked(48, 16_384), "too short a walk"
    assert not asked(2000, 16, level=1)


def test_every_row_of_an_unrolled_walk() -> None:
    text = 'def f(a: f64["N M"], y: f64["N"]):\n    x[m] = a[n, m] * y[n]\n    return x\n'
    program = polyml.einsum(text, target=WIDE, threads=1)
    text = program.lower(np.zeros((2000, 1600)), np.zeros(2000)).text("loops")
    loop = re.search(r"for \(n = 0; n < 2000; n \+= (\d+)\) \{\n((?:\s+prefetch .*\n)+)", text)
    assert loop is not None
    rows = [int(row) for row in re.findall(r"a\[n \+ (\d+), m\]", loop[2])]
    assert len(rows) == int(loop[1])
    assert max(rows) - min(rows) == int(loop[1]) - 1
