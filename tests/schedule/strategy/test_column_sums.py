"""Sums of columns whose rows lie a multiple of a page apart: longer pieces of each at a time."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target

SUMS = """
def f(x: f32["N M"]):
    y[m] = sum[n](x[n, m])
    return y
"""


@pytest.mark.parametrize(
    ("rows", "columns", "level", "vectors"),
    [(32, 3072, "v3", 12), (32, 3072, "v4", 6), (9, 1024, "v3", 12), (8, 1024, "v3", 8), (32, 3000, "v3", 8)],
)
def test_pieces_are_long_where_rows_meet(rows: int, columns: int, level: str, vectors: int) -> None:
    x = np.random.default_rng(0).integers(-9, 10, (rows, columns)).astype(np.float32)
    target = Target(f"x86-64-{level}", l1_bytes=32 << 10, l2_bytes=512 << 10)
    notes = [n.text for r in polyml.einsum(SUMS, target=target, threads=1).lower(x).stages.regions for n in r.notes]
    assert any(f"{vectors} vectors at once" in note for note in notes), notes


def test_columns_that_no_whole_piece_has() -> None:
    for columns in (1024, 2048 + 1024, 1024 * 5):
        x = np.random.default_rng(columns).integers(-9, 10, (17, columns)).astype(np.float32)
        np.testing.assert_array_equal(polyml.einsum(SUMS, verify=True, threads=1)(x), x.sum(0))
