"""Prefetches of the next register tile: where they stand, what they ask for, and where there are none."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from benchmarks.polybench import KERNELS
from polyml.codegen.loops import For
from polyml.codegen.ranges import Ranges
from polyml.sets.affine import affine
from polyml.target import Target

WIDE = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20, cores=2)


def loops_of(name: str, size: int) -> str:
    (a,) = KERNELS[name].data({"N": size}, np.random.default_rng(0))
    return KERNELS[name].program(target=WIDE, threads=1).lower(a).text("loops")


def test_the_next_rows_are_fetched_once_per_line() -> None:
    text = loops_of("lu", 600)
    asked = re.findall(r"prefetch L1 A\[(i_tile_?\d*) \+ (\d+), (j)(?: \+ (\d+))?\]", text)
    tiles = {name for name, *_ in asked}
    assert tiles
    for tile in tiles:
        elements = [(int(row), int(lane or 0)) for name, row, _, lane in asked if name == tile]
        assert set(elements) == {(8 + row, 8 * vector) for row in range(8) for vector in range(3)}
    # Ahead of the sums, behind the loads of the tile itself.
    assert re.search(r"A_value\w* = A\[.*\];\n\s+prefetch L1 .*\n(\s+prefetch L1 .*\n)*\s+for \(k", text)


def test_nothing_is_fetched_that_stays_in_cache() -> None:
    assert "prefetch" not in loops_of("lu", 400)


def test_tiles_along_a_row_are_fetched_as_far_ahead_as_memory_takes() -> None:
    """Shortest paths, sixteen vectors in a tile: 64 steps of a block of 1000 x 1000 are time enough for the next tile, 8 steps of 9000 x 9000 for the eighth."""
    program = KERNELS["floyd-warshall"].program(target=WIDE, threads=1)
    for size, steps, ahead in ((1000, 64, 1), (9000, 8, 8)):
        text = program.lower(np.zeros((size, size))).text("loops")
        assert f"k_tile += {steps})" in text
        tile = re.search(r"((?:prefetch L1 .*;\s+)+)for \(k = k_tile", text)
        assert tile is not None
        asked = re.findall(r"path\[e0_tile(?: \+ (\d))?, j \+ (\d+)\]", tile[1])
        assert [(int(row or 0), int(lane)) for row, lane in asked] == [
            (row, 16 * ahead + 8 * vector) for vector in range(2) for row in range(8)
        ]
    assert "prefetch" not in program.lower(np.zeros((400, 400))).text("loops")


def test_what_is_not_added_to_is_not_fetched() -> None:
    product = polyml.einsum(
        'def f(x: f64["N K"], y: f64["K M"]):\n    z[n, m] = x[n, k] * y[k, m]\n    return z\n', target=WIDE
    )
    rng = np.random.default_rng(0)
    text = product.lower(rng.random((600, 64)), rng.random((64, 600))).text("loops")
    assert not re.search(r"prefetch L\d z\[", text), "strips of the vector operand are fetched, the result is not"


def test_the_last_step_of_an_unrolled_loop() -> None:
    """In steps of 4 up to a multiple of 4 away, the last value is 4 below the end."""
    tile = For(variable="t", lower=affine(0), upper=affine(1000), step=8, body=())
    steps = For(variable="k", lower=affine(0), upper=affine("t"), step=4, body=())
    inside = Ranges().enter(tile).enter(steps)
    assert inside.highest(affine("k") + 3 - affine("t")) == -1
    odd = For(variable="k", lower=affine(0), upper=affine("t") + 1, step=4, body=())
    assert Ranges().enter(tile).enter(odd).highest(affine("k") + 3 - affine("t")) == 3


def test_rows_of_unknown_length_are_fetched_too() -> None:
    product = polyml.einsum(
        'def f(x: f32["N K"], y: f32["K M"]):\n    z[n, m] = x[n, k] * y[k, m]\n    return z\n',
        target=WIDE,
        dynamic=True,
    )
    text = product.lower(np.ones((300, 180), "f4"), np.ones((180, 32), "f4")).text("loops")
    asked = re.findall(r"prefetch L2 x\[(.*), (\w+)\]", text)
    assert len(asked) >= 2, "with panels and without"
    assert all(along.startswith("k_line") for _, along in asked)


def test_tiles_of_few_registers_find_one_row_of_unknown_length() -> None:
    """The operand's, where they ask for no other."""
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10, cores=1)
    arguments = KERNELS["gemm"].data({"NI": 600, "NJ": 640, "NK": 700}, np.random.default_rng(0))
    lowered = polyml.einsum(KERNELS["gemm"].text, target=target, threads=1, dynamic=True).lower(*arguments)
    loops = re.findall(r"(?:prefetch L2 A\[[^,]*k[^,]*, k\];\s+)+C_sum", lowered.text("loops"))
    assert loops
    assert all(asked.count("prefetch") == 1 for asked in loops)


