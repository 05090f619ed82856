"""Sizes of a contraction's blocks: what is read in pieces, and what is packed once. Results are compared with NumPy's in float64 (small integers, so that they are exact)."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-9, 10, shape).astype(np.float32)


@pytest.mark.parametrize(
    ("l2", "blocks"),
    [
        # Rows of 64 bytes: three of them, for one b.
        (1 << 20, "blocks of b by 1, c by 3"),
        # Room for one row of x for each b.
        (256 << 10, "blocks of b by 1, c by 1"),
        # All c: pieces of 384 bytes.
        (2 << 20, "blocks of b by 1"),
    ],
)
@pytest.mark.few(1)
def test_pieces_of_the_operand_come_before_the_results_own(l2: int, blocks: str) -> None:
    text = (
        'def f(x: f32["A F B C E"], y: f32["D F"]):\n    z[e, d, c, b, a] = x[a, f, b, c, e] * y[d, f]\n    return z\n'
    )
    x, y = integers(48, 48, 6, 6, 16), integers(56, 48)
    for threads in (1, 2):
        target = Target("host", l1_bytes=48 << 10, l2_bytes=l2, cores=2)
        function = polyml.einsum(text, target=target, threads=threads, verify=True)
        line = next(line for line in str(function.explain(x, y)).splitlines() if "blocking" in line)
        if target.lanes(4) == 16:  # the width of panels, which the number of rows depends on
            assert line.endswith(blocks)
        np.testing.assert_array_equal(function(x, y), np.einsum("afbce,df->edcba", x.astype(float), y.astype(float)))


@pytest.mark.parametrize(("depth", "ahead"), [(256, True), (96, False)])
def test_deep_blocks_are_swept_in_memory_rather_than_rows_packed_again(depth: int, ahead: bool) -> None:
    """The last cache keeps the rows of a block, but not the result."""
    text = 'def f(x: f32["K N"], y: f32["M K"]):\n    z[n, m] = x[k, n] * y[m, k]\n    return z\n'
    x, y = integers(depth, 70), integers(300, depth)
    target = Target("x86-64-v3", l1_bytes=depth * 64, l2_bytes=32 << 10, l3_bytes=192 << 10, cores=2)
    explained = str(polyml.einsum(text, target=target, threads=1, verify=True).explain(x, y))
    assert ("ahead of all columns" in explained) == ahead


@pytest.mark.parametrize(
    ("subscripts", "columns", "split"), [("m, k", 144, False), ("m, k", 192, True), ("k, m", 144, True)]
)
def test_rows_of_the_vector_operand_stay_whole_where_that_takes_little_more(
    subscripts: str, columns: int, split: bool
) -> None:
    """Three eighths of L2 are 147 columns of 64 terms, a quarter is 98; rows that have to be packed need what is left."""
    shape = subscripts.upper().replace(",", "")
    text = f'def f(x: f32["K N"], y: f32["{shape}"]):\n    z[m, n] = x[k, n] * y[{subscripts}]\n    return z\n'
    x, y = integers(64, columns), integers(*((130, 64) if shape == "M K" else (64, 130)))
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=98 << 10, l3_bytes=8 << 20, cores=2)
    function = polyml.einsum(text, target=target, threads=1, verify=True)
    line = next(line for line in str(function.explain(x, y)).splitlines() if "blocking" in line)
    assert ("blocks of n by" in line) == split
    expected = np.einsum("kn,mk->mn" if shape == "M K" else "kn,km->mn", x.astype(float), y.astype(float))
    np.testing.assert_array_equal(function(x, y), expected)


@pytest.mark.parametrize(("depth", "dtype", "packed"), [(512, "f64", True), (520, "f64", False), (1024, "f32", False)])
@pytest.mark.few(2)
def test_rows_pages_apart_are_packed_where_l1_has_no_room_for_them(depth: int, dtype: str, packed: bool) -> None:
    text = f'def f(x: {dtype}["M K"], y: {dtype}["K N"]):\n    z[m, n] = x[m, k] * y[k, n]\n    return z\n'
    x, y = (integers(*shape).astype("f" if dtype == "f32" else "d") for shape in ((192, depth), (depth, 99)))
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=1 << 20)
    assert ("x in panels of 6" in str(polyml.einsum(text, target=target, threads=1).explain(x, y))) == packed
    target = Target("host", l1_bytes=32 << 10, l2_bytes=1 << 20)
    np.testing.assert_array_equal(polyml.einsum(text, target=target, threads=1, verify=True)(x, y), x @ y)


@pytest.mark.parametrize(
    ("target", "dtype", "subscripts", "blocks"),
    [
        # Panels of 24 f64 and 1024 terms: two thirds of L1 are 512 terms of eight rows, of which three panels fit.
        ("x86-64-v4", "f64", "m, k", "blocks of k by 512, n by 72"),
        # Blocks of 144 columns would leave 16.
        ("x86-64-v4", "f32", "m, k", "blocks of k by 512, n by 192"),
        # Rows that are packed.
        ("x86-64-v4", "f64", "k, m", "blocks of k by 176, n by 168"),
        # L1 holds a panel of two vectors and 256 terms.
        ("x86-64-v3", "f64", "m, k", "blocks of k by 256, n by 128"),
    ],
)
@pytest.mark.few(2)
def test_sums_are_deep_where_l1_holds_no_panel(target: str, dtype: str, subscripts: str, blocks: str) -> None:
    shape = subscripts.upper().replace(",", "")
    text = f'def f(x: {dtype}["K N"], y: {dtype}["{shape}"]):\n    z[m, n] = x[k, n] * y[{subscripts}]\n    return z\n'
    x = np.zeros((1024, 1024), "f" if dtype == "f32" else "d")
    machine = Target(target, l1_bytes=48 << 10 if target == "x86-64-v4" else 32 << 10, l2_bytes=1 << 20)
    explained = str(polyml.einsum(text, target=machine, threads=1).explain(x, x))
    line = next(line for line in explained.splitlines() if "blocking" in line)
    assert [part for part in blocks.split(", ") if part.removeprefix("blocks of ") in line] == blocks.split(", ")


@pytest.mark.parametrize(("filters", "points"), [(768, 49), (790, 49)])
@pytest.mark.few(1)
def test_each_panel_of_constants_is_a_block_which_threads_share(filters: int, points: int) -> None:
    """The first block is what nobody asks for ahead. Rows of points are fewer than threads want, and meet after every block."""
    text = 'def f(x: f32["C P Q"], w: f32["O C"]):\n    y[o, p, q] = x[c, p, q] * w[o, c]\n    return y\n'
    x, w = integers(520, points // 7, 7), integers(filters, 520)
    target = Target("x86-64-v4", l1_bytes=32 << 10, l2_bytes=1 << 20, cores=8)
    for threads in (1, 2, 8):
        layer = polyml.einsum(text, target=target, threads=threads).bind(w=w)
        lowered = layer.lower(x)
        assert "blocks of o by 48" in str(lowered.explain())
        assert ("parallel for (o_tile" in lowered.text("loops")) == (threads > 1)
        if target.lanes(4) == Target("host").lanes(4):
            np.testing.assert_array_equal(layer(x), np.tensordot(w.astype(float), x.astype(float), 1))


def test_rows_of_a_tile_do_not_meet_where_another_index_has_closer_ones() -> None:
    """Rows along c are 32 KiB apart in y, along d 512 bytes; of the result both are pages apart."""
    text = 'def f(x: f64["F B E A"], y: f64["C E D F"]):\n    z[d, c, b, a] = x[f, b, e, a] * y[c, e, d, f]\n    return z\n'
    narrow = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
    function = polyml.einsum(text, target=narrow, threads=1)
    x, y = (integers(*shape).astype(np.float64) for shape in ((64, 32, 8, 16), (8, 8, 8, 64)))
    plan = str(function.explain(x, y))
    assert "d x 2 vectors of a" in plan
    assert "y in panels" not in plan
    np.testing.assert_array_equal(function(x, y), np.einsum("fbea,cedf->dcba", x, y))
    # Where rows of the result are closer along c, these stay.
    x = x[:, :16]
    assert "c x 2 vectors of a" in str(function.explain(np.ascontiguousarray(x), y))
