"""What hints say to write instead of a function computes what the function does."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest

import polyml
from polyml.einsum_frontend.spellings import spelled_out

ELEMENTS: dict[str, Callable[..., np.ndarray]] = {
    "acos": lambda x: np.arccos(x), "asin": lambda x: np.arcsin(x), "atan": np.arctan,
    "cbrt": np.cbrt, "clip": lambda x, y: np.clip(x, -0.5, 0.5), "cosh": np.cosh, "exp2": np.exp2, "hypot": np.hypot, "isfinite": np.isfinite,
    "isinf": np.isinf, "isnan": np.isnan, "log10": lambda x: np.log10(x), "log2": np.log2, "pow": np.power, "reciprocal": np.reciprocal,
    "sign": np.sign, "silu": lambda x: x / (1 + np.exp(-x)), "sinh": np.sinh, "softplus": lambda x: np.logaddexp(0, x), "square": np.square,
    "erfc": lambda x: 1 - np.vectorize(math.erf)(x), "logaddexp": np.logaddexp, "rint": np.rint, "tan": np.tan, "trunc": np.trunc, "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
}  # fmt: skip
INSIDE = dict.fromkeys(("log2", "log10", "pow"), np.array([0.3, 1.7, 2.5, 0.9])) | dict.fromkeys(
    ("acos", "asin"), np.array([0.3, -0.7, 1.0, 0.9])
)
REDUCERS: dict[str, Callable[..., np.ndarray]] = {"mean": np.mean, "std": np.std, "var": np.var, "norm": np.linalg.norm}


@pytest.mark.parametrize("name", sorted(ELEMENTS))
def test_functions_of_elements(name: str) -> None:
    hint = spelled_out(name)
    assert hint is not None
    value = re.sub(r"\b([xy])\b", r"\1[n]", hint.removeprefix("write ")).replace("low", "-0.5").replace("high", "0.5")
    x = INSIDE.get(name, np.array([-2.5, -0.3, 0.4, 1.7, 9.0]))
    x = np.append(x, [np.inf, np.nan]) if name.startswith("is") else x
    y = np.linspace(1, 2, x.size)
    found = polyml.einsum(f'def f(x: f64["N"], y: f64["N"]):\n    z[n] = {value}\n    return z\n')(x, y)
    wanted = ELEMENTS[name](x, y) if name in {"clip", "hypot", "logaddexp", "pow"} else ELEMENTS[name](x)
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


@pytest.mark.parametrize("name", sorted(REDUCERS))
def test_reducers(name: str) -> None:
    hint = spelled_out(name)
    assert hint is not None
    *before, value = hint.removeprefix("write ").split(", then ")
    body = "".join(f"    {line}\n" for line in [*before, f"y = {value}"])
    x = np.array([0.5, -2.0, 3.0, 7.0])
    found = polyml.einsum(f'def f(x: f64["N"]):\n{body}    return y\n')(x)
    np.testing.assert_allclose(found, REDUCERS[name](x), rtol=1e-14)


def test_softmax_and_logsumexp() -> None:
    x = np.random.default_rng(0).standard_normal((3, 5))
    for name, left in (("softmax", "y[n, k]"), ("logsumexp", "y[n]")):
        hint = spelled_out(name)
        assert hint is not None
        first, value = hint.removeprefix("write ").split(", then ")
        found = polyml.einsum(f'def f(x: f64["N K"]):\n    {first}\n    {left} = {value}\n    return y\n')(x)
        wanted = np.log(np.exp(x).sum(1))
        np.testing.assert_allclose(found, wanted if name == "logsumexp" else np.exp(x - wanted[:, None]), rtol=1e-14)
