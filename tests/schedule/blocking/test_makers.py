"""Operands of a contraction that are made a block of the sum at a time: results, how large the array between is, and where they are not."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.pairs import pairwise

SMALL = Target("host", vector_bytes=32, vector_registers=16, l1_bytes=4096, l2_bytes=32 * 1024, cores=2)
"""This machine with caches that do not hold operands of test sizes."""

WEIGHTED = """
def weighted(k: f32["B S D"], v: f32["B S E"]):
    w[b, s, d] = exp(k[b, s, d])
    z[b, d] = w[b, s, d]
    m[b, d, e] = w[b, s, d] * v[b, s, e]
    return m, z
"""


def operands(b: int, s: int, d: int, e: int, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((b, s, d)).astype(dtype), rng.standard_normal((b, s, e)).astype(dtype)


def explained(text: str, *arrays: np.ndarray, threads: int = 1) -> str:
    return str(polyml.einsum(text, threads=threads, target=SMALL).lower(*arrays).explain())


@pairwise(
    ("rows", [3, 13, 16, 27, 64]),
    ("columns", [1, 15, 16, 33, 48, 100]),
    ("dtype", ["float32", "float64"]),
    ("threads, batch, steps", [(1, 1, 401), (2, 5, 130)]),
)
@pytest.mark.few(2)
def test_results(rows: int, columns: int, dtype: str, threads: int, batch: int, steps: int) -> None:
    text = WEIGHTED.replace("f32", "f64") if dtype == "float64" else WEIGHTED
    k, v = operands(batch, steps, rows, columns, dtype)
    m, z = polyml.einsum(text, threads=threads, target=SMALL)(k, v)
    w = np.exp(k.astype(np.float64))
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    for found, exact in ((m, np.einsum("bsd,bse->bde", w, v.astype(np.float64))), (z, w.sum(1))):
        assert np.abs(found - exact).max() <= tolerance * np.abs(exact).max()


def test_the_array_between_is_a_block() -> None:
    k, v = operands(2, 1000, 32, 32)
    text = explained(WEIGHTED, k, v)
    assert "w: made for each block of the sum" in text
    assert "1 region" in text
    lowered = polyml.einsum(WEIGHTED, threads=1, target=SMALL).lower(k, v)
    (block,) = (line for line in lowered.text("loops").splitlines() if line.strip().startswith("local f32 w["))
    steps = int(block.split("[1, ")[1].split(",")[0])
    assert 0 < steps * 32 * 4 <= SMALL.l2_bytes // 4


def test_each_element_is_made_once() -> None:
    k, v = operands(2, 1000, 32, 32)
    text = polyml.einsum(WEIGHTED, threads=1, target=SMALL).lower(k, v).text("loops")
    made = [line for line in text.splitlines() if "exp(k[" in line]
    assert made
    assert all("w_value" in line for line in made)
    assert text.count("for (s_tile") <= 2  # whole blocks, and what is left


def test_maxima_and_several_sums_ride_along() -> None:
    text = """
def weighted(k: f32["B S D"], v: f32["B S E"]):
    w[b, s, d] = k[b, s, d] * 2.0 + 1.0
    z[b, d] = max[s](w[b, s, d])
    q[b, d] = w[b, s, d] * w[b, s, d]
    m[b, d, e] = w[b, s, d] * v[b, s, e]
    return m, z, q
"""
    k, v = operands(3, 700, 32, 48)
    assert "made for each block" in explained(text, k, v)
    m, z, q = polyml.einsum(text, threads=1, target=SMALL)(k, v)
    w = k.astype(np.float64) * 2 + 1
    np.testing.assert_allclose(z, w.max(1), rtol=1e-6)
    np.testing.assert_allclose(q, (w * w).sum(1), rtol=1e-5)
    np.testing.assert_allclose(m, np.einsum("bsd,bse->bde", w, v.astype(np.float64)), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    "change",
    [
        ("return m, z", "return m, z, w"),  # all of it is a result
        ("z[b, d] = w[b, s, d]\n", "z[b, s] = w[b, s, d]\n"),  # lanes would be added up
        ("z[b, d] = w[b, s, d]\n", "z[b, s, d] = w[b, s, d] + 1.0\n"),  # it is read by what is no sum
    ],
)
@pytest.mark.few(2)
def test_what_needs_the_whole_operand_has_it(change: tuple[str, str]) -> None:
    k, v = operands(2, 1000, 32, 32)
    text = WEIGHTED.replace(*change)
    assert text != WEIGHTED
    assert "made for each block" not in explained(text, k, v)
    found = polyml.einsum(text, threads=1, target=SMALL)(k, v)
    exact = np.einsum("bsd,bse->bde", np.exp(k.astype(np.float64)), v.astype(np.float64))
    assert np.abs(found[0] - exact).max() <= 1e-5 * np.abs(exact).max()


DEQUANTIZED = """
def linear(x: f32["N I"], w: i8["I O"], s: f32["O"]):
    v[i, o] = f32(w[i, o]) * s[o]
    y[n, o] = x[n, i] * v[i, o]
    return y
