"""Pieces of parallel loops: enough of them, and about as much for each thread."""

from __future__ import annotations

import random

import numpy as np
import pytest

import polyml
from benchmarks.polybench import KERNELS
from polyml.schedule.blocking.shares import most_work
from polyml.schedule.strategy.threads import even_tile


def busiest(extent: int, size: int, threads: int) -> int:
    """Dealt out one after the other, whole pieces first."""
    pieces = [min(size, extent - at) for at in range(0, extent, size)]
    return max(sum(pieces[k::threads]) for k in range(threads))


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("step", [1, 8, 32])
def test_no_thread_has_much_more_than_its_share(threads: int, step: int) -> None:
    for extent in range(4 * threads * step, 3000, 61):
        size = even_tile(extent, step, threads)
        assert size % step == 0
        assert extent // size >= 4 * threads
        largest = extent // (4 * threads) // step * step
        assert busiest(extent, size, threads) <= busiest(extent, largest, threads)


def test_short_loops_have_pieces_of_a_step() -> None:
    assert even_tile(100, 32, 4) == 32
    assert even_tile(5, 8, 2) == 8


def test_lanes_of_recurrences_are_dealt_out_evenly() -> None:
    """998 rows: nine pieces of 112 leave one of two threads five of them."""
    assert busiest(998, 112, 2) == 550
    assert busiest(998, even_tile(998, 16, 2), 2) == busiest(998, even_tile(998, 32, 2), 2) == 512
    kernel = KERNELS["adi"]
    text = kernel.program(threads=2, target=polyml.Target("x86-64-v4")).lower(*kernel.arguments("LARGE")).explain()
    assert text.count("tile i by 64") + text.count("tile i_1 by 64") == 2


def test_the_best_of_all_sizes_is_found_in_no_time() -> None:
    choose = random.Random(0)
    for _ in range(2000):
        extent, step = choose.randint(1, 20_000), choose.choice((1, 2, 3, 4, 5, 8, 16, 32))
        threads = choose.choice((1, 2, 3, 4, 7, 8, 64))
        most = max(step, extent // (4 * threads) // step * step)
        sizes = range(most, max(step, most // 2 // step * step) - 1, -step)
        assert even_tile(extent, step, threads) == min(sizes, key=lambda size: most_work(extent, size, threads))
    assert 10**12 // 16 <= even_tile(10**12, 16, 2) <= 10**12 // 8


@pytest.mark.parametrize(("rows", "shared"), [(600, True), (150, False)])
def test_copies_that_l2_does_not_hold_are_shared(rows: int, shared: bool) -> None:
    """They compute nothing, and take what moving them takes."""
    text = 'def f(x: f32["N M"]):\n    y[j, i] = x[i, j]\n    return y\n'
    target = polyml.Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=1 << 20)
    lowered = polyml.einsum(text, target=target, threads=2).lower(np.zeros((rows, 600), "f"))
    assert ("parallel for" in lowered.text("loops")) == shared


def test_sampled_elements_bring_whole_lines() -> None:
    text = 'def f(x: f32["C H W"]):\n    y: f32["C 28 28"] = 0\n    y[c, i, j] = x[c, 2 * i, 2 * j]\n    return y\n'
    target = polyml.Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=1 << 20)
    lowered = polyml.einsum(text, target=target, threads=2).lower(np.zeros((150, 56, 56), "f"))
    assert "parallel for" in lowered.text("loops")
