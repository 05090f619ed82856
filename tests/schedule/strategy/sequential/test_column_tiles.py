"""Blocks of columns around a sequential loop: the tree, results around the size of the blocks, and where there are none."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from benchmarks.polybench import KERNELS
from polyml.target import Target

SMALL = Target("host", l1_bytes=2048, l2_bytes=24 * 1024, cores=2)
"""This machine with caches so small that blocks appear at test sizes."""


def tilings(function: polyml.Einsum, *arguments: object) -> list[str]:
    notes = [note for region in function.lower(*arguments).stages.regions for note in region.notes]
    assert not [note for note in notes if note.stage == "fallback"]
    return [note.text for note in notes if "around the sequential loop" in note.text or "one ahead of" in note.text]


ONE, TWO, PRECISE = {"threads": 1}, {"threads": 2}, {"threads": 1, "precise": True}


@pytest.mark.parametrize(
    ("shape", "options"),
    [((24, 159), ONE), ((24, 160), TWO), ((23, 191), ONE), ((23, 191), PRECISE), ((24, 160), PRECISE)],
)
@pytest.mark.few(1)
def test_orthogonalization(shape: tuple[int, int], options: dict[str, object]) -> None:
    kernel = KERNELS["gramschmidt"]
    rows, columns = shape
    rng = np.random.default_rng(0)
    a = rng.random((rows, columns)) + np.eye(rows, columns) * rows
    function = kernel.program(target=SMALL, verify=True, **options)
    (found,) = tilings(function, a.copy())
    # Sums whose order may change go one step ahead.
    assert found.startswith("blocks of 32 j" if "precise" in options else "blocks of 32 steps")
    # Beyond as many columns as rows nothing is determined but the first of Q and R.
    q, r = function(a.copy())
    expected_q, expected_r = kernel.reference(a[:, :rows].copy())
    np.testing.assert_allclose(q[:, :rows], expected_q[:, :rows], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(r[:rows, :rows], expected_r[:rows, :rows], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(r[:rows, rows:], expected_q[:, :rows].T @ a[:, rows:], rtol=1e-7, atol=1e-8)


def test_blocks_stand_above_the_sequential_loop() -> None:
    (a,) = KERNELS["gramschmidt"].data({"M": 24, "N": 160}, np.random.default_rng(0))
    text = KERNELS["gramschmidt"].program(target=SMALL, threads=1, precise=True).lower(a).text("schedule")
    blocks = text.index("S_R_3: 32*(j//32)")
    assert blocks < text.index("band[k | permutable | coincident 0]")
    assert "32*(k//32)" in text[blocks - 120 : blocks + 120]


def test_none_where_all_stays_in_cache_or_columns_need_later_ones() -> None:
    (a,) = KERNELS["gramschmidt"].data({"M": 24, "N": 160}, np.random.default_rng(0))
    assert not tilings(KERNELS["gramschmidt"].program(threads=1), a)
    text = """
def sweep(A: f64["T M N"]):
    for t in range(1, T):
        if j < N - 1:
            A[t, i, j] = A[t - 1, i, j] + A[t - 1, i, j + 1]
    return A
"""
    a = np.random.default_rng(0).random((5, 24, 160))
    function = polyml.einsum(text, target=SMALL, threads=1)
    assert not tilings(function, a.copy())


def test_a_chain_of_sums_into_one_number_has_no_columns() -> None:
    function = polyml.einsum(
        'def f(x: f32["N"], y: f32["N N"], z: f32["N N"]):\n    s = x[i] * y[i, j] * z[j, k]\n    return s\n',
        precise=True,
    )
    x, y = np.arange(3, dtype="f4"), np.arange(9, dtype="f4").reshape(3, 3)
    assert function(x, y, y) == (x @ y @ y).sum()
