"""Products of several complex factors are added up as sums within sums, and the values stay those of one sum."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from polyml import einsum
from polyml.graph.builder.program import build
from polyml.graph.ir import Equation, Graph
from polyml.graph.traverse import all_ops
from polyml.graph.verify import verify
from polyml.testing import verify as check
from tests.graph.built import program, signature

CONJUGATED = ("u: c128['N N'], r: c128['N N']", "y[i, j] = u[i, k] * r[k, l] * conj(u[j, l])", "return y")
ENVIRONMENT = (
    "l: c64['D W D'], a: c64['D S D'], w: c64['W W S S']",
    "y[x, v, y2] = l[c, u, d] * a[c, s, x] * w[u, v, s, t] * conj(a[d, t, y2])",
    "return y",
)


def complexes(*shape: int, dtype: str = "c16") -> np.ndarray:
    rng = np.random.default_rng(prod(shape))
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def built(lines: tuple[str, ...], *arguments: np.ndarray, reorders: bool = True) -> Graph:
    source = program(*lines)
    found = build(source, signature(source, *arguments), reorders=reorders)
    verify(found)
    return found


def most_indices(graph: Graph) -> int:
    return max(len(op.indices) for op in all_ops(graph.ops) if isinstance(op, Equation))


def test_no_sum_runs_over_all_indices() -> None:
    matrices = complexes(9, 9), complexes(9, 9)
    assert most_indices(built(CONJUGATED, *matrices)) == 3
    assert most_indices(built(CONJUGATED, *matrices, reorders=False)) == 4
    scaled = (CONJUGATED[0], "y[i, j] = -1j * u[i, k] * (2 * r[k, l]) * conj(u[j, l])", "return y")
    assert most_indices(built(scaled, *matrices)) == 3
    tensors = complexes(9, 3, 9, dtype="c8"), complexes(9, 2, 9, dtype="c8"), complexes(3, 3, 2, 2, dtype="c8")
    assert most_indices(built(ENVIRONMENT, *tensors)) <= 6
    assert most_indices(built(ENVIRONMENT, *tensors, reorders=False)) == 8


@pytest.mark.parametrize(
    "lines",
    [
        ("u: c128['N N'], r: c128['N N']", "y[i, j] = u[i, k] * where(k < l, r[k, l], 0) * conj(u[j, l])", "return y"),
        ("u: c128['N N'], r: c128['N N']", "y[i, j] = sum[k, l, k <= l](u[i, k] * r[k, l] * u[j, l])", "return y"),
        ("u: c128['N N'], r: c128['N N']", "y[i, j] = real(u[i, k]) * r[k, l] * abs(u[j, l])", "return y"),
    ],
    ids=["where", "condition", "one complex factor"],
)
def test_sums_that_stay(lines: tuple[str, ...]) -> None:
    """Conditions say what may be skipped, and products with one complex factor are real ones, which a rule puts in order."""
    matrices = complexes(9, 9), complexes(9, 9)
    assert most_indices(built(lines, *matrices)) == most_indices(built(lines, *matrices, reorders=False)) == 4


def test_factors_of_another_type_are_not_added_up_in_it() -> None:
    """Two factors of 8 bits, or of f32 beside c128, would wrap or be rounded in a sum of their own."""
    for dtype in ("i1", "f4"):
        text = {"i1": "i8", "f4": "f32"}[dtype]
        lines = (
            f"a: {text}['N N'], b: {text}['N N'], c: c128['N N'], d: c128['N N']",
            "y[i, m] = a[i, j] * b[j, k] * c[k, l] * d[l, m]",
            "return y",
        )
        arguments = *(np.full((9, 9), 100 + k, dtype) for k in range(2)), complexes(9, 9), complexes(9, 9)
        assert most_indices(built(lines, *arguments)) == 5
        assert check(f"def f({lines[0]}):\n    {lines[1]}\n    return y\n", *(a[:4, :4] for a in arguments))


@pytest.mark.parametrize(
    ("body", "shapes"),
    [
        ("y[i, j] = u[i, k] * r[k, l] * conj(u[j, l])", [(7, 7), (7, 7)]),
        ("y[i, j] = 1j * r[k, l] - u[i, k] * r[k, l] * u[l, j] + r[i, j]", [(5, 5), (5, 5)]),
        ("y[i, j] = u[i, k] * (2 - r[k, l]) * exp(1j * u[l, j]) / 3", [(5, 5), (5, 5)]),
        ("y[i, j] = -1j * u[i, k] * r[k, l] * conj(u[j, l]) - 0.5 * u[i, k] * u[k, l] * r[l, j]", [(5, 5), (5, 5)]),
        ("y[i] = u[i, k] * r[k, l] * u[l, m] * r[m, n] * u[n, i]", [(4, 4), (4, 4)]),
        ("y = sum[i, j](conj(u[0, i]) * r[i, j] * u[0, j])", [(8, 8), (8, 8)]),
        ("y[i, j] = sum[k](u[i, k] * u[k, 0] * r[j, 1])", [(6, 6), (6, 6)]),
        ("y[i, j] = u[i, k] * r[k, l] * u[j, l] * (k + 2 * l)", [(1, 1), (1, 1)]),
        ("y[i, j] = u[i, k] * r[k, l] * u[j, l]", [(0, 0), (0, 0)]),
    ],
)
@pytest.mark.few(1)
def test_values(body: str, shapes: list[tuple[int, int]]) -> None:
    text = f"def f(u: c128['N N'], r: c128['N N']):\n    {body}\n    return y\n"
    assert check(text, *(complexes(*shape) for shape in shapes))


def test_updates_loops_and_guards() -> None:
    text = """
def f(u: c128["N N"], r: c128["N N"], y: c128["N N"]):
    for t in range(3):
        y[i, j] += u[i, k] * y[k, l] * conj(u[j, l])
        if i < j:
            y[i, j] = sum[k, l](u[i, k] * r[k, l] * y[l, t])
        if k < 3:
            y[i, j] -= u[i, k] * r[k, l] * r[l, j]
    return y
"""
    assert check(text, complexes(5, 5) / 9, complexes(5, 5), complexes(5, 5))


def test_the_written_order_is_kept_where_it_is_asked_for() -> None:
    u, r = complexes(24, 24), complexes(24, 24)
    text = "def f(u: c128['N N'], r: c128['N N']):\n    y[i, j] = u[i, k] * r[k, l] * conj(u[j, l])\n    return y\n"
    quick, precise = einsum(text), einsum(text, precise=True)
    assert most_indices(quick.lower(u, r).stages.graph) == 3
    assert most_indices(precise.lower(u, r).stages.graph) == 4
    assert np.allclose(quick(u, r), u @ r @ u.conj().T)
    assert np.allclose(precise(u, r), u @ r @ u.conj().T)
    bound = quick.bind(u=u)
    assert np.allclose(bound(r), u @ r @ u.conj().T)
