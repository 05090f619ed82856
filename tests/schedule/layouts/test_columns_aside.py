"""Columns that are walked down again and again, as rows: what comes out is right, and what is something else stays."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from benchmarks.polybench import KERNELS
from benchmarks.polybench.kernel import worst_error
from polyml.target import Target

SMALL_CACHES = Target("x86-64-v3", l1_bytes=2048, l2_bytes=8 * 1024, cores=2)

STEPS = """
def f(A: f64["M N"]):
    Q: f64["M N"] = 0
    R: f64["N N"] = 0
    for k in range(N):
        Q[i, k] = 2 * A[i, k]
        if j > k:
            R[k, j] = Q[i, k] * A[i, j]
    return Q, R
"""


def loops(text: str, m: int = 48, n: int = 40, target: Target = SMALL_CACHES) -> str:
    return polyml.einsum(text, target=target, threads=1).lower(np.zeros((m, n))).text("loops")


def test_gramschmidt() -> None:
    kernel = KERNELS["gramschmidt"]
    (a,) = kernel.data({"M": 48, "N": 40}, np.random.default_rng(1))
    program = kernel.program(target=SMALL_CACHES)
    assert "_columns[" in program.lower(a).text("loops")
    assert worst_error(program(a.copy()), kernel.reference(a.copy())) < 1e-12


def test_every_read_of_the_column_is_a_row() -> None:
    text = loops(STEPS)
    assert "Q_2_columns[k, i] * A[i, j]" in text or "Q_3_columns[k, i] * A[i, j]" in text, text
    assert "Q_3[i, k] *" not in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Q[i, k] = 2 * A[i, k]", "if i > 3:\n            Q[i, k] = 2 * A[i, k]"),
        ("Q[i, k] = 2 * A[i, k]", "Q[i, k] = 2 * A[i, k]\n        Q[i, k] += 1"),
        ("R[k, j] = Q[i, k] * A[i, j]", "R[k, j] = Q[j, k] * A[i, j]"),
    ],
    ids=["not all of it is written here", "written twice", "along the lanes"],
)
def test_others_stay(old: str, new: str) -> None:
    assert "_columns" not in loops(STEPS.replace(old, new))


def test_what_fits_into_cache_stays() -> None:
    assert "_columns" not in loops(STEPS, target=Target("x86-64-v3", l1_bytes=2048, l2_bytes=64 * 1024, cores=2))
