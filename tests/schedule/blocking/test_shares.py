"""Blocks of a contraction that come out even for the threads that share them, each of which packs its own and meets the others once. Results are compared with NumPy's in float64 (small integers, so that they are exact)."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.schedule.blocking.shares import even_for_threads, most_work, parts_for_threads
from polyml.target import Target
from tests.pairs import pairwise

PRODUCT = 'def f(x: {0}["{1}"], y: {0}["{2}"]):\n    z[i, j] = x[{3}] * y[{4}]\n    return z\n'
FORMS = {"nn": ("I K", "K J"), "tn": ("K I", "K J"), "nt": ("I K", "J K"), "tt": ("K I", "J K")}


def program(form: str, dtype: str = "f32") -> str:
    x, y = FORMS[form]
    return PRODUCT.format(dtype, x, y, *(text.lower().replace(" ", ", ") for text in (x, y)))


def machine(threads: int) -> Target:
    return Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20, cores=threads)


def shared_loops(form: str, rows: int, columns: int, terms: int, threads: int, dtype: str = "f32") -> list[str]:
    """The first words of the parallel loops."""
    kind = "f" if dtype == "f32" else "d"
    x = np.zeros((rows, terms) if form[0] == "n" else (terms, rows), kind)
    y = np.zeros((terms, columns) if form[1] == "n" else (columns, terms), kind)
    lowered = polyml.einsum(program(form, dtype), target=machine(threads), threads=threads).lower(x, y)
    lines = lowered.text("loops").splitlines()
    return [line.split("(")[1].split()[0] for line in lines if "parallel for" in line]


@pytest.mark.parametrize("threads", [2, 3, 8, 64])
@pytest.mark.parametrize("step", [16, 48, 64])
def test_the_busiest_thread_has_little_more_than_its_share(threads: int, step: int) -> None:
    for extent in range(step, 4000, 173):
        for most in (step, 3 * step, 8 * step):
            size = even_for_threads(extent, most, step, threads)
            assert size % step == 0
            assert size <= most
            assert most_work(extent, size, threads) <= 1.15 * most_work(extent, most, threads)
    assert even_for_threads(256, 256, 64, 2) in (64, 128)
    assert even_for_threads(1024, 192, 64, 2) == 128


@pytest.mark.parametrize("threads", [2, 3, 8, 64])
@pytest.mark.parametrize("blocks", [1, 4, 16, 200])
def test_parts_make_up_for_few_blocks_and_no_more(threads: int, blocks: int) -> None:
    for extent in (1, 7, 14, 56, 224):
        parts = parts_for_threads(extent, 1, extent, blocks, extent * extent, threads)
        assert 1 <= parts <= extent
        assert parts_for_threads(extent, extent, extent, blocks, extent * extent, threads) == extent
        assert parts_for_threads(extent, 1, 1, blocks, extent * extent, threads) == 1
        # Each brings the panels anew.
        assert parts_for_threads(extent, 1, extent, 1000 * threads, extent * extent, threads) <= 2
    assert parts_for_threads(28, 1, 28, 8, 784, 2) == 4
    assert parts_for_threads(14, 1, 14, 16, 196, 2) == 1


def test_threads_of_different_speed_have_several_blocks_each() -> None:
    """Points of a short sum were two blocks, one for each."""
    x, y = np.zeros((512, 128), "f"), np.zeros((128, 784), "f")
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10, l3_bytes=32 << 20, cores=2)
    text = polyml.einsum(program("nn"), target=target, threads=2).lower(x, y).text("loops")
    (line,) = (line for line in text.splitlines() if "parallel for (j_tile" in line)
    assert int(line.split("+= ")[1].split(")")[0]) <= 784 // 8


@pytest.mark.parametrize("form", ["nn", "nt"])
@pytest.mark.parametrize("size", [128, 256, 512, 1024])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.few(3)
def test_threads_meet_once(form: str, size: int, dtype: str) -> None:
    """Four blocks of 64 columns were packed, and used, by both of two threads one after the other."""
    assert shared_loops(form, size, size, size, 2, dtype) == ["j_tile"]
    assert shared_loops(form, size, size, size, 1, dtype) == []


def test_rows_that_are_packed_are_shared_once_per_block_of_the_sum() -> None:
    packing, blocks = shared_loops("tn", 512, 512, 512, 2)
    assert packing.startswith("k_tile")
    assert blocks == "j_tile"


def test_few_columns_leave_the_rows_to_share() -> None:
    """One panel: packed by one of the threads while they would meet for it."""
    assert shared_loops("nn", 494, 48, 200, 2) == ["i_tile"]


def test_four_blocks_that_come_out_even_are_shared_rather_than_three_inside_of_each() -> None:
    # The four gates of a cell: two for each thread, which meet once.
    text = 'def f(x: f32["N D"], w: f32["D G K"]):\n    z[n, g, k] = x[n, d] * w[d, g, k]\n    return z\n'
    x, w = np.zeros((64, 512), "f"), np.zeros((512, 4, 512), "f")
    layer = polyml.einsum(text, target=machine(2), threads=2).bind(w=w)
    lines = layer.lower(x).text("loops").splitlines()
    assert [line.split("(")[1].split()[0] for line in lines if "parallel for" in line] == ["g"]


def test_an_operand_that_no_cache_holds_is_swept_by_one_thread_at_a_time() -> None:
    """Columns for each thread would read 64 MB once for each of them."""
    assert "j_tile" not in shared_loops("nn", 40_000, 96, 400, 2)


@pytest.mark.parametrize(("batch", "points", "loops"), [(2, 19, {"o_tile"}), (2, 56, {"b", "o_tile"}), (3, 56, {"p"})])
@pytest.mark.few(1)
def test_few_images_are_shared_in_one_way_or_another(batch: int, points: int, loops: set[str]) -> None:
    """Two images are two threads' work; three are not, and rows of points are shared; so are blocks of filters. One thread did all, or both met for each row."""
    text = 'def f(x: f32["B C H W"], w: f32["O C R S"]):\n    y[b, o, p, q] = x[b, c, p + r, q + s] * w[o, c, r, s]\n    return y\n'
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 10, (batch, 16, points + 2, points + 2)).astype(np.float32)
    w = rng.integers(-9, 10, (48 if points == 56 else 64, 16, 3, 3)).astype(np.float32)
    lowered = polyml.einsum(text, target=machine(2), threads=2).bind(w=w).lower(x)
    lines = [line.strip() for line in lowered.text("loops").splitlines() if "parallel for" in line]
    assert any(line.split("(")[1].split()[0] in loops for line in lines)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(float), (3, 3), (2, 3))
    for threads in (2, 3):
        layer = polyml.einsum(text, target=Target("host", cores=threads), threads=threads).bind(w=w)
        np.testing.assert_array_equal(layer(x), np.einsum("bcpqrs,ocrs->bopq", windows, w.astype(float)))


