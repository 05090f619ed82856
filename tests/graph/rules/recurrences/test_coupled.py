"""Recurrences that wait for each other along a row: one of them gets a form of its own, and only where that is a step of first order that sees the same elements."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.resolve import resolve
from polyml.graph.ir import Graph
from polyml.graph.printer import graph_text
from polyml.graph.reference import execute
from polyml.graph.rules.recurrences.coupled import decouple
from polyml.graph.verify import verify
from polyml.source import Source
from tests.graph.built import graph

Array = npt.NDArray[np.float64]

AFFINE_GAPS = """
def f(s: f64["N M"], o: f64, e: f64):
    H: f64["N+1 M+1"] = 0
    E: f64["N+1 M+1"] = -1e9
    F: f64["N+1 M+1"] = -1e9
    for i in range(1, N+1):
        for j in range(1, M+1):
            E[i, j] = max(E[i, j-1] - e, H[i, j-1] - o)
            F[i, j] = max(F[i-1, j] - e, H[i-1, j] - o)
            H[i, j] = max(0.0, H[i-1, j-1] + s[i-1, j-1], E[i, j], F[i, j])
    return H, E
"""
AHEAD = """
def f(s: f64["N M"], o: f64, e: f64):
    H: f64["N+1 M+2"] = 0
    E: f64["N+1 M+2"] = -1e9
    for i in range(1, N+1):
        for j in range(1, M+1):
            H[i, j] = max(0.0, H[i-1, j-1] + s[i-1, j-1], E[i, j])
            E[i, j+1] = max(E[i, j] - e, H[i, j] - o)
    return H, E
"""
BACKWARDS = """
def f(s: f64["N M"], o: f64, e: f64):
    H: f64["N+1 M+1"] = 0
    E: f64["N+1 M+1"] = 1e9
    for i in range(1, N+1):
        for j in range(M-1, -1, -1):
            E[i, j] = min(E[i, j+1] + e, H[i, j+1] + o)
            H[i, j] = min(H[i-1, j+1] + s[i-1, j], E[i, j], 9.0)
    return H, E
"""
SUMS = """
def f(s: f64["N M"], o: f64, e: f64):
    H: f64["N M+1"] = 0
    E: f64["N M+1"] = 0
    for i in range(N):
        for j in range(1, M+1):
            E[i, j] = 0.5 * E[i, j-1] - H[i, j-1]
            H[i, j] = s[i, j-1] - 0.5 * E[i, j]
    return H, E
"""
ONE_ROW = """
def f(s: f64["N M"], o: f64, e: f64):
    H: f64["M+1"] = 0
    E: f64["M+1"] = -1e9
    for j in range(1, M+1):
        E[j] = max(E[j-1] - e, H[j-1] - o)
        H[j] = max(s[0, j-1], E[j])
    return H, E