@pytest.mark.parametrize(("level", "inside"), [("x86-64-v3", False), ("x86-64-v4", True)])
@pytest.mark.few(1)
def test_tiles_of_few_registers_find_no_rows_of_unknown_length_one_by_one(level: str, inside: bool) -> None:
    """They ask for the next tile ahead of their sums, once for each line: of rows of unknown length by their numbers."""
    target = Target(level, l1_bytes=32 << 10, l2_bytes=512 << 10, cores=1)
    kernel = KERNELS["syrk"]
    arguments = kernel.data({"N": 600, "M": 500}, np.random.default_rng(0))
    text = polyml.einsum(kernel.text, target=target, threads=1, dynamic=True).lower(*arguments).text("loops")
    assert bool(re.search(r"prefetch L2 .*k", text)) == inside
    tiles = re.findall(r"((?:prefetch L1 C_sum.*;\s+)+)for \(k", text)
    assert inside or tiles
    for tile in tiles:
        asked = re.findall(r"\[\w+ \+ (\d+), j(?: \+ (\d+))?\]", tile)
        assert len(asked) == len(set(asked))
        assert {int(row) for row, _ in asked} == set(range(6, 12))


def layer(size: int) -> str:
    text = 'def f(x: f32["C H W"], w: f32["O C 3 3"]):\n    y[o, p, q] = x[c, 2*p + r, 2*q + s] * w[o, c, r, s]\n    return y\n'
    x, w = np.zeros((3, size, size), np.float32), np.zeros((32, 3, 3, 3), np.float32)
    return polyml.einsum(text, target=WIDE, threads=1).bind(w=w).lower(x).text("loops")


def test_a_tile_asks_for_the_lines_that_it_is_stored_to() -> None:
    tiles = re.findall(r"((?:prefetch L1 y.* to write;\s+)+)for \(c((?:.*\n)*?)(\s+y\[(?:.*\n)*?)\s+}", layer(225))
    assert tiles
    for asked, _, stored in tiles:
        places = re.findall(r"prefetch L1 (y\[.*\]) to write", asked)
        own = re.findall(r"(y\[.*\]) = ", stored)
        # One that is alone in its row asks for the next row's.
        assert places in (own, [place.replace(" p,", " p + 1,") for place in own])
        assert len(places) >= 8


def test_small_results_are_there() -> None:
    assert "to write" not in layer(65)


@pytest.mark.parametrize(("taps", "asked"), [(3, True), (1, False)])
def test_short_sums_ask_for_their_lines(taps: int, asked: bool) -> None:
    """Nine taps for eight rows are 72 sums, 36 cycles of AVX2 code; a tile of single products would store before a line is there."""
    text = 'def f(x: f32["C H W"], w: f32["C R S"]):\n    y[c, i, j] = x[c, i + r, j + s] * w[c, r, s]\n    return y\n'
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
    x, w = np.zeros((64, 55 + taps, 55 + taps), np.float32), np.zeros((64, taps, taps), np.float32)
    loops = polyml.einsum(text, target=target, threads=1).bind(w=w).lower(x).text("loops")
    assert ("to write" in loops) == asked


@pytest.mark.parametrize("terms", [12, 13])
def test_terms_behind_the_loop_do_not_keep_tiles_from_asking(terms: int) -> None:
    """Of 13 terms one is written out between the loop of the sums and what stores them. What is asked for is what the rows go on with, for the next b, which comes when the other rows have been summed up."""
    text = 'def f(x: f32["D A B E"], y: f32["E C"]):\n    z[d, c, b, a] = x[d, a, b, e] * y[e, c]\n    return z\n'
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
    x, y = np.zeros((12, 25, 43, terms), "f4"), np.zeros((terms, 31), "f4")
    loops = polyml.einsum(text, target=target, threads=1).lower(x, y).text("loops")
    asked = re.findall(r"prefetch L1 z\[(.*)\] to write", loops)
    stored = re.findall(r"  z\[(.*)\] = ", loops)
    assert set(asked) <= {place.replace(" b,", " b + 1,") for place in stored}
    assert {place.split(", ")[1] for place in asked} == {"c_tile", *(f"c_tile + {row}" for row in (1, 2, 3))}


