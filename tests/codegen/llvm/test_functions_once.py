"""What an assignment asks for several times is computed once; a sine and a cosine of one number are the same bits together and alone."""

import numpy as np
import pytest

import polyml as pm
from polyml.compiler import driver


def _calls(text: str, *arguments: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The result, and the functions that are called within its loops of whole vectors."""
    function = pm.einsum(text, target=pm.Target("x86-64-v3"))
    stages = function.lower(*arguments).stages
    lines = driver.llvm_text(stages.launched[1], stages.options).splitlines()
    called = [line.split("@polyml.")[1].split(".")[0] for line in lines if "= call" in line and "@polyml." in line]
    return pm.einsum(text)(*arguments), [name for name in called if not name.endswith("by_lane")]


def test_a_function_of_one_number_is_computed_once() -> None:
    p = np.linspace(-3, 3, 16)
    _, calls = _calls('def f(p: f64["N"]):\n    y[n] = exp(p[n]) / (1 + exp(p[n])) + exp(-p[n])\n    return y\n', p)
    assert calls.count("exp") == 2


def test_zeros_of_both_signs_are_two_numbers() -> None:
    p = np.array([1.0, 2.0, 0.0, 5.0])
    y, _ = _calls(
        'def f(p: f64["N"]):\n    y[n] = copysign(1, sin(p[n] * 0.0)) - copysign(1, sin(p[n] * -0.0))\n    return y\n',
        p,
    )
    np.testing.assert_array_equal(y, np.full(4, 2.0))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_sine_and_cosine_together_are_those_alone(dtype: str) -> None:
    numbers = np.concatenate(
        (np.random.default_rng(0).standard_normal(500) * 1e3, [0.0, -0.0, 1e30, -1e9, np.inf, np.nan])
    )
    x = numbers.astype("f4" if dtype == "f32" else "f8")
    both, calls = _calls(
        f'def f(x: {dtype}["N"]):\n    y: c{128 if dtype == "f64" else 64}["N"]\n    y[n] = complex(cos(x[n]), sin(x[n]))\n    return y\n',
        x,
    )
    assert "sin_cos" in calls
    assert not {"sin", "cos"} & set(calls)
    for name, part in (("cos", both.real), ("sin", both.imag)):
        alone = pm.einsum(f'def f(x: {dtype}["N"]):\n    y[n] = {name}(x[n])\n    return y\n')(x)
        np.testing.assert_array_equal(part.copy().view(np.uint8), alone.view(np.uint8))
