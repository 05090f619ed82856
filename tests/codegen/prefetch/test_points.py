"""Pieces of lines that a tile reads of each channel: those of the next tile are asked for, every line once in a sweep."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target

TARGET = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20, cores=1)
LAYER = 'def f(x: f32["C H W"], w: f32["O C"]):\n    y[o, p, q] = x[c, p, q] * w[o, c]\n    return y\n'


def asked(channels: int, points: int, filters: int = 256) -> list[str]:
    x, w = np.zeros((channels, points, points), np.float32), np.zeros((filters, channels), np.float32)
    layer = polyml.einsum(LAYER, target=TARGET, threads=1).bind(w=w)
    return re.findall(r"prefetch L2 (x\[.*\]);", layer.lower(x).text("loops"))


def test_the_next_points_of_each_channel() -> None:
    assert asked(1024, 14) == ["x[c, p + 1, 13]"]


def test_each_of_several_steps_asks() -> None:
    """Sums of few multiply-adds have two steps in an iteration, or three of a smaller tile: their points lie apart."""
    two = ["x[c, p + 1, 6]", "x[c + 1, p + 1, 6]"]
    assert asked(2048, 7, 480) == two
    assert asked(2048, 7, 512) == [*two, "x[c + 2, p + 1, 6]"]


@pytest.mark.parametrize(("channels", "points"), [(64, 14), (48, 14)])
def test_what_is_in_cache_anyway_is_not_asked_for(channels: int, points: int) -> None:
    assert asked(channels, points) == []


def test_results_stay() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((520, 15, 13)).astype("f4"), rng.standard_normal((70, 520)).astype("f4")
    found = polyml.einsum(LAYER, threads=1).bind(w=w)(x)
    exact = np.tensordot(w.astype(float), x.astype(float), (1, 0))
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize(
    ("width", "stride", "places"),
    [
        (200, 1, ["x[c, p + r, q + 13]"]),  # many tiles in a row: the next one
        (41, 1, ["x[c, p + r + 1, q + 14]"]),  # few: the row below
        (65, 2, ["x[c, 2*p + r + 2, 2*q + 16]"]),
        (83, 3, [f"x[c, 3*p + r + 3, {q}]" for q in (9, 25, 41, 48, 64, 80)]),  # two tiles of rows that are none
    ],
)
def test_rows_of_windows(width: int, stride: int, places: list[str]) -> None:
    """Each row of each channel is lines away from the one before; what a tile reads of it may be several lines."""
    text = LAYER.replace("x[c, p, q]", f"x[c, {stride}*p + r, {stride}*q + s]").replace("w[o, c]", "w[o, c, r, s]")
    text = text.replace("O C", "O C 3 3")
    x, w = np.zeros((160, width, width), np.float32), np.zeros((256, 160, 3, 3), np.float32)
    loops = polyml.einsum(text, target=TARGET, threads=1).bind(w=w).lower(x).text("loops")
    found = sorted(set(re.findall(r"prefetch L2 (x\[.*\]);", loops)))
    assert found == sorted(places)


def test_rows_of_windows_under_lanes() -> None:
    """Sums of few terms have lanes along the points: a tile asks for the row below."""
    text = LAYER.replace("x[c, p, q]", "x[c, 2*p + r, 2*q + s]").replace("w[o, c]", "w[o, c, r, s]")
    x, w = np.zeros((3, 225, 225), np.float32), np.zeros((32, 3, 3, 3), np.float32)
    near = Target("x86-64-v4", l1_bytes=32 << 10, l2_bytes=1 << 20, cores=1)
    loops = polyml.einsum(text.replace("O C", "O C 3 3"), target=near, threads=1).bind(w=w).lower(x).text("loops")
    found = set(re.findall(r"prefetch L2 (x\[.*\]);", loops))
    assert {f"x[c, 2*p + r + 2, 2*q + {q}]" for q in (16, 32, 48, 64)} <= found
