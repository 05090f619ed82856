"""Sums over a large operand go through it in the order of memory, a few terms at a time."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target

SMALL = Target("x86-64-v3", l1_bytes=1 << 12, l2_bytes=1 << 13)
"""Of small caches, so that operands are large."""

SUMS = """
def f(x: f32["B C D A"], w: f32["D B"]):
    y[d, a] = x[b, c, d, a] * w[d, b]
    return y
"""


def arguments(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 10, shape).astype(np.float32)
    return x, rng.integers(-9, 10, (shape[2], shape[0])).astype(np.float32)


def notes(*arrays: np.ndarray, **options: object) -> list[str]:
    stages = polyml.einsum(SUMS, target=SMALL, **options).lower(*arrays).stages  # type: ignore[call-overload]
    return [note.text for region in stages.regions for note in region.notes]


def test_terms_are_blocks_around_a_row_of_sums() -> None:
    x, w = arguments(6, 33, 12, 48)
    assert "loops b, d; tile c by 8; lanes along a, 4 vectors at once" in notes(x, w, threads=1)
    text = polyml.einsum(SUMS, target=SMALL, threads=1).lower(x, w).text("loops")
    order = [text.index(f"for ({loop}") for loop in ("b = 0", "c_tile", "d = 0; d < 12; d++) {\n        vector")]
    assert order == sorted(order)


def test_short_rows_go_side_by_side() -> None:
    assert any("jam d by 4; lanes along a, 1 vector at once" in n for n in notes(*arguments(60, 33, 12, 8), threads=1))


def test_threads_share_rows() -> None:
    x, w = arguments(6, 33, 16, 48)
    assert any("parallel d" in n and "tile c by 8" in n for n in notes(x, w, threads=2))
    text = polyml.einsum(SUMS, target=SMALL, threads=2).lower(x, w).text("loops")
    assert "parallel for (d_tile = 0; d_tile < 16; d_tile += 8)" in text


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((2, 3, 6, 16), {}),  # a nearer cache holds all
        ((60, 33, 2, 16), {}),  # registers hold a row
        ((6, 33, 12, 48), {"precise": True}),
    ],
)
def test_elsewhere_sums_are_finished_in_registers(shape: tuple[int, ...], options: dict[str, bool]) -> None:
    assert not any(
        "loops b, d; tile c" in n or "loops b, c" in n for n in notes(*arguments(*shape), threads=1, **options)
    )


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("terms", [1, 7, 8, 9, 11, 12, 13, 33])
@pytest.mark.parametrize(("rows", "columns"), [(12, 48), (13, 17), (31, 9), (1, 130), (5, 33)])
def test_values(threads: int, terms: int, rows: int, columns: int) -> None:
    x, w = arguments(17, terms, rows, columns)
    y = polyml.einsum(SUMS, target=SMALL, threads=threads, verify=True)(x, w)
    np.testing.assert_array_equal(y, np.einsum("bcda,db->da", x, w))


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_are_summed_as_they_follow_each_other(threads: int) -> None:
    text = 'def f(x: f32["C N K"]):\n    y[n, c] = sum[k](x[c, n, k])\n    return y\n'
    x = np.random.default_rng(0).integers(-9, 10, (13, 11, 100)).astype(np.float32)
    program = polyml.einsum(text, target=SMALL, threads=threads)
    np.testing.assert_array_equal(program(x), x.sum(2).T)
    loops = program.lower(x).text("loops")
    assert loops.index("for (c = 0") < loops.index("for (n = 0")
