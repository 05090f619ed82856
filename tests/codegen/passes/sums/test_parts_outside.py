"""Sums over several loops whose lanes are added up once, behind all of them: the same sums, where rows are alike."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target
from polyml.testing import verify

AVX2 = Target("x86-64-v3")

BOX = """
def box(x: {dtype}["N H W"], z: {dtype}["W"]):
    y[n] = {reduction}[h < H - 2, w < W - 2](x[n, h + 1, w + 1])
    v[n] = sum[h < H - 2, w < W - 2](x[n, h, w + 2] * z[w])
    return y, v
"""


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "c64", "u8"])
@pytest.mark.parametrize("reduction", ["sum", "max", "prod"])
@pytest.mark.parametrize("columns", [3, 18, 34, 37])
@pytest.mark.some(5)
def test_the_same_sums(dtype: str, reduction: str, columns: int) -> None:
    if dtype == "c64" and reduction == "max":
        pytest.skip("complex numbers have no order")
    x = np.random.default_rng(columns).integers(0, 3, (3, 6, columns)).astype(polyml.dtypes.DTYPES[dtype].numpy)
    assert verify(polyml.einsum(BOX.format(dtype=dtype, reduction=reduction)), x, x[0, 0])


def parts(text: str, *given: np.ndarray) -> int:
    """How many times a row's loops are written with lanes that are added up, in lines that stand as deep as the rows themselves."""
    lines = polyml.einsum(text, threads=1, target=AVX2).lower(*given).text("loops").splitlines()
    row = next(line for line in lines if "for (h " in line)
    across = [line for line in lines if "/* across */" in line]
    return sum(len(line) - len(line.lstrip()) <= len(row) - len(row.lstrip()) for line in across)


def test_lanes_are_added_up_behind_all_rows() -> None:
    x = np.ones((3, 34, 34), np.float32)
    one = 'def f(x: f32["N H W"]):\n    y[n] = sum[h < H - 2, w < {end}](x[n, h + 1, w + 1])\n    return y\n'
    assert parts(one.format(end="W - 2"), x) == 1
    assert parts(one.format(end="h + 1"), x) == 0  # rows of different lengths


def test_rows_that_something_else_reads_keep_their_sums() -> None:
    text = 'def f(x: f32["H W"]):\n    s[h] = x[h, w]\n    y = sum[h](s[h] * s[h])\n    return s, y\n'
    assert verify(polyml.einsum(text, threads=1), np.random.default_rng(0).random((9, 33), np.float32))
