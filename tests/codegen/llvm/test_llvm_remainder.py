"""Floats modulo floats: exactly what C's fmod leaves, with NumPy's signs, for numbers of all magnitudes, next to multiples, and for what is no number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyml
from polyml.target import Target

TEXT = """
def f(x: {t}["N"], y: {t}["N"]):
    r[n] = x[n] % y[n]
    q[n] = x[n] // y[n]
    return r, q
"""
TYPES: dict[str, Any] = {"f32": np.float32, "f64": np.float64}
COUNT = 4003


def numbers(dtype: Any, seed: int) -> np.ndarray:
    """Any bits, some magnitudes, whole numbers, and the ends of the range."""
    rng = np.random.default_rng(seed)
    integer = np.uint32 if dtype is np.float32 else np.uint64
    any_bits = rng.integers(0, np.iinfo(integer).max, COUNT, dtype=integer, endpoint=True).view(dtype)
    some = (rng.standard_normal(COUNT) * 10.0 ** rng.integers(-6, 7, COUNT)).astype(dtype)
    whole = rng.integers(-50, 50, COUNT).astype(dtype)
    info = np.finfo(dtype)
    ends = np.array([0, -0.0, np.inf, -np.inf, np.nan, info.tiny, info.max, info.smallest_subnormal, 1, -1], dtype)
    return np.choose(rng.integers(0, 4, COUNT), [any_bits, some, whole, rng.choice(ends, COUNT)])


def next_to_multiples(y: np.ndarray, seed: int) -> np.ndarray:
    """Of which the rounded quotient is a whole number that the exact one may be below."""
    rng = np.random.default_rng(seed)
    x = y * (10.0 ** rng.uniform(0, 7, COUNT)).round().astype(y.dtype)
    up, down = np.nextafter(x, y.dtype.type(np.inf)), np.nextafter(x, y.dtype.type(-np.inf))
    return np.choose(rng.integers(0, 3, COUNT), [x, up, down])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("target", ["host", "x86-64-v3", "x86-64-v2"])
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.few(3)
def test_remainders_are_numpys(name: str, target: str) -> None:
    if not Target(target).runs_here:
        pytest.skip("not this machine's instructions")
    f = polyml.einsum(TEXT.format(t=name), target=Target(target), threads=1)
    for seed in range(3):
        y = numbers(TYPES[name], seed)
        for x in (numbers(TYPES[name], seed + 10), next_to_multiples(y, seed)):
            for found, expected in zip(f(x, y), (np.remainder(x, y), np.floor_divide(x, y)), strict=True):
                np.testing.assert_array_equal(found, expected)
                np.testing.assert_array_equal(np.signbit(found[expected == 0]), np.signbit(expected[expected == 0]))


@pytest.mark.parametrize("name", TYPES)
def test_the_library_is_called_rarely(name: str) -> None:
    """Only out of line."""
    x = np.ones(64, TYPES[name])
    text = polyml.einsum(TEXT.format(t=name), threads=1).lower(x, x).text("llvm")
    (holder,) = (part for part in text.split("\ndefine ") if "frem" in part)
    assert "noinline cold" in holder.partition("\n")[0]
