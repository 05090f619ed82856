"""Loops that scatter element by element: four elements for a jump, in order, whatever is left over."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import Assign, For
from polyml.codegen.rewrite import walk_nodes

HISTOGRAM = """
def f(x: i64["N"], w: f32["N"]):
    y: f32["7"] = 0
    y[x[n]] += w[n]
    return y
"""


def scattering(text: str, *args: np.ndarray) -> list[tuple[int, int]]:
    """Of the loops that scatter: their step and the number of their statements."""
    functions = polyml.einsum(text, threads=1).lower(*args).stages.functions
    return [
        (node.step, len(node.body))
        for node in walk_nodes([node for function in functions for node in function.body])
        if isinstance(node, For) and node.kind == "sequential" and all(isinstance(n, Assign) for n in node.body)
    ]


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 61, 64, 1003])
@pytest.mark.few(5)
def test_each_element_is_added_once_and_in_order(size: int) -> None:
    rng = np.random.default_rng(size)
    x, w = rng.integers(0, 7, size), (rng.standard_normal(size) * 10.0 ** rng.integers(-6, 6, size)).astype(np.float32)
    expected = np.zeros(7, np.float32)
    for k, weight in zip(x, w, strict=True):
        expected[k] += weight
    for options in ({}, {"dynamic": True}, {"precise": True}):
        np.testing.assert_array_equal(polyml.einsum(HISTOGRAM, threads=1, **options)(x, w), expected)


def test_four_elements_for_a_jump() -> None:
    x, w = np.zeros(1003, np.int64), np.ones(1003, np.float32)
    assert scattering(HISTOGRAM, x, w) == [(4, 4)]
    assert scattering(HISTOGRAM, x[:7], w[:7]) == [(1, 1)]


def test_other_loops_stay() -> None:
    text = HISTOGRAM.replace("y[x[n]] += w[n]", "y[x[n]] += sum[k](w[n] * w[k])")
    x, w = np.zeros(40, np.int64), np.ones(40, np.float32)
    np.testing.assert_allclose(polyml.einsum(text, threads=1)(x, w), [1600.0] + [0.0] * 6)
