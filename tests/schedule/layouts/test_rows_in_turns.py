"""Two rows that take turns, and sums of the next step in the sweep that updates what they read: which loops get them, and results of all lengths."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import polyml
from polyml.target import Target
from polyml.testing import verify
from tests.pairs import pairwise

LEVINSON = """
def levinson(r: f64["N"], b: f64["N"]):
    y: f64["N"] = 0
    x: f64["N"] = 0
    y[0] = -r[0]
    x[0] = b[0]
    alpha = -r[0]
    beta = 1.0
    for k in range(1, N):
        beta = (1 - alpha * alpha) * beta
        mu = (b[k] - sum[i, i < k](r[k - i - 1] * x[i])) / beta
        if i < k:
            x[i] += mu * y[k - i - 1]
        x[k] = mu
        alpha = -(r[k] + sum[i, i < k](r[k - i - 1] * y[i])) / beta
        if i < k:
            y[i] += alpha * y[k - i - 1]
        y[k] = alpha
    return x, y
"""
MIRROR = """
def mirror(T: int, x: f64["N"], w: f64["N"]):
    for t in range(T):
        x[i] = 0.5 * x[i] + w[i] * x[N - 1 - i]
    return x
"""
SCALED = """
def scaled(T: int, x: f64["N"], w: f64["N"]):
    for t in range(T):
        s = sum[i](x[i] * w[i])
        x[i] = (x[i] + 0.5 * x[N - 1 - i]) / (1.0 + s * s)
    return x
"""
KEPT = """
def kept(z: f64["N"]):
    c: f64["N"] = 0
    c[0] = 1.0
    for k in range(1, N):
        if 1 <= i <= k:
            c[i] = c[i] - z[k] * c[k - i]
    return c
