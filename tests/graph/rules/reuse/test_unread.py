"""Sums of which a part is read: the others are not computed, and what is read stays the same."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.graph.ir import Equation, Graph

CUT = """
def f(x: f64["N K"], w: f64["K M"]):
    z[n, m] = x[n, k] * w[k, m]
    y: f64["N-{low}-{high} M"]
    y[n, m] = z[n + {low}, m] + 1.0
    return y
"""
WINDOWS = """
def f(x: f64["K P"], w: f64["K C 4"]):
    z: f64["C 2*P+2"] = 0
    z[c, 2*p + r] += x[k, p] * w[k, c, r]
    y: f64["C 2*P"]
    y[c, h] = z[c, h + 1]
    return y
"""
STEPS = """
def f(x: f64["N K"]):
    z[n] = x[n, k]
    y: f64["N-4"]
    y[n] = z[n + 1] + z[n + 3]
    return y
"""


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(float)


def sums(graph: Graph) -> list[tuple[int, ...]]:
    """The shapes of what sums make."""
    made = (op for op in graph.ops if isinstance(op, Equation) and op.reduce is not None)
    return [tuple(extent.constant for extent in op.result.shape) for op in made]


@pytest.mark.parametrize(("low", "high"), [(1, 0), (0, 3), (2, 2), (0, 0)])
def test_a_product(low: int, high: int) -> None:
    x, w = numbers(9, 5), numbers(5, 7)
    program = polyml.einsum(CUT.format(low=low, high=high), verify=True)
    assert sums(program.lower(x, w).stages.graph) == [(9 - low - high, 7)]
    np.testing.assert_array_equal(program(x, w), (x @ w)[low : 9 - high] + 1)


def test_windows() -> None:
    x, w = numbers(3, 10), numbers(3, 2, 4)
    program = polyml.einsum(WINDOWS, verify=True)
    z = np.zeros((2, 22))
    for p in range(10):
        z[:, 2 * p : 2 * p + 4] += np.einsum("k,kcr->cr", x[:, p], w)
    np.testing.assert_array_equal(program(x, w), z[:, 1:-1])
    np.testing.assert_array_equal(polyml.einsum(WINDOWS, dynamic=True)(x, w), z[:, 1:-1])


def test_several_readers() -> None:
    """Of what is between them everything is there: the hull of what is read."""
    x = numbers(12, 5)
    program = polyml.einsum(STEPS, verify=True)
    z = x.sum(1)
    assert sums(program.lower(x).stages.graph) == [(10,)]
    np.testing.assert_array_equal(program(x), z[1:-3] + z[3:-1])


@pytest.mark.parametrize(
    "kept",
    [
        "return y, z",
        "t[n] = max[m](z[n, m])\n    return y, t",
        "for i in range(2):\n        y[0, m] = y[0, m] * z[i, m]\n    return y",
        "i = argmax[n](z[n, 0])\n    y[0, m] += z[i, m]\n    return y",
    ],
)
def test_what_others_need_stays(kept: str) -> None:
    x, w = numbers(9, 5), numbers(5, 7)
    source = CUT.format(low=1, high=3).replace("return y", kept)
    program = polyml.einsum(source, verify=True)
    assert (9, 7) in sums(program.lower(x, w).stages.graph)
    program(x, w)  # against the interpreter
