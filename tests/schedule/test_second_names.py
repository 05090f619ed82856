"""Sums that read one array in two places: contractions like any other, of which loops and callers see one array."""

from __future__ import annotations

import numpy as np
import pytest

import polyml as pm

GRAM = 'def f(x: {0}["N D"]):\n    c[i, j] = x[n, i] * x[n, j]\n    return c\n'
SQUARE = 'def f(x: {0}["N N"]):\n    c[i, j] = x[i, k] * x[k, j]\n    return c\n'
CUBE = 'def f(x: {0}["N N"]):\n    c[i, j] = x[i, k] * x[k, l] * x[l, j]\n    return c\n'
BATCH = 'def f(x: {0}["B N D"]):\n    c[b, i, j] = x[b, n, i] * x[b, n, j]\n    return c\n'
MAX_PLUS = 'def f(x: {0}["N N"]):\n    c[i, j] = max[k](x[i, k] + x[k, j])\n    return c\n'

BLOCKS = pm.Target("x86-64-v3")


@pytest.mark.parametrize(
    ("text", "shape"),
    [(GRAM, (2000, 64)), (SQUARE, (256, 256)), (BATCH, (4, 500, 64))],
    ids=["gram", "square", "batch"],
)
def test_contractions_in_blocks(text: str, shape: tuple[int, ...]) -> None:
    """As of two operands; the kernel has one argument."""
    lowered = pm.einsum(text.format("f32"), target=BLOCKS, threads=1).lower(np.zeros(shape, np.float32))
    assert "blocking: S_c" in lowered.explain()
    loops = lowered.text("loops")
    assert "again[" not in loops.replace("again_panels[", "")
    assert loops.split("{")[0].count("const f32") == 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", ["f32", "f64", "i32", "c64"])
@pytest.mark.parametrize(
    "text", [GRAM, SQUARE, CUBE, BATCH, MAX_PLUS], ids=["gram", "square", "cube", "batch", "max plus"]
)
@pytest.mark.few(3)
def test_results(text: str, kind: str, dynamic: bool) -> None:
    if text is MAX_PLUS and kind == "c64":
        pytest.skip("complex numbers have no order")
    f = pm.einsum(text.format(kind), dynamic=dynamic)
    rng = np.random.default_rng(0)
    for n, d in ((1, 1), (0, 5), (7, 17), (70, 33), (130, 130))[:: 1 if dynamic else 2]:
        shape = (3, n, d) if text is BATCH else (n, d) if text is GRAM else (d, d)
        x = rng.integers(-4, 5, shape).astype({"f32": "f4", "f64": "f8", "i32": "i4", "c64": "c8"}[kind])
        for given in (x, x[..., ::-1], np.swapaxes(x, -1, -2).copy().swapaxes(-1, -2))[: 3 if d == 17 else 1]:
            if text is MAX_PLUS:
                expected = (given[:, :, None] + given).max(axis=1)
            elif text is CUBE:
                expected = given @ given @ given
            else:
                expected = (given if text is SQUARE else np.swapaxes(given, -1, -2)) @ given
            before = given.copy()
            np.testing.assert_allclose(f(given), expected, rtol=1e-5)
            np.testing.assert_array_equal(given, before)


def test_constants_are_packed_once() -> None:
    """Bound, all of the product is."""
    x = np.random.default_rng(0).standard_normal((200, 200))
    y = np.random.default_rng(1).standard_normal((3, 200))
    f = pm.einsum(
        'def f(x: f64["N N"], y: f64["M N"]):\n    c[i, j] = x[i, k] * x[k, j]\n    z[m, j] = y[m, i] * c[i, j]\n    return z\n'
    ).bind(x=x)
    np.testing.assert_allclose(f(y), y @ x @ x, rtol=1e-9)
    np.testing.assert_allclose(f(2 * y), 2 * y @ x @ x, rtol=1e-9)
