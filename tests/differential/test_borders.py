"""Subscripts that `min`, `max` and `%` keep inside, alone and in windows, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyml
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.errors import NotAffineError, UnboundedDomainError
from polyml.source import Source
from polyml.testing import verify


def _same(text: str, *arguments: object, **options: object) -> None:
    wanted = interpret(parse(Source(text)), *arguments)
    found = polyml.einsum(text, **options)(*arguments)  # type: ignore[call-overload]
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-12, atol=1e-12)


def _kept_inside(place: str, extent: str) -> st.SearchStrategy[str]:
    """`place` may be -2 to extent + 1."""
    return st.sampled_from(
        [
            f"min(max({place}, 0), {extent} - 1)",
            f"max(min({place}, {extent} - 1), 0)",
            f"({place}) % {extent}",
            f"min({extent} - 1, max({place}, 0), 2 * {extent})",
            f"{extent} - 1 - min(max({place}, 0), {extent} - 1)",
        ]
    )


@given(
    row=_kept_inside("i + r - 2", "N"),
    column=_kept_inside("j + s - 2", "M"),
    body=st.sampled_from(["sum[r, s]({} * w[r, s])", "max[r, s]({} - w[r, s])", "sum[r, s](exp({}) * w[r, s])"]),
    shape=st.sampled_from([(1, 1), (2, 5), (7, 3), (3, 18)]),
    dynamic=st.booleans(),
)
@settings(max_examples=4, deadline=None)
def test_windows_at_borders(row: str, column: str, body: str, shape: tuple[int, int], dynamic: bool) -> None:
    text = f"""
def f(x: f64["N M"], w: f64["5 4"]):
    y: f64["N M"]
    y[i, j] = {body.format(f"x[{row}, {column}]")}
    return y
"""
    rng = np.random.default_rng(3)
    _same(text, rng.standard_normal(shape), rng.standard_normal((5, 4)), dynamic=dynamic and "%" not in text)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("count", [1, 2, 19])
@pytest.mark.few(3)
def test_neighbours(count: int, dynamic: bool) -> None:
    text = """
def f(x: f64["N"], q: i64["N"]):
    y[i] = x[i] - 0.5 * x[max(i - 1, 0)] - 0.5 * x[min(i + 1, N - 1)] + x[min(max(q[i], 0), N - 1)]
    return y
"""
    rng = np.random.default_rng(2)
    _same(text, rng.standard_normal(count), rng.integers(-3, count + 3, count), dynamic=dynamic)


def test_a_border_is_stored_once() -> None:
    text = """
def f(x: f32["N M"]):
    y: f32["N M"]
    y[i, j] = max[r, s, 0 <= r < 3, 0 <= s < 3](x[min(max(i + r - 1, 0), N - 1), (j + s - 1) % M])
    return y
"""
    graph = str(polyml.einsum(text).trace(np.zeros((20, 40), np.float32)))
    assert "x_with_border[i + r, j + s]" in graph, "the windows read a copy"
    assert "where(" in graph.partition("x_with_border[i + r")[0], "which has the cases"
    few = text.replace("0 <= r < 3, 0 <= s < 3", "0 <= r < 1, 0 <= s < 2")
    assert "with_border" not in str(polyml.einsum(few).trace(np.zeros((20, 40), np.float32))), "two uses do not pay"


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        ("x[min(i, 3)] += x[i]", NotAffineError, "a subscript is not affine"),
        ("y[i] = x[max(i - 1, 0)]", UnboundedDomainError, "the range of i"),
    ],
)
def test_refused(statement: str, error: type[Exception], message: str) -> None:
    text = f'def f(x: f32["N"]):\n    {statement}\n    return {statement[0]}\n'
    with pytest.raises(error, match=message):
        polyml.einsum(text)(np.ones(5, np.float32))


def test_borders_that_go_round_nothing() -> None:
    """A remainder by zero has no value, and none is asked for where the tensor is empty."""
    text = 'def f(x: f32["N K"]):\n    y: f32["N K"]\n    y[i, j] = sum[r < 3](x[(i + r - 1) % N, (j + r) % K])\n    return y\n'
    for shape in ((0, 3), (3, 0), (0, 0), (1, 1)):
        assert verify(text, np.ones(shape, np.float32))
        assert polyml.einsum(text)(np.ones(shape, np.float32)).shape == shape