"""


@pairwise(("columns", [47, 96, 203]), ("turned", [False, True]), ("threads", [1, 2]))
@pytest.mark.few(1)
def test_copies_make_the_vector_operand(columns: int, turned: bool, threads: int) -> None:
    rng = np.random.default_rng(1)
    x, s = rng.standard_normal((70, 300)).astype(np.float32), rng.standard_normal(columns).astype(np.float32)
    w = rng.integers(-128, 128, (columns, 300) if turned else (300, columns)).astype(np.int8)
    text = (
        DEQUANTIZED.replace("I O", "O I").replace("w[i, o]", "w[o, i]").replace("v[i, o]", "v[o, i]")
        if turned
        else DEQUANTIZED
    )
    exact = np.einsum(
        "ni,oi,o->no" if turned else "ni,io,o->no", x.astype(np.float64), w.astype(np.float64), s.astype(np.float64)
    )
    found = polyml.einsum(text, threads=threads, target=SMALL)(x, w, s)
    assert np.abs(found - exact).max() <= 1e-5 * np.abs(exact).max()


def test_no_array_is_left_where_copies_make_the_operand() -> None:
    rng = np.random.default_rng(1)
    x, w, s = rng.standard_normal((70, 300)), rng.integers(-9, 9, (300, 203)), rng.standard_normal(203)
    arrays = (x.astype(np.float32), w.astype(np.int8), s.astype(np.float32))
    lowered = polyml.einsum(DEQUANTIZED, threads=1, target=SMALL).lower(*arrays)
    text = lowered.text("loops")
    assert "v_panels[" in text
    assert " v[" not in text


def test_what_follows_the_contraction_comes_behind_it() -> None:
    text = """
def means(l: f32["N K"], x: f32["N D"]):
    r[n, k] = exp(l[n, k])
    c[k] = r[n, k]
    m[k, d] = r[n, k] * x[n, d]
    mu[k, d] = m[k, d] / c[k]
    return mu
"""
    rng = np.random.default_rng(2)
    l, x = rng.standard_normal((3000, 24)).astype(np.float32), rng.standard_normal((3000, 40)).astype(np.float32)
    assert "made for each block" in explained(text, l, x)
    r = np.exp(l.astype(np.float64))
    exact = np.einsum("nk,nd->kd", r, x.astype(np.float64)) / r.sum(0)[:, None]
    np.testing.assert_allclose(polyml.einsum(text, threads=1, target=SMALL)(l, x), exact, rtol=1e-4, atol=1e-5)


def test_what_a_result_takes_the_place_of_is_read_by_a_region_of_its_own() -> None:
    text = """
def step(a: f32["N N"], w: f32["N N"]):
    v[i, j] = tanh(w[i, j])
    w[i, j] = a[i, k] * v[k, j]
    return w
