"""Sums over parts of a range become one where their operands do: what is joined, what is not, and the results."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.graph.ir import Equation, Graph
from polyml.graph.rules.sums import pieces

SYMMETRIC = """
def f(a: f64["N N"], b: f64["N M"]):
    c[i, j] = 2.0 * (sum[k, k <= i](a[i, k] * b[k, j]) + sum[k, k > i](a[k, i] * b[k, j]))
    return c
"""


def graph_of(source: str, *, columns: int = 40, **options: bool) -> str:
    a, b = np.ones((20, 20)), np.ones((20, columns))
    return str(polyml.einsum(source, **options).trace(a, b))


def test_halves_of_a_symmetric_matrix_become_one() -> None:
    text = graph_of(SYMMETRIC)
    assert "where(i - k >= 0, a[i, k], a[k, i])" in text
    assert text.count("= sum_") == 1
    assert "where" not in graph_of(SYMMETRIC, precise=True)
    assert "where" not in graph_of(SYMMETRIC, columns=8)  # hardly used


def test_halves_become_one_whatever_the_sizes_are() -> None:
    text = graph_of(SYMMETRIC, dynamic=True)
    assert "where(i - k >= 0, a[i, k], a[k, i])   for 0 <= i < N and 0 <= k < N" in text
    assert text.count("= sum_") == 1
    assert "where" not in graph_of(SYMMETRIC.replace("k > i", "k > i + 1"), dynamic=True)
    f, rng = polyml.einsum(SYMMETRIC, dynamic=True, verify=True), np.random.default_rng(0)
    for n, m in ((1, 1), (2, 40), (17, 9), (61, 33)):
        a, b = rng.standard_normal((n, n)), rng.standard_normal((n, m))
        assert np.allclose(f(a, b), 2 * (np.tril(a) + np.tril(a, -1).T) @ b), (n, m)
    assert len(f.kernels) == 1


def test_parts_of_a_range_up_to_a_size_stay_two_sums() -> None:
    """Where the condition names a size it is no pair of indices that the operand could be made for."""
    text = SYMMETRIC.replace("k <= i", "k < N - 5").replace("k > i", "k >= N - 5")
    f, rng = polyml.einsum(text, dynamic=True), np.random.default_rng(0)
    for n, m in ((1, 1), (7, 40), (61, 33)):
        a, b = rng.standard_normal((n, n)), rng.standard_normal((n, m))
        mixed = np.where(np.arange(n) < n - 5, a, a.T)
        assert np.allclose(f(a, b), 2 * mixed @ b), (n, m)
    assert "where" not in graph_of(text, dynamic=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("k > i", "k >= i"),  # the diagonal counts twice
        ("k > i", "k > i + 1"),  # something is left out
        ("a[k, i] * b[k, j]", "a[k, i] * b[i, j]"),  # no common factor
        (") + sum", ") - sum"),
    ],
)
def test_refused(old: str, new: str) -> None:
    assert "where" not in graph_of(SYMMETRIC.replace(old, new))


def test_a_sum_that_is_read_elsewhere_stays() -> None:
    text = """
def f(a: f64["N N"], b: f64["N M"]):
    s[i, j] = sum[k, k <= i](a[i, k] * b[k, j])
    c[i, j] = s[i, j] + sum[k, k > i](a[k, i] * b[k, j])
    return c, s
"""
    assert "where" not in graph_of(text)
    assert "where" in graph_of(text.replace("return c, s", "return c"))


def test_each_pair_of_many_sums_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An addition of additions is one of all their terms, and no chance for its terms to be paired again."""
    seen = []
    joined = pieces._joined

    def look(one: Equation, other: Equation, graph: Graph) -> object:
        seen.append((one.result.name, other.result.name))
        return joined(one, other, graph)

    monkeypatch.setattr(pieces, "_joined", look)
    terms = " + ".join(f"sum[i](x[i] ** {k})" for k in range(2, 10))
    polyml.einsum(f'def f(x: f64["N"]):\n    y = {terms}\n    return y\n').lower(np.ones(20))
    assert len(set(seen)) == 8 * 7 // 2
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("n", [1, 16, 61])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.few(3)
def test_results(n: int, side: str) -> None:
    """A symmetric matrix on either side; what its other half holds is not read as a number."""
    product = "a[i, k] * b[k, j]", "a[k, i] * b[k, j]"
    if side == "right":
        product = "b[i, k] * a[j, k]", "b[i, k] * a[k, j]"
    row = "i" if side == "left" else "j"
    text = f"""
def f(a: f64["N N"], b: f64["{"N M" if side == "left" else "M N"}"]):
    c[i, j] = sum[k, k <= {row}]({product[0]}) + sum[k, k > {row}]({product[1]})
    return c
"""
    rng = np.random.default_rng(0)
    lower = np.tril(rng.random((n, n)))
    b = rng.random((n, 83) if side == "left" else (83, n))
    whole = lower + np.tril(lower, -1).T
    lower[np.triu_indices(n, 1)] = np.nan
    found = polyml.einsum(text, threads=1)(lower, b)
    np.testing.assert_allclose(found, whole @ b if side == "left" else b @ whole, rtol=1e-12)


@pytest.mark.parametrize(
    "value",
    [
        "(u[i, j] + v[i, j]) * u[i, j]",
        "u[i, j] + v[i, j] - u[i, j]",
        "(u[i, j] + v[i, j]) * (u[i, j] + 2.0 * v[i, j])",
        "(u[i, j] + v[i, j]) * v[i, j]",
    ],
)
@pytest.mark.few(2)
def test_sums_of_which_one_is_used_by_itself_as_well_stay(value: str) -> None:
    text = f"""
def f(a: f64["N N"], b: f64["N M"]):
    u[i, j] = sum[k, k <= i](a[i, k] * b[k, j])
    v[i, j] = sum[k, k > i](a[k, i] * b[k, j])
    y[i, j] = {value}
    return y
"""
    rng = np.random.default_rng(0)
    a, b = rng.random((20, 20)), rng.random((20, 40))
    u, v = np.tril(a) @ b, np.tril(a, -1).T @ b
    np.testing.assert_allclose(polyml.einsum(text)(a, b), eval(value.replace("[i, j]", ""), {"u": u, "v": v}))