"""


def levinson(r: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    column = np.concatenate([[1.0], r[:-1]])
    places = np.arange(len(r))
    matrix = column[np.abs(np.subtract.outer(places, places))]
    return np.linalg.solve(matrix, b), np.linalg.solve(matrix, -r)


def mirror(steps: int, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    for _ in range(steps):
        x = 0.5 * x + w * x[::-1]
    return x


def scaled(steps: int, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    for _ in range(steps):
        x = (x + 0.5 * x[::-1]) / (1 + (x @ w) ** 2)
    return x


def kept(z: np.ndarray) -> np.ndarray:
    c = np.zeros(len(z))
    c[0] = 1
    for k in range(1, len(z)):
        old = c.copy()
        c[1 : k + 1] -= z[k] * old[k - np.arange(1, k + 1)]
    return c


def vectors(count: int, length: int) -> list[np.ndarray]:
    rng = np.random.default_rng(length)
    return list(rng.random((count, length)) / (2 + np.arange(length)))


def tree(text: str, *arguments: object, **options: object) -> str:
    return polyml.einsum(text, target=Target("x86-64-v4"), **options).lower(*arguments).text("schedule")


@pytest.mark.parametrize("options", [{}, {"precise": True}, {"threads": 2}])
@pytest.mark.parametrize("length", [1, 2, 3, 9, 17, 100])
@pytest.mark.few(2)
def test_growing_vectors(length: int, options: dict[str, object]) -> None:
    """A vector that each step makes one longer: its last element is no part of the sweep."""
    found = polyml.einsum(LEVINSON, verify=True, **options)(*vectors(2, length))
    for got, want in zip(found, levinson(*vectors(2, length)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


@pairwise(
    ("length", [1, 8, 33, 100]),
    ("steps", [0, 1, 6, 7]),
    ("dtype", ["f64", "f32"]),
    ("text, reference", [(MIRROR, mirror), (SCALED, scaled)]),
)
@pytest.mark.few(3)
def test_whole_vectors(length: int, steps: int, dtype: str, text: str, reference: Callable[..., np.ndarray]) -> None:
    """No step, one, an even and an odd number: the result is in either row."""
    kind = {"f64": np.float64, "f32": np.float32}[dtype]
    text, rtol = text.replace("f64", dtype), 1e-4 if dtype == "f32" else 1e-12
    function = polyml.einsum(text, verify=True)
    for run in (0, 1, 6, 7):  # by one kernel
        want = reference(run, *vectors(2, length))
        np.testing.assert_allclose(function(run, *(v.astype(kind) for v in vectors(2, length))), want, rtol=rtol)
    want = reference(steps, *vectors(2, length))
    fixed = polyml.einsum(text.replace("T: int, ", "").replace("(T)", f"({steps})"), verify=True)
    np.testing.assert_allclose(fixed(*(v.astype(kind) for v in vectors(2, length))), want, rtol=rtol)


@pytest.mark.parametrize(
    ("text", "reference", "steps"),
    [
        pytest.param(LEVINSON, levinson, (), marks=pytest.mark.slow),
        (MIRROR, mirror, (7,)),
        (SCALED, scaled, (6,)),
    ],
)
def test_any_size(text: str, reference: Callable[..., object], steps: tuple[int, ...]) -> None:
    """Rows of symbolic length, whole lines of it."""
    function = polyml.einsum(text, verify=True, dynamic=True)
    assert "turns" in tree(text, *steps, *vectors(2, 64), dynamic=True)
    for length in (64, 1, 2, 3, 9, 17, 100, 333, 511, 512, 513):
        found, want = function(*steps, *vectors(2, length)), reference(*steps, *vectors(2, length))
        for got, exact in zip(np.atleast_2d(found), np.atleast_2d(want), strict=True):
            np.testing.assert_allclose(got, exact, rtol=1e-8, atol=1e-11)
    assert len(function.kernels) == 1


@pytest.mark.parametrize("length", [2, 30])
def test_elements_that_stay(length: int) -> None:
    np.testing.assert_allclose(polyml.einsum(KEPT, verify=True)(*vectors(1, length)), kept(*vectors(1, length)))


def test_which_vectors_take_turns() -> None:
    assert "y_5_turns" in tree(LEVINSON, *vectors(2, 64))
    assert "x_turns" in tree(MIRROR, 5, *vectors(2, 64))
    # c[0] was written before the first step: no row but the first has it.
    assert "turns" not in tree(KEPT, *vectors(1, 64))
    # Of every second element the last step writes half.
    halves = MIRROR.replace("x[i] = 0.5", "if i % 2 == t % 2:\n            x[i] = 0.5")
    assert "turns" not in tree(halves, 5, *vectors(2, 64))
    assert "turns" not in tree(MIRROR, 5, *vectors(2, 64), scheduler="isl")


def test_which_sums_run_ahead() -> None:
    """The update and the next step's sum share a loop, so the last update stands alone."""
    five = SCALED.replace("T: int, ", "").replace("(T)", "(5)")
    assert "S_x_2_last" in tree(five, *vectors(2, 64))
    assert "_last" not in tree(five, *vectors(2, 64), precise=True)
    # One element for the sums of all steps, which must stay until the update has read it.
    assert "_last" not in tree(SCALED, 5, *vectors(2, 64))
    assert "_rest" in tree(LEVINSON, *vectors(2, 64))
    # The sum is of what its own step has made.
    late = five.replace("s = sum[i](x[i] * w[i])\n        x[i] = (x[i]", "x[i] = (x[i]").replace(
        "s * s)", "w[i])\n        s = sum[i](x[i] * w[i])\n        w[i] = s * w[i]"
    )
    assert "_last" not in tree(late, *vectors(2, 64))


def test_results_of_a_sum_of_the_same_step() -> None:
    text = SCALED.replace("(1.0 + s * s)", "(1.0 + s * s)\n        w[i] = 0.5 * w[i] + sum[i](x[i] * x[i])")
    x, w = vectors(2, 50)
    for _ in range(5):
        x = (x + 0.5 * x[::-1]) / (1 + (x @ w) ** 2)
        w = 0.5 * w + x @ x
    np.testing.assert_allclose(polyml.einsum(text, verify=True)(5, *vectors(2, 50)), x, rtol=1e-12)


@pytest.mark.parametrize("first", ["2*x[i]", "2*x[N - 1 - i] + x[i]"])
def test_what_a_step_wrote_itself_is_saved(first: str) -> None:
    text = f'def f(x: f64["N"]):\n    for t in range(3):\n        if i >= 0:\n            x[i] = {first}\n        x[i] = x[N - 1 - i] - t\n    return x\n'
    assert verify(text, np.arange(1.0, 8.0))
