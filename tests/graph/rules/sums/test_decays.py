"""Sums whose weights fade by one factor an element are recurrences of first order; where factors are no such ones, or numbers do not allow for it, they are sums."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.testing import verify
from tests.sampled import in_turn

FADING = {
    "powers": "y[n, m] = sum[k <= m](a**(m - k) * x[n, k])",
    "of a number": "y[n, m] = sum[k <= m](0.75**(m - k) * x[n, k])",
    "of each row": "y[n, m] = sum[k <= m](c[n]**(m - k) * x[n, k])",
    "from the end": "y[n, m] = sum[k, k >= m](a**(k - m) * x[n, k])",
    "without itself": "y[n, m] = sum[k < m](a**(m - k) * x[n, k])",
    "two steps": "y[n, m] = sum[k <= m](a**(2*m - 2*k) * x[n, k])",
    "two at a time": "y[n, m] = sum[k, k <= 2*m](a**(2*m - k) * x[n, k])",
    "growing": "y[n, m] = sum[k <= m](1.25**(m - k) * x[n, k])",
    "backwards": "y[n, m] = sum[k <= m](a**(k - m) * x[n, k])",
    "exponentials of places": "y[n, m] = sum[k <= m](exp(-(m - k) / 8) * x[n, k])",
    "down columns": "y[n, m] = sum[k <= n](exp((k - n) * a) * x[k, m])",
    "two weights": "y[n, m] = sum[k <= m](a**(m - k) * x[n, k] * exp(-(m - k) / 8))",
}
TIMES = {
    "times": "y[n, m] = sum[k <= m](exp(-(t[m] - t[k])) * x[n, k])",
    "scaled": "y[n, m] = sum[k <= m](exp((t[k] - t[m]) / a) * x[n, k])",
    "of each row": "y[n, m] = sum[k <= m](exp(-(x[n, m] - x[n, k])))",
    "to come": "y[n, m] = sum[k, k > m](exp(-(t[k] - t[m])) * x[n, k])",
    "softmax": 'h: f64["N M"]\n    h[n, m] = max[k <= m](x[n, k])\n    y[n, m] = sum[k <= m](exp(x[n, k] - h[n, m]))',
}
OTHERS = {
    "not one factor": "y[n, m] = sum[k <= m](a**((m - k) * (m - k)) * x[n, k])",
    "a base by terms": "y[n, m] = sum[k <= m](x[n, k]**(m - k))",
    "a product of both": "y[n, m] = sum[k <= m](exp(-t[m] * t[k]) * x[n, k])",
    "another function": "y[n, m] = sum[k <= m](tanh(t[m] - t[k]) * x[n, k])",
    "all terms": "y[n, m] = sum[k](a**(m - k) * x[n, k])",
}
SHAPES = [(3, 9), (1, 20), (12, 11)]


def program(body: str, dtype: str = "f64", **options: object) -> polyml.api.Einsum:
    parameters = 'x: T["N M"], t: T["M"], c: T["N"], a: T'.replace("T", dtype)
    return polyml.einsum(f'def f({parameters}):\n    y: {dtype}["N M"] = 0\n    {body}\n    return y\n', **options)


def arguments(shape: tuple[int, int], dtype: npt.DTypeLike = "f8") -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.uniform(0, 1, shape[1]))
    return tuple(np.asarray(v, dtype) for v in (rng.standard_normal(shape), times, rng.uniform(0.2, 1, shape[0]), 0.75))


@pytest.mark.parametrize("body", [*FADING.values(), *TIMES.values()], ids=[*FADING, *(f"t {name}" for name in TIMES)])
def test_loops(body: str) -> None:
    assert " in range(" in str(program(body).trace(*arguments((20, 17))))


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_others_stay(body: str) -> None:
    assert " in range(" not in str(program(body).trace(*arguments((20, 17))))


@pytest.mark.parametrize(("name", "dynamic"), in_turn([*FADING, *(f"t {name}" for name in TIMES)], (False, True)))
@pytest.mark.few(2)
def test_the_same_numbers(name: str, dynamic: bool) -> None:
    """Of any size at all shapes, of known ones at two."""
    made = program(FADING.get(name) or TIMES[name.removeprefix("t ")], dynamic=dynamic, verify=not dynamic)
    for shape in SHAPES if dynamic else SHAPES[1:]:
        assert verify(made, *arguments(shape)), shape


@pytest.mark.parametrize("name", ["powers", "of a number", "from the end", "down columns"])
@pytest.mark.few(1)
def test_floats_and_strides(name: str) -> None:
    x, t, c, a = arguments((24, 40), "f4")
    single, double = program(FADING[name], "f32"), program(FADING[name], precise=True)
    for view in (x[:, ::2], x[::-1, ::-2], np.asfortranarray(x[:, :20])):
        wide = double(*(np.asarray(v, "f8") for v in (view, t[:20], c, a)))
        np.testing.assert_allclose(single(view, t[:20], c, a), wide, rtol=1e-4, atol=1e-5)


def test_precise_sums_stay() -> None:
    for body in (FADING["powers"], TIMES["times"]):
        assert " in range(" not in str(program(body, precise=True).trace(*arguments((20, 17))))


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.few(1)
def test_numbers_that_do_not_fade_are_summed_up(name: str) -> None:
    """Times that go back, infinite ones, and none: what is beyond a recurrence is what the sum says."""
    fading, written = program(TIMES[name], dynamic=False), program(TIMES[name], precise=True, dynamic=False)
    x, t, c, a = arguments((3, 12))
    for place, value in ((4, 900.0), (4, -900.0), (0, np.inf), (0, -np.inf), (11, np.inf), (5, np.nan), (0, np.nan)):
        times, rows = t.copy(), x.copy()
        times[place] = rows[1, place] = value
        # A time far behind all others, and back: products of factors would be zero times infinity, or nothing.
        for given in ((x, times, c, a), (rows, t, c, a), (rows, times, c, a)):
            np.testing.assert_allclose(fading(*given), written(*given), rtol=1e-11, atol=1e-300)


def test_gaps_leave_nothing_behind() -> None:
    """Factors that are zero by rounding are factors still."""
    x, _, c, a = arguments((2, 12))
    t = np.arange(12.0) + 2000.0 * (np.arange(12) > 6)
    fading, written = program(TIMES["times"], dynamic=False), program(TIMES["times"], precise=True, dynamic=False)
    np.testing.assert_allclose(fading(x, t, c, a), written(x, t, c, a), rtol=1e-13)
