"""Blocks of steps with sums one step ahead: results around the size of the blocks, for any number of threads, and where the steps stay as they are."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from benchmarks.polybench import KERNELS
from polyml.target import Target
from tests.schedule.columns import SMALL, STEPS


def notes(function: polyml.Einsum, *arguments: object) -> list[str]:
    found = [note for region in function.lower(*arguments).stages.regions for note in region.notes]
    assert not [note for note in found if note.stage == "fallback"]
    return [note.text for note in found if "one ahead of" in note.text]


def steps(a: np.ndarray, w: np.ndarray, text: str) -> tuple[np.ndarray, ...]:
    """STEPS, or one of its variants, in NumPy."""
    a, (m, n) = a.copy(), a.shape
    q, r = np.zeros((m, n)), np.zeros((n, n))
    for k in range(n):
        q[:, k] = a[:, k] * w[k]
        later = slice(k + 1, None)
        if text == FIRST:
            a[:, later] -= np.outer(q[:, k], w[later])
        r[k, later] = q[:, k] @ (a[::-1, later] if text == UPSIDE else a[:, later])
        if text != FIRST:
            a[:, later] -= np.outer(q[:, k], r[k, later])
    return a, q, r


FIRST = STEPS.replace("            A[i, j] -= Q[i, k] * R[k, j]\n", "").replace(
    "            R[k", "            A[i, j] -= Q[i, k] * w[j]\n            R[k"
)
UPSIDE = STEPS.replace("* A[i, j]\n", "* A[M - 1 - i, j]\n", 1)


@pytest.mark.parametrize("shape", [(24, 160), (23, 141), (11, 300)])
@pytest.mark.few(1)
def test_sums_one_step_ahead(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    a, w = rng.standard_normal(shape) / 8, rng.random(shape[1]) / 4
    expected = steps(a, w, STEPS)
    for threads in (1, 3) if shape == (23, 141) else (2,):
        function = polyml.einsum(STEPS, target=SMALL, threads=threads, verify=True)
        assert notes(function, a.copy(), w)
        first = function(a.copy(), w)
        for got, want in zip(first, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_threads_share_the_other_columns() -> None:
    (a,) = KERNELS["gramschmidt"].data({"M": 200, "N": 160}, np.random.default_rng(0))
    program = KERNELS["gramschmidt"].program(target=Target("host", l1_bytes=2048, l2_bytes=240 * 1024), threads=2)
    text = program.lower(a).text("loops")
    assert "parallel for (j_tile" in text
    assert np.array_equal(
        program(a.copy())[0],
        KERNELS["gramschmidt"].program(target=Target("host", l1_bytes=2048, l2_bytes=240 * 1024), threads=1)(a.copy())[
            0
        ],
    )


@pytest.mark.parametrize("text", [FIRST, UPSIDE], ids=["the sum needs its own step", "the sum needs what is below"])
def test_others_stay(text: str) -> None:
    rng = np.random.default_rng(0)
    a, w = rng.standard_normal((24, 160)) / 8, rng.random(160) / 4
    function = polyml.einsum(text, target=SMALL, verify=True)
    assert not notes(function, a.copy(), w)
    for got, want in zip(function(a.copy(), w), steps(a, w, text), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