def test_strips_of_one_tile_ask_for_the_next_strip() -> None:
    """Ten tiles of six filters go over a strip of 16 points, which is a line of every filter's row: there is time for those of the next strip. The last tile, of four, is alone in a loop over strips as far as it knows."""
    text = 'def f(x: f32["C P"], w: f32["K C"]):\n    y[k, p] = x[c, p] * w[k, c]\n    return y\n'
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
    x, w = np.zeros((32, 12544), np.float32), np.zeros((64, 32), np.float32)
    loops = polyml.einsum(text, target=target, threads=1).bind(w=w).lower(x).text("loops")
    asked, stored = set(re.findall(r"prefetch L1 y\[(.*)\] to write", loops)), re.findall(r"  y\[(.*)\] = ", loops)
    lines = {place for place in stored if not place.endswith(" + 8")}
    last = {f"{filter}, p" for filter in (60, 61, 62, 63)}
    assert len(lines) == 6 + 6 + 4
    assert asked == {f"{place} + 16" for place in lines - last} | last


def test_tiles_in_turn_along_rows_ask_for_their_own_lines() -> None:
    text = (
        'def f(x: f32["B A E G"], y: f32["C G F"]):\n    z[f, e, c, b, a] = x[b, a, e, g] * y[c, g, f]\n    return z\n'
    )
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
    x, y = np.zeros((20, 24, 5, 24), np.float32), np.zeros((20, 24, 20), np.float32)
    loops = polyml.einsum(text, target=target, threads=1).lower(x, y).text("loops")
    asked, stored = set(re.findall(r"prefetch L1 z\[(.*)\] to write", loops)), re.findall(r"  z\[(.*)\] = ", loops)
    assert len(asked) == 8
    assert asked <= set(stored)


def test_results_that_are_asked_for_stay() -> None:
    rng = np.random.default_rng(0)
    text = 'def f(x: f32["C H W"], w: f32["O C 3 3"]):\n    y[o, p, q] = x[c, 2*p + r, 2*q + s] * w[o, c, r, s]\n    return y\n'
    x, w = rng.integers(-9, 10, (3, 119, 223)).astype("f4"), rng.integers(-9, 10, (30, 3, 3, 3)).astype("f4")
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(float), (3, 3), (1, 2))[:, ::2, ::2]
    near = Target("host", l1_bytes=16 << 10, l2_bytes=64 << 10, cores=1)
    found = polyml.einsum(text, target=near, threads=1).bind(w=w)(x)
    np.testing.assert_array_equal(found, np.einsum("cpqrs,ocrs->opq", windows, w.astype(float)))


@pytest.mark.parametrize("transposed", [False, True])
def test_packed_rows_that_follow_each_other_are_not_asked_for(transposed: bool) -> None:
    """Rows that pass by a panel (16 registers): the next ones lie behind those at hand, where a panel's loop around asks for nothing in between."""
    a = "a[k, i]" if transposed else "a[i, k]"
    product = polyml.einsum(
        f'def f(a: f64["512 512"], b: f64["512 512"]):\n    c[i, j] = {a} * b[k, j]\n    return c\n',
        target=Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024, cores=1),
    )
    text = product.lower(np.ones((512, 512)), np.ones((512, 512))).text("loops")
    assert "a_panels" in text
    assert "prefetch L2 a_panels" not in text
    assert "prefetch L2 c[" in text


def test_rows_of_less_than_a_vector_are_asked_for() -> None:
    """Five of eight lanes: each row of the tile is a piece of twenty bytes, in a page of its own."""
    program = (
        'def f(x: f32["A F B C E"], y: f32["D F"]):\n    z[e, d, c, b, a] = x[a, f, b, c, e] * y[d, f]\n    return z\n'
    )
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
    x, y = np.zeros((5, 11, 11, 43, 33), np.float32), np.zeros((35, 11), np.float32)
    text = polyml.einsum(program, target=target, threads=1).lower(x, y).text("loops")
    asked = re.findall(r"prefetch L1 z\[(.*)\] to write;\n", text)
    assert "vector(8, masked) for (a = 0; a < 5; a += 8)" in text
    assert len(asked) == 12 + 11
