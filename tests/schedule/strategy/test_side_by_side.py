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
@pytest.mark.few(1)
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


TRANSPOSED = """
def f(x: {0}["M K"], w: {0}["N K"]):
    y[m, n] = x[m, k] * w[n, k]
    return y
"""


@pytest.mark.parametrize(("dtype", "rows"), [("f32", 8), ("f64", 4)])
@pytest.mark.parametrize(("length", "meet"), [(1024, True), (1000, False), (2048, True), (1032, False)])
@pytest.mark.few(1)
def test_rows_that_meet_in_l1_are_read_whole(dtype: str, rows: int, length: int, meet: bool) -> None:
    """Of a vector of rows times a transposed matrix: with lanes along these rows a tile would read an element of each of 13 rows of the matrix, a page apart, and L1 has eight ways."""
    text, number = TRANSPOSED.format(dtype), {"f32": np.float32, "f64": np.float64}[dtype]
    rng = np.random.default_rng(length)
    x, w = (rng.integers(-3, 4, (count, length)).astype(number) for count in (rows, 301))
    f = polyml.einsum(text, target=Target("x86-64-v3", l2_bytes=512 * 1024), threads=1)
    notes = [(note.stage, note.text) for region in f.lower(x, w).stages.regions for note in region.notes]
    assert any("side by side" in text for _, text in notes) == meet, notes
    assert any(stage == "packing" for stage, _ in notes) != meet, notes
    found = polyml.einsum(text, verify=True)
    np.testing.assert_array_equal(found(x, w), x @ w.T)
    every_other = np.repeat(w, 2, axis=0)[::2]
    np.testing.assert_array_equal(found(np.asfortranarray(x), every_other), x @ w.T)


def test_gathered_vectors_are_shared() -> None:
    """Of y each lane is an element of another line: put together once for three results side by side."""
    text = (
        'def f(x: f64["D E A C B"], y: f64["A E B D"]):\n    z[c, e] = x[d, e, a, c, b] * y[a, e, b, d]\n    return z\n'
    )
    rng = np.random.default_rng(0)
    x, y = rng.integers(-3, 4, (5, 7, 9, 3, 43)).astype(float), rng.integers(-3, 4, (9, 7, 43, 5)).astype(float)
    f = polyml.einsum(text, target=Target("x86-64-v3"), threads=1)
    notes = [note.text for region in f.lower(x, y).stages.regions for note in region.notes]
    assert any("3 c side by side" in text for text in notes), notes
    expected = np.einsum("deacb,aebd->ce", x, y)
    np.testing.assert_array_equal(polyml.einsum(text, verify=True)(x, y), expected)
