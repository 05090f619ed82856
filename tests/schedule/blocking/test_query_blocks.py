"""Blocks of queries: as many as L2 holds scores for beside the keys that every block reads again, one register tile at least."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from tests.schedule.seen import notes_of

ATTENTION = """
def attention(q: f32["S D"], k: f32["T D"], v: f32["T D"]):
    a[i, j] = q[i, d] * k[j, d]
    m[i] = max[j](a[i, j])
    e[i, j] = exp(a[i, j] - m[i])
    s[i] = e[i, j]
    y[i, d] = sum[j](e[i, j] * v[j, d]) / s[i]
    return y
"""


@pytest.mark.parametrize(
    ("keys", "least", "most"),
    [
        (512, 40, 64),  # keys and values are a quarter of L2
        (1024, 1, 16),  # half of it: an eighth is left for scores
        (4096, 1, 16),  # twice as much as it
    ],
)
@pytest.mark.few(2)
def test_blocks_of_queries(keys: int, least: int, most: int) -> None:
    target = polyml.Target("x86-64-v4", l2_bytes=1 << 20)
    arrays = [np.ones((n, 64), np.float32) for n in (512, keys, keys)]
    text = str(polyml.einsum(ATTENTION, target=target).lower(*arrays).explain())
    found = re.search(r"blocks of (\d+) i", text)
    assert found is not None
    assert least <= int(found[1]) <= most


@pytest.mark.parametrize(("cpu", "l2", "vectors"), [("x86-64-v3", 512 << 10, 2), ("x86-64-v4", 1 << 20, 3)])
def test_panels_are_as_wide_as_the_tile_that_reads_them(cpu: str, l2: int, vectors: int) -> None:
    """Not as one that would read keys where they lie, for which tall and narrow tiles are the best."""
    target = polyml.Target(cpu, l1_bytes=32 << 10, l2_bytes=l2)
    arrays = [np.ones((n, 64), np.float32) for n in (512, 2048, 2048)]
    text = str(polyml.einsum(ATTENTION, target=target).lower(*arrays).explain())
    width = vectors * (8 if cpu == "x86-64-v3" else 16)
    assert f"k: copied into panels of {width} " in text
    assert f"lanes along j, {vectors} vectors at once" in text


@pytest.mark.parametrize(
    ("queries", "keys", "packed"), [(512, 2048, True), (100, 2048, True), (32, 2048, False), (512, 96, False)]
)
@pytest.mark.few(3)
def test_values_are_packed_where_many_queries_read_more_than_l1_holds(queries: int, keys: int, *, packed: bool) -> None:
    """Rows of 256 bytes are not near enough to each other: a strip is a line or two of each, which begin where the caller's array does."""
    target = polyml.Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
    arrays = [np.ones((n, 64), np.float32) for n in (queries, keys, keys)]
    text = str(polyml.einsum(ATTENTION, target=target).lower(*arrays).explain())
    assert ("v: copied into panels of 16 " in text) == packed


def test_rows_of_a_tile_suit_the_width_of_its_panels() -> None:
    """Blocks of 11 queries, for sums over keys of one vector, leave the scores' tiles of two vectors in registers. Rows of scores are no whole pages, of which L1 holds eight in a set."""
    target = polyml.Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
    arrays = [np.ones((n, 40), np.float32) for n in (512, 1024, 1024)]
    text = str(polyml.einsum(ATTENTION, target=target).lower(*arrays).explain())
    rows, vectors = map(int, re.findall(r"jam i by (\d+); lanes along j, (\d+) vectors", text)[0])
    assert rows * vectors + vectors < 16
    assert re.search(r"a: contracted to \d+x1040", text)


@pytest.mark.parametrize(("dtype", "bound"), [("f32", 2e-5), ("f64", 1e-12), ("f16", 4e-3)])
@pytest.mark.parametrize(
    ("queries", "keys", "width", "values"), [(131, 300, 63, 17), (70, 1024, 40, 40), (67, 513, 24, 1)]
)
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.few(1)
def test_values_in_panels_give_the_same(
    dtype: str, bound: float, queries: int, keys: int, width: int, values: int, *, strided: bool
) -> None:
    """Odd heads, the last panel partly filled, and operands whose rows lie apart."""
    generator = np.random.default_rng(3)

    def made(rows: int, columns: int) -> np.ndarray:
        whole = generator.standard_normal((rows, columns + 3)).astype(dtype.replace("f", "float"))
        return whole[:, 1:-2] if strided else np.ascontiguousarray(whole[:, 1:-2])

    q, k, v = made(queries, width), made(keys, width), made(keys, values)
    text = (
        ATTENTION.replace("f32", dtype)
        .replace('["T D"]):', '["T E"]):')
        .replace("y[i, d] = sum[j](e[i, j] * v[j, d])", "y[i, c] = sum[j](e[i, j] * v[j, c])")
    )
    scores = q.astype("f8") @ k.T.astype("f8")
    e = np.exp(scores - scores.max(1, keepdims=True))
    exact = e / e.sum(1, keepdims=True) @ v.astype("f8")
    found = polyml.einsum(text)(q, k, v)
    np.testing.assert_allclose(found.astype("f8"), exact, rtol=50 * bound, atol=10 * bound)


