"""Whole numbers divided in lanes of floats: every quotient and remainder is NumPy's, next to multiples and at the ends of the range too."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target

TEXT = """
def f(x: {t}["N"], y: {t}["N"]):
    q[n] = x[n] // y[n]
    r[n] = x[n] % y[n]
    return q, r
"""
TYPES = {"i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64}  # fmt: skip
TARGETS = ["host", "x86-64-v3", "x86-64-v2", "x86-64"]


def numbers(dtype: type[np.integer], count: int, seed: int) -> np.ndarray:
    """Of all magnitudes, and the ends of the range, zeros and ones among them."""
    rng, info = np.random.default_rng(seed), np.iinfo(dtype)
    any_size = rng.integers(info.min, info.max, count, dtype=dtype, endpoint=True) >> rng.integers(
        0, info.bits, count
    ).astype(dtype)
    special = np.array([info.min, info.max, info.max - 1, 0, 1, 2, *([-1, -2] if info.min else [])], dtype)
    return np.where(rng.random(count) < 0.3, rng.choice(special, count), any_size)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.few(6)
def test_quotients_are_numpys(name: str, target: str) -> None:
    if not Target(target).runs_here:
        pytest.skip("not this machine's instructions")
    dtype, count = TYPES[name], 4003
    y, factor = numbers(dtype, count, 1), numbers(dtype, count, 2)
    near = y * factor + np.random.default_rng(3).integers(0, 3, count).astype(dtype) - dtype(1)
    for x in (near, numbers(dtype, count, 4)):
        q, r = polyml.einsum(TEXT.format(t=name), target=Target(target), threads=1)(x, y)
        np.testing.assert_array_equal(q, x // y)
        np.testing.assert_array_equal(r, x % y)


@pytest.mark.parametrize("name", ["i8", "u8", "i16", "u16"])
def test_pairs_of_short_numbers(name: str) -> None:
    """Of bytes; of 16 bits all divisors with the multiples next to them."""
    info = np.iinfo(TYPES[name])
    y = np.arange(info.min, info.max + 1)
    y = np.repeat(y, 256) if info.bits == 8 else np.repeat(y, 9)
    x = np.tile(np.arange(info.min, info.max + 1), 256) if info.bits == 8 else (y * np.tile(np.arange(-4, 5) * 37, len(y) // 9) - 1)  # fmt: skip
    x, y = x.astype(TYPES[name]), y.astype(TYPES[name])
    q, r = polyml.einsum(TEXT.format(t=name))(x, y)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(q, x // y)
        np.testing.assert_array_equal(r, x % y)


@pytest.mark.parametrize("name", ["i8", "u16", "i32", "u32"])
def test_vectors_are_not_taken_apart(name: str) -> None:
    x = np.ones(64, TYPES[name])
    text = polyml.einsum(TEXT.format(t=name), threads=1).lower(x, x).text("llvm")
    assert "fdiv <" in text
    assert not any(op in text for op in ("sdiv <", "udiv <", "srem <", "urem <"))


def test_known_divisors_are_multiplied_with() -> None:
    x = np.ones(64, np.int32)
    text = polyml.einsum('def f(x: i32["N"]):\n    y[n] = x[n] // 7\n    return y\n', threads=1).lower(x).text("llvm")
    assert "fdiv" not in text
