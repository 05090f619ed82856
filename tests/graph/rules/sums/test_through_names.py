"""Products of sums with names: which are multiplied in another order, and that the values are the same."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.graph.printer import graph_text
from polyml.graph.reference import execute
from polyml.graph.rewrite import rewrite
from polyml.graph.rules.table import RewriteOptions
from polyml.graph.verify import verify
from tests.graph.built import graph, program, values

LOW_RANK = ("w[n, m] = a[n, r] * b[r, m]", "y[i, m] = x[i, n] * w[n, m]")
TURNED = ("w[m, n] = a[n, r] * b[r, m]", "y[m, i] = w[m, n] * x[i, n]")
PARAMETERS = 'x: f64["I N"], a: f64["N R"], b: f64["R M"]'
SHAPES = ((20, 50), (50, 3), (3, 60))


def text(lines: tuple[str, ...], shapes: tuple[tuple[int, ...], ...] = SHAPES, **options: object) -> str:
    arguments = [np.round(4 * values(*shape, dtype="f8")) for shape in shapes]
    made = graph(program(PARAMETERS, *lines), *arguments)
    found = rewrite(made, RewriteOptions(l2_bytes=1 << 16, vector_bytes=64, **options))  # type: ignore[arg-type]
    verify(found)
    for one, other in zip(execute(found, arguments), execute(made, arguments), strict=True):
        np.testing.assert_array_equal(one, other)
    return graph_text(found)


@pytest.mark.parametrize("lines", [LOW_RANK, TURNED])
def test_a_factor_of_low_rank_is_no_matrix(lines: tuple[str, ...]) -> None:
    found = text((*lines, "return y"))
    assert "y_inner" in found
    assert "w[" not in found
    assert "w[" in text((*lines, "return y"), precise=True)


def test_names_that_are_needed_or_cheap_stay() -> None:
    assert "w[" in text((*LOW_RANK, "return y, w"))
    assert "w[" in text((LOW_RANK[0], "y[i, m] = x[i, n] * w[n, m] + w[0, m]", "return y"))
    assert "w[" in text((LOW_RANK[0], "y[i, m] = x[i, n] * max(w[n, m], 0.0)", "return y"))
    assert "w[" in text((LOW_RANK[0], "y[m] = w[n, m] * w[n, m] * x[0, n]", "return y"))
    assert "w[" in text((*LOW_RANK, "return y"), ((60, 50), (50, 40), (40, 60)))
    assert "w[" in text((*LOW_RANK, "return y"), constants=frozenset("ab"))


def test_a_chain_times_a_vector() -> None:
    function = polyml.einsum(
        'def f(a: f64["N N"], b: f64["N N"], c: f64["N N"], v: f64["N"]):\n    t[i, j] = a[i, k] * b[k, j]\n'
        "    u[i, j] = t[i, k] * c[k, j]\n    y[i] = u[i, j] * v[j]\n    return y\n"
    )
    a, b, c = (np.round(4 * values(40, 40, dtype="f8")) for _ in range(3))
    v = np.arange(40.0)
    np.testing.assert_array_equal(function(a, b, c, v), a @ (b @ (c @ v)))
    shown = graph_text(function.lower(a, b, c, v).stages.graph)
    assert "t[" not in shown
    assert "u[" not in shown
