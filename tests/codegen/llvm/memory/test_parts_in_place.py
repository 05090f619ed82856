"""Complex numbers alone, side by side: parts are taken apart and put together within 16 bytes; results stay the same."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml as pm

KINDS = [("c64", np.complex64), ("c128", np.complex128)]
VALUES = {
    "x[I] * y[I]": lambda x, y: x * y,
    "x[I] * y[I] + x[I] * 2": lambda x, y: x * y + 2 * x,
    "x[I] / y[I]": lambda x, y: x / y,
    "conj(x[I]) * s[0]": lambda x, y: x.conj() * (2 - 1j),
    "where(real(x[I]) < 0, x[I], y[I] * y[I])": lambda x, y: np.where(x.real < 0, x, y * y),
    "abs(x[I]) * y[I]": lambda x, y: abs(x) * y,
}


def text(value: str, kind: str, shape: str) -> str:
    index = shape.lower().replace(" ", ", ")
    parameters = f'x: {kind}["{shape}"], y: {kind}["{shape}"], s: {kind}["1"]'
    return f"def f({parameters}):\n    z[{index}] = {value.replace('I', index)}\n    return z"


def numbers(rng: np.random.Generator, shape: tuple[int, ...], type_: type[np.complexfloating]) -> np.ndarray:
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(type_)


@pytest.mark.parametrize(("target", "bits"), [("x86-64-v3", "y"), ("x86-64-v4", "z")])
@pytest.mark.parametrize(("kind", "type_"), KINDS)
def test_shuffles_within_16_bytes(target: str, bits: str, kind: str, type_: type[np.complexfloating]) -> None:
    x = np.ones(256, type_)
    f = pm.einsum(text("x[I] * y[I]", kind, "N"), target=pm.Target(target))
    asm = f.lower(x, x, x[:1]).text("asm")
    assert re.search(rf"v(shufps|unpck[lh]p[sd]|shufpd).*%{bits}mm", asm)
    assert not re.search(r"vperm[^i]|vinsert|vextract", asm)


def test_what_is_real_as_well_keeps_its_order() -> None:
    x, y = np.ones(256, np.complex64), np.ones(256, np.float32)
    source = 'def f(x: c64["N"], y: f32["N"]):\n    z[n] = x[n] * y[n]\n    return z'
    assert re.search(r"vperm[^i]", pm.einsum(source, target=pm.Target("x86-64-v3")).lower(x, y).text("asm"))


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(("kind", "type_"), KINDS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.few(2)
def test_any_size(value: str, kind: str, type_: type[np.complexfloating], dynamic: bool) -> None:
    rng = np.random.default_rng(0)
    s = np.array([2 - 1j], type_)
    for shape in ((0,), (1,), (2,), (3,), (5,), (8,), (17,), (200,), (6, 33)):
        x, y = (numbers(rng, shape, type_) for _ in range(2))
        f = pm.einsum(text(value, kind, "N" if len(shape) == 1 else "N K"), dynamic=dynamic)
        expected = VALUES[value](x.astype(np.complex128), y.astype(np.complex128))
        tolerance = 2e-5 if kind == "c64" else 1e-13
        np.testing.assert_allclose(f(x, y, s), expected, rtol=tolerance, atol=tolerance)
        if len(shape) > 1:
            half = VALUES[value](*(a.astype(np.complex128) for a in (x[:, ::2], y[:, ::2])))
            np.testing.assert_allclose(f(x[:, ::2], y[:, ::2], s), half, rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(f(x[::-1], y[::-1], s), expected[::-1], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shapes", [((2,), (2, 4)), ((3,), (4, 4)), ((2,), (2, 8)), ((5,), (3, 17))])
@pytest.mark.few(4)
def test_parts_of_two_sizes_keep_their_order(target: str, order: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    """c64 and c128 have lanes in orders of their own within 16 bytes."""
    rng = np.random.default_rng(0)
    x, y = (numbers(rng, shape, np.complex64) for shape in shapes)
    f = pm.einsum("e,ik->kei", dtype="c16", order=order, target=target)
    assert np.array_equal(f(x, y), np.einsum("e,ik->kei", x, y, dtype="c16", order=order))
    source = 'def f(x: c64["N"], y: c128["N"]):\n    z[n] = c128(x[n]) * y[n]\n    return z'
    a, b = numbers(rng, (37,), np.complex64), numbers(rng, (37,), np.complex128)
    np.testing.assert_allclose(pm.einsum(source, target=target)(a, b), a.astype(np.complex128) * b, rtol=1e-14)