"""
INDICES = AFFINE_GAPS.replace("s[i-1, j-1], E", "where(j < M, s[i-1, j-1] + 0.5 * j, 2.0), E")
PROGRAMS = {
    "affine gaps": AFFINE_GAPS,
    "ahead": AHEAD,
    "backwards": BACKWARDS,
    "sums": SUMS,
    "one row": ONE_ROW,
    "indices": INDICES,
}


def built(source: str, *arguments: Array | float) -> Graph:
    return graph(resolve(parse(Source(source)), {}), *arguments)


def arguments(n: int = 4, m: int = 40) -> tuple[Array, float, float]:
    """Of which every sum of few is exact."""
    return np.random.default_rng(n + m).integers(-6, 6, (n, m)) / 2.0, 3.0, 1.0


def check(source: str, values: tuple[Array, float, float]) -> bool:
    """Whether the graph was rewritten, which then gives what the one as written does, to the last bit."""
    plain = built(source, *values)
    made = decouple(plain)
    verify(made)
    for one, other in zip(execute(made, list(values)), execute(plain, list(values)), strict=True):
        np.testing.assert_array_equal(one, other)
    return made is not plain


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_decoupled(source: str) -> None:
    assert check(source, arguments(4, 36 if source is SUMS else 40))
    assert check(source, arguments(1, 33))
    assert not check(source, arguments(4, 31))


def test_first_iterations() -> None:
    """The element before the first one is not what the loop would have made, and stands ahead where it is read."""
    assert "E_2[i, j - 1] - e" in graph_text(decouple(built(AFFINE_GAPS, *arguments())))
    assert "for j in range(2, 41)" in graph_text(decouple(built(AFFINE_GAPS, *arguments())))
    assert "for j in range(1, 41)" in graph_text(decouple(built(AHEAD, *arguments())))


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (AFFINE_GAPS, "H[i, j-1] - o", "H[i, j-1] * o"),  # a product within maxima
        (AFFINE_GAPS, "H[i, j-1] - o", "H[i-1, j-1] - o"),  # nothing waits
        (AFFINE_GAPS, "H[i, j-1] - o", "H[i, 0] - o"),
        (AFFINE_GAPS, "E[i, j], F", "E[i, j], H[i, j-1], F"),  # both wait for themselves
        (AFFINE_GAPS, "E[i, j], F", "E[i, j] + E[i, j-1], F"),
        (AFFINE_GAPS, "range(1, M+1)", "range(1, M+1, 2)"),
        # What H was made of has changed meanwhile.
        (AFFINE_GAPS, "            E[i, j] =", "            F[i, j-1] = F[i, j-1] + 1\n            E[i, j] ="),
    ],
)
@pytest.mark.few(1)
def test_not_decoupled(source: str, old: str, new: str) -> None:
    """What is none, or would see other elements."""
    assert old in source
    assert not check(source.replace(old, new), arguments())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("            E[i, j] =", "            H[i, j-1] = H[i, j-1] + 1\n            E[i, j] ="),
        ("            F[i", "            H[i-1, j] = H[i-1, j] + 1\n            F[i"),
    ],
)
@pytest.mark.few(1)
def test_elements_made_twice(old: str, new: str) -> None:
    assert check(AFFINE_GAPS.replace(old, new), arguments())


@pytest.mark.parametrize("made", ["max(H[j-1] - 1, E[j-1] - s[0])", "max(E[j-1] - s[0], H[j-1] - 1)"])
def test_one_read_of_two_steps(made: str) -> None:
    """H was made of the s of a step before, which is in the same place as the one that E is made of."""
    text = f"""
def f(D: f64["M"], x: f64["M"]):
    E: f64["M"] = 0
    H: f64["M"] = 0
    s: f64["1"] = 0
    for j in range(1, M):
        E[j] = {made}
        H[j] = max(D[j], E[j] + s[0])
        s[0] = x[j]
    return E, H
"""
    rng = np.random.default_rng(0)
    assert not check(text, (rng.standard_normal(40), rng.standard_normal(40)))


@cache
def of_any_size(source: str) -> polyml.Einsum:
    """One kernel for all sizes."""
    return polyml.einsum(source, dynamic=True)


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS.keys())
@pytest.mark.parametrize("size", [(1, 1), (3, 31), (2, 32), (5, 77), (9, 130)])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.few(2)
def test_results(source: str, size: tuple[int, int], dynamic: bool) -> None:
    values = arguments(*size)
    found = (of_any_size(source) if dynamic else polyml.einsum(source, dynamic=False))(*values)
    for one, other in zip(found, execute(built(source, *values), list(values)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_lanes() -> None:
    target = polyml.Target("x86-64-v3")
    assert "scan_max" in polyml.einsum(AFFINE_GAPS, target=target).lower(*arguments()).text("loops")
    assert "scan_max" not in polyml.einsum(AFFINE_GAPS, target=target, precise=True).lower(*arguments()).text("loops")
