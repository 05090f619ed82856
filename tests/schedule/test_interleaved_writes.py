"""Statements that write between each other's elements run in one loop, and whole vectors are stored."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml as pm
from polyml.testing.verify import verify

WIDE = pm.Target("x86-64-v4")
TYPES = {"u8": np.uint8, "f32": np.float32, "f64": np.float64, "c64": np.complex64}


def interleave(count: int, kind: str = "f32") -> str:
    """So many arrays, an element of each in turn."""
    given = ", ".join(f'x{c}: {kind}["N"]' for c in range(count))
    lines = [f'y: {kind}["{count}*N"]', *(f"y[{count}*i + {c}] = x{c}[i]" for c in range(count)), "return y"]
    return f"def f({given}):\n" + "".join(f"    {line}\n" for line in lines)


FOUR = """
def f(a: f32["H W"], b: f32["H W"], c: f32["H W"]):
    y: f32["2*H 2*W"]
    y[2*i, 2*j] = a[i, j] + b[i, j]
    y[2*i, 2*j + 1] = a[i, j] - b[i, j]
    y[2*i + 1, 2*j] = a[i, j] + c[i, j]
    y[2*i + 1, 2*j + 1] = a[i, j] - c[i, j]
    return y
"""


@pytest.mark.parametrize("target", ["", "x86-64-v3"])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.few(1)
def test_rows_between_each_other(count: int, kind: str, target: str) -> None:
    target_ = pm.Target(target) if target else None
    if target_ is not None and not target_.runs_here:
        pytest.skip("needs AVX2")
    f = pm.einsum(interleave(count, kind), target=target_, threads=1)
    rng = np.random.default_rng(count)
    for n in (0, 1, 15, 33, 130):
        xs = [rng.integers(0, 200, n).astype(TYPES[kind]) for _ in range(count)]
        np.testing.assert_array_equal(f(*xs), np.stack(xs, axis=-1).reshape(-1))
        np.testing.assert_array_equal(f(*(np.repeat(x, 2)[::2] for x in xs)), np.stack(xs, axis=-1).reshape(-1))


@pytest.mark.parametrize("n", [4096, 1 << 20])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_vectors_are_whole(count: int, n: int) -> None:
    """One loop, in cache and beyond it, that stores as many vectors as it loads, and nothing lane by lane."""
    lowered = pm.einsum(interleave(count), target=WIDE, threads=1).lower(*[np.zeros(n, np.float32)] * count)
    loops, llvm = lowered.text("loops"), lowered.text("llvm")
    assert len(re.findall(r"\bfor \(", loops)) == 1, loops
    assert "scatter" not in llvm
    assert llvm.count("store <16 x float>") == llvm.count("load <16 x float>")


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (5, 40)])
def test_four_phases_of_a_plane(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    args = [rng.random(shape, np.float32) for _ in range(3)]
    f = pm.einsum(FOUR, threads=1)
    assert f.lower(*args).text("loops").count("vector(") <= 2
    assert verify(f, *args)


def test_steps_of_several_lengths() -> None:
    """What goes through x in steps of one, and of two, reads the same numbers and no common loop makes them wrong."""
    source = """
def f(x: f32["N"], a: f32["M"], b: f32["M"]):
    y: f32["N"]
    z: f32["N"]
    y[i] = x[i] + 1
    if 0 <= 2*i < N:
        z[2*i] = x[2*i] * a[i]
    if 0 <= 2*i + 1 < N:
        z[2*i + 1] = x[2*i + 1] * b[i]
    return y, z
"""
    for n in (65, 130):
        x, a, b = (np.arange(k, dtype=np.float32) for k in (n, (n + 1) // 2, (n + 1) // 2))
        y, z = pm.einsum(source, threads=1, verify=True)(x, a, b)
        wanted = np.empty(n, np.float32)
        wanted[::2], wanted[1::2] = x[::2] * a, x[1::2] * b[: n // 2]
        np.testing.assert_array_equal(y, x + 1)
        np.testing.assert_array_equal(z, wanted)
