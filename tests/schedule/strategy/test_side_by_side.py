"""Elements of products side by side: the tiles that are looked at, and rows of an outer loop among them."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

import polyml
from polyml.schedule.strategy.contractions.side_by_side import _counts
from polyml.target import Target


@pytest.mark.parametrize(("limits", "most"), [((), 29), ((8,), 5), ((8, 3, 8), 29), ((2, 8, 1, 7), 13), ((8, 8), 0)])
def test_tiles_that_registers_hold_in_order(limits: tuple[int, ...], most: int) -> None:
    every = product(*(range(1, limit + 1) for limit in limits))
    assert list(_counts(limits, most)) == [c for c in every if prod(c) <= most or not limits]


def test_tiles_of_many_indices_are_few() -> None:
    assert sum(1 for _ in _counts([8] * 6, 29)) == 1118  # of 262144


DECODED = """
def f(q: f32["H D"], k: f32["G T D"], v: f32["G T D"]):
    s[h, j] = q[h, d] * k[h // {m}, j, d]
    t[h] = max[j](s[h, j])
    e[h, j] = exp(s[h, j] - t[h])
    z[h] = e[h, j]
    o[h, d] = e[h, j] * v[h // {m}, j, d] / z[h]
    return o
"""


@pytest.mark.parametrize(("groups", "m", "keys"), [(3, 4, 70), (2, 3, 33), (1, 8, 200)])
def test_one_query_of_heads_that_share_keys(groups: int, m: int, keys: int) -> None:
    """The keys are read once for all heads of a group: their scores lie side by side, in a block of heads that the softmax and the values share."""
    rng = np.random.default_rng(keys)
    q = rng.standard_normal((groups * m, 32)).astype(np.float32)
    k, v = (rng.standard_normal((groups, keys, 32)).astype(np.float32) for _ in range(2))
    f = polyml.einsum(DECODED.format(m=m), target=Target("x86-64-v4"), threads=1)
    notes = [note.text for region in f.lower(q, k, v).stages.regions for note in region.notes]
    assert any("side by side" in text and text.startswith(f"{min(m, 4)} h") for text in notes), notes
    scores = np.einsum("hd,hjd->hj", q.astype(float), np.repeat(k, m, 0))
    e = np.exp(scores - scores.max(1, keepdims=True))
    expected = np.einsum("hj,hjd->hd", e / e.sum(1, keepdims=True), np.repeat(v, m, 0))
    found = polyml.einsum(DECODED.format(m=m), verify=True)(q, k, v)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
