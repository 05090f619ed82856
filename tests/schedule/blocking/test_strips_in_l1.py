"""Strips of few rows over parts of the sum that L1 holds where the strip lies: when, how long, and what comes out."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.codegen.llvm.support import guarded
from tests.pairs import pairwise

TARGET = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10, l3_bytes=32 << 20, cores=1)
TEXTS = {
    "nn": 'def f(x: {0}["N K"], y: {0}["K M"]):\n    z[n, m] = x[n, k] * y[k, m]\n    return z\n',
    "tn": 'def f(x: {0}["K N"], y: {0}["K M"]):\n    z[n, m] = x[k, n] * y[k, m]\n    return z\n',
}


def integers(*shape: int, dtype: str = "f4", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(dtype)


def operands(layout: str, n: int, m: int, k: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y = integers(n, k, dtype=dtype), integers(k, m, dtype=dtype, seed=1)
    return (x if layout == "nn" else np.ascontiguousarray(x.T)), y, x @ y


@pytest.mark.parametrize(
    ("layout", "dtype", "n", "m", "k", "terms"),
    [
        ("nn", "f32", 36, 101, 1130, 80),
        ("nn", "f64", 27, 150, 1113, 68),
        ("nn", "f64", 16, 72, 3714, 80),
        ("tn", "f64", 41, 139, 2366, 64),
        ("tn", "f64", 24, 415, 580, 60),
        ("tn", "f64", 25, 585, 178, 32),  # lines meet in longer ones
        ("nn", "f32", 14, 236, 461, 80),  # too few rows for panels
        ("nn", "f32", 7, 1001, 1003, 72),
        ("nn", "f32", 6, 1001, 1003, None),  # one register tile
        ("nn", "f64", 55, 24, 161, 56),
        ("nn", "f32", 57, 24, 971, None),  # one strip
        ("nn", "f32", 110, 301, 1003, None),  # a panel is packed sooner than so many sums are loaded
        ("nn", "f32", 61, 171, 1725, None),  # lines meet but in parts that are too short for so many rows
        ("nn", "f32", 40, 3001, 700, None),  # L2 does not hold the sums
        ("nn", "f32", 24, 1024, 700, None),  # rows a page apart
        ("nn", "f64", 10, 2035, 3695, None),  # from memory
    ],
)
@pytest.mark.few(3)
def test_parts_are_as_long_as_l1_holds(layout: str, dtype: str, n: int, m: int, k: int, terms: int | None) -> None:
    x, y, _ = operands(layout, n, m, k, {"f32": "f4", "f64": "f8"}[dtype])
    described = str(polyml.einsum(TEXTS[layout].format(dtype), target=TARGET, threads=1).explain(x, y))
    found = re.search(r"where it lies, in strips of \d+; blocks of k by (\d+)", described)
    assert (int(found[1]) if found else None) == terms, described


def test_parts_that_l1_has_no_room_for_are_packed() -> None:
    """Rows nearly a page apart, whose lines meet: from L2 they would come too slowly."""
    x, y, exact = operands("nn", 40, 1021, 900, "f4")
    function = polyml.einsum(TEXTS["nn"].format("f32"), target=TARGET, threads=1)
    assert "y packed in panels of 16; blocks of k" in str(function.explain(x, y))
    np.testing.assert_array_equal(function(x, y), exact)


@pytest.mark.parametrize("m", [601, 16])
def test_wide_tiles_take_whole_strips(m: int) -> None:
    x, y, _ = operands("nn", 36, m, 700, "f4")
    wide = Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=2 << 20, cores=1)
    described = str(polyml.einsum(TEXTS["nn"].format("f32"), target=wide, threads=1).explain(x, y))
    assert re.search(r"in strips of \d+; blocks of k", described) is None, described


@pairwise(
    ("layout", ["nn", "tn"]),
    ("dtype", ["f4", "f8"]),
    ("n", [8, 9, 17, 35]),
    ("m", [97, 240, 331]),
    ("k", [177, 700]),
    ("threads", [1, 2]),
)
@pytest.mark.few(2)
def test_results(layout: str, dtype: str, n: int, m: int, k: int, threads: int) -> None:
    x, y, exact = operands(layout, n, m, k, dtype)
    text = TEXTS[layout].format({"f4": "f32", "f8": "f64"}[dtype])
    near = Target("host", l1_bytes=32 << 10, l2_bytes=512 << 10, cores=2)
    function = polyml.einsum(text, target=near, threads=threads, verify=True)
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), exact)


def test_a_sum_of_two_indices() -> None:
    x, y = integers(20, 9, 50), integers(9, 50, 301, seed=1)
    text = 'def f(x: f32["N J K"], y: f32["J K M"]):\n    z[n, m] = x[n, j, k] * y[j, k, m]\n    return z\n'
    function = polyml.einsum(text, target=TARGET, threads=1, verify=True)
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), np.einsum("njk,jkm->nm", x, y))


def test_threads_have_columns_of_their_own() -> None:
    """They meet once, not for each part of the sum."""
    x, y, _ = operands("nn", 24, 1301, 1003, "f4")
    two = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10, cores=2)
    loops = polyml.einsum(TEXTS["nn"].format("f32"), target=two, threads=2).lower(x, y).text("loops")
    assert loops.index("parallel") < loops.index("for (k_tile")
    assert loops.count("parallel") == 1


@pytest.mark.parametrize(("n", "asked"), [(9, 2), (14, 1)])
def test_two_tiles_of_different_rows_share_what_they_ask_for(n: int, asked: int) -> None:
    """5 and 4 rows: each asks for one of the two lines that a term of the next strip has; of 5, 5 and 4 the first two do."""
    x, y, _ = operands("nn", n, 1504, 1000, "f4")
    lowered = polyml.einsum(TEXTS["nn"].format("f32"), target=_ZEN3, threads=1).lower(x, y)
    tiles = lowered.text("loops").split("vector(8)")
    assert sum("prefetch L2 y" in tile for tile in tiles) == asked


def test_two_tiles_ask_for_nothing_that_is_near() -> None:
    """Four and three rows, which L2 holds, several in a page."""
    x, y, _ = operands("nn", 7, 410, 127, "f4")
    assert "prefetch" not in polyml.einsum(TEXTS["nn"].format("f32"), target=_ZEN3, threads=1).lower(x, y).text("loops")


_ZEN3 = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10, l3_bytes=32 << 20, cores=1, fills_l2=False)
