"""Vectors of half the length on machines that execute long ones in two halves: where lanes would be idle, and nowhere else; right either way."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target

SPLIT = Target("x86-64-v4", split_vectors=True)
WHOLE = Target("x86-64-v4")
PRODUCT = """
def f(x: {t}["N K"], y: {t}["K M"]):
    z[n, m] = x[n, k] * y[k, m]
    return z
"""
ROWS = """
def f(x: f32["D K A"], y: f32["B K"]):
    z[d, b, a] = x[d, k, a] * y[b, k]
    return z
"""
wide = pytest.mark.skipif(not SPLIT.runs_here, reason="this machine has no AVX-512")


def bits(source: str, target: Target, *shapes: tuple[int, ...], dtype: str = "f4") -> set[int]:
    """The lengths of the vectors in the loops."""
    lowered = polyml.einsum(source, target=target).lower(*(np.empty(shape, dtype) for shape in shapes))
    lanes = re.findall(r"vector\((\d+)", lowered.text("loops"))
    return {8 * int(count) * np.dtype(dtype).itemsize for count in lanes}


def product(target: Target, n: int, dtype: str = "f4") -> set[int]:
    return bits(PRODUCT.format(t="f32" if dtype == "f4" else "f64"), target, (n, n), (n, n), dtype=dtype)


@pytest.mark.parametrize(
    ("n", "length"), [(24, 256), (40, 256), (72, 256), (16, 512), (48, 512), (96, 512), (100, 512)]
)
@pytest.mark.few(3)
def test_short_vectors_where_long_ones_have_idle_lanes(n: int, length: int) -> None:
    assert product(SPLIT, n) == {length}
    assert product(WHOLE, n) == {512}


@pytest.mark.parametrize(("n", "length"), [(12, 256), (20, 256), (24, 512), (64, 512)])
def test_lanes_are_those_of_the_element(n: int, length: int) -> None:
    assert product(SPLIT, n, "f8") == {length}


def test_what_is_no_contraction_has_long_ones() -> None:
    assert bits('def f(x: f32["N"]):\n    y[i] = x[i] + 1\n    return y', SPLIT, (1000,)) == {512}


def test_it_is_said() -> None:
    lowered = polyml.einsum(PRODUCT.format(t="f32"), target=SPLIT).lower(
        np.empty((24, 24), "f4"), np.empty((24, 24), "f4")
    )
    assert "vectors: f_0: 256 bits" in lowered.explain()


@wide
@pytest.mark.parametrize("m", [1, 7, 8, 9, 15, 17, 20, 23, 24, 25, 33, 40, 56, 72])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_products_around_both_lengths(m: int, dtype: str) -> None:
    rng = np.random.default_rng(m)
    x, y = rng.standard_normal((37, 29)).astype(dtype), rng.standard_normal((29, m)).astype(dtype)
    found = polyml.einsum(PRODUCT.format(t="f32" if dtype == "f4" else "f64"), target=SPLIT)(x, y)
    np.testing.assert_allclose(found, x.astype("f8") @ y, rtol=1e-5, atol=1e-4 if dtype == "f4" else 1e-11)


@wide
@pytest.mark.parametrize("threads", [1, 2])
def test_large_results_past_the_caches(threads: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((400, 24, 24)).astype("f4"), rng.standard_normal((320, 24)).astype("f4")
    program = polyml.einsum(ROWS, target=Target("host", split_vectors=True), threads=threads)
    np.testing.assert_allclose(program(x, y), np.einsum("dka,bk->dba", x, y), rtol=1e-4, atol=1e-4)


def test_rows_of_sweeps() -> None:
    source = """
def f(x: f32["N M"]):
    m[n] = max[j](x[n, j])
    y[n, j] = exp(x[n, j] - m[n])
    return y
"""
    assert bits(source, SPLIT, (100, 24)) == {256}
    assert bits(source, SPLIT, (100, 7)) == {512}  # lanes across the rows
    assert bits(source, SPLIT, (100, 12)) == {512}
    assert bits(source, SPLIT, (100, 1000)) == {512}
