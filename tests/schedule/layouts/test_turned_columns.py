"""Matrices turned around a sequential loop that walks down their columns: which ones, what is copied, and results."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.pairs import pairwise
from tests.schedule.columns import SMALL, STEPS

PART = STEPS.replace("if j > k:", "if j > k and j > 5:").replace("Q[i, k] = A", "if k > 2:\n            Q[i, k] = A")
ROWS = """
def f(A: f64["N M"], w: f64["N"]):
    Q: f64["N M"] = 0
    R: f64["N N"] = 0
    for k in range(N):
        Q[k, i] = A[k, i] * w[k]
        if j > k:
            R[k, j] = Q[k, i] * A[j, i]
            A[j, i] -= Q[k, i] * R[k, j]
    return A, Q, R
"""


def steps(a: np.ndarray, w: np.ndarray, text: str = STEPS) -> tuple[np.ndarray, ...]:
    """STEPS, or PART, in NumPy."""
    a, (m, n) = a.copy(), a.shape
    q, r = np.zeros((m, n)), np.zeros((n, n))
    for k in range(n):
        if text != PART or k > 2:
            q[:, k] = a[:, k] * w[k]
        later = slice(max(k + 1, 6 if text == PART else 0), None)
        r[k, later] = q[:, k] @ a[:, later]
        a[:, later] -= np.outer(q[:, k], r[k, later])
    return a, q, r


def data(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal(shape) / 8, rng.random(shape[1]) / 4


def notes(function: polyml.Einsum, *arguments: object) -> list[str]:
    found = [note for region in function.lower(*arguments).stages.regions for note in region.notes]
    assert not [note for note in found if note.stage == "fallback"]
    return [note.text for note in found if note.stage == "steps"]


@pytest.mark.parametrize("text", [pytest.param(STEPS, marks=pytest.mark.slow), PART], ids=["all", "a part"])
def test_any_size(text: str) -> None:
    """One kernel, which turns the matrix where it does not fit in L2."""
    function = polyml.einsum(text, target=SMALL, threads=1, dynamic=True, verify=True)
    (found,) = notes(function, *data((61, 150)))
    assert "in tiles of 2 columns" in found  # as for these numbers
    for shape in ((61, 150), (24, 160), (83, 99), (190, 131), (9, 8), (2, 65), (1, 7), (300, 3), (3, 300)):
        a, w = data(shape)
        for got, want in zip(function(a.copy(), w), steps(a, w, text), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    assert len(function.kernels) == 1


@pairwise(
    ("shape, rows", [((24, 160), 4), ((61, 150), 2), ((83, 99), 1), ((95, 99), 4)]),
    ("text", [STEPS, PART]),
    ("threads", [1, 3]),
)
@pytest.mark.few(1)
def test_results(shape: tuple[int, int], rows: int, text: str, threads: int) -> None:
    """Tiles of the columns that stay in L1 beside two others; where none does, of the most."""
    a, w = data(shape)
    function = polyml.einsum(text, target=SMALL, threads=threads, verify=threads == 1)
    (found,) = notes(function, a.copy(), w)
    assert f"in tiles of {rows} columns" in found
    for got, want in zip(function(a.copy(), w), steps(a, w, text), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("text", [STEPS, PART], ids=["all", "a part"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.few(1)
def test_a_matrix_in_l2_is_turned_too(text: str, dynamic: bool) -> None:
    near = Target("host", l1_bytes=SMALL.l1_bytes, l2_bytes=1 << 20)
    for threads in (3,) if dynamic else (1,):
        function = polyml.einsum(text, target=near, threads=threads, dynamic=dynamic, verify=threads == 1)
        assert dynamic or not notes(function, *data((61, 150))), "blocks of steps, which it has no need of"
        assert "A_turned" in function.lower(*data((61, 150))).text("domains")
        for shape in ((61, 150), (24, 160), (5, 4), (1, 1), (3, 300), (400, 7)):
            a, w = data(shape)
            for got, want in zip(function(a.copy(), w), steps(a, w, text), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    few, w = data((5, 4))
    assert "A_turned" not in polyml.einsum(text, target=near).lower(few, w).text("domains")


def test_what_is_copied() -> None:
    """A is read in full and written but for its first column, Q is written only, R is where it was."""
    a, w = data((24, 160))
    text = polyml.einsum(STEPS, target=SMALL, threads=1).lower(a, w).text("domains")
    assert "S_A_turned[e1, e0] : 0 <= e1 <= 159 and 0 <= e0 <= 23" in text, text
    assert "S_A_back'[e0, e1] : 0 <= e0 <= 23 and 0 < e1 <= 159" in text, text
    assert text.count("_back'[") == 2
    assert text.count("_turned[e1, e0] :") == 1
    assert "R_3_turned" not in text


def test_rows_are_where_they_should_be() -> None:
    a, w = data((24, 160))
    function = polyml.einsum(ROWS, target=SMALL, verify=True)
    rows = np.ascontiguousarray(a.T)
    (found,) = notes(function, rows.copy(), w)
    assert "in tiles of 4 columns" in found
    assert "_turned" not in function.lower(rows, w).text("domains")
    got_a, got_q, got_r = function(rows.copy(), w)
    for got, want in zip((got_a.T, got_q.T, got_r), steps(a, w), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_what_would_not_be_contiguous_stays() -> None:
    a, w = data((24, 160))
    text = STEPS.replace("Q[i, k] * A[i, j]", "Q[i, k] * A[M - 1 - i, j]")
    assert "_turned" not in polyml.einsum(text, target=SMALL).lower(a, w).text("domains")


def test_operands_that_are_contiguous_then_stay_where_they_are() -> None:
    a, _ = data((80, 160))
    v, b = np.random.default_rng(1).random((2, 160, 80)) / 4
    text = STEPS.replace("A[i, k] * w[k]", "A[i, k] * v[0, i]").replace(
        "Q[i, k] * A[i, j]", "Q[i, k] * A[i, j] * B[j, i]"
    )
    text = text.replace('w: f64["N"]', 'v: f64["N M"], B: f64["N M"]')
    function = polyml.einsum(text, target=SMALL, threads=1)
    domains = function.lower(a, v, b).text("domains")
    assert "A_turned" in domains
    assert "B_turned" not in domains
    q, r, c = np.zeros_like(a), np.zeros((160, 160)), a.copy()
    for k in range(160):
        q[:, k] = c[:, k] * v[0]
        later = slice(k + 1, None)
        r[k, later] = q[:, k] @ (c[:, later] * b.T[:, later])
        c[:, later] -= np.outer(q[:, k], r[k, later])
    for got, want in zip(function(a.copy(), v, b), (c, q, r), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10)


def test_sums_in_their_order_stay() -> None:
    a, w = data((24, 160))
    assert "_turned" not in polyml.einsum(STEPS, target=SMALL, precise=True).lower(a, w).text("domains")
