"""Masked stores at the ends of arrays touch nothing behind them, whatever the last vector's lanes and the conversion in front of the store."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target

CONVERSIONS = [
    ("i16", "i32", "i16"), ("i8", "i32", "i8"), ("u8", "u32", "u8"), ("i32", "i64", "i32"), ("i64", "i64", "i32"), ("i64", "i64", "i8"),
    ("f64", "f64", "f32"), ("i32", "i32", "f32"), ("f32", "f32", "f64"),
]  # fmt: skip


@pytest.mark.parametrize(("read", "computed", "stored"), CONVERSIONS, ids=["-".join(c) for c in CONVERSIONS])
@pytest.mark.parametrize("rest", [1, 2, 9, 15])
@pytest.mark.few(6)
def test_nothing_behind_the_last_element_is_written(read: str, computed: str, stored: str, rest: int) -> None:
    f = polyml.einsum(
        f'def f(x: {read}["N K"], w: {read}["K M"]):\n'
        f"    y[n, m] = {stored}(sum[k]({computed}(x[n, k]) * {computed}(w[k, m])))\n    return y\n"
    )
    types = {name: dtype.numpy for name, dtype in polyml.dtypes.DTYPES.items()}
    x = np.arange(6).reshape(2, 3).astype(types[read])
    w = (np.arange(3 * (16 + rest)).reshape(3, 16 + rest) % 5).astype(types[read])
    room = np.full(2 * (16 + rest) + 8, 77, types[stored])
    out = room[:-8].reshape(2, 16 + rest)
    f(x, w, out=out)
    assert np.array_equal(out, (x.astype("f8") @ w.astype("f8")).astype(types[stored]))
    assert (room[-8:] == 77).all()


def test_one_lane_chosen_by_a_condition() -> None:
    f = polyml.einsum('def f(x: i32["N"], y: i16["N"]):\n    if n == 5:\n        y[n] = i16(x[n])\n')
    x, y = np.arange(70000, 70016, dtype=np.int32), np.zeros(16, np.int16)
    f(x, y)
    assert y[5] == x.astype(np.int16)[5]
    assert np.count_nonzero(y) == 1


def test_what_is_stored_is_not_loaded_again() -> None:
    """The sum behind the store takes the last lanes' values from their register, although the array is read elsewhere, too."""
    f = """
def f(x: f64["N"], w: f64["N"]):
    for t in range(5):
        s = sum[i](x[i] * w[i])
        x[i] = (x[i] + 0.5 * x[N - 1 - i]) / (1.0 + s)
    return x
"""
    lowered = polyml.einsum(f, target=Target("x86-64-v4")).lower(np.ones(13), np.ones(13))
    lines = [line for line in lowered.text("llvm").splitlines() if "masked" in line and "declare" not in line]
    sweep = [("store" if "store" in line else "load") for line in lines]
    # Copies ahead, the first sum, the sweep (x twice, w), the last update, copies back.
    assert sweep == [
        "load",
        "store",
        *["load"] * 2,
        "load",
        "load",
        "store",
        "load",
        *["load"] * 2,
        "store",
        "load",
        "store",
    ]
