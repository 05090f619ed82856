"""Narrow integers compared with numbers, sizes, index values and ints: by their values, in the narrow type where that decides the same."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.dtypes import DTYPES
from polyml.testing import verify

NARROW = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")
OPS = ("<", "<=", ">", ">=", "==", "!=")
VALUES = {
    "an index": "i - 5",
    "an index with a stride": "300 - 40 * i",
    "a number": "-1",
    "a large number": "300",
    "a size": "N * 40",
    "a number in a variable": "s",
    "a choice": "where(i > 3, -1, 300)",
}


def ends(dtype: str) -> np.ndarray:
    kind = np.dtype(DTYPES[dtype].numpy)
    info = np.iinfo(kind)
    return np.array([info.min, info.max, 0, 1, 3, 4, 5, info.max - 1, 100, info.max // 2], kind)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
@pytest.mark.few(5)
def test_by_value(dtype: str, value: str) -> None:
    lines = [f"y{k}[i] = x[i] {op} {value}" for k, op in enumerate(OPS)]
    lines += [f"z{k}[i] = {value} {op} x[i]" for k, op in enumerate(OPS)]
    results = [line[:2] for line in lines]
    body = "\n    ".join(["s = N - 15", *lines, f"return {', '.join(results)}"])
    assert verify(f'def f(x: {dtype}["N"]):\n    {body}\n', ends(dtype))


@pytest.mark.parametrize("dtype", NARROW)
def test_with_an_int(dtype: str) -> None:
    """One kernel for all values of the int, those beyond the type among them."""
    x = ends(dtype)
    results = [f"y{k}" for k in range(len(OPS))]
    lines = [f"{name}[i] = x[i] {op} t" for name, op in zip(results, OPS, strict=True)]
    body = "\n    ".join([*lines, f"return {', '.join(results)}"])
    program = polyml.einsum(f'def f(x: {dtype}["N"], t: int):\n    {body}\n')
    for t in (-(2**40), -1000, -1, 0, 4, 100, 127, 128, 255, 256, 1000, 2**40):
        whole = x.astype(object)
        wanted = [whole < t, whole <= t, whole > t, whole >= t, whole == t, whole != t]
        for found, expected in zip(program(x, t), wanted, strict=True):
            assert np.array_equal(found, expected.astype(bool)), t
    assert len(program.kernels) == 1


@pytest.mark.parametrize("value", ["k", "k - 3", "200", "t"])
def test_lanes_are_narrow(value: str) -> None:
    """A vector of bytes is not made eight vectors of i64."""
    program = polyml.einsum(
        f'def f(x: u8["N M"], t: int):\n    y[n, k] = where(x[n, k] == {value}, 1.0, 0.0)\n    return y\n'
    )
    x = np.arange(10 * 100, dtype=np.uint64).reshape(10, 100).astype(np.uint8)
    text = program.lower(x, 3).text("graph")
    if value == "k - 3":
        assert "i64(x[" in text  # it may be negative
    else:
        assert "i64(x[" not in text
    assert verify(program, x, 3)


def test_in_a_loop() -> None:
    """What is known of a loop's variable and of sizes is not taken for the range of an index."""
    text = (
        'def f(x: u8["N"]):\n    y: i32["N"] = 0\n    for t in range(-2, 300, 50):\n        y[i] += where(x[i] < t, 1, 0)\n'
        "    return y\n"
    )
    x = np.arange(0, 256, 5).astype(np.uint8)
    for options in ({}, {"dynamic": True}, {"scheduler": "isl"}):
        assert verify(text, x, **options)
