"""Names of a program that look like those of LLVM values."""

from __future__ import annotations

import numpy as np

import polyml


def test_names_like_values() -> None:
    f = polyml.einsum("""
def f(v1: f64["N"], next2: f64["N"], context: f64["N"], lower: f64["N"]):
    v1[i] += next2[i] * lower[j] + context[i]
    return v1
""")
    x = np.arange(1.0, 6.0)
    assert np.allclose(f(x.copy(), x, x, x), 2 * x + x * x.sum())
