"""Nests in which several sums go through one loop: their accumulators share the registers, and what they read shares the caches."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.pairs import pairwise

GATED = """
def gated(x: {t}["N D"], w: {t}["D H"], u: {t}["D H"]):
    a[n, i] = x[n, d] * w[d, i]
    g[n, i] = x[n, d] * u[d, i]
    h[n, i] = a[n, i] * sigmoid(a[n, i]) * g[n, i]
    return h
"""
SPREAD = """
def spread(x: {t}["N K"], y: {t}["M K"]):
    a[n, m] = max[k](x[n, k] + y[m, k])
    b[n, m] = min[k](x[n, k] + y[m, k])
    d[n, m] = a[n, m] - b[n, m]
    return d
"""
V3, V4 = (Target(name, l1_bytes=32 << 10, l2_bytes=512 << 10, l3_bytes=32 << 20) for name in ("x86-64-v3", "x86-64-v4"))


def zeros(*shapes: tuple[int, ...], dtype: str = "f4") -> list[np.ndarray]:
    return [np.zeros(shape, dtype) for shape in shapes]


@pytest.mark.parametrize(("target", "registers"), [(V3, 16), (V4, 32)])
def test_accumulators_of_all_sums_fit_in_registers(target: Target, registers: int) -> None:
    f = polyml.einsum(GATED.format(t="f32"), target=target, threads=1)
    given = zeros((1024, 128), (128, 512), (128, 512))
    text = f.lower(*given).text("loops")
    explained = f.explain(*given)
    jam, vectors = re.search(r"jam n by (\d+); lanes along i, (\d) vectors", explained).groups()  # type: ignore[union-attr]
    assert "1 region" in explained
    assert "a += x[n, d]" in text
    assert 2 * int(jam) * int(vectors) >= 8
    assert 2 * int(jam) * int(vectors) + 2 * int(vectors) + 2 <= registers


def test_few_rows_go_along_panels_that_l1_holds() -> None:
    """Of two products a tile has two rows: L2 would deliver four vectors for each eight multiply-adds."""
    explained = polyml.einsum(GATED.format(t="f32"), target=V3, threads=1).explain(
        *zeros((1024, 32), (32, 1024), (32, 1024))
    )
    assert "tile n by 512; tile i by 16; jam n by 2" in explained


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_products_of_f64_are_joined_where_those_of_f32_are(dtype: str) -> None:
    f = polyml.einsum(GATED.format(t=dtype), target=V3, threads=1)
    for depth, regions in ((128, 1), (256, 2)):
        given = zeros((1024, depth), (depth, 512), (depth, 512), dtype=dtype.replace("f32", "f4").replace("f64", "f8"))
        assert f"in {regions} region" in f.explain(*given)


@pairwise(
    ("rows, depth, columns", [(1, 1, 1), (37, 130, 75), (64, 33, 200), (5, 40, 17), (0, 3, 4), (129, 16, 1)]),
    ("dtype", ["f32", "f64"]),
    ("threads", [1, 2]),
    ("program", [GATED, SPREAD]),
)
@pytest.mark.few(3)
def test_results(rows: int, depth: int, columns: int, dtype: str, threads: int, program: str) -> None:
    rng = np.random.default_rng(rows)
    kind = dtype.replace("f", "float")
    x, w, u = (
        (rng.integers(-3, 4, shape) / 4).astype(kind) for shape in ((rows, depth), (depth, columns), (depth, columns))
    )
    f = polyml.einsum(program.format(t=dtype), target=Target("host", l2_bytes=32 << 10), threads=threads)
    wide = np.zeros((rows, 2 * depth), kind)
    wide[:, ::2] = x
    if program is GATED:
        a, g = x.astype(float) @ w, x.astype(float) @ u
        for given in (x, wide[:, ::2]):
            np.testing.assert_allclose(f(given, w, u), a / (1 + np.exp(-a)) * g, rtol=1e-5, atol=1e-5)
    else:
        both = x[:, None] + np.ascontiguousarray(w.T)[None]
        for given in (x, wide[:, ::2]):
            np.testing.assert_array_equal(f(given, np.ascontiguousarray(w.T)), both.max(2) - both.min(2))
