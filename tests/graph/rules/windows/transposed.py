"""Contractions into windows of any stride, channels first or last, and what they are."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

__all__ = ["FIRST", "LAST", "Array", "transposed"]

Array = npt.NDArray[np.generic]

FIRST = """
def f(x: {t}["B K P Q"], w: {t}["K C R S"]):
    y: {t}["B C {s}*P+R-{s} {s}*Q+S-{s}"] = 0
    y[b, c, {s}*p + r, {s}*q + s] += x[b, k, p, q] * w[k, c, r, s]
    return y
"""
LAST = """
def f(x: {t}["B P Q K"], w: {t}["R S K C"]):
    y: {t}["B {s}*P+R-{s} {s}*Q+S-{s} C"] = 0
    y[b, {s}*p + r, {s}*q + s, c] += x[b, p, q, k] * w[r, s, k, c]
    return y
"""


def transposed(x: Array, w: Array, s: int) -> Array:
    (b, _, p, q), (_, c, height, width) = x.shape, w.shape
    y = np.zeros(
        (b, c, s * (p - 1) + height, s * (q - 1) + width), np.result_type(x, np.float64 if x.dtype.kind == "f" else x)
    )
    for i, j in itertools.product(range(p), range(q)):
        y[:, :, s * i : s * i + height, s * j : s * j + width] += np.einsum(
            "bk,kcrs->bcrs", x[:, :, i, j], w, dtype=y.dtype
        )
    return y
