"""argmax and argmin along lanes: the first winner, NaN, elements that are no better than nothing, and indices of 32 bits where they fit."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml

ROWS = 'def f(x: {kind}["N K"]):\n    y[n] = {op}[k](x[n, k])\n    return y\n'
COLUMNS = 'def f(x: {kind}["N K"]):\n    y[k] = {op}[n](x[n, k])\n    return y\n'
DTYPES = {"f32": np.float32, "f64": np.float64, "i8": np.int8, "u8": np.uint8, "i64": np.int64}


def arrays(dtype: np.dtype, columns: int, op: str) -> list[np.ndarray]:
    rng = np.random.default_rng(columns)
    plain = (
        (rng.standard_normal((9, columns)) * 3).astype(dtype)
        if dtype.kind != "u"
        else rng.integers(0, 5, (9, columns)).astype(dtype)
    )
    if dtype.kind != "f":
        return [plain]
    where = rng.random((9, columns))
    nans, least = plain.copy(), plain.copy()
    nans[where < 0.1] = np.nan
    nans[where > 0.8] = -np.inf if op == "argmax" else np.inf
    least[:] = -np.inf if op == "argmax" else np.inf  # nothing is better than what a search begins with
    infinite = least.copy()
    infinite[where < 0.05] = np.inf
    return [plain, nans, least, infinite]


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.few(1)
def test_the_first_of_the_best(kind: str, op: str) -> None:
    rows, columns = (polyml.einsum(source.format(kind=kind, op=op)) for source in (ROWS, COLUMNS))
    for count in (1, 15, 17, 64, 200):
        for x in arrays(np.dtype(DTYPES[kind]), count, op):
            np.testing.assert_array_equal(rows(x), getattr(np, op)(x, axis=1))
            np.testing.assert_array_equal(columns(x), getattr(np, op)(x, axis=0))


def test_indices_of_lanes_have_32_bits() -> None:
    text = polyml.einsum(ROWS.format(kind="f32", op="argmin")).lower(np.ones((4, 200), np.float32)).text("loops")
    assert re.search(r"register i32x\d+ y_part", text)


def test_indices_that_are_not_known_to_be_short_have_64() -> None:
    source = ROWS.format(kind="f32", op="argmin")
    text = polyml.einsum(source, dynamic=True).lower(np.ones((4, 200), np.float32)).text("loops")
    short, otherwise, other = text.partition("} else {")
    assert otherwise
    assert "K <= 2147483647" in short
    assert re.search(r"register i32x\d+ y_part", short)
    assert "i32" not in other


def test_the_nearest_of_many_points() -> None:
    rng = np.random.default_rng(0)
    x, c = rng.standard_normal((333, 7)), rng.standard_normal((130, 7))
    source = """
def nearest(x: f64["N D"], c: f64["K D"]):
    s[k] = sum[j](c[k, j]**2)
    y[n] = argmin[k](s[k] - 2 * sum[j](x[n, j] * c[k, j]))
    return y
"""
    np.testing.assert_array_equal(polyml.einsum(source)(x, c), ((x[:, None] - c) ** 2).sum(axis=2).argmin(axis=1))
