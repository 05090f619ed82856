"""Sums with constant factors: what is combined, and what must stay as it was written."""

from __future__ import annotations

from time import thread_time

import numpy as np
import pytest

import polyml as pm

X = np.random.default_rng(5).standard_normal((3, 40))


def lowered_text(right: str, **options: object) -> str:
    program = pm.einsum(f'def f(x: f64["N"], y: f64["N"], z: f64["N"]):\n    r[i] = {right}\n    return r', **options)
    found = program(*X)
    x, y, z = X
    expected = eval(right.replace("[i]", ""), {"x": x, "y": y, "z": z, "sqrt": np.sqrt, "exp": np.exp})
    assert np.allclose(found, expected, rtol=1e-14, atol=1e-14)
    text = program.lower(*X).text("graph")
    line = next(line.strip() for line in text.splitlines() if line.strip().startswith("r[i] ="))
    return line.removeprefix("r[i] = ").split("   for ")[0]


@pytest.mark.parametrize(
    ("written", "combined"),
    [
        ("x[i] + 0.5 * (y[i] - 2 * x[i]) + 0.5 * (z[i] - 2 * x[i])", "0.5 * (y[i] + z[i]) - x[i]"),
        ("0.5 * (x[i] + y[i]) + 0.5 * (y[i] - z[i])", "y[i] + 0.5 * (x[i] - z[i])"),
        ("exp(0.2 * (x[i] + y[i] + z[i]) + 0.3 * (x[i] + y[i] + z[i]))", "exp(0.5 * (x[i] + y[i] + z[i]))"),
    ],
)
def test_combined(written: str, combined: str) -> None:
    assert lowered_text(written) == combined
    assert lowered_text(written, precise=True) != lowered_text(written)


@pytest.mark.parametrize(
    "written",
    [
        "x[i] + 0.5 * (y[i] - z[i])",  # nothing to save
        "0.25 * x[i] + 0.25 * y[i] - 0.25 * z[i]",  # two products go with the additions
        "x[i] - x[i] + 0.5 * (y[i] - z[i]) + 0.5 * y[i] + 0.5 * z[i]",  # the term that vanishes may be infinite
        "0.5 * x[i] * y[i] + 0.5 * x[i] * z[i] + 0.5 * sqrt(y[i] * y[i])",  # terms that are no elements
    ],
)
def test_left_alone(written: str) -> None:
    assert lowered_text(written) == lowered_text(written, precise=True)


def test_infinite_terms_keep_their_sign() -> None:
    program = pm.einsum(
        'def f(x: f64["N"], y: f64["N"]):\n    r[i] = 0.5 * x[i] + 0.5 * y[i] + 0.5 * x[i]\n    return r'
    )
    big = np.array([np.inf, -np.inf, 1.0])
    assert np.array_equal(program(big, np.zeros(3)), big)


@pytest.mark.parametrize(("scale", "size"), [("1e-25", 1e30), ("1e25", 1e-30)])
def test_products_of_constants_that_the_type_does_not_have_are_not_made(scale: str, size: float) -> None:
    program = pm.einsum(
        'def f(x: f32["N"], y: f32["N"], z: f32["N"]):\n'
        f"    r[i] = {scale} * ({scale} * (x[i] - y[i]) + z[i]) + {scale} * z[i]\n    return r\n"
    )
    x = np.array([3, 5], np.float32) * np.float32(size)
    y = np.array([1, 5], np.float32) * np.float32(size)
    r = program(x, y, np.zeros(2, np.float32))
    np.testing.assert_allclose(r, np.array([2, 0]) * float(scale) ** 2 * size, rtol=1e-5)


def test_long_sums_are_looked_at_in_time() -> None:
    """Each of the sums within a sum that stays is tried: with hashes made anew for each, 180 terms took 4 s."""
    lines = " + ".join(f"{k + 2} * x[n + {k}]" for k in range(180))
    program = pm.einsum(f'def f(x: f64["N"]):\n    y[n] = {lines}\n    return y\n')
    start = thread_time()
    program.trace(np.ones(400))
    assert thread_time() - start < 2


def test_what_is_too_deep_says_so() -> None:
    for terms in (2500, 5000):
        lines = " + ".join(f"x[n + {k}]" for k in range(terms))
        for dynamic in (False, True):
            with pytest.raises(
                pm.PolymlError, match=r"^(the program|an expression of the program) is nested too deeply"
            ) as caught:
                pm.einsum(f'def f(x: f64["N"]):\n    y[n] = {lines}\n    return y\n', dynamic=dynamic)(np.ones(6000))
        assert "names of their own" in (caught.value.hint or "")
