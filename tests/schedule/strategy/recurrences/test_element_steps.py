"""Loops whose steps only change the elements at hand: they walk over no memory, and keep the elements in registers over all steps."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml as pm

_SOURCES = {
    "horner": """def f(x: {T}['N'], c: {T}['K']):
    y: {T}['N'] = 0
    for k in range(K):
        y[n] = y[n] * x[n] + c[k]
    return y
""",
    "newton": """def f(x: {T}['N'], c: {T}['K']):
    y: {T}['N']
    y[n] = x[n]
    for k in range(K):
        y[n] = y[n] - (y[n] * y[n] - x[n]) * c[k]
    return y
""",
    "coupled": """def f(x: {T}['N'], c: {T}['K']):
    u: {T}['N']
    v: {T}['N'] = 0
    u[n] = x[n]
    for k in range(K):
        v[n] = v[n] - c[k] * u[n]
        u[n] = u[n] + c[k] * v[n]
    return u, v
""",
}

_SUMS_OF_COLUMNS = """def f(x: f32['K N']):
    y: f32['K N']
    y[0, n] = x[0, n]
    for k in range(1, K):
        y[k, n] = y[k - 1, n] + x[k, n]
    return y
"""


def _expected(name: str, x: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, ...]:
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    x, c = x.astype(wide), c.astype(wide)
    u, v = (np.zeros_like(x) if name == "horner" else x.copy()), np.zeros_like(x)
    for factor in c:
        if name == "horner":
            u = u * x + factor
        elif name == "newton":
            u = u - (u * u - x) * factor
        else:
            v = v - factor * u
            u = u + factor * v
    return (u, v) if name == "coupled" else (u,)


@pytest.mark.parametrize("name", _SOURCES)
def test_steps_of_elements_go_inside_the_lanes(name: str) -> None:
    """1,000,000 elements are more than L2 holds; sums of columns of that many walk over memory row by row."""
    program = pm.einsum(_SOURCES[name].format(T="f32"), target=pm.Target("x86-64-v4"), threads=1)
    text = str(program.explain(np.ones(1_000_000, np.float32), np.ones(16, np.float32)))
    assert "row by row" not in text
    columns = pm.einsum(_SUMS_OF_COLUMNS, target=pm.Target("x86-64-v4"), threads=1)
    assert "row by row" in str(columns.explain(np.ones((16, 1_000_000), np.float32)))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f64", "c64"])
@pytest.mark.parametrize("name", _SOURCES)
@pytest.mark.few(1)
def test_steps_of_elements_are_right_at_every_length(name: str, dtype: str, *, dynamic: bool) -> None:
    """Around the number of elements of eight vectors, with one or several vectors left, whole ones or not, none, views, and more than L2 holds."""
    program = pm.einsum(_SOURCES[name].format(T=dtype), dynamic=dynamic)
    kind = {"f32": np.float32, "f64": np.float64, "c64": np.complex64}[dtype]
    rng = np.random.default_rng(7)
    for count, steps in ((0, 3), (1, 1), (23, 2), (131, 5), (157, 3), (257, 0), (1_000, 7), (300_001, 3)):
        x = (rng.random(2 * count) - 0.5).astype(kind)[::2]
        c = (0.1 * rng.random(steps)).astype(kind)
        found = program(x, c)
        found = found if isinstance(found, tuple) else (found,)
        for one, expected in zip(found, _expected(name, x, c), strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-4 if dtype != "f64" else 1e-12, atol=1e-5)


@pytest.mark.parametrize(("name", "dtype"), [("horner", "f32"), ("newton", "f64")])
def test_vectors_that_are_left_run_at_once(name: str, dtype: str) -> None:
    """1,005 elements are no whole number of eight vectors: two loops over steps, and no vector under a mask."""
    program = pm.einsum(_SOURCES[name].format(T=dtype), target=pm.Target("x86-64-v4"), threads=1)
    kind = np.float32 if dtype == "f32" else np.float64
    loops = program.lower(np.ones(1_005, kind), np.ones(100, kind)).text("loops")
    assert loops.count("for (k = 0;") == 2
    assert "masked" not in loops.partition("for (k = 0;")[2]


@pytest.mark.parametrize("dtype", ["f32", "c64"])
def test_steps_compute_with_registers_alone(dtype: str) -> None:
    """No step reads the elements again, as an operand across two lines, or puts the parts of complex numbers between each other."""
    source = _SOURCES["horner"].format(T=dtype)
    source = source.replace("+ c[k]", "+ x[n]") if dtype == "c64" else source
    program = pm.einsum(source, target=pm.Target("x86-64-v4"), threads=1)
    kind = {"f32": np.float32, "c64": np.complex64}[dtype]
    assembly = program.lower(np.ones(1_000, kind), np.ones(100, kind)).text("asm")
    blocks = [block for block in re.split(r"^\.L\w+:\n", assembly, flags=re.M) if block.count("vfmadd") > 4]
    assert blocks
    for block in blocks:
        steps = block[: block.rindex("vfmadd")]
        steps = steps[steps.index("vfmadd") :]
        assert not re.search(r"\(%\w+|vperm|vunpck|vshuf", steps)
