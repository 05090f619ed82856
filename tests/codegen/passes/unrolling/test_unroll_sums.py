"""Sums along rows of up to sixteen elements, with lanes across the rows, are written out: rows are loaded whole and shuffled, and no lane has a load of its own."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target

DOTS = """
def f(v: f32["N K"], w: f32["N K"]):
    y[i] = sum[k](v[i, k] * w[i, k])
    return y
"""


def rows(n: int, k: int) -> np.ndarray:
    return np.random.default_rng(n + k).standard_normal((n, k), dtype=np.float32)


@pytest.mark.parametrize("k", [8, 9, 12])
def test_short_rows(k: int) -> None:
    v, w = rows(101, k), rows(101, k)[::-1].copy()
    got = polyml.einsum(DOTS, verify=True)(v, w)
    np.testing.assert_allclose(got, (v.astype(np.float64) * w).sum(1), atol=1e-4)


def test_no_lane_has_a_load_of_its_own() -> None:
    wide = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=1 << 20, cores=1)
    text = polyml.einsum(DOTS, target=wide).lower(rows(960, 9), rows(960, 9)).text("llvm")
    assert "masked.gather" not in text
