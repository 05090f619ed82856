"""Counts are made in narrow types where these hold them and lanes are more for it, and the results are those of 64 bits."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.dtypes import DTYPES
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.resolve import resolve
from polyml.graph.ir import Equation
from polyml.graph.reference import execute
from polyml.graph.rules.algebra.simplify import simplify
from polyml.graph.rules.numbers.compared import compare_narrowly
from polyml.graph.rules.numbers.counts import count_narrowly
from polyml.graph.verify import verify
from polyml.source import Source
from tests.graph.built import graph

ROWS = 'def f(x: {t}["N K"]):\n    y[n] = sum[k](where(x[n, k] > 2, 1, 0))\n    return y\n'
COLUMNS = ROWS.replace("y[n] = sum[k]", "y[k] = sum[n]")
ALL = ROWS.replace("y[n] = sum[k]", "y = sum[n, k]")
WEIGHTS = ROWS.replace("1, 0)", "3, -2)")
CAST = ROWS.replace("where(x[n, k] > 2, 1, 0)", "i32(x[n, k] != 2)")
BYTES = ROWS.replace("where(x[n, k] > 2, 1, 0)", "i64(x[n, k])")
MEAN = ROWS.replace("return y", "z[n] = y[n] / K\n    return z")


def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    return (np.random.default_rng(0).random(shape) * 5).astype(DTYPES[name].numpy)


def counted(source: str, x: np.ndarray) -> str:
    """The type of the sum in the rewritten graph, which gives the same; "" where it is the same graph."""
    plain = compare_narrowly(simplify(graph(resolve(parse(Source(source)), {}), x)))
    made = count_narrowly(plain)
    verify(made)
    for found, expected in zip(execute(made, [x]), execute(plain, [x]), strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
    (dtype,) = (op.result.dtype.name for op in made.ops if isinstance(op, Equation) and op.reduce is not None)
    return "" if made is plain else dtype


@pytest.mark.parametrize(
    ("source", "name", "shape", "dtype"),
    [
        (ROWS, "u8", (3, 100), "i16"),
        (ROWS, "u8", (2, 40000), "u16"),
        (ROWS, "u8", (2, 70000), "i32"),
        (ROWS, "i16", (3, 100), "i16"),
        (ROWS, "f16", (3, 100), "i16"),
        (ROWS, "f32", (3, 100), "i32"),
        (ROWS, "f64", (3, 100), ""),
        (ROWS, "i64", (3, 100), ""),
        (COLUMNS, "u8", (100, 3), "i16"),
        (ALL, "u8", (300, 200), "u16"),
        (WEIGHTS, "u8", (2, 10000), "i16"),
        (WEIGHTS, "u8", (2, 20000), "i32"),
        (CAST, "u8", (3, 100), "i16"),
        (CAST, "f32", (3, 100), ""),
        (BYTES, "u8", (2, 100), "i16"),
        (BYTES, "i8", (2, 1000), "i32"),
        (MEAN, "f32", (3, 100), "i32"),
        (ROWS.replace("> 2", "> k"), "f32", (3, 100), ""),
        (ROWS.replace("sum[k]", "max[k]"), "u8", (3, 100), ""),
    ],
)
def test_types(source: str, name: str, shape: tuple[int, ...], dtype: str) -> None:
    assert counted(source.format(t=name), values(name, shape)) == dtype


@pytest.mark.parametrize("source", [ROWS, COLUMNS, ALL, WEIGHTS, CAST, MEAN])
@pytest.mark.parametrize("name", ["u8", "i16", "f16", "f32", "f64"])
@pytest.mark.few(4)
def test_results(source: str, name: str) -> None:
    """Every second shape, by turns."""
    shapes = ((1, 1), (3, 70), (70, 3), (33, 129), (2, 33000), (5, 0), (0, 5))
    for shape in shapes[(ROWS, COLUMNS, ALL, WEIGHTS, CAST, MEAN).index(source) % 2 :: 2]:
        x = values(name, shape)
        c = {ROWS: x > 2, COLUMNS: x > 2, ALL: x > 2, WEIGHTS: np.where(x > 2, 3, -2), CAST: x != 2, MEAN: x > 2}[
            source
        ]
        axis = {COLUMNS: 0, ALL: None}.get(source, 1)
        expected = c.sum(axis=axis) / (max(shape[1], 1) if source == MEAN else 1)
        if source != MEAN or shape[1]:
            np.testing.assert_array_equal(polyml.einsum(source.format(t=name))(x), expected)


def test_sizes_that_are_not_known() -> None:
    """How many terms there are may be anything."""
    made = polyml.einsum(ROWS.format(t="u8"), dynamic=True).trace(values("u8", (3, 100)))
    assert all(op.result.dtype.name == "i64" for op in made.ops if isinstance(op, Equation))
