"""Levels of time that move on by copies, or that are a history whose end alone is seen, take turns in as many places as steps need; results are the same bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.resolve import resolve
from polyml.graph.ir import Graph, Loop
from polyml.graph.printer import graph_text
from polyml.graph.reference import execute
from polyml.graph.rules.recurrences.levels_in_turn import turn_levels
from polyml.graph.traverse import all_ops
from polyml.graph.verify import verify
from polyml.source import Source
from tests.graph.built import graph
from tests.pairs import pairwise
from tests.sampled import in_turn

Array = npt.NDArray[np.float64]

COPIES = """
def f(p: f64["N M"], q: f64["N M"], T: int):
    a: f64["N M"]
    b: f64["N M"]
    a[i, j] = p[i, j]
    b[i, j] = q[i, j]
    for t in range(T):
        c: f64["N M"] = 0
        if 0 < i < N - 1 and 0 < j < M - 1:
            c[i, j] = 2 * b[i, j] - a[i, j] + 0.25 * (b[i-1, j] + b[i+1, j] + b[i, j-1] + b[i, j+1]) + t
        a[i, j] = b[i, j]
        b[i, j] = c[i, j]
    return b
"""
KEPT = COPIES.replace('c: f64["N M"] = 0', 'c: f64["N M"]\n        c[i, j] = b[i, j]')
HISTORY = """
def f(p: f64["N M"], q: f64["N M"], T: int):
    v: f64["T+2 N M"] = 3
    v[0, i, j] = p[i, j]
    v[1, i, j] = q[i, j]
    for t in range(2, T + 2):
        if 0 < i < N - 1 and 0 < j < M - 1:
            v[t, i, j] = 2 * v[t-1, i, j] - v[t-2, i, j] + 0.25 * (v[t-1, i-1, j] + v[t-1, i+1, j] + v[t-1, i, j-1]) + t
    y[i, j] = v[T + 1, i, j]
    return y
"""
ONE_LEVEL = """
def f(p: f64["N M"], q: f64["N M"], T: int):
    v: f64["N T+1 M"] = 0
    v[i, 0, j] = p[i, j]
    for t in range(T):
        if 0 < i < N - 1 and 0 < j < M - 1:
            v[i, t+1, j] = 0.25 * (v[i-1, t, j] + v[i+1, t, j] + v[i, t, j-1] + v[i, t, j+1]) + q[i, j]
    y[i, j] = 2 * v[i, T, j]
    return y
"""
TWO_FIELDS = """
def f(p: f64["N M"], q: f64["N M"], T: int):
    U: f64["N M"]
    V: f64["N M"]
    U[i, j] = p[i, j]
    V[i, j] = q[i, j]
    for t in range(T):
        P: f64["N M"] = 1
        Q: f64["N M"]
        Q[i, j] = V[i, j]
        if 0 < i < N - 1:
            P[i, j] = U[i-1, j] + U[i+1, j] - V[i, j]
            Q[i, j] = V[i-1, j] + V[i+1, j] - U[i, j]
        U[i, j] = P[i, j]
        V[i, j] = Q[i, j]
    return U, V
