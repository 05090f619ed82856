"""Copies of blocks fetch rows that come soon, line by line, and nothing that is near anyway."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target

TEXT = 'def f(x: f32["N K"], y: f32["K M"]):\n    z[n, m] = x[n, k] * y[k, m]\n    return z\n'
V4 = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20)


def lines_of_copies(target: Target, size: int) -> list[str]:
    x = np.zeros((size, size), np.float32)
    text = polyml.einsum(TEXT, target=target, threads=1).lower(x, x).text("loops")
    return re.findall(r"prefetch L2 y\[(k \+ 4, .*)\];", text)


@pytest.mark.parametrize(("target", "vectors"), [(V4, 3), (Target("x86-64-v3"), 1)])
def test_a_line_is_fetched_once(target: Target, vectors: int) -> None:
    places = lines_of_copies(target, 480 if target is V4 else 288)  # whole panels
    assert places == [f"k + 4, m{f' + {16 * n}' if n else ''}" for n in range(vectors)]


def test_a_small_operand_is_near() -> None:
    assert not lines_of_copies(V4, 336)


def test_what_tiles_have_asked_for_is_near() -> None:
    assert not lines_of_copies(V4, 960)


def test_the_note() -> None:
    x = np.zeros((480, 480), np.float32)
    assert "y 4 rows ahead, for its copy" in str(polyml.einsum(TEXT, target=V4, threads=1).explain(x, x))


@pytest.mark.parametrize("size", [959, 1001])
def test_rows_that_are_no_whole_lines(size: int) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-3, 4, (37 if n == 0 else size, size)).astype(np.float32) for n in range(2))
    np.testing.assert_array_equal(polyml.einsum(TEXT, threads=1)(x, y), x @ y)


TN = 'def f(x: f64["K N"], y: f64["K M"]):\n    z[n, m] = x[k, n] * y[k, m]\n    return z\n'


@pytest.mark.parametrize("size", [512, 1001])
@pytest.mark.parametrize(("target", "ahead"), [(V4, 4), (Target("x86-64-v3"), 8)])
@pytest.mark.few(1)
def test_rows_that_are_read_side_by_side_ask_for_those_behind_all_of_them(
    target: Target, ahead: int, size: int
) -> None:
    """Pieces of eight rows are packed one after the other, then the next eight rows: four ahead would be half of these themselves. A piece that is a line (V4's tiles have eight rows of f64, V3's six) is packed row by row."""
    x = np.zeros((160, 2 * size))  # one block of the sum: of those behind it tiles ask for what is packed
    text = polyml.einsum(TN, target=target, threads=1).lower(x, x).text("loops")
    assert str(ahead) in re.findall(r"prefetch L2 x\[k \+ (\d+), ", text)
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-3, 4, (size, 203)).astype(float) for _ in range(2))
    np.testing.assert_array_equal(polyml.einsum(TN, threads=1)(x, y), x.T @ y)


def test_rows_that_are_no_whole_vector_are_asked_for() -> None:
    """Tiles of six rows, with eight lanes: the copy of their rows is masked."""
    x = np.zeros((512, 512), np.float32)
    text = polyml.einsum(TN.replace("f64", "f32"), target=Target("x86-64-v3"), threads=1).lower(x, x).text("loops")
    copy = text.index("vector(8, masked)")
    assert "prefetch L2 x[k + 8, n];" in text[copy : text.index("x_panels[-", copy)]


def test_rows_of_unknown_length_are_asked_for() -> None:
    """They are taken for long ones; small operands have a version without panels."""
    x = np.zeros((99, 101), np.float32)
    program = polyml.einsum(TN.replace("f64", "f32"), dynamic=True, target=Target("x86-64-v3"), threads=1)
    text = program.lower(x, x).text("loops")
    assert "prefetch L2 x[k + 8, n];" in text
    assert "prefetch L2 y[k + 4, m];" in text


ACROSS = 'def f(x: f32["A F B E"], y: f32["D F"]):\n    z[e, d, b, a] = x[a, f, b, e] * y[d, f]\n    return z\n'


def test_blocks_that_are_transposed_are_asked_for_line_by_line() -> None:
    """Sixteen rows of the input for each block, some iterations of the loop further out before it comes: sixteen kilobytes."""
    x, y = np.zeros((48, 48, 36, 48), "f4"), np.zeros((56, 48), "f4")
    text = polyml.einsum(ACROSS, target=V4, threads=1).lower(x, y).text("loops")
    asked = re.findall(r"prefetch L2 x\[(.*)\];\n", text)
    assert asked == [f"a{f' + {lane}' if lane else ''}, f, b + 2, e_block" for lane in range(16)]


def test_pieces_that_end_are_asked_for_in_the_next_rows() -> None:
    """Nine of 25 values of c at a time: those behind them are in another block, and nobody needs them soon."""
    spec = {"x": (15, 43, 31, 25, 5), "y": (37, 43)}
    program = (
        'def f(x: f64["A F B C E"], y: f64["D F"]):\n    z[e, d, c, b, a] = x[a, f, b, c, e] * y[d, f]\n    return z\n'
    )
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
    text = polyml.einsum(program, target=target, threads=1).lower(*map(np.zeros, spec.values())).text("loops")
    assert "c_tile" in text
    asked = re.findall(r"prefetch L2 x\[(?:a|a \+ \d), (.*)\];\n", text)
    assert set(asked) == {f"f + 2, b, c, {block}" for block in ("e_block", "e_block_2")}


def test_transposed_copies_are_right() -> None:
    rng = np.random.default_rng(0)
    for a, f, b, e in ((48, 48, 36, 48), (17, 40, 50, 33), (64, 33, 20, 70)):
        x, y = rng.integers(-3, 4, (a, f, b, e)).astype("f4"), rng.integers(-3, 4, (24, f)).astype("f4")
        np.testing.assert_array_equal(
            polyml.einsum(ACROSS, threads=1)(x, y), np.einsum("afbe,df->edba", x, y, optimize=True)
        )
