"""Tensors that are made as a whole and written again under an `if`: when they are one equation, and the same numbers as before."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.graph.ir import Equation, Graph, Loop, Op
from polyml.testing import verify


def program(*lines: str) -> str:
    return "\n    ".join(['def f(x: f64["N M"]):', *lines]) + "\n"


def updates(graph: Graph) -> int:
    """How many equations write into what is there already."""

    def count(ops: tuple[Op, ...]) -> int:
        return sum(
            count(op.body) if isinstance(op, Loop) else isinstance(op, Equation) and op.base is not None for op in ops
        )

    return count(graph.ops)


X = np.random.default_rng(0).standard_normal((7, 9))
DIFFERENCES = [
    "d[i, j] = 2 * x[i, j]",
    "if i >= 1:",
    "    d[i, j] -= x[i - 1, j]",
    "if j < M - 2:",
    "    d[i, j] += x[i, j + 2] / 3",
    "return d",
]
BORDERS = [
    'a: f64["N M"] = 1',
    "if 0 < i < N - 1 and 0 < j < M - 1:",
    "    a[i, j] = x[i - 1, j] * x[i, j + 1] - x[i + 1, j - 1]",
    "y[i, j] = a[i, j] * a[i, j]",
    "return y",
]
SCALED = ["d[i, j] = x[i, j]", "if i + j >= 3:", "    d[i, j] *= x[i, j] - 1", "return d"]
LOOP = [
    "for t in range(3):", "    d[i, j] = x[i, j] + t", "    if i >= 1:", "        d[i, j] += x[i - 1, j]", "    x[i, j] = d[i, j] * 0.5", "return x",
]  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"precise": True}, {"dynamic": True}])
@pytest.mark.parametrize("lines", [DIFFERENCES, BORDERS, SCALED, LOOP], ids=["terms", "borders", "factor", "loop"])
@pytest.mark.few(6)
def test_one_equation(lines: list[str], options: dict[str, bool]) -> None:
    compute = polyml.einsum(program(*lines), **options)
    assert not updates(compute.lower(X).stages.graph)
    for size in [(3, 3)] if options else [(2, 1), (1, 2), (5, 9)]:
        assert verify(compute, np.random.default_rng(1).standard_normal(size))


def test_signs_of_zeros_and_numbers_that_are_none() -> None:
    lines = [
        "d[i, j] = x[i, j]",
        "if i >= 1:",
        "    d[i, j] += x[i - 1, j] * 0",
        "if i < N - 1:",
        "    d[i, j] -= 0 * x[i + 1, j]",
        "return d",
    ]
    x = np.zeros((4, 9))
    x[:, ::2] *= -1
    x[2, 3], x[1, 5] = np.nan, np.inf
    found = polyml.einsum(program(*lines), precise=True)(x)
    expected = x.copy()
    with np.errstate(invalid="ignore"):
        expected[1:] += x[:-1] * 0
        expected[:-1] -= 0 * x[1:]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found[expected == 0]), np.signbit(expected[expected == 0]))


@pytest.mark.parametrize(
    "lines",
    [
        ["d[i, j] = 2 * x[i, j]", "if i == 0:", "    d[i, j] = exp(x[i, j])", "return d"],  # a border
        [
            "d[i, j] = 2 * x[i, j]",
            "e[i, j] = d[i, j] * d[i, j]",
            "if i >= 1:",
            "    d[i, j] = e[i - 1, j]",
            "return d, e",
        ],  # read in between
        ["d[i, j] = 2 * x[i, j]", "if i >= 1:", "    d[i, j] -= d[i - 1, j]", "return d"],  # of another element
        [
            "d[i, j] = x[i, j]",
            "x[i, j] = 3",
            "if i >= 1:",
            "    d[i, j] -= 1",
            "return d, x",
        ],  # what it reads is written
        [
            'y: f64["N M"] = 1',
            "if 0 < i < N - 1:",
            "    y[i, j] = x[i - 1, j] * x[i + 1, j]",
            "return y",
        ],  # which is stored
    ],
    ids=["border", "read", "neighbours", "overwritten", "filled"],
)
def test_what_stays_apart(lines: list[str]) -> None:
    compute = polyml.einsum(program(*lines))
    assert updates(compute.lower(X).stages.graph)
    assert verify(compute, X)
