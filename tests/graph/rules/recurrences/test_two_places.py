"""Steps that read neighbourhoods go from one place to another and back, with the same values; others stay in place."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.resolve import resolve
from polyml.graph.ir import Graph
from polyml.graph.printer import graph_text
from polyml.graph.reference import execute
from polyml.graph.rewrite import rewrite
from polyml.graph.rules.table import RewriteOptions
from polyml.graph.verify import verify
from polyml.source import Source
from tests.graph.built import Argument, Array, graph

SWEEPS = """
def f(T: int, a: f64, x: f64["N M"]):
    for t in range({range}):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            x[i, j] = a * (x[i, j] + x[i, j - 1] + x[i, j + 1] + x[i - 1, j] + x[i + 1, j]) + t
    return x
"""
COPIED = """
def f(T: int, a: f64, x: f64["N M"]):
    b: f64["N M"]
    b[i, j] = x[i, j]
    for t in range(9):
        if 1 <= j:
            b[i, j] = a * (b[i, j] - b[i, j - 1])
    return b
"""
NESTED = """
def f(T: int, a: f64, x: f64["N M"]):
    total: f64 = 0
    for r in range(3):
        for t in range(T):
            if 2 <= i < N:
                x[i, j] = a * (x[i - 2, j] + x[i, j]) + r - t
            total = total + x[0, 0]
        x[i, 0] = total
    return x
"""
TWO = """
def f(T: int, a: f64, x: f64["N M"]):
    p: f64["N M"]
    p[i, j] = x[i, j] * 0.5
    for t in range(T):
        if 1 <= j < M - 1:
            p[i, j] = a * (p[i, j - 1] + p[i, j + 1]) + x[i, j]
        if 1 <= i:
            x[i, j] = x[i, j] + a * (x[i - 1, j] - p[i, j])
    return x
"""
COPIED_BACK = """
def f(T: int, a: f64, x: f64["N M"]):
    y: f64["N M"]
    for t in range(T):
        if 0 < i < N - 1:
            y[i, j] = a * (x[i - 1, j] + x[i + 1, j]) + t
        y[0, j] = x[N - 1, j]
        y[N - 1, j] = y[0, j] * 0.5
        x[i, j] = y[i, j]
    return y
"""
COPIED_FIRST = """
def f(T: int, a: f64, x: f64["N M"]):
    y: f64["N M"]
    for t in range(T):
        y[i, j] = x[i, j]
        if 0 < i < N - 1:
            x[i, j] = a * (y[i - 1, j] + y[i + 1, j]) + t
        x[0, j] = x[N - 1, j]
    return x
"""
OTHER_RIM = """
def f(T: int, a: f64, x: f64["N M"]):
    y: f64["N M"] = 3
    for t in range(T):
        if 0 < i < N - 1:
            y[i, j] = a * (x[i - 1, j] + x[i + 1, j])
        x[i, j] = y[i, j]
    return x
"""
UNFINISHED = """
def f(T: int, a: f64, x: f64["N M"]):
    for t in range(T):
        if 0 < i < N - 1:
            x[i, j] = a * (x[i - 1, j] + x[i + 1, j])
        x[0, j] = x[N - 1, j]
        x[N - 1, j] = 2 + x[0, j]
    return x
"""
HISTORY = """
def f(T: int, a: f64, x: f64["N M"]):
    before: f64["N M"]
    before[i, j] = x[i, j]
    for t in range(T):
        next: f64["N M"]
        next[i, j] = x[i, j]
        if 1 <= i < N - 1:
            next[i, j] = 2 * x[i, j] - before[i, j] + a * (x[i - 1, j] + x[i + 1, j] - 2 * x[i, j])
        before[i, j] = x[i, j]
        x[i, j] = next[i, j]
    return x
"""
SHRINKING = """
def f(T: int, a: f64, x: f64["N M"]):
    for t in range(T):
        if t < j < M - t - 1:
            x[i, j] = a * (x[i, j - 1] + x[i, j + 1])
    return x
"""
FEW = """
def f(T: int, a: f64, x: f64["N M"]):
    for t in range(7):
        if 1 <= j < M - 1:
            x[i, j] = a * (x[i, j - 1] + x[i, j + 1])
    return x
"""
PIVOTS = """
def f(T: int, a: f64, x: f64["N N"]):
    for k in range(N):
        x[i, j] = min(x[i, j], x[i, k] + x[k, j])
    return x
"""
POINTWISE = """
def f(T: int, a: f64, x: f64["N M"]):
    for t in range(T):
        x[i, j] = a * x[i, j] + t
    return x
"""


def arguments(n: int = 5, m: int = 6, steps: int = 5) -> tuple[int, float, Array]:
    return steps, 0.25, np.random.default_rng(0).random((n, m))


def check(source: str, values: tuple[Argument, ...]) -> Graph:
    """The rewritten graph, which gives what the one as written does, to the last bit."""
    plain = graph(resolve(parse(Source(source)), {}), *values)
    made = rewrite(plain, RewriteOptions(precise=True))
    verify(made)
    steps, a, x = values
    assert isinstance(steps, int)
    assert isinstance(x, np.ndarray)
    now, before = (execute(g, [a, x.copy()], sizes={"T": steps})[0] for g in (made, plain))
    np.testing.assert_array_equal(now, before)
    return made


@pytest.mark.parametrize(
    "source",
    [
        SWEEPS.format(range="T"),
        SWEEPS.format(range="T, -1, -1"),
        SWEEPS.format(range="2, 3 * T + 1, 3"),
        COPIED,
        NESTED,
        TWO,
        COPIED_BACK,
        COPIED_FIRST,
    ],
    ids=["up", "down", "by threes", "a copy", "nested", "two tensors", "copied back", "copied first"],
)
def test_steps_go_back_and_forth(source: str) -> None:
    assert "//2" in graph_text(made := check(source, arguments())) or "range(0, 5)" in graph_text(made)
    for steps in (-3, 0, 1, 2, 3):
        check(source, arguments(steps=steps))
    for shape in ((1, 6), (5, 1), (2, 2), *(((0, 3),) if "N - 1, j]" not in source else ())):
        check(source, arguments(*shape))


@pytest.mark.parametrize(
    "source",
    [SHRINKING, FEW, PIVOTS, POINTWISE, OTHER_RIM, UNFINISHED],
    ids=["other elements each time", "few steps", "pivots", "pointwise", "another rim", "read before it is written"],
)
def test_others_stay_in_place(source: str) -> None:
    values = arguments(6, 6, 2)
    assert "//2" not in graph_text(check(source, values))


def test_two_values_back() -> None:
    """Levels of time take turns (rules/recurrences/levels_in_turn.py)."""
    assert "//2" in graph_text(check(HISTORY, arguments(6, 6, 2)))


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_compiled(every: int) -> None:
    """With time tiles, too, and an odd step that is left."""
    cases = ((9, (300, 260)), (6, (130, 150)), (1, (40, 33)), (0, (5, 6)))
    for number, text in enumerate(
        (
            SWEEPS.format(range="T"),
            SWEEPS.format(range="2, 3 * T + 1, 3"),
            COPIED,
            TWO,
            NESTED,
            COPIED_BACK,
            COPIED_FIRST,
        )[::every]
    ):
        program = polyml.einsum(text, threads=2)
        steps, shape = cases[number % len(cases)]
        x = np.random.default_rng(1).random(shape)
        made = program(steps, 0.2, x.copy())
        expected = execute(graph(program.program, steps, 0.2, x), [0.2, x.copy()], sizes={"T": steps})[0]
        np.testing.assert_allclose(made, expected, rtol=1e-12, atol=1e-12)
