"""argmax and argmin of short numbers count steps in numbers as short; first winners win, whatever the length."""

from __future__ import annotations

import numpy as np
import pytest

import polyml as pm

TYPES = {"u8": np.uint8, "i8": np.int8, "u16": np.uint16, "i16": np.int16}


def text(op: str, kind: str) -> str:
    return f'def f(x: {kind}["N K"]):\n    y[n] = {op}[k](x[n, k])\n    return y'


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("kind", TYPES)
def test_steps_are_as_short_as_numbers(target: str, kind: str) -> None:
    x = np.zeros((3, 4096), TYPES[kind])
    made = pm.einsum(text("argmax", kind), target=pm.Target(target)).lower(x).text("loops")
    lanes = pm.Target(target).lanes(x.itemsize)
    assert f"register {kind}x{lanes} k_place" in made
    assert f"{kind}(k_step)" in made


def test_not_of_longer_numbers_nor_of_short_rows() -> None:
    for x, kind in ((np.zeros((3, 4096), np.int32), "i32"), (np.zeros((30, 100), np.uint8), "u8")):
        assert "k_place" not in pm.einsum(text("argmax", kind)).lower(x).text("loops")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.few(1)
def test_first_winners(kind: str, op: str, dynamic: bool) -> None:
    """Rows of one block, and of several, whose number of steps 8 bits do not hold."""
    type_ = TYPES[kind]
    rng, ends = np.random.default_rng(0), np.iinfo(type_)
    f = pm.einsum(text(op, kind), dynamic=dynamic)
    for shape in ((3, 100), (3, 512), (2, 1000), (2, 17000), (1, 70001), (2, 140000)):
        drawn = rng.integers(ends.min, ends.max, shape, type_, endpoint=True)
        late = np.full(shape, 5, type_)
        late[:, -1], late[:, -2] = 7, 3
        for x in (drawn, late, np.full(shape, ends.min, type_), np.full(shape, ends.max, type_)):
            np.testing.assert_array_equal(f(x), getattr(np, op)(x, axis=1))
            np.testing.assert_array_equal(f(x[:, ::2]), getattr(np, op)(x[:, ::2], axis=1))
