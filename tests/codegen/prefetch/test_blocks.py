"""The next block's rows, fetched while a block that is read where it lies is summed up: which lines are asked for, and where none are."""

from __future__ import annotations

import re

import numpy as np

import polyml
from polyml.target import Target
from tests.codegen.llvm.support import guarded

WIDE = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20, cores=2)
TEXT = 'def f(x: f32["B K N"], y: f32["B K M"]):\n    z[b, n, m] = x[b, k, n] * y[b, k, m]\n    return z\n'


def loops_of(batch: int, depth: int, n: int, m: int) -> str:
    x, y = np.zeros((batch, depth, n), np.float32), np.zeros((batch, depth, m), np.float32)
    return polyml.einsum(TEXT, target=WIDE, threads=1).lower(x, y).text("loops")


def test_every_line_of_the_next_block_is_asked_for() -> None:
    text = loops_of(9, 2048, 64, 64)
    asked = re.findall(r"prefetch L2 (x|y)\[b, k \+ (\d+), (.*)\];", text)
    assert {array for array, *_ in asked} == {"x", "y"}
    (block,) = {int(rows) for _, rows, _ in asked}
    assert f"k_tile += {block}" in text
    for _, _, column in asked:
        lines = {eval(column, {"n": n, "n_tile": n, "m_tile": m}) for n in range(0, 52, 13) for m in (0, 32)}
        assert lines == {0, 16, 32, 48}


def test_what_stays_in_cache_or_has_too_few_tiles_is_not_fetched() -> None:
    for sizes in ((2, 1024, 64, 64), (60, 2048, 16, 64)):
        assert not re.search(r"prefetch L2 (x|y)\[b, k \+", loops_of(*sizes))


def test_results() -> None:
    rng = np.random.default_rng(0)
    small = Target("host", vector_bytes=64, vector_registers=32, l1_bytes=8 * 1024, l2_bytes=512 * 1024, cores=2)
    x, y = (rng.integers(-9, 10, (8, 300, n)).astype(np.float32) for n in (64, 64))
    function = polyml.einsum(TEXT, target=small, threads=1)
    assert "the next block of x" in str(function.explain(x, y))
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), np.einsum("bkn,bkm->bnm", x, y))


def test_rows_of_what_is_packed_are_no_rows_of_the_sums() -> None:
    """The copy of x goes across its rows by a loop of its own, whose variable the sums do not have."""
    rng = np.random.default_rng(0)
    text = 'def f(x: f64["N K B"], y: f64["K B M"]):\n    z[b, n, m] = x[n, k, b] * y[k, b, m]\n    return z\n'
    small = Target("host", vector_bytes=32, vector_registers=16, l1_bytes=2048, l2_bytes=65536)
    x, y = rng.integers(-9, 10, (112, 144, 16)).astype(float), rng.integers(-9, 10, (144, 16, 10)).astype(float)
    function = polyml.einsum(text, target=small, threads=1)
    turned = y[:, :, ::-1]
    assert "x in panels" in str(function.explain(x, turned))
    np.testing.assert_array_equal(function(x, turned), np.einsum("nkb,kbm->bnm", x, turned))
