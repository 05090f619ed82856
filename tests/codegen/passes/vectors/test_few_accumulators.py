"""Sums of functions have two accumulators where registers are few, so that constants stay in the others; results stay the same."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml as pm

AVX2 = pm.Target("x86-64-v3")


def accumulators(value: str, target: pm.Target, reducer: str = "sum") -> int:
    """Of one sum over a thousand numbers."""
    source = f'def f(x: f32["N"]):\n    s = {reducer}[n]({value})\n    return s'
    loops = pm.einsum(source, target=target).lower(np.ones(1000, np.float32)).text("loops")
    return len(set(re.findall(r"register f32x\d+ (s_part\w*);", loops)))


@pytest.mark.parametrize("value", ["exp(x[n])", "x[n] * log(x[n])", "exp(sin(x[n]))"])
def test_sums_of_functions_have_two(value: str) -> None:
    assert accumulators(value, AVX2) == 2
    assert accumulators(value, pm.Target("x86-64-v4")) == 4


def test_others_hide_the_latency_of_additions() -> None:
    assert accumulators("x[n] * x[n]", AVX2) == 4
    assert accumulators("abs(x[n] - 1)", AVX2) == 4
    # Extrema are found without regard to NaN, four at a time.
    assert accumulators("exp(x[n])", AVX2, "max") == 4


@pytest.mark.parametrize(("kind", "type_"), [("f32", np.float32), ("f64", np.float64)])
@pytest.mark.parametrize("length", [0, 1, 7, 8, 15, 16, 17, 24, 100, 1003])
@pytest.mark.few(7)
def test_sums_of_any_length(kind: str, type_: type, length: int) -> None:
    source = f'def f(x: {kind}["N K"]):\n    s[n] = sum[k](exp(x[n, k]))\n    t[n] = sum[k](x[n, k] * exp(x[n, k]))\n    return s, t'
    x = np.random.default_rng(length).standard_normal((5, 2 * length)).astype(type_)
    for given in (x[:, :length], x[:, ::2] if length % 2 else np.asfortranarray(x[:, :length])):
        exact = np.exp(given.astype(np.float64))
        s, t = pm.einsum(source)(given)
        tolerance = 1e-5 if type_ is np.float32 else 1e-13
        np.testing.assert_allclose(s, exact.sum(axis=1), rtol=tolerance)
        np.testing.assert_allclose(t, (given * exact).sum(axis=1), rtol=tolerance, atol=tolerance * max(1, length))


def test_several_sums_in_one_loop() -> None:
    x = np.linspace(-3, 3, 1000, dtype=np.float32)
    source = 'def f(x: f32["N"]):\n    s = sum[n](exp(x[n]))\n    t = sum[n](x[n])\n    return s, t'
    s, t = pm.einsum(source)(x)
    np.testing.assert_allclose([s, t], [np.exp(x.astype("d")).sum(), 0], rtol=1e-5, atol=1e-3)
