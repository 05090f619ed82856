"""Checks of places that differ by a number are one pass, and find what each of them would."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.graph.ir import Check, Equation

PLACES = """
def f(x: f64["N"], y: f64["N"], h: f64["K K"]):
    h[i64(x[n]), i64(y[n])] += 1
    h[i64(x[n]) + 2, i64(y[n])] += 2
    h[i64(x[n]) - 1, i64(y[n])] += 3
    if n < 3:
        h[i64(x[n]), i64(y[n]) + 1] += 4
"""


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_for_each_dimension_and_range(dynamic: bool) -> None:
    """What is asked of other points stays apart."""
    program = polyml.einsum(PLACES, dynamic=dynamic)
    assert isinstance(program, polyml.Einsum)
    x, y, h = np.array([1.0, 2, 3, 4, 2]), np.array([0.0, 1, 6, 3, 6]), np.zeros((7, 7))
    graph = program.lower(x, y, h).stages.graph
    flags = {op.flag.name for op in graph.ops if isinstance(op, Check)}
    assert len(flags) == 4 == sum(isinstance(op, Equation) and op.result.name in flags for op in graph.ops)
    for place, value in ((0, 0.0), (0, 5.0), (1, 7.0), (1, -1.0)):
        wrong = [x.copy(), y.copy(), h.copy()]
        wrong[place][4] = value
        with pytest.raises(IndexError, match=f"dimension {place} of h"):
            program(*wrong)
    with pytest.raises(IndexError, match="dimension 1 of h"):
        program(x, y, h)  # y[2] + 1
    y[2] = 5
    h[:] = 0
    expected = h.copy()
    for move, number in ((0, 1), (2, 2), (-1, 3)):
        np.add.at(expected, (x.astype(int) + move, y.astype(int)), number)
    np.add.at(expected, (x[:3].astype(int), y[:3].astype(int) + 1), 4)
    program(x, y, h)
    assert np.array_equal(h, expected)
