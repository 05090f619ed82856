"""Terms that are added by quotients and remainders of indices: sums of their own, with the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyml

Array = np.ndarray[Any, Any]


def numbers(t: str, *shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(polyml.dtypes.DTYPES[t].numpy)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("t", "n", "b"), [("f32", 100, 4), ("f64", 1003, 100), ("i32", 33, 7), ("c64", 5, 8)])
@pytest.mark.few(3)
def test_quotients_and_remainders(t: str, n: int, b: int, threads: int) -> None:
    x, start = numbers(t, n), numbers(t, -(-n // b))
    source = f"""
def f(x: {t}["N"], z: {t}["M"]):
    y: {t}["{b}"] = 0
    y[i % {b}] += x[i]
    z[i // {b}] += x[i] * x[i]
    if i >= 3:
        z[i // {b}] -= x[i]
    return y, z
"""
    by_remainder = np.zeros(b, x.dtype)
    np.add.at(by_remainder, np.arange(n) % b, x)
    by_quotient = start.copy()
    np.add.at(by_quotient, np.arange(n) // b, x * x)
    np.subtract.at(by_quotient, np.arange(3, n) // b, x[3:])
    f = polyml.einsum(source, verify=True, threads=threads)
    found = f(x, start.copy())
    np.testing.assert_array_equal(found[0], by_remainder)
    np.testing.assert_array_equal(found[1], by_quotient)


def test_pooling_is_the_sum_over_its_windows() -> None:
    x = numbers("f32", 3, 10, 12)
    source = """
def f(x: f32["C H W"]):
    y: f32["C 5 3"] = 0
    y[c, h // 2, w // 4] += x[c, h, w]
    return y
"""
    f = polyml.einsum(source, verify=True)
    text = f.lower(x).text("graph")
    np.testing.assert_array_equal(f(x), x.reshape(3, 5, 2, 3, 4).sum((2, 4)))
    assert "//" not in text
    assert "= sum_" in text


def test_products_and_places_that_are_met_once() -> None:
    x = numbers("f64", 24)
    source = """
def f(x: f64["N"]):
    p: f64["6"] = 1
    p[i // 4] *= x[i]
    y: f64["4 6"] = 0
    y[i % 4, i // 4] += x[i]
    s: f64["7"] = 0
    s[(i + 1) // 4] += x[i]
    return p, y, s
"""
    shifted = np.zeros(7)
    np.add.at(shifted, (np.arange(24) + 1) // 4, x)
    p, y, s = polyml.einsum(source, verify=True)(x)
    np.testing.assert_array_equal(p, x.reshape(6, 4).prod(1))
    np.testing.assert_array_equal(y, x.reshape(6, 4).T)
    np.testing.assert_array_equal(s, shifted)


def test_in_loops_and_for_any_size() -> None:
    x = numbers("f32", 3, 50)
    steps = """
def f(x: f32["T N"]):
    y: f32["10"] = 0
    for t in range(T):
        y[i // 5] += x[t, i] * y[i // 5] + x[t, i]
    return y
"""
    y = np.zeros(10, np.float32)
    for row in x:
        y = y + (row.reshape(10, 5) * y[:, None] + row.reshape(10, 5)).sum(1)
    np.testing.assert_allclose(polyml.einsum(steps, verify=True)(x), y, rtol=1e-5)
    sized = """
def f(x: f32["N"], n: int):
    y: f32["n"] = 0
    if i // 4 < n:
        y[i // 4] += x[i]
    return y
"""
    f = polyml.einsum(sized, dynamic=True, verify=True)
    for size in (40, 44, 7):
        z = numbers("f32", size)
        blocks = np.zeros(9, np.float32)
        np.add.at(blocks, np.arange(size)[np.arange(size) // 4 < 9] // 4, z[np.arange(size) // 4 < 9])
        np.testing.assert_array_equal(f(z, 9), blocks)
