"""Rows of windows with padding are no register tile, since those at the edges have fewer places: filters are, or rows read a copy with zeros around it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyml
from polyml.target import Target

Array = np.ndarray[Any, Any]

PADDED = """
def f(x: f32["C H W"], w: f32["K C R S"]):
    y[k, p, q] = pad(x, ((0, 0), ({e}, {e}), ({e}, {e})))[c, p + r, q + s] * w[k, c, r, s]
    return y
"""


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32)


def convolved(x: Array, w: Array) -> Array:
    e, (_, high, wide) = w.shape[-1] // 2, x.shape
    x = np.pad(x, ((0, 0), (e, e), (e, e)))
    y = np.zeros((len(w), high, wide), np.float32)
    for r in range(w.shape[-1]):
        for s in range(w.shape[-1]):
            y += np.einsum("kc,chw->khw", w[:, :, r, s], x[:, r : r + high, s : s + wide])
    return y


@pytest.mark.parametrize(
    ("channels", "filters", "high", "wide", "target"),
    [
        (3, 16, 30, 80, "x86-64-v4"),
        (2, 4, 40, 100, "x86-64-v3"),
        (2, 4, 40, 100, "x86-64-v4"),
        (4, 3, 20, 60, "x86-64-v3"),
        (4, 3, 20, 60, "x86-64-v4"),
    ],
)
def test_filters_are_a_tile_of_long_rows(channels: int, filters: int, high: int, wide: int, target: str) -> None:
    x, w = numbers(channels, high, wide), numbers(filters, channels, 3, 3)
    lowered = polyml.einsum(PADDED.format(e=1), target=Target(target), threads=1).lower(x, w)
    notes = [note.text for region in lowered.stages.regions for note in region.notes]
    assert any("jam k by" in text for text in notes), notes
    assert not any("is not jammed" in text for text in notes), notes


def test_short_rows_read_a_copy_and_long_ones_do_not() -> None:
    program = polyml.einsum(PADDED.format(e=1), target=Target("x86-64-v4"), threads=1)
    assert "x_padded" in program.lower(numbers(4, 20, 20), numbers(3, 4, 3, 3)).text("graph")
    assert "x_padded" not in program.lower(numbers(4, 20, 60), numbers(3, 4, 3, 3)).text("graph")
    assert "x_padded" not in program.lower(numbers(1, 4, 4), numbers(3, 1, 3, 3)).text("graph")


@pytest.mark.parametrize(("channels", "filters"), [(1, 2), (3, 5), (8, 1)])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("wide", [15, 70])
@pytest.mark.few(3)
def test_right_at_the_edges(channels: int, filters: int, kernel: int, wide: int) -> None:
    x, w = numbers(channels, 11, wide), numbers(filters, channels, kernel, kernel)
    f = polyml.einsum(PADDED.format(e=kernel // 2), verify=True)
    np.testing.assert_array_equal(f(x, w), convolved(x, w))
