"""Partial writes under conditions that say what an index is."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target

ELEMENTS = """
def f(a: i64["N M"], c: i64["N M"]):
    y[i, j] = a[i, j] * 2
    if {0}:
        y[i, j] = c[i, j] + i
    return y
"""


@pytest.mark.parametrize(
    ("condition", "place"),
    [
        ("i == j", "y_1[i, i] = c[i, i] + i"),
        ("i + j == N - 1", "y_1[i, -i + 19] = c[i, -i + 19] + i"),
        ("i == 2 * j + 1", "y_1[2*j + 1, j] = c[2*j + 1, j] + (2*j + 1)"),
        ("j == 3", "y_1[i, 3] = c[i, 3] + i"),
        ("i == 4 and j == 5", "y_1[4, 5] = c[4, 5] + 4"),
        ("2 * i == 3 * j", "y_1[i, j] = c[i, j] + i"),
        ("i <= j", "y_1[i, j] = c[i, j] + i"),
    ],
)
def test_indices_that_others_determine_go(condition: str, place: str) -> None:
    a, c = np.arange(2 * 20 * 40).reshape(2, 20, 40) % 7 - 3
    i, j = np.indices(c.shape)
    where = eval(" & ".join(f"({part})" for part in condition.split(" and ")), {"i": i, "j": j, "N": 20})
    text = ELEMENTS.format(condition)
    lines = str(polyml.einsum(text).trace(a, c)).splitlines()
    assert lines[-2].strip().split("   ")[0] == place
    for assignment, before in (("=", 0), ("+=", 2 * a)):
        f = polyml.einsum(text.replace("] = c", f"] {assignment} c"), dynamic=assignment == "+=")
        assert np.array_equal(f(a, c), np.where(where, c + i + before, 2 * a))


PRODUCT = """
def f(a: f32["N K"], b: f32["K M"], c: f32["N M"]):
    y[i, j] = a[i, k] * b[k, j]
    if {0}:
        y[i, j] = c[i, j]
    return y
"""


@pytest.mark.parametrize("condition", ["i == j", "i != j"])
def test_a_product_keeps_its_blocks_beside_elements_that_are_overwritten(condition: str) -> None:
    """Those share no loop with it, or wait for the whole sum."""
    target = Target("host", l1_bytes=1024, l2_bytes=4096, cores=1)
    lowered = polyml.einsum(PRODUCT.format(condition), target=target, threads=1).lower(
        *(np.ones(shape, np.float32) for shape in ((64, 700), (700, 96), (64, 96)))
    )
    stages = [note.stage for region in lowered.stages.regions for note in region.notes]
    assert "blocking" in stages
    assert "fallback" not in stages