"""
    rng = np.random.default_rng(4)
    a, w = rng.standard_normal((203, 203)).astype(np.float32), rng.standard_normal((203, 203)).astype(np.float32)
    exact = a.astype(np.float64) @ np.tanh(w.astype(np.float64))
    assert "2 regions" in explained(text, a, w)
    assert "made for each block" in explained(
        text.replace("    w[i, j] =", "    y[i, j] =").replace("return w", "return y"), a, w
    )
    polyml.einsum(text, threads=1, target=SMALL)(a, w)
    assert np.abs(w - exact).max() <= 1e-5 * np.abs(exact).max()


def test_threads_have_blocks_of_their_own() -> None:
    k, v = operands(8, 1000, 32, 32)
    assert "made for each block" in explained(WEIGHTED, k, v, threads=2)
    alone = tuple(a[:1] for a in (k, v))
    lowered = polyml.einsum(WEIGHTED, threads=2, target=SMALL).lower(*alone)
    assert "made for each block" not in str(lowered.explain()) or "parallel" not in lowered.text("loops")


def test_empty_and_short() -> None:
    for shape in ((2, 0, 32, 32), (0, 1000, 32, 32), (2, 1, 32, 32)):
        k, v = operands(*shape)
        m, z = polyml.einsum(WEIGHTED, threads=1, target=SMALL)(k, v)
        w = np.exp(k)
        np.testing.assert_allclose(m, np.einsum("bsd,bse->bde", w, v), rtol=1e-5)
        np.testing.assert_allclose(z, w.sum(1), rtol=1e-5)


AVX2, AVX512 = (
    Target(cpu, l1_bytes=32 * 1024, l2_bytes=512 * 1024, l3_bytes=1 << 25, cores=1)
    for cpu in ("x86-64-v3", "x86-64-v4")
)


@pytest.mark.parametrize(
    ("target", "dtype", "columns", "least", "most"),
    [
        (AVX2, "float32", 64, 32, 64),  # rows of 256 bytes and two lines for each term
        (AVX2, "float32", 32, 64, 96),
        (AVX2, "float64", 64, 32, 40),
        (AVX2, "float32", 80, 32, 56),  # L2 has the sums
        (AVX512, "float32", 64, 49, 999),  # tiles of 32 registers read less for each multiply-add
    ],
)
def test_blocks_of_terms_stay_in_l1_where_tiles_read_faster_than_l2_delivers(
    target: Target, dtype: str, columns: int, least: int, most: int
) -> None:
    k, v = operands(2, 2000, columns, columns, dtype)
    program = WEIGHTED.replace("f32", "f64") if dtype == "float64" else WEIGHTED
    text = str(polyml.einsum(program, threads=1, target=target).lower(k, v).explain())
    (blocks,) = (line for line in text.splitlines() if "v read where it lies" in line and "blocks of s by" in line)
    assert least <= int(blocks.split("blocks of s by ")[1].split()[0]) <= most


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("steps", "rows", "columns"), [(97, 64, 64), (500, 33, 32), (1001, 7, 64), (49, 32, 16)])
@pytest.mark.few(2)
def test_results_of_blocks_that_l1_holds(steps: int, rows: int, columns: int, dtype: str) -> None:
    text = WEIGHTED.replace("f32", "f64") if dtype == "float64" else WEIGHTED
    k, v = operands(3, steps, rows, columns, dtype)
    m, z = polyml.einsum(text, threads=1, target=AVX2)(k, v)
    w = np.exp(k.astype(np.float64))
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    for found, exact in ((m, np.einsum("bsd,bse->bde", w, v.astype(np.float64))), (z, w.sum(1))):
        assert np.abs(found - exact).max() <= tolerance * np.abs(exact).max()


TRANSPOSED = """
def f(x: f32["K N"], y: f32["K M"]):
    c[n, m] = x[k, n] * y[k, m]
    return c
"""


@pytest.mark.parametrize(
    ("terms", "rows", "columns", "packed"),
    [
        (2000, 96, 96, False),
        (2000, 160, 160, False),
        (2000, 200, 200, True),
        (1000, 64, 256, True),
        (100, 96, 96, False),
    ],
)
def test_lines_of_rows_that_l1_has_no_room_for_are_packed(terms: int, rows: int, columns: int, packed: bool) -> None:
    """A line for each term: of blocks that L1 holds they stay, of long ones they come again for each panel."""
    x, y = (a[0] for a in operands(1, terms, rows, columns))
    text = str(polyml.einsum(TRANSPOSED, threads=1, target=AVX2).lower(x, y).explain())
    assert ("x in panels" in text) == packed
    if terms == 2000 and not packed:
        (blocks,) = (line for line in text.splitlines() if "blocks of k by" in line)
        assert int(blocks.split("blocks of k by ")[1].split(",")[0]) <= 48


@pytest.mark.parametrize(
    ("terms", "rows", "columns"), [(2000, 95, 97), (501, 128, 131), (333, 200, 201), (700, 61, 257), (90, 250, 64)]
)
@pytest.mark.few(1)
def test_results_of_transposed_rows(terms: int, rows: int, columns: int) -> None:
    x, y = (a[0] for a in operands(1, terms, rows, columns))
    exact = x.T.astype(np.float64) @ y
    found = polyml.einsum(TRANSPOSED, threads=1, target=AVX2)(x, y)
    assert np.abs(found - exact).max() <= 1e-5 * np.abs(exact).max()
