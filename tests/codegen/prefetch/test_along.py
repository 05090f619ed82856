"""A few rows of a matrix at a time, from end to end: what tiles ask for, how many rows there are, and that results are right at all edges."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target

WIDE = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20, cores=2)
SMALL = Target("host", l1_bytes=1024, l2_bytes=4096)

PRODUCT = 'def f(x: f32["I K"], y: f32["K J"]):\n    z[i, j] = x[i, k] * y[k, j]\n    return z\n'
SUMS = 'def f(y: f32["K J"]):\n    z[j] = sum[k](exp(y[k, j]))\n    return z\n'


def asked(rows: int, depth: int, columns: int) -> tuple[int, set[str]]:
    """Rows of y at a time, and the prefetched places of it."""
    x, y = np.zeros((rows, depth), "f4"), np.zeros((depth, columns), "f4")
    text = polyml.einsum(PRODUCT, target=WIDE, threads=1).lower(x, y).text("loops")
    block = re.search(r"k_tile \+= (\d+)", text)
    return int(block[1]) if block else 0, set(re.findall(r"prefetch L2 y\[(.*)\];", text))


@pytest.mark.parametrize(("rows", "block", "elements"), [(1, 8, 512), (2, 8, 512), (8, 16, 256)])
def test_long_rows_are_asked_for_along(rows: int, block: int, elements: int) -> None:
    """Sixteen kilobytes are on their way: of eight rows 2 KB each, of sixteen 1 KB."""
    found, places = asked(rows, 4096, 4096)
    assert found == block
    assert f"k, j + {elements}" in places
    ahead = {int(place.rpartition("+ ")[2]) for place in places}
    assert ahead == set(range(elements, elements + 16 * len(ahead), 16)), "a line for each vector"


def test_of_short_rows_the_next_ones() -> None:
    block, places = asked(1, 20_000, 700)
    assert {"k + 8, j", "k + 9, j + 16", "k + 11, j + 32"} <= places
    assert block == 8


def test_what_caches_hold_is_not_asked_for() -> None:
    assert not asked(1, 500, 700)[1]
    assert not asked(64, 4096, 4096)[1] & {"k, j + 256", "k, j + 512"}, "tiles go down blocks"


def test_heavy_sums_ask_too() -> None:
    text = polyml.einsum(SUMS, target=WIDE, threads=1).lower(np.zeros((20_000, 700), "f4")).text("loops")
    assert "prefetch L2 y[k + 8, j];" in text


@pytest.mark.parametrize("size", [(1, 9, 65), (2, 33, 700), (3, 8, 1000), (8, 40, 129), (5, 100, 64), (1, 7, 2049)])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(3)
def test_results(size: tuple[int, int, int], threads: int) -> None:
    """Small integers, so that no order rounds."""
    rng = np.random.default_rng(sum(size))
    rows, depth, columns = size
    x = rng.integers(-3, 4, (rows, depth)).astype("f4")
    wide = rng.integers(-3, 4, (depth, 2 * columns)).astype("f4")
    program = polyml.einsum(PRODUCT, target=SMALL, threads=threads)
    for y in (wide[:, :columns].copy(), wide[:, :columns], wide[:, columns:]):
        np.testing.assert_array_equal(program(x, y), x @ y)


def beside(rows: int, columns: int) -> set[str]:
    """The prefetched places of a matrix whose rows are summed, several side by side."""
    text = 'def f(y: f32["K J"], x: f32["J"]):\n    z[k] = y[k, j] * x[j]\n    return z\n'
    lowered = polyml.einsum(text, target=WIDE, threads=1).lower(
        np.zeros((rows, columns), "f4"), np.zeros(columns, "f4")
    )
    return set(re.findall(r"prefetch L2 y\[(.*)\];", lowered.text("loops")))


def test_rows_side_by_side_ask_along_or_for_the_next_rows() -> None:
    long, short = beside(1000, 30_000), beside(20_000, 704)
    assert {place.partition(", ")[2] for place in long} == {"j + 576"}, "sixteen kilobytes of seven rows"
    assert len(long) == 7
    assert {place.partition(", ")[2] for place in short} == {"j"}
    assert {int(place.partition(",")[0].rpartition("+ ")[2]) for place in short} == set(range(7, 14))
    assert not beside(500, 704), "it stays in L2"


PIECES = """
def f(x: f32["N K"]):
    y: f32["N K"]
    y[0, k] = x[0, k]
    for n in range(1, N):
        y[n, k] = y[n - 1, k] + x[n, k]
    return y
