"""exp of numbers that are purely imaginary is a sine and a cosine, and what is not finite is as in NumPy."""

from collections.abc import Callable

import numpy as np
import pytest

import polyml as pm
from polyml.graph.printer import graph_text

EDGES = np.array([0.0, -0.0, 1.0, -2.5, 1e5, 5e-300, np.inf, -np.inf, np.nan])
P, Q = (part.ravel() for part in np.meshgrid(EDGES, EDGES))
TURNS: dict[str, Callable[[], np.ndarray]] = {
    "1j*p[n]": lambda: 1j * P,
    "-1j*p[n]": lambda: -1j * P,
    "conj(1j*p[n])": lambda: np.conj(1j * P),
    "2j*pi*p[n]*q[n]/3": lambda: 2j * np.pi * P * Q / 3,
    "1j*p[n]/q[n]": lambda: 1j * P / Q,
    "1j*p[n] - 1j*q[n]": lambda: 1j * P - 1j * Q,
    "1j*(p[n] + q[n])": lambda: 1j * (P + Q),
}
OTHERS: dict[str, Callable[[], np.ndarray]] = {
    "1j*p[n] + q[n]": lambda: 1j * P + Q,
    "1j*p[n]*(2 + 1j)": lambda: 1j * P * (2 + 1j),
}


@pytest.mark.parametrize(("text", "turns"), [*((t, True) for t in TURNS), *((t, False) for t in OTHERS)])
@np.errstate(all="ignore")
def test_exp_of_imaginary_numbers_is_a_turn(text: str, turns: bool) -> None:
    function = pm.einsum(f'def f(p: f64["N"], q: f64["N"]):\n    y[n] = exp({text})\n    return y\n')
    found, want = function(P, Q), np.exp((TURNS | OTHERS)[text]())
    np.testing.assert_allclose(found.real, want.real, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.imag, want.imag, rtol=1e-9, atol=1e-9)
    assert ("exp(" not in graph_text(function.lower(P, Q).stages.graph)) == turns
