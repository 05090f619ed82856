"""Names of a program that look like those of LLVM values."""

from __future__ import annotations

import numpy as np

import polyml


def test_names_that_llvm_does_not_have() -> None:
    f = polyml.einsum(
        'def größe(x: f32["N M"]):\n    β[n, κ] = x[n, κ] * 2\n    σ = sum[n, κ](β[n, κ])\n    return β, σ\n'
    )
    x = np.ones((2, 3), np.float32)
    assert np.array_equal(f(x)[0], 2 * x)
    assert f(x)[1] == 12


def test_names_like_values() -> None:
    f = polyml.einsum("""
def f(v1: f64["N"], next2: f64["N"], context: f64["N"], lower: f64["N"]):
    v1[i] += next2[i] * lower[j] + context[i]
    return v1
""")
    x = np.arange(1.0, 6.0)
    assert np.allclose(f(x.copy(), x, x, x), 2 * x + x * x.sum())
