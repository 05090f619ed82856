"""Results that are laid out block by block: lines of one row side by side, where the result is not much smaller than the operand."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.pairs import pairwise

TEXT = 'def f(x: {0}["A E B D"], y: {0}["C E"]):\n    z[d, c, b, a] = x[a, e, b, d] * y[c, e]\n    return z\n'
V4 = Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=1 << 20)


def block(dtype: str, few: int, terms: int, *, rows: int = 96, columns: int = 96) -> tuple[list[int], str]:
    """What waits to be laid out, and the loops."""
    x = np.zeros((rows, terms, 60, columns), dtype.replace("f", "float"))
    y = np.zeros((few, terms), x.dtype)
    text = polyml.einsum(TEXT.format(dtype), target=V4, threads=1).lower(x, y).text("loops")
    found = re.search(r"local f\d+ z_turned\[(.*)\];", text)
    assert found is not None
    return [int(extent) for extent in found[1].split(", ")], text


@pytest.mark.parametrize(("dtype", "together"), [("f32", 48), ("f64", 32)])
def test_some_lines_of_a_row_are_laid_out_together(dtype: str, together: int) -> None:
    """Of 96 elements two pieces of three lines, or three of four."""
    shape, text = block(dtype, 24, 96)
    assert shape[2] == together
    # The lines of a piece follow each other: one block of the other index at a time.
    laid_out = text[text.rindex("for (i1 = 0;") :]
    assert 0 < laid_out.index("for (i0_tile") < laid_out.index("for (i3 = a_tile")


def test_of_a_much_smaller_result_a_vector_is() -> None:
    assert block("f32", 16, 200)[0][2] == 16


def test_a_row_of_no_more_than_that_is_whole() -> None:
    assert block("f32", 32, 64, rows=50)[0][2] == 50


def test_blocks_of_a_part_of_a_row_are_one_strip() -> None:
    assert block("f32", 32, 64, columns=480)[0][-1] == 48


def test_so_are_those_of_a_row_whose_neighbour_is_in_another_block() -> None:
    assert block("f32", 24, 96)[0] == [1, 24, 48, 48]
    assert block("f32", 16, 64, rows=32)[0][-1] == 96, "two rows and more have all of their strips"


@pairwise(
    ("shape", [(96, 24, 8, 144), (50, 40, 11, 67), (131, 33, 13, 29)]),
    ("dtype, few", [("f32", 24), ("f64", 17), ("f32", 48)]),
    ("target", [Target("host", l1_bytes=16 << 10, l2_bytes=256 << 10), Target("host")]),
    ("threads", [1, 2]),
)
@pytest.mark.few(1)
def test_values(shape: tuple[int, int, int, int], dtype: str, few: int, target: Target, threads: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, shape, np.int8).astype(dtype.replace("f", "float"))
    y = rng.integers(-3, 4, (few, shape[1])).astype(x.dtype)
    expected = np.einsum("aebd,ce->dcba", x, y, optimize=True)
    found = polyml.einsum(TEXT.format(dtype), target=target, threads=threads)(x, y)
    np.testing.assert_array_equal(found, expected)


@pairwise(
    ("shape", [(40, 384, 100), (33, 350, 61), (17, 390, 48)]),
    ("dtype, few", [("f32", 24), ("f64", 19)]),
    ("threads", [1, 2]),
)
@pytest.mark.few(1)
def test_long_strips_are_packed_one_after_the_other(
    shape: tuple[int, int, int], dtype: str, few: int, threads: int
) -> None:
    """Vectors of 256 bits: a strip is a line wide, and L1 has no room for two of them. All of a row are finished before they are laid out."""
    text = 'def f(x: {0}["A D B"], y: {0}["C D"]):\n    z[c, b, a] = x[a, d, b] * y[c, d]\n    return z\n'
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, shape, np.int8).astype(dtype.replace("f", "float"))
    y = rng.integers(-3, 4, (few, shape[1])).astype(x.dtype)
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10, cores=2)
    f = polyml.einsum(text.format(dtype), target=target, threads=threads)
    assert "one after the other" in str(f.explain(x, y))
    np.testing.assert_array_equal(f(x, y), np.einsum("adb,cd->cba", x, y, optimize=True))
