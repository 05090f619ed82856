"""Quotients by one number for all elements: a factor of that kind is divided in their place, where no rounding is added."""

from __future__ import annotations

import numpy as np
import pytest

import polyml as pm
from polyml.testing.verify import verify


def body(right: str, **options: object) -> str:
    """What the graph has for it; its values are compared with the interpreter's."""
    program = pm.einsum(
        f'def f(u: f64["N"], v: f64["N"], a: f64, b: f64, c: f64["4"]):\n    y[i] = {right}\n    return y\n', **options
    )
    rng = np.random.default_rng(3)
    values = [1 + rng.random(9), rng.random(9), 1 + rng.random(), 1 + rng.random(), 1 + rng.random(4)]
    assert verify(program, *values)
    text = program.lower(*values).text("graph")
    return (
        next(line for line in text.splitlines() if line.startswith("    y[i] = ")).split(" = ", 1)[1].split("   for")[0]
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("right", "made"),
    [
        ("u[i] * a / b * (u[i] - v[i])", "u[i] * (a / b) * (u[i] - v[i])"),
        ("a * (u[i] - v[i]) / (2 * b)", "a / (2 * b) * (u[i] - v[i])"),
        ("(u[i] * a + v[i] * b) / c[0]", "u[i] * (a / c[0]) + v[i] * (b / c[0])"),
        ("-(u[i] * a - v[i] * c[1]) / c[2]", "-(u[i] * (a / c[2]) - v[i] * (c[1] / c[2]))"),
        ("u[i] * 0.3 / a", "u[i] * (0.3 / a)"),
        ("u[i] / a / b", "u[i] / (a * b)"),
        ("max(u[i] * a / b, 1)", "max(u[i] * (a / b), 1)"),
    ],
)
@pytest.mark.few(5)
def test_factors_are_divided(right: str, made: str, dynamic: bool) -> None:
    assert body(right, dynamic=dynamic) == made
    assert body(right, dynamic=dynamic, precise=True) != made


@pytest.mark.parametrize(
    "right",
    [
        "u[i] / a",
        "u[i] * 3 / a",
        "u[i] * 0.5 / a",
        "(u[i] * a + v[i]) / b",
        "u[i] * a / v[i]",
        "floor(u[i] * a / b)",
        "where(u[i] * a / b < 1, 1, 2)",
    ],
)
@pytest.mark.some(4)
def test_quotients_stay_where_another_rounding_would_follow_or_tell(right: str) -> None:
    assert body(right) == right


def test_what_depends_on_an_index_of_a_sum_is_no_factor_for_all() -> None:
    text = pm.einsum("""
        def f(u: f64["N K"], a: f64["K"], b: f64):
            y[i] = max[k](u[i, k] * a[k] / b)
            return y
    """).lower(np.ones((3, 4)), np.ones(4), 2.0)
    assert "u[i, k] * a[k] / b" in text.text("graph")


@pytest.mark.parametrize(
    "right",
    [
        "u[i] * a / b - floor(u[i] * a / b)",
        "where(u[i] * a / b >= c[0], sqrt(u[i] * a / b - c[0]), 0)",
        "where(max[n](u[n] * a / b) == u[i] * a / b, 1, 0)",
    ],
)
def test_the_same_quotient_is_the_same_number_everywhere(right: str) -> None:
    text = pm.einsum(f"""
        def f(u: f64["N"], a: f64, b: f64, c: f64["4"]):
            y[i] = {right}
            return y
    """).lower(np.ones(9), 1.0, 2.0, np.ones(4))
    assert "a / b" in text.text("graph")
    assert "(a / b)" not in text.text("graph")
