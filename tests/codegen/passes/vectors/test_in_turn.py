"""Long elementwise bodies take two vectors in turn, where a core's window is short for them; results stay the same."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml as pm

ZEN3 = pm.Target("x86-64-v3", window=256, l2_bytes=512 * 1024)
LONG = "x[n] * tanh(log(1 + exp(x[n])))"


def text(value: str, kind: str = "f32", shape: str = "N") -> str:
    index = shape.lower().replace(" ", ", ")
    return f'def f(x: {kind}["{shape}"]):\n    y[{index}] = {value.replace("x[n]", f"x[{index}]")}\n    return y'


def widths(source: str, *given: np.ndarray, target: pm.Target = ZEN3) -> set[int]:
    """Lanes of the vector loops."""
    loops = pm.einsum(source, target=target).lower(*given).text("loops")
    return {int(width) for width in re.findall(r"vector\((\d+)", loops)}


def test_long_bodies_alone() -> None:
    x = np.ones(1000, np.float32)
    assert max(widths(text(LONG), x)) == 16
    assert max(widths(text("x[n] ** 1.7"), x)) == 16
    assert max(widths(text("exp(x[n])"), x)) == 8
    assert max(widths(text("log(1 + exp(x[n]))"), x)) == 8
    # Several chains side by side are on their way anyway.
    assert max(widths(text("exp(x[n]) * sin(x[n]) * erf(x[n]) * tanh(x[n])"), x)) == 8
    # A longer window holds two vectors as they come, one after the other.
    assert max(widths(text(LONG), x, target=pm.Target("x86-64-v3"))) == 8
    assert max(widths(text(LONG), x, target=pm.Target("x86-64-v4"))) == 16
    assert max(widths(text(LONG), x, target=pm.Target("x86-64-v4", window=256))) == 32
    assert max(widths(text(LONG), x[:15])) == 8


def test_a_chain_may_have_several_statements() -> None:
    source = 'def f(x: f32["N"]):\n    e[n] = log(1 + exp(x[n]))\n    y[n] = x[n] * tanh(e[n])\n    z[n] = x[n] - e[n]\n    return y, z'
    assert max(widths(source, np.ones(1000, np.float32))) == 16


def test_rows_that_lanes_do_not_go_along_side_by_side() -> None:
    source = 'def f(x: f32["N K"]):\n    y[k, n] = x[n, k] ** 1.7\n    return y'
    assert max(widths(source, np.ones((100, 100), np.float32))) == 8


def test_halves_are_stored_past_the_caches() -> None:
    """A register is aligned, if the vector of two is not."""
    made = pm.einsum(text(LONG), target=ZEN3).lower(np.ones(1 << 21, np.float32))
    assert "vector(16)" in made.text("loops")
    assert made.text("asm").count("vmovntps") >= 2


@pytest.mark.parametrize(("kind", "type_"), [("f32", np.float32), ("f64", np.float64)])
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (16,), (24,), (1003,), (3, 70), (1100, 1000)])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.few(6)
def test_any_size(kind: str, type_: type[np.floating], shape: tuple[int, ...], dynamic: bool) -> None:
    x = np.random.default_rng(0).random(shape).astype(type_) + type_(0.1)
    target = pm.Target(window=256)
    source = text(LONG, kind, "N" if len(shape) == 1 else "N K")
    f = pm.einsum(source, target=target, dynamic=dynamic)
    exact = x.astype(np.float64)
    expected = exact * np.tanh(np.log(1 + np.exp(exact)))
    tolerance = 1e-6 if kind == "f32" else 1e-14
    np.testing.assert_allclose(f(x), expected, rtol=tolerance)
    if len(shape) > 1:
        np.testing.assert_allclose(f(x[:, ::2]), expected[:, ::2], rtol=tolerance)
