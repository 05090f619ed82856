"""Powers by an index: sums of them by Horner's rule, and results that are told apart by them as products."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml as pm
from polyml.testing.verify import verify

SHAPES = {"c": (8,), "d": (3, 4), "m": (7, 6), "w": (130, 6), "x": (130,), "z": (130,)}


def program(right: str, left: str = "y[n]", **options: object) -> tuple[pm.Program, list[np.ndarray]]:
    """Of those operands that the right side names, with random numbers."""
    rng = np.random.default_rng(3)
    names = [name for name in SHAPES if re.search(rf"\b{name}\b", right)]
    types = {"c": "8", "d": "3 4", "m": "M 6", "w": "N 6", "x": "N", "z": "N"}
    parameters = ", ".join(f'{name}: f64["{types[name]}"]' for name in names)
    source = f"def f({parameters}):\n    {left} = {right}\n    return {left.split('[')[0]}\n"
    return pm.einsum(source, **options), [rng.standard_normal(SHAPES[name]) for name in names]


def powers(right: str, left: str = "y[n]", **options: object) -> int:
    """Powers that are left in the graph, squares and the like aside."""
    made, values = program(right, left, **options)
    text = made.lower(*values).text("graph")
    assert verify(made, *values)
    return len(re.findall(r"\*\* f64", text))


@pytest.mark.parametrize(
    ("right", "left"),
    [
        ("sum[k](c[k] * x[n]**k)", "y[n]"),
        ("sum[k](c[k] * x[n]**(7 - k))", "y[n]"),
        ("sum[k](2 * x[n]**(2*k + 1) * c[k])", "y[n]"),
        ("sum[i, j](d[i, j] * x[n]**i * z[n]**j)", "y[n]"),
        ("sum[k](w[n, k] * (x[n] - 1)**k)", "y[n]"),
        ("sum[k](m[i, k] * x[n]**k)", "y[i, n]"),
        ("sum[k < 7](x[n]**k)", "y[n]"),
        ("sum[k, n](c[k] * x[n]**k)", "s"),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.few(1)
def test_sums(right: str, left: str, dynamic: bool) -> None:
    assert powers(right, left, dynamic=dynamic) == 0
    assert dynamic or powers(right, left, precise=True) > 0


@pytest.mark.parametrize(
    "right",
    [
        "sum[k < 18](x[n]**k)",  # powers of which each factor rounds
        "sum[k](c[k] * x[n]**(k - 1))",  # quotients
        "sum[k](c[k] * (x[n] + k)**k)",
        "sum[k](c[k] * exp(x[n] * 0.1)**k)",  # evaluated in each term
        "max[k](c[k] * x[n]**k)",
        "sum[k, k <= n](c[k] * x[n]**k)",  # fewer terms in some rows
    ],
)
@pytest.mark.few(1)
def test_left_alone(right: str) -> None:
    assert powers(right) > 0


def test_written_out() -> None:
    made, values = program("sum[k](d[k, 0] * x[n]**(3*k))")
    assert "(d[2, 0] * x[n] ** 3 + d[1, 0]) * x[n] ** 3 + d[0, 0]" in made.lower(*values).text("graph")


@pytest.mark.parametrize("count", [2, 5, 8])
def test_powers_of_an_index_of_the_result(count: int) -> None:
    """Each is an equation of products, put between the others in whole vectors."""
    source = f'def f(x: f32["N"]):\n    y: f32["N {count}"]\n    y[n, k] = x[n]**({count - 1} - k)\n    return y\n'
    x = np.random.default_rng(0).standard_normal(2500).astype("f4")
    x[7] = np.nan
    made = pm.einsum(source, target=pm.Target("x86-64-v4"), threads=1)
    assert "exp" not in made.lower(x).text("llvm")
    assert "scatter" not in made.lower(x).text("llvm")
    found = pm.einsum(source)(x)
    np.testing.assert_allclose(found, np.vander(x.astype("f8"), count), rtol=8 * 2**-23)
    np.testing.assert_array_equal(found[:, -1], 1)  # of NaN, too
