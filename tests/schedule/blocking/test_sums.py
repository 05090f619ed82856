"""Blocks of the sum where panels of constants over all of it fill L2: which sums have them, how long they are, and that results stay what they are."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.pairs import pairwise

TARGET = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=1 << 20, cores=1)
FEW_REGISTERS = Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024, cores=1)
WINDOWS = """def f(x: f32["C H W"], w: f32["O C R S"]):
    y[o, p, q] = pad(x, ((0, 0), (1, 1), (1, 1)))[c, p + r, q + s] * w[o, c, r, s]
    return y
"""
POINTS = 'def f(x: f32["C H W"], w: f32["O C"]):\n    y[o, p, q] = x[c, p, q] * w[o, c]\n    return y\n'
BATCH = (
    WINDOWS.replace("C H W", "N C H W")
    .replace("y[", "y[n, ")
    .replace("((0, 0), (1", "((0, 0), (0, 0), (1")
    .replace("[c, p", "[n, c, p")
)
IMAGES = 'def f(x: f32["N C P"], w: f32["O C"]):\n    y[n, o, p] = x[n, c, p] * w[o, c]\n    return y\n'
FOLLOWED = """def f(x: f32["N C H W"], w: f32["O C R S"], b: f32["O"], z: f32["N O P Q"]):
    t[n, o, p, q] = x[n, c, 2*p + r, 2*q + s] * w[o, c, r, s]
    y[n, o, p, q] = max(t[n, o, p, q] + b[o] + z[n, o, p, q], 0)
    return y
