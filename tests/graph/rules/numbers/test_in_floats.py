"""Sums of products of bytes are made in floats where these hold them exactly and both operands are used often, and the results are those of whole numbers."""

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
from polyml.graph.rules.numbers.in_floats import sum_in_floats
from polyml.graph.verify import verify
from polyml.source import Source
from tests.graph.built import graph

PRODUCT = 'def f(x: {a}["N K"], w: {b}["K M"]):\n    y[n, m] = {t}(x[n, k]) * {t}(w[k, m])\n    return y\n'
WINDOWS = (
    'def f(x: {a}["C H W"], w: {b}["O C R S"]):\n'
    "    y[o, p, q] = i32(pad(x, ((0, 0), (1, 1), (1, 1)))[c, 2*p + r, 2*q + s]) * i32(w[o, c, r, s])\n    return y\n"
)


def values(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Over all of a type's values, the greatest and the least among them."""
    rng, dtype = np.random.default_rng(seed), DTYPES[name]
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    least = 0 if dtype.kind == "u" else -(1 << 8 * dtype.itemsize - 1)
    made = rng.integers(least, least + (1 << 8 * dtype.itemsize), shape).astype(dtype.numpy)
    made[..., :1] = least
    return made


def sums_in(source: str, *args: np.ndarray) -> str:
    """The type of the sum in the rewritten graph, which gives the same."""
    plain = simplify(graph(resolve(parse(Source(source)), {}), *args))
    made = sum_in_floats(plain)
    verify(made)
    for found, expected in zip(execute(made, args), execute(plain, args), strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
    (dtype,) = (op.result.dtype.name for op in made.ops if isinstance(op, Equation) and op.reduce is not None)
    return dtype


@pytest.mark.parametrize(
    ("a", "b", "t", "shape", "dtype"),
    [
        ("i8", "i8", "i32", (70, 9, 65), "f32"),
        ("u8", "i8", "i64", (70, 9, 65), "f32"),
        ("u8", "u8", "i32", (64, 258, 64), "f32"),
        ("u8", "u8", "i32", (64, 259, 64), "i32"),
        ("bool", "u8", "i32", (64, 300, 64), "f32"),
        ("i8", "i8", "i32", (63, 9, 70), "i32"),
        ("i8", "i8", "i32", (70, 9, 63), "i32"),
        ("i16", "i8", "i32", (70, 9, 65), "i32"),
    ],
)
def test_sums_that_floats_hold_of_operands_that_are_used_often(
    a: str, b: str, t: str, shape: tuple[int, int, int], dtype: str
) -> None:
    n, k, m = shape
    source = PRODUCT.format(a=a, b=b, t=t)
    assert sums_in(source, values(a, (n, k)), values(b, (k, m), 1)) == dtype


def test_sums_that_are_added_to_what_is_there_stay() -> None:
    source = PRODUCT.format(a="i8", b="i8", t="i32").replace("y[n, m] =", 'y: i32["N M"] = 3\n    y[n, m] +=')
    plain = graph(resolve(parse(Source(source)), {}), values("i8", (70, 9)), values("i8", (9, 65)))
    assert sum_in_floats(plain) is plain


@pytest.mark.parametrize(("a", "b"), [("i8", "i8"), ("u8", "i8"), ("u8", "u8"), ("bool", "i8")])
@pytest.mark.parametrize(("channels", "size", "filters"), [(3, 40, 32), (1, 33, 64), (3, 7, 300), (1, 1, 80)])
@pytest.mark.few(1)
def test_windows_of_bytes(a: str, b: str, channels: int, size: int, filters: int) -> None:
    x, w = values(a, (channels, size, size)), values(b, (filters, channels, 3, 3), 1)
    function = polyml.einsum(WINDOWS.format(a=a, b=b), verify=True)
    wide = np.pad(x.astype(np.int32), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (1, 2))[:, ::2, ::2]
    expected = np.einsum("cpqrs,ocrs->opq", windows, w.astype(np.int32))
    for found in (function(x, w), function.bind(w=w)(x), function(x[:, ::-1][:, ::-1], w)):
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, expected)


def test_first_layers_of_bytes_read_phases_of_floats() -> None:
    x, w = values("i8", (3, 96, 96)), values("i8", (32, 3, 3, 3), 1)
    target = polyml.Target("x86-64-v3")
    text = str(polyml.einsum(WINDOWS.format(a="i8", b="i8"), target=target).trace(x, w))
    assert "x_f32_padded[" in text
    assert "phase" in text
    assert "y_floats[" in text