def test_fewer_rows_than_threads_have_tiles_are_shared_all_the_same() -> None:
    assert shared_loops("nn", 96, 96, 5000, 64)


def test_what_is_left_beside_strips_is_shared_with_them() -> None:
    """784 columns are sixteen strips of 48 and a vector, which one thread did while the others waited."""
    x, y = np.zeros((512, 128), "f"), np.zeros((128, 784), "f")
    lowered = polyml.einsum(program("nn"), target=machine(2), threads=2).lower(x, y)
    assert "in strips of" in str(lowered.explain())
    outer = [
        line
        for line in lowered.text("loops").splitlines()
        if line.startswith("  ") and line[2] != " " and "for (" in line
    ]
    assert len(outer) == 1
    assert "parallel for (j_tile = 0; j_tile < 816; j_tile += 48)" in outer[0]
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-9, 10, a.shape).astype(np.float32) for a in (x[:90], y[:, :300]))
    for threads in (2, 3):
        target = Target("host", l1_bytes=48 << 10, l2_bytes=1 << 20, cores=threads)
        found = polyml.einsum(program("nn"), target=target, threads=threads, verify=True)(x, y)
        np.testing.assert_array_equal(found, x.astype(float) @ y.astype(float))


@pairwise(
    ("form", FORMS),
    ("threads", [2, 3, 8]),
    ("rows, columns, terms", [(70, 200, 130), (33, 129, 257), (260, 100, 64)]),
)
@pytest.mark.few(1)
def test_results(form: str, threads: int, rows: int, columns: int, terms: int) -> None:
    rng = np.random.default_rng(0)
    shapes = (
        (rows, terms) if form[0] == "n" else (terms, rows),
        (terms, columns) if form[1] == "n" else (columns, terms),
    )
    x, y = (rng.integers(-9, 10, shape).astype(np.float32) for shape in shapes)
    target = Target("host", l1_bytes=16 << 10, l2_bytes=64 << 10, cores=threads)
    found = polyml.einsum(program(form), target=target, threads=threads, verify=True)(x, y)
    wide = [a.astype(float) for a in (x, y)]
    np.testing.assert_array_equal(
        found, (wide[0] if form[0] == "n" else wide[0].T) @ (wide[1] if form[1] == "n" else wide[1].T)
    )