"""


def blocks(text: str, points: tuple[int, ...], weights: tuple[int, ...], target: Target = TARGET) -> str:
    """What the plan says of tiles and blocks."""
    x, w = np.zeros(points, np.float32), np.zeros(weights, np.float32)
    explained = polyml.einsum(text, target=target, threads=1).bind(w=w).lower(x).explain()
    (found,) = re.findall(r"register tile (.*); w packed.*blocks of (.*)", explained)
    return "; ".join(found)


@pytest.mark.parametrize(
    ("text", "points", "weights", "found"),
    [
        (WINDOWS, (512, 7, 7), (512, 512, 3, 3), "7 q x 2 vectors of o; c by 16, o by 32"),
        (
            WINDOWS,
            (521, 7, 7),
            (512, 521, 3, 3),
            "7 q x 2 vectors of o; c by 21, o by 32",
        ),  # no divisor: 24 blocks and a shorter one
        (WINDOWS, (192, 7, 7), (576, 192, 3, 3), "7 q x 3 vectors of o; c by 12, o by 48"),  # whole panels of three
        (POINTS, (2048, 7, 7), (512, 2048), "7 q x 2 vectors of o; c by 64, o by 32"),  # points beside the panel
        (
            WINDOWS,
            (512, 28, 28),
            (512, 512, 3, 3),
            "14 q x 2 vectors of o; c by 16, o by 64",
        ),  # several panels, since L2 does not hold x
        (POINTS, (1024, 7, 7), (512, 1024), "7 q x 2 vectors of o; c by 64, o by 32"),
        (
            POINTS,
            (1024, 7, 7),
            (1024, 1024),
            "7 q x 3 vectors of o; o by 48",
        ),  # more panels, of which the first matters less
        (
            WINDOWS,
            (128, 48, 48),
            (128, 128, 3, 3),
            "6 q x 4 vectors of o; o by 64",
        ),  # L2 does not hold x either way, but panels easily
        (WINDOWS, (64, 7, 7), (512, 64, 3, 3), "7 q x 3 vectors of o; o by 48"),  # L2 holds two panels easily
        (
            WINDOWS,
            (128, 56, 56),
            (128, 128, 3, 3),
            "14 q x 2 vectors of o; o by 32",
        ),  # no room for the sums of all points
    ],
)
@pytest.mark.few(2)
def test_blocks(text: str, points: tuple[int, ...], weights: tuple[int, ...], found: str) -> None:
    assert blocks(text, points, weights) == found


def test_they_follow_from_caches() -> None:
    points, weights = (512, 7, 7), (512, 512, 3, 3)
    large = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=8 << 20, cores=1)
    small = Target("x86-64-v4", l1_bytes=32 * 1024, l2_bytes=1 << 20, cores=1)
    assert "c by" not in blocks(WINDOWS, points, weights, large)
    assert "c by 8," in blocks(WINDOWS, points, weights, small)


def test_weights_of_a_call_have_them_too() -> None:
    x, w = np.zeros((512, 7, 7), np.float32), np.zeros((512, 512, 3, 3), np.float32)
    assert "blocks of c by 16, o by" in polyml.einsum(WINDOWS, target=TARGET, threads=1).lower(x, w).explain()


@pytest.mark.parametrize(
    ("text", "points", "weights", "found"),
    [
        (POINTS, (512, 7, 7), (1024, 512), "5 p_q x 2 vectors of o; c by 64, o by 16"),  # L2 would hold the panels
        (POINTS, (1024, 14, 14), (256, 1024), "6 p_q x 2 vectors of o; c by 128, o by 128"),  # a tile's points in L1
        (POINTS, (160, 7, 7), (960, 160), "5 p_q x 2 vectors of o; c by 80, o by 16"),  # L1 would hold half of a panel
        (POINTS, (440, 13, 13), (168, 440), "4 p_q x 3 vectors of o; c by 88, o by 24"),  # no room for a row's points
        (IMAGES, (2, 512, 49), (512, 512), "5 p x 2 vectors of o; c by 128, o by 16"),  # no divisor of c but for a tile
        (WINDOWS, (64, 56, 56), (64, 64, 3, 3), "6 q x 2 vectors of o; c by 16, o by 16, p by 28"),  # half of the sums
        (WINDOWS, (64, 7, 7), (24, 64, 3, 3), "4 q x 3 vectors of o; c by 16"),  # one panel, beyond L1
        (BATCH, (4, 64, 56, 56), (64, 64, 3, 3), "6 q x 2 vectors of o; c by 16, o by 16, n by 1, p by 28"),
        (BATCH, (1, 64, 56, 56), (64, 64, 3, 3), "6 q x 2 vectors of o; c by 16, o by 16, p by 28"),
    ],
)
@pytest.mark.few(4)
def test_panels_that_l2_does_not_deliver_in_time(
    text: str, points: tuple[int, ...], weights: tuple[int, ...], found: str
) -> None:
    assert blocks(text, points, weights, FEW_REGISTERS) == found


@pytest.mark.skipif(not FEW_REGISTERS.runs_here, reason="code for AVX2")
@pairwise(
    ("channels, filters, high, wide", [(40, 48, 33, 28), (37, 47, 29, 32), (40, 24, 50, 16)]),
    ("threads", [1, 2, 5]),
    ("dtype", ["f32", "f64"]),
    ("images", [0, 1, 3]),
    ("bound", [True, False]),
)
@pytest.mark.few(1)
def test_sums_of_some_rows_at_a_time(
    channels: int, filters: int, high: int, wide: int, dtype: str, images: int, threads: int, *, bound: bool
) -> None:
    near = Target("x86-64-v3", l1_bytes=1 << 14, l2_bytes=1 << 17)
    rng = np.random.default_rng(2)
    kind = np.float32 if dtype == "f32" else np.float64
    shape = (max(images, 1), channels, high, wide)
    x, w = (rng.integers(-3, 4, n).astype(kind) for n in (shape, (filters, channels, 3, 3)))
    text = BATCH if images else WINDOWS
    layer = polyml.einsum(text.replace("f32", dtype), target=near, threads=threads, verify=True)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    expected = np.einsum("ncpqrs,ocrs->nopq", windows, w, optimize=True)
    if not images:
        x, expected = x[0], expected[0]
    if bound:
        np.testing.assert_array_equal(layer.bind(w=w)(x), expected)
        assert re.search("blocks of c by .*, p by", layer.bind(w=w).lower(x).explain())
    else:
        np.testing.assert_array_equal(layer(x, w), expected)


@pairwise(
    ("channels, filters, high, wide", [(512, 96, 7, 7), (331, 75, 6, 9), (300, 33, 17, 5)]),
    ("threads", [1, 2, 5]),
    ("dtype", ["f32", "f64"]),
)
@pytest.mark.few(1)
def test_results_stay(channels: int, filters: int, high: int, wide: int, dtype: str, threads: int) -> None:
    text = WINDOWS.replace("f32", dtype)
    rng = np.random.default_rng(0)
    kind = np.float32 if dtype == "f32" else np.float64
    x, w = (rng.integers(-3, 4, n).astype(kind) for n in ((channels, high, wide), (filters, channels, 3, 3)))
    near = Target(l2_bytes=1 << 18) if Target.host().l2_bytes > 1 << 18 else Target.host()
    layer = polyml.einsum(text, target=near, threads=threads).bind(w=w)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    assert "blocks of c" in layer.lower(x).explain()
    np.testing.assert_array_equal(layer(x), np.tensordot(w, windows, ([1, 2, 3], [0, 3, 4])))


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_what_follows_reads_finished_sums(threads: int) -> None:
    rng = np.random.default_rng(1)
    x, w, b, z = (
        rng.integers(-3, 4, n).astype(np.float32) for n in ((2, 300, 13, 13), (100, 300, 3, 3), (100,), (2, 100, 6, 6))
    )
    near = Target(l2_bytes=1 << 19) if Target.host().l2_bytes > 1 << 19 else Target.host()
    layer = polyml.einsum(FOLLOWED, target=near, threads=threads, verify=True).bind(w=w, b=b)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2]
    sums = np.moveaxis(np.tensordot(w, windows, ([1, 2, 3], [1, 4, 5])), 0, 1)
    assert "blocks of c" in layer.lower(x, z).explain()
    np.testing.assert_array_equal(layer(x, z), np.maximum(sums + b[:, None, None] + z, 0))
