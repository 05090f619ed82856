"""Loads whose lanes go from one block to the next: the elements that the lanes want, and nothing touched outside of the array."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.dtypes import DTYPES
from polyml.target import Target
from tests.einsum_numpy.guard_pages import guarded
from tests.pairs import pairwise

WIDE = Target("x86-64-v4", features="-prefer-256-bit")
GATHER = "masked.gather"


def numbers(count: int, dtype: str) -> np.ndarray:
    d = DTYPES[dtype]
    return (np.arange(count) % (2 if dtype == "bool" else 100)).astype(d.numpy)


def repeated(dtype: str, count: int, size: int, begin: int = 0) -> str:
    return f'def f(x: {dtype}["N"]):\n    y: {dtype}["{count}"]\n    y[i] = x[(i + {begin}) // {size}]\n    return y\n'


def tiled(dtype: str, count: int, size: int, begin: int = 0) -> str:
    return f'def f(x: {dtype}["N"]):\n    y: {dtype}["{count}"]\n    y[i] = x[(i + {begin}) % {size}]\n    return y\n'


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("size", [7, 100])
@pytest.mark.few(11)
def test_every_dtype_in_blocks_that_are_no_multiple_of_a_vector(dtype: str, size: int) -> None:
    count = 3 * size + size // 2 + 1
    repeat, tile = polyml.einsum(repeated(dtype, count, size)), polyml.einsum(tiled(dtype, count, size))
    for behind in (False, True):
        x = guarded(numbers(4, dtype), behind)
        np.testing.assert_array_equal(repeat(x), np.repeat(x, size)[:count])
        w = guarded(numbers(size, dtype), behind)
        np.testing.assert_array_equal(tile(w), np.tile(w, 4)[:count])


@pairwise(("size", [2, 3, 4, 5, 11, 15, 16, 17, 33]), ("begin", [0, 1, 6]), ("count", [16, 47, 70]))
@pytest.mark.few(6)
def test_blocks_of_any_size_and_vectors_that_begin_anywhere(size: int, begin: int, count: int) -> None:
    where = np.arange(count) + begin
    x = guarded(np.arange(where[-1] // size + 1, dtype=np.float64), True)
    program = polyml.einsum(repeated("f64", count, size, begin))
    np.testing.assert_array_equal(program(x), where // size)
    w = guarded(np.arange(size, dtype=np.float32), begin == 1)
    np.testing.assert_array_equal(polyml.einsum(tiled("f32", count, size, begin))(w), where % size)


def test_no_lane_is_a_load_of_its_own() -> None:
    x, w = np.zeros(40, np.float32), np.zeros(100, np.float32)
    assert GATHER not in polyml.einsum(repeated("f32", 4000, 100), target=WIDE).lower(x).text("llvm")
    assert GATHER not in polyml.einsum(tiled("f32", 4000, 100), target=WIDE).lower(w).text("llvm")
    again = polyml.einsum(tiled("f32", 4000, 4), target=WIDE).lower(w[:4]).text("llvm")
    assert GATHER not in again
    assert "load <4 x float>" in again


def test_windows_of_rows_that_lie_apart_at_strides_known_at_run_time() -> None:
    """The results are in one row, where the windows' rows are behind each other; no row is the lanes'."""
    source = 'def f(x: f32["H W"]):\n    y: f32["260"]\n    y[i] = x[i // 26 + 1, i % 26 + 2]\n    return y\n'
    x = np.arange(28 * 28, dtype=np.float32).reshape(28, 28)[:12]
    for given in (x, np.asfortranarray(x), x.repeat(2, 1)[:, ::2], np.ascontiguousarray(x)[::-1]):
        np.testing.assert_array_equal(polyml.einsum(source)(given), given[1:11, 2:28].reshape(-1))


def test_lanes_that_a_condition_leaves_out_read_nothing() -> None:
    """The first block is not there for lanes of which none acts, nor is the last one."""
    source = 'def f(x: f32["N"]):\n    y: f32["60"]\n    y[i] = where(20 <= i < 40, x[(i - 20) // 20] + x[(i - 20) % 20], 1)\n    return y\n'
    for behind in (False, True):
        x = guarded(np.arange(20, dtype=np.float32), behind)
        expected = np.ones(60, np.float32)
        expected[20:40] = x
        np.testing.assert_array_equal(polyml.einsum(source)(x), expected)


def test_sizes_that_are_known_at_run_time_only() -> None:
    source = 'def f(x: f32["N"], s: f32["B"], w: f32["20"]):\n    y[i] = x[i] * s[i // 20] + w[i % 20]\n    return y\n'
    program = polyml.einsum(source, dynamic=True)
    w = np.arange(20, dtype=np.float32)
    for count in (20, 57, 130):
        x, s = np.arange(count, dtype=np.float32), guarded(np.arange(-(-count // 20), dtype=np.float32), True)
        np.testing.assert_array_equal(program(x, s, w), x * (np.arange(count) // 20) + np.arange(count) % 20)