"""


def test_pieces_of_rows_ask_for_the_same_piece_of_coming_rows() -> None:
    """Threads have pieces; one thread has whole rows, which the hardware follows."""
    x = np.zeros((4096, 1024), "f4")
    texts = [polyml.einsum(PIECES, target=WIDE, threads=threads).lower(x).text("loops") for threads in (1, 2)]
    assert "prefetch" not in texts[0]
    assert "prefetch L2 x[n + 8, k];" in texts[1]


def test_a_core_that_sees_the_next_rows_is_not_asked_for_them() -> None:
    """Of a matrix times a vector; long rows are asked for all the same."""
    text = 'def f(x: f32["I K"], y: f32["K"]):\n    z[i] = x[i, k] * y[k]\n    return z\n'
    seeing = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20, cores=2, asks_near=False)
    for target, shape, expected in (
        (WIDE, (9000, 200), True),
        (seeing, (9000, 200), False),
        (seeing, (64, 9000), True),
    ):
        x, y = np.zeros(shape, "f4"), np.zeros(shape[1], "f4")
        loops = polyml.einsum(text, target=target, threads=1).lower(x, y).text("loops")
        assert ("prefetch L2 x" in loops) == expected, (shape, target.asks_near)


@pytest.mark.parametrize(("rows", "asks", "expected"), [(1, True, True), (3, False, False), (5, False, True)])
def test_a_core_that_follows_rows_side_by_side_is_not_asked_for_them(rows: int, asks: bool, expected: bool) -> None:
    """Of few rows of a result."""
    x, y = np.zeros((rows, 2048), "f4"), np.zeros((2048, 4096), "f4")
    target = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20, cores=2, asks_along=asks)
    loops = polyml.einsum(PRODUCT, target=target, threads=1).lower(x, y).text("loops")
    assert ("prefetch L2 y" in loops) == expected


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.few(1)
def test_a_core_that_brings_such_lines_into_l1_is_not_asked_for_them(rows: int) -> None:
    """Of a product with few rows, along y and across it."""
    across = PRODUCT.replace('y: f32["K J"]', 'y: f32["J K"]').replace("y[k, j]", "y[j, k]")
    x, y = np.zeros((rows, 9000), "f4"), np.zeros((9000, 3000), "f4")
    for fills_l2 in (True, False):
        target = Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024, cores=2, fills_l2=fills_l2)
        for text, weights in ((PRODUCT, y), (across, np.ascontiguousarray(y.T))):
            loops = polyml.einsum(text, target=target, threads=1).lower(x, weights).text("loops")
            assert ("prefetch L2 y" in loops) == fills_l2, (text, fills_l2)


@pytest.mark.parametrize("rows", [4, 8, 12])
def test_nor_are_tiles_of_several_rows_for_their_next_columns(rows: int) -> None:
    """Each of them is a strip of a few rows, whose neighbour the next tile has."""
    x, y = np.zeros((rows, 2000), "f4"), np.zeros((2000, 3000), "f4")
    for fills_l2 in (True, False):
        target = Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024, cores=2, fills_l2=fills_l2)
        loops = polyml.einsum(PRODUCT, target=target, threads=1).lower(x, y).text("loops")
        assert ("prefetch L2 y" in loops) == fills_l2


def test_a_core_that_brings_such_lines_into_l1_is_not_asked_for_several_rows_that_are_computed_with() -> None:
    text = PRODUCT.replace('y: f32["K J"]', 'y: f32["J K"]').replace("y[k, j]", "y[j, k]")
    x, y = np.zeros((4, 1000), "f4"), np.zeros((1000, 1000), "f4")
    for fills_l2 in (True, False):
        target = Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024, cores=2, fills_l2=fills_l2)
        loops = polyml.einsum(text, target=target, threads=1).lower(x, y).text("loops")
        assert ("prefetch L1 y" in loops) == fills_l2
