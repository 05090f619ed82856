"""Recurrences that run alike in all iterations around them run once, and only those."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from benchmarks.polybench import KERNELS
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.resolve import resolve
from polyml.graph.ir import Graph
from polyml.graph.printer import graph_text
from polyml.graph.reference import execute
from polyml.graph.rewrite import rewrite
from polyml.graph.rules.table import RewriteOptions
from polyml.graph.verify import verify
from polyml.source import Source
from tests.graph.built import Argument, graph

SWEEPS = """
def f(T: int, a: f64, x: f64["N M"]):
    p: f64["N M"] = 0
    for t in range(T):
        for i in range(N):
            p[i, 0] = 0.5
            for j in range(1, M):
                p[i, j] = 1 / (a * p[i, j - 1] + 2)
                x[i, j] = x[i, j] + x[i, j - 1] * p[i, j - 1]
    return x
"""
LOCAL = """
def f(T: int, a: f64, x: f64["N M"]):
    for t in range(T):
        for i in range(N):
            p: f64["M"] = 3
            for j in range(M - 2, -1, -1):
                p[j] = a * p[j + 1] + 1
                x[i, j] = x[i, j] + p[j] * x[i, j + 1]
    return x
"""
TOGETHER = """
def f(T: int, a: f64, x: f64["N M"]):
    p: f64["N M"] = 0
    for t in range(T):
        p[i, 0] = 1
        for j in range(1, M):
            p[i, j] = a * p[i, j - 1] + j
            x[i, j] = x[i, j] + p[i, j]
    return x
"""
PLANES = """
def f(T: int, a: f64, x: f64["N M"]):
    p: f64["N M M"] = 0
    for t in range(T):
        for i in range(N):
            for k in range(M):
                p[i, k, 0] = k
                for j in range(1, M):
                    p[i, k, j] = p[i, k, j - 1] * a + k
                x[i, k] = x[i, k] + p[i, k, M - 1]
    return x
"""


def built(source: str, *arguments: Argument) -> Graph:
    return rewrite(graph(resolve(parse(Source(source)), {}), *arguments), RewriteOptions(precise=True))


def arguments(n: int = 4, m: int = 6, steps: int = 3) -> tuple[Argument, ...]:
    return steps, 0.25, np.random.default_rng(0).random((n, m))


def ahead(made: Graph) -> str:
    """What stands ahead of the loops over t."""
    return graph_text(made).split("for t in")[0]


def run(made: Graph, values: tuple[Argument, ...]) -> object:
    steps, a, x = values
    assert isinstance(steps, int)
    assert isinstance(x, np.ndarray)
    return execute(made, [a, x.copy()], sizes={"T": steps})[0]


def check(source: str, values: tuple[Argument, ...]) -> Graph:
    """The rewritten graph, which gives what the one as written does, to the last bit."""
    made = built(source, *values)
    verify(made)
    plain = graph(resolve(parse(Source(source)), {}), *values)
    np.testing.assert_array_equal(run(made, values), run(plain, values))
    return made


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (SWEEPS, "p_once_5[j] = 1 / (a * p_once_3[j - 1] + 2)   in p_once_3   for T > 0"),
        (LOCAL, "p_once_4[j] = a * p_once_2[j + 1] + 1"),
        (TOGETHER, "p_once_5[j] = a * p_once_3[j - 1] + f64(j)"),
        (PLANES, "p_once_7[k, j] = p_once_5[k, j - 1] * a + f64(k)"),
    ],
    ids=["loops", "local", "rows together", "two variables left"],
)
def test_once(source: str, expected: str) -> None:
    made = check(source, arguments())
    assert expected in ahead(made)
    assert graph_text(made).count("p_once") > ahead(made).count("p_once")
    for values in (arguments(1, 6), arguments(4, 2), arguments(4, 6, 0), arguments(0, 6)):
        check(source, values)


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (SWEEPS, "p[i, 0] = 0.5", "p[i, 0] = i + t"),
        (SWEEPS, "p[i, 0] = 0.5", "p[i, 0] = x[i, 0]"),
        (SWEEPS, "            p[i, 0] = 0.5\n", ""),  # zeros from before the loops
        (SWEEPS, "+ 2)", "+ 2 + t)"),
        (SWEEPS, "+ 2)", "+ 2 + x[i, j - 1])"),
        (SWEEPS, "a * p[i, j - 1] + 2)", "a * p[i, j - 1] + p[i, j] + 2)"),  # of the step before
        (SWEEPS, "p[i, j] = 1", "p[i, j - 1] = 3.0\n                p[i, j] = 1"),  # made twice
        (SWEEPS, "* p[i, j - 1]\n", "* p[N - 1 - i, j - 1]\n"),
        (SWEEPS, "return x", "return x, p"),
        (SWEEPS, "range(1, M)", "range(1, i + 1)"),
        (LOCAL, "p[j] = a", "p[0] = a"),
        (LOCAL, "* x[i, j + 1]", "* x[i, j + 1] + p[0]"),  # before it is made
    ],
)
def test_not_once(source: str, old: str, new: str) -> None:
    assert old in source
    made = check(source.replace(old, new), arguments())
    assert "p_once" not in graph_text(made)


def test_some_loops_matter() -> None:
    assert "[i, 0] = f64(i)" in ahead(check(SWEEPS.replace("p[i, 0] = 0.5", "p[i, 0] = i"), arguments()))


def test_parts_of_a_life() -> None:
    """Each sweep has factors of its own in the same memory; what depends on data in between stays."""
    second = SWEEPS.replace("p[i, 0] = 0.5", "p[i, 0] = x[i, 0]").split("for t in range(T):")[1].split("    return")[0]
    source = SWEEPS.replace("    return x", second.strip("\n") + "\n    return x")
    made = check(source, arguments())
    assert "p_once" in ahead(made)
    assert "p[i0, i1] = 0" in ahead(made)


def test_alternating_directions() -> None:
    """The factors of adi's systems are two vectors, whatever the number of rows and steps."""
    u = np.random.default_rng(0).random((9, 9))
    lowered = polyml.einsum(KERNELS["adi"].text).lower(3, u)
    assert "p: " not in lowered.explain()
    assert "-a / (a * p_once" in lowered.text("graph")