HEADS = """
def attention(q: f32["B S D"], k: f32["B T D"], v: f32["B T D"]):
    a[b, i, j] = q[b, i, d] * k[b, j, d]
    m[b, i] = max[j](a[b, i, j])
    e[b, i, j] = exp(a[b, i, j] - m[b, i])
    s[b, i] = e[b, i, j]
    y[b, i, d] = sum[j](e[b, i, j] * v[b, j, d]) / s[b, i]
    return y
"""


@pytest.mark.parametrize(("l3", "turned"), [(32 << 20, True), pytest.param(8 << 20, False, marks=pytest.mark.slow)])
def test_keys_that_the_last_level_holds_are_turned_for_few_queries(l3: int, turned: bool) -> None:
    """6 MB of keys, each read 94 times: their copy stays in the last level, or goes to memory."""
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((48, n, 64), np.float32) for n in (94, 501, 501))
    named = polyml.einsum(HEADS, target=polyml.Target("x86-64-v4", l3_bytes=l3))
    assert ("k: copied into" in notes_of(named, q, k, v)) == turned
    scores = np.einsum("bid,bjd->bij", q.astype("f8"), k.astype("f8"))
    e = np.exp(scores - scores.max(2, keepdims=True))
    exact = np.einsum("bij,bjd->bid", e / e.sum(2, keepdims=True), v.astype("f8"))
    program = polyml.einsum(HEADS, target=polyml.Target("host", l2_bytes=1 << 20, l3_bytes=l3))
    np.testing.assert_allclose(program(q, k, v), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("queries", "vectors"), [(8, "1 vector"), (16, "2 vectors"), (24, "3 vectors")])
def test_scores_of_few_queries_have_whole_vectors_of_them(queries: int, vectors: str) -> None:
    """Keys are not copied for so few, and blocks of four, which sums over values ask for, would be half of a vector. With eight, lanes along the queries for all statements would take less
    than loops inside, of which the scores' have none. What follows the scores has lanes along the keys."""
    target = polyml.Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10, l3_bytes=32 << 20)
    q, k, v = (np.ones((8, n, 64), np.float32) for n in (queries, 2048, 2048))
    text = str(polyml.einsum(HEADS, target=target).lower(q, k, v).explain())
    assert re.search(rf"tiling: S_a S_a_init: .*lanes along i, {vectors} at once", text)
    assert re.search(r"vector: S_e S_s: lanes along j, \d vectors? at once", text)
    assert "k: copied" not in text


@pytest.mark.parametrize(("dtype", "bound"), [("f32", 2e-5), ("f64", 1e-12), ("f16", 4e-3)])
@pytest.mark.parametrize(
    ("queries", "keys", "width", "values"), [(8, 300, 63, 17), (16, 1025, 40, 40), (19, 513, 24, 1), (24, 257, 64, 64)]
)
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.few(1)
def test_few_queries_give_the_same(
    dtype: str, bound: float, queries: int, keys: int, width: int, values: int, *, strided: bool
) -> None:
    generator = np.random.default_rng(4)

    def made(rows: int, columns: int) -> np.ndarray:
        whole = generator.standard_normal((3, rows, columns + 3)).astype(dtype.replace("f", "float"))
        return whole[:, :, 1:-2] if strided else np.ascontiguousarray(whole[:, :, 1:-2])

    q, k, v = made(queries, width), made(keys, width), made(keys, values)
    text = (
        HEADS.replace("f32", dtype)
        .replace('["B T D"]):', '["B T E"]):')
        .replace("y[b, i, d] = sum[j](e[b, i, j] * v[b, j, d])", "y[b, i, c] = sum[j](e[b, i, j] * v[b, j, c])")
    )
    scores = q.astype("f8") @ k.astype("f8").swapaxes(1, 2)
    e = np.exp(scores - scores.max(2, keepdims=True))
    exact = e / e.sum(2, keepdims=True) @ v.astype("f8")
    target = polyml.Target("x86-64-v3", l1_bytes=4 << 10, l2_bytes=16 << 10, l3_bytes=32 << 20)
    found = polyml.einsum(text, target=target)(q, k, v)
    np.testing.assert_allclose(found.astype("f8"), exact, rtol=50 * bound, atol=10 * bound)
