"""Copies that in-place statements need: of simple shape, and not larger than they must be."""

from __future__ import annotations

import islpy as isl
import numpy as np
import pytest

import polyml
from polyml.expressions import reads_of
from polyml.testing import verify


def copies(text: str, *arguments: np.ndarray) -> list[isl.Set]:
    stages = polyml.einsum(text).lower(*arguments).stages
    statements = [s for region in stages.regions for s in region.scop.statements.values()]
    return [s.domain for s in statements if "_old" in s.name]


JACOBI = """
def jacobi(a: f32["N M"]):
    b: f32["N M"]
    b[i, j] = a[i, j]
    for t in range(4):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            b[i, j] = 0.25 * (b[i, j - 1] + b[i, j + 1] + b[i - 1, j] + b[i + 1, j])
    return b
"""
SHORTEST = """
def shortest(d: f32["N N"]):
    for k in range(N):
        d[i, j] = min(d[i, j], d[i, k] + d[k, j])
"""
CROSS = """
def cross(a: f32["N N"]):
    if i == 3 or j == 5:
        a[i, j] = a[i, j] + a[N - 1 - i, j]
"""


def test_a_stencil_copies_one_convex_piece() -> None:
    (saved,) = copies(JACOBI, np.zeros((50, 60), "f"))
    assert saved.n_basic_set() == 1
    # What some neighbour reads, and at most the corners of it.
    names = saved.get_tuple_name()
    needed = isl.Set(
        f"{{ {names}[t, i, j] : 0 <= t < 4 and ((0 < i < 49 and 0 <= j < 60) or (0 <= i < 50 and 0 < j < 59)) }}"
    )
    box = isl.Set(f"{{ {names}[t, i, j] : 0 <= t < 4 and 0 <= i < 50 and 0 <= j < 60 }}")
    assert needed.is_subset(saved)
    assert saved.is_subset(box)


def test_what_is_saved_anyway_is_read_with_its_neighbours() -> None:
    def reads(text: str, *shape: int) -> tuple[set[str], str]:
        """Of the statement with the most: the arrays that it reads, and the one that it writes."""
        regions = polyml.einsum(text).lower(np.zeros(shape, "f")).stages.regions
        statements = [s for region in regions for s in region.scop.statements.values()]
        busiest = max(statements, key=lambda s: len(reads_of(s.value)))
        return {read.tensor for read in reads_of(busiest.value)}, busiest.target.array

    whole = JACOBI.replace("0.25 * (", "0.2 * (b[i, j] + ")
    read, written = reads(whole, 50, 60)
    assert len(read) == 1
    assert written not in read
    read, written = reads(SHORTEST, 20, 20)
    assert written in read  # beside a row and a column


def test_a_row_and_a_column_stay_apart() -> None:
    saved = copies(SHORTEST, np.zeros((20, 20), "f"))
    assert sorted(s.dim(isl.dim_type.set) for s in saved) == [2, 2]  # k and one coordinate each


def test_a_cross_is_not_filled_up() -> None:
    for saved in copies(CROSS, np.zeros((40, 40), "f")):
        assert not isl.Set(f"{{ {saved.get_tuple_name()}[20, 20] }}").is_subset(saved)


def test_neighbours_of_any_size_are_a_box() -> None:
    """A whole rectangle is copied, a row and a column more than needed at the corners; no more than the array has."""
    (region,) = polyml.einsum(JACOBI, dynamic=True).lower(np.zeros((9, 8), np.float32)).stages.regions
    (copy,) = [s for s in region.scop.statements.values() if s.kind == "copy"]
    inside = "0 <= t < 4 and 0 <= i < N and 0 <= j < M and N >= 3 and M >= 3"
    assert copy.domain.is_equal(isl.Set(f"[M, N] -> {{ {copy.name}[t, i, j] : {inside} }}"))


GUARDS = """
def guards(x: f32["N"]):
    if i < 50:
        x[i] = where(i > 20, x[59 - i], 0) + where(i < 5, x[59 - i], 1)
"""
COUNTS = """
def counts(h: i64["N"]):
    h[h[i]] += h[h[N - 1 - i]]
"""


@pytest.mark.parametrize("text", [GUARDS, COUNTS])
def test_all_that_a_statement_reads_is_saved(text: str) -> None:
    """One element under two conditions, of which one alone is overwritten; places that are computed from the tensor itself."""
    values = np.arange(60) % 7
    assert verify(text, values.astype("f") if text is GUARDS else values)
