"""Elements moved along an index that operands know by its quotient or remainder: the same for any number, shape, type and layout, by whole vectors."""

from __future__ import annotations

import numpy as np
import pytest

import polyml as pm
from polyml.testing.verify import verify
from tests.pairs import pairwise

WIDE = pm.Target("x86-64-v4")
TYPES = {"u8": np.uint8, "f16": np.float16, "f32": np.float32, "f64": np.float64, "c64": np.complex64}

REPEATED = "def f(x: {t}['N']):\n    y: {t}['{d}*N']\n    y[i] = x[i // {d}]\n    return y\n"
SCALED = "def f(z: {t}['M'], s: {t}['{d}']):\n    y[i] = z[i] * s[i % {d}]\n    return y\n"
TILED = "def f(x: {t}['N']):\n    y: {t}['4*N']\n    y[i] = x[i % N]\n    return y\n"
SHUFFLED = """
def f(x: {t}["C H W"]):
    y: {t}["C//{d}//{d} {d}*H {d}*W"]
    y[c, h, w] = x[{d}*{d}*c + {d}*(h % {d}) + w % {d}, h // {d}, w // {d}]
    return y
"""


def compiled(source: str, kind: str, d: int, target: str = "") -> pm.Einsum:
    target_ = pm.Target(target) if target else None
    if target_ is not None and not target_.runs_here:
        pytest.skip("needs AVX2")
    return pm.einsum(source.format(t=kind, d=d), target=target_, threads=1)


@pairwise(("kind", list(TYPES)), ("d", [2, 3, 4, 5, 6, 7, 8, 9, 16, 20]), ("target", ["", "x86-64-v3"]))
@pytest.mark.few(7)
def test_repeated(kind: str, d: int, target: str) -> None:
    f = compiled(REPEATED, kind, d, target)
    for n in (0, 1, 33, 130):
        x = np.random.default_rng(n).integers(0, 200, n).astype(TYPES[kind])
        np.testing.assert_array_equal(f(x), np.repeat(x, d), err_msg=f"{n}")
        np.testing.assert_array_equal(f(np.repeat(x, 2)[::2]), np.repeat(x, d))


@pairwise(("kind", ["u8", "f32", "f64", "c64"]), ("d", [2, 3, 5, 7, 20]), ("target", ["", "x86-64-v3"]))
@pytest.mark.few(3)
def test_numbers_in_turn(kind: str, d: int, target: str) -> None:
    f = compiled(SCALED, kind, d, target)
    rng = np.random.default_rng(d)
    s = rng.integers(0, 5, d).astype(TYPES[kind])
    for m in (1, d, 7 * d, 130 * d, 130 * d + 1):
        z = rng.integers(0, 5, m).astype(TYPES[kind])
        np.testing.assert_array_equal(f(z, s), z * np.resize(s, m), err_msg=f"{m}")


@pytest.mark.parametrize("n", [1, 3, 20, 100])
def test_tiled(n: int) -> None:
    x = np.arange(n, dtype=np.float32)
    np.testing.assert_array_equal(compiled(TILED, "f32", 0)(x), np.tile(x, 4))


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("kind", ["u8", "f32"])
@pytest.mark.few(3)
def test_depth_to_space(kind: str, d: int) -> None:
    for h, w in ((1, 1), (3, 7), (4, 40)):
        x = np.random.default_rng(h).integers(0, 200, (2 * d * d, h, w)).astype(TYPES[kind])
        wanted = x.reshape(2, d, d, h, w).transpose(0, 3, 1, 4, 2).reshape(2, d * h, d * w)
        np.testing.assert_array_equal(compiled(SHUFFLED, kind, d)(x), wanted)


def test_what_is_computed_on_the_way() -> None:
    source = """
def f(x: f32["N"], z: f32["M"]):
    y: f32["M"]
    y[i] = where(i % 3 == 1, x[i // 3] * z[i], z[i] - x[i // 3] + i % 3)
    return y
"""
    rng = np.random.default_rng(0)
    for n in (1, 5, 40):
        assert verify(pm.einsum(source, threads=1), rng.random(n, np.float32), rng.random(3 * n, np.float32))


@pytest.mark.parametrize("d", [3, 5, 7])
def test_vectors_are_whole(d: int) -> None:
    """Each element is loaded once, and each vector stored once."""
    llvm = pm.einsum(REPEATED.format(t="f32", d=d), target=WIDE, threads=1).lower(np.zeros(64, np.float32)).text("llvm")
    assert "gather" not in llvm
    assert "masked" not in llvm
    assert llvm.count("store <16 x float>") == d * llvm.count("load <16 x float>")


@pytest.mark.parametrize(
    ("d", "kind", "stays"), [(2, "f32", True), (4, "u8", True), (3, "f32", False), (16, "f32", True), (8, "u8", False)]
)
def test_which_quotients(d: int, kind: str, stays: bool) -> None:
    """Vectors that a few loads and a shuffle make, or a broadcast, stay as they are."""
    lowered = pm.einsum(REPEATED.format(t=kind, d=d), target=WIDE).lower(np.zeros(64, TYPES[kind]))
    assert (f"//{d}" in lowered.text("loops").replace(" ", "")) == stays
