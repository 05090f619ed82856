"""Long sums that other statements finish: blocks of the sum, whose results wait in memory, and what follows in the last block. Results are compared with NumPy's in float64 (small integers, so that they are exact)."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.pairs import pairwise

TARGET = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10, cores=2)
WIDE = Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=1 << 20, cores=2)
LAYOUTS = {"nn": ("n k", "k m"), "nt": ("n k", "m k"), "tn": ("k n", "k m"), "tt": ("k n", "m k")}


def layer(layout: str, dtype: str, target: Target = TARGET, **options: object) -> polyml.EinsumFunction:
    x, y = LAYOUTS[layout]
    text = f'def f(x: {dtype}["{x.upper()}"], y: {dtype}["{y.upper()}"], b: {dtype}["M"], s: {dtype}["N M"]):\n'
    text += f"    t[n, m] = x[{x.replace(' ', ', ')}] * y[{y.replace(' ', ', ')}] + b[m]\n"
    text += "    z[n, m] = max(t[n, m], 0) + s[n, m]\n    return z\n"
    return polyml.einsum(text, target=target, **options)  # type: ignore[no-any-return, call-overload]


def data(layout: str, dtype: str, n: int, k: int, m: int) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    rng = np.random.default_rng(0)
    kind = {"f32": np.float32, "f64": np.float64}[dtype]
    sizes = {"n": n, "k": k, "m": m}
    x, y = (rng.integers(-9, 10, [sizes[i] for i in side.split()]).astype(kind) for side in LAYOUTS[layout])
    b, s = rng.integers(-99, 100, m).astype(kind), rng.integers(-99, 100, (n, m)).astype(kind)
    sums = np.einsum(f"{','.join(LAYOUTS[layout])}->nm".replace(" ", ""), x.astype(float), y.astype(float))
    return (x, y, b, s), np.maximum(sums + b, 0) + s


def loops_of(layout: str, dtype: str, n: int, k: int, m: int, target: Target = TARGET) -> str:
    arguments, _ = data(layout, dtype, n, k, m)
    return layer(layout, dtype, target, threads=1).lower(*arguments).text("loops")


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_what_follows_is_in_the_last_block(layout: str) -> None:
    """Not of two transposed operands, whose product is laid out ahead of what follows."""
    text = loops_of(layout, "f32", 96, 2048, 96)
    block = int(re.search(r"k_tile \+= (\d+)", text)[1])  # type: ignore[index]
    assert f"if (k_tile == {2047 // block * block})" in text


def test_short_sums_are_whole() -> None:
    """Rows of 768 terms, 18 KB of a tile's six, stay in L1; tiles of 32 registers read less, and their sums are whole."""
    assert "k_tile" not in loops_of("nn", "f32", 96, 768, 96)
    assert "k_tile" not in loops_of("nn", "f32", 96, 2048, 96, WIDE)


@pairwise(
    ("layout", LAYOUTS),
    ("dtype", ("f32", "f64")),
    # Columns that whole vectors leave, the last rows of a tile, a shorter last block, one column and one row more than blocks have.
    ("n, k, m", ((96, 1100, 64), (61, 1025, 100), (37, 1400, 33), (16, 2049, 97), (200, 1030, 17))),
    ("threads", (1, 2)),
)
@pytest.mark.few(2)
def test_results(layout: str, dtype: str, n: int, k: int, m: int, threads: int) -> None:
    arguments, exact = data(layout, dtype, n, k, m)
    f = layer(layout, dtype, threads=threads, verify=True)
    assert "blocks of k by" in f.explain(*arguments)
    if TARGET.runs_here:
        np.testing.assert_array_equal(f(*arguments), exact)


def test_several_indices_batches_and_views() -> None:
    """A sum over two indices, for each of three products, with strides between the elements of what is read."""
    text = """def f(x: f32["B N K L"], y: f32["B K L M"], b: f32["B M"]):
        z[h, n, m] = abs(x[h, n, k, l] * y[h, k, l, m] + b[h, m])
        return z
    """
    rng = np.random.default_rng(1)
    x = rng.integers(-9, 10, (3, 50, 40, 74)).astype(np.float32)[..., ::2]
    y = rng.integers(-9, 10, (6, 40, 37, 70)).astype(np.float32)[::2, ..., :65]
    b = rng.integers(-9, 10, (3, 65)).astype(np.float32)
    f = polyml.einsum(text, target=TARGET, verify=True)
    assert re.search(r"blocks of .*k by", f.explain(x, y, b))
    if TARGET.runs_here:
        sums = np.einsum("hnkl,hklm->hnm", x.astype(float), y.astype(float)) + b[:, None]
        np.testing.assert_array_equal(f(x, y, b), np.abs(sums))


def test_constants() -> None:
    """Panels that are packed once, of weights that stay the same."""
    (x, y, b, s), exact = data("nn", "f32", 60, 1200, 80)
    f = layer("nn", "f32").bind(y=y, b=b)
    assert "blocks of k by" in f.explain(x=x, s=s)
    if TARGET.runs_here:
        np.testing.assert_array_equal(f(x=x, s=s), exact)