"""
PROGRAMS = {"copies": COPIES, "kept": KEPT, "history": HISTORY, "one level": ONE_LEVEL, "two fields": TWO_FIELDS}


def arguments(n: int = 6, m: int = 7) -> list[Array]:
    rng = np.random.default_rng(n + m)
    return [rng.integers(-9, 9, (n, m)).astype(float) for _ in range(2)]


def plain(source: str, values: list[Array]) -> Graph:
    return graph(resolve(parse(Source(source)), {}), *values, 9)


def turned(made: Graph) -> bool:
    return any(isinstance(op, Loop) and op.variable.endswith("_pair") for op in all_ops(made.ops))


def check(source: str, values: list[Array], steps: int) -> bool:
    """Whether levels take turns; the results are those of the program as written, to the last bit."""
    before = plain(source, values)
    made = turn_levels(before)
    verify(made)
    for one, other in zip(
        execute(made, values, sizes={"T": steps}), execute(before, values, sizes={"T": steps}), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    return turned(made)


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS.keys())
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 8, 9])
@pytest.mark.few(6)
def test_turned(source: str, steps: int) -> None:
    assert check(source, arguments(), steps)


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (COPIES, "- a[i, j]", "- a[i-1, j]"),  # read beside where it is written
        (COPIES, "return b", "return b, a"),
        (COPIES, "(b[i-1, j] + b[i+1, j] + b[i, j-1] + b[i, j+1])", "b[i, j]"),  # nothing but itself
        (COPIES, "a[i, j] = b[i, j]\n        b", "a[i, j] = b[i, j] + 1\n        b"),
        (COPIES, "0 < i < N", "t < i < N"),  # others in each step
        (COPIES, 'c: f64["N M"] = 0', 'c: f64["N M"]\n        c[i, j] = t'),
        (HISTORY, "v[T + 1, i, j]", "v[T, i, j]"),
        (HISTORY, "return y", "return y, v"),
        (HISTORY, "y[i, j] =", "y[i, j] = v[0, i, j] + "),
        (HISTORY, "v[t-2, i, j]", "v[0, i, j]"),
        (HISTORY, "v[t-2, i, j]", "v[t-2, i, j+1]"),
        (HISTORY, "    for t", "    v[T+1, 0, 0] = 5\n    for t"),  # a level that is there from the start
        (ONE_LEVEL, "v[i, 0, j] =", "v[i, T, j] ="),
    ],
)
@pytest.mark.few(5)
def test_not_turned(source: str, old: str, new: str) -> None:
    assert old in source
    assert not check(source.replace(old, new), arguments(), 9)


def test_few_steps_are_not_worth_it() -> None:
    assert not check(COPIES.replace("range(T)", "range(7)"), arguments(), 0)
    for steps in (8, 9):
        assert check(COPIES.replace("range(T)", f"range({steps})"), arguments(), 0)
        assert check(KEPT.replace("range(T)", f"range({steps})"), arguments(), 0)


def test_backwards() -> None:
    assert check(COPIES.replace("range(T)", "range(T, 0, -1)"), arguments(), 9)
    assert check(COPIES.replace("range(T)", "range(1, T, 3)"), arguments(), 9)


@pairwise(("source", PROGRAMS.values()), ("steps", [0, 1, 2, 9, 30]), ("size", [(3, 3), (20, 50), (70, 33)]))
@pytest.mark.few(2)
def test_results(source: str, steps: int, size: tuple[int, int]) -> None:
    check_steps(source, arguments(*size), steps, dynamic=False)


@pytest.mark.parametrize(("name", "numbers"), in_turn(PROGRAMS, ((0, 30), (9, 1))))
@pytest.mark.few(1)
def test_any_size(name: str, numbers: tuple[int, int]) -> None:
    """Kernels whose first call has no steps, and some."""
    check_steps(PROGRAMS[name], arguments(40, 50), *numbers, dynamic=True)


def check_steps(source: str, values: list[Array], *numbers: int, dynamic: bool) -> None:
    program = polyml.einsum(source, dynamic=dynamic)
    for steps in numbers:
        found = program(*values, steps)
        expected = execute(plain(source, values), values, sizes={"T": steps})
        for one, other in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)


def test_elements_beside() -> None:
    """The frame that no step makes is filled once, in place."""
    text = graph_text(turn_levels(plain(HISTORY, arguments())))
    assert "(i0 = 0 and 0 <= i1 < 7)" in text
    assert "(i1 = 6 and 0 < i0 < 5)" in text or "(i1 = 6 and 0 <= i0 < 6)" in text


def test_no_copies_are_left() -> None:
    values = arguments(40, 50)
    text = polyml.einsum(HISTORY, threads=1).lower(*values, 30).text("loops")
    assert "T + 2, 40" not in text
