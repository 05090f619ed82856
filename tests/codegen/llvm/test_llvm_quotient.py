"""Division of lanes by one number: bit for bit what the machine's division gives."""

from __future__ import annotations

import numpy as np
import pytest

from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.llvm.machine import Machine, assembly
from polyml.codegen.loops import Function
from polyml.dtypes import DType, f32, f64
from tests.codegen.llvm.support import apply, loop, read, run_function, store, variable

V4 = Machine("x86-64-v4", "x86_64-unknown-linux-gnu", "x86-64-v4", "-prefer-256-bit")
V3 = Machine("x86-64-v3", "x86_64-unknown-linux-gnu", "x86-64-v3", "")
ROWS, COLUMNS = 64, 512
EDGES = (0.0, 1.0, 3.0, 5e-324, 1e-310, 1e-45, 1e-39, 1.5, 1e-30, 1e30, 3.4e38, 1e308, float("inf"), float("nan"))


def rows_over_one(dtype: DType, vector_bytes: int) -> Function:
    """y[i, j] = x[i, j] / d[i]"""
    width = vector_bytes // dtype.itemsize
    value = apply("div", read("x", dtype, "i", "j"), read("d", dtype, "i"))
    row = loop("j", 0, COLUMNS, store("y", "ij", value), kind="vector", step=width, width=width)
    arguments = (variable("y", dtype, ROWS, COLUMNS), variable("x", dtype, ROWS, COLUMNS), variable("d", dtype, ROWS))
    return Function(name="f", arguments=arguments, written=frozenset("y"), sizes=(), body=(loop("i", 0, ROWS, row),))


def any_bits(rng: np.random.Generator, dtype: DType, *shape: int) -> np.ndarray:
    return rng.integers(0, 1 << dtype.bits, shape, dtype=f"u{dtype.itemsize}").view(dtype.numpy)


def usual(rng: np.random.Generator, dtype: DType, *shape: int) -> np.ndarray:
    """Random mantissas, some of few bits and some of all ones, about the size of a softmax's numbers."""
    x = np.exp(-20 * rng.random(shape)) * rng.choice([1.0, -1.0, 1.0 - 2.0**-23, 2.0, 0.0], shape)
    return x.astype(dtype.numpy)


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("seed", range(6))
def test_bit_for_bit(dtype: DType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    make = any_bits if seed % 2 else usual
    x, d = make(rng, dtype, ROWS, COLUMNS), make(rng, dtype, ROWS)
    with np.errstate(all="ignore"):
        edges = np.array(EDGES).astype(dtype.numpy)
        x[:, : len(edges)], d[: len(edges)] = edges, -edges if seed % 4 == 0 else edges
        expected = x / d[:, None]
        out = run_function(rows_over_one(dtype, 64), {"y": np.zeros_like(x), "x": x, "d": d}, {})["y"]
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(np.signbit(out) | np.isnan(out), np.signbit(expected) | np.isnan(expected))


@pytest.mark.parametrize("dtype", [f32, f64])
def test_close_to_a_tie(dtype: DType) -> None:
    # Quotients next to the middle of two numbers: x near (q + half a unit) * d for random q, d.
    rng = np.random.default_rng(0)
    digits = 24 if dtype is f32 else 53
    d = (1 + rng.random(ROWS)).astype(dtype.numpy)
    q = (1 + rng.random((ROWS, COLUMNS))).astype(dtype.numpy).astype(np.longdouble)
    x = ((q + np.longdouble(2.0) ** -digits) * d[:, None]).astype(dtype.numpy)
    out = run_function(rows_over_one(dtype, 64), {"y": np.zeros_like(x), "x": x, "d": d}, {})["y"]
    np.testing.assert_array_equal(out, x / d[:, None])


def test_only_wide_vectors() -> None:
    wide, narrow = (assembly(emit_module([rows_over_one(f32, size)]), m) for size, m in ((64, V4), (32, V3)))
    assert "vdivss" in wide
    assert "vdivps" in narrow
    assert "vdivss" not in narrow
