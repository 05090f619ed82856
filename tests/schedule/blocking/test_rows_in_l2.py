"""Packed rows that pass by panels which stay in L1, and how long the sum's blocks are then. Results are compared with NumPy's in float64 (small integers, so that they are exact)."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target

LAYOUTS = {"nn": ("n k", "k m"), "nt": ("n k", "m k"), "tn": ("k n", "k m"), "tt": ("k n", "m k")}
SIZES = {"n": 136, "k": 1024, "m": 272}


def product(layout: str, dtype: str, target: Target, **options: object) -> polyml.EinsumFunction:
    x, y = LAYOUTS[layout]
    text = f'def f(x: {dtype}["{x.upper()}"], y: {dtype}["{y.upper()}"]):\n'
    text += f"    z[n, m] = x[{x.replace(' ', ', ')}] * y[{y.replace(' ', ', ')}]\n    return z\n"
    return polyml.einsum(text, target=target, **options)  # type: ignore[no-any-return, call-overload]


def integers(layout: str, dtype: str, sizes: dict[str, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    kind = {"f32": np.float32, "f64": np.float64}[dtype]
    x, y = (rng.integers(-9, 10, [sizes[i] for i in side.split()]).astype(kind) for side in LAYOUTS[layout])
    exact = np.einsum(f"{','.join(LAYOUTS[layout])}->nm".replace(" ", ""), x.astype(float), y.astype(float))
    return x, y, exact


def small(l2: int = 256 << 10) -> Target:
    """A machine with 16 registers of 256 bits and little L2."""
    return Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=l2, l3_bytes=4 << 20, cores=2)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.few(1)
def test_rows_pass_by_panels_that_half_of_l1_holds(layout: str, dtype: str) -> None:
    """Rows of 1024 elements lie pages apart, and columns of x are not contiguous along the sum: both are packed. Edges of rows and of the sum are there."""
    target = small()
    for threads, less in ((1, 0), (2, 3)):
        sizes = {**SIZES, "k": SIZES["k"] - (less if layout.startswith("t") else 0)}
        x, y, exact = integers(layout, dtype, sizes)
        f = product(layout, dtype, target, threads=threads, verify=True)
        assert "rows along each panel" in str(f.explain(x, y))
        if target.runs_here:
            np.testing.assert_array_equal(f(x, y), exact)


def test_the_loop_over_rows_is_inside_of_that_over_panels() -> None:
    x, y, _ = integers("tn", "f32", SIZES)
    lines = product("tn", "f32", small(), threads=1).lower(x, y).text("loops").splitlines()
    at = next(k for k, line in enumerate(lines) if line.strip().startswith("z_value") and "+=" in line)
    around: list[str] = []
    depth = len(lines[at])
    for line in reversed(lines[:at]):
        indent = len(line) - len(line.lstrip())
        if "for (" in line and indent < depth:
            depth = indent
            around.append(line.split("for (")[1].split(" ")[0])
    assert around[:4] == ["k", "m", "n_tile_2", "m_tile_2"]


def test_rows_of_the_result_that_share_lines_are_no_reason() -> None:
    """265 columns: two panels have a part of the same line of the result, which should be finished while L1 has it."""
    x, y, _ = integers("tn", "f32", {**SIZES, "m": 265})
    assert "rows along each panel" not in str(product("tn", "f32", small()).explain(x, y))


def test_rows_do_not_pass_where_half_of_l1_holds_short_panels_only() -> None:
    """512-bit vectors: 256 terms of three are 48 KB."""
    x, y, _ = integers("tn", "f32", SIZES)
    target = Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=256 << 10, cores=2)
    assert "rows along each panel" not in str(product("tn", "f32", target).explain(x, y))


@pytest.mark.parametrize(("terms", "blocks"), [(500, None), (1030, "k by 208")])
def test_blocks_of_a_long_sum_are_panels_of_half_of_l1(terms: int, blocks: str | None) -> None:
    """Rows that are read where they lie: 512 terms are one block, of more none has more than 256."""
    x, y, _ = integers("nn", "f32", {**SIZES, "k": terms})
    line = next(
        s for s in str(product("nn", "f32", small(512 << 10), threads=1).explain(x, y)).splitlines() if "blocking" in s
    )
    assert "rows along" not in line
    assert ("k by" in line) == (blocks is not None)
    assert blocks is None or blocks in line


@pytest.mark.parametrize(("columns", "block"), [(272, 256), (265, 148)])
def test_blocks_are_no_shorter_where_packed_rows_pass(columns: int, block: int) -> None:
    """A quarter of L1 holds 170 terms of six rows in f64; rows that pass come from L2."""
    x, y, _ = integers("tn", "f64", {**SIZES, "n": 600, "m": columns})
    explained = str(product("tn", "f64", small(512 << 10), threads=1).explain(x, y))
    assert f"k by {block}" in explained
    assert ("rows along each panel" in explained) == (block == 256)


@pytest.mark.parametrize(
    ("n", "columns", "layout", "dtype", "passing"),
    [
        (256, 272, "tn", "f32", True),
        (264, 256, "tn", "f32", False),
        (256, 152, "tt", "f32", False),
        (128, 128, "tt", "f64", True),
        (128, 128, "nt", "f64", False),
    ],
)
@pytest.mark.few(3)
def test_rows_whose_lines_meet_are_packed_even_if_l2_holds_them(
    n: int, columns: int, layout: str, dtype: str, passing: bool
) -> None:
    """Terms 1 KiB apart: a quarter of the lines for each of four sets of L1, which come from L2 again for each panel. Not of few columns, for which the copy would show."""
    x, y, expected = integers(layout, dtype, {"n": n, "k": 128, "m": columns})
    function = product(layout, dtype, small(512 << 10), threads=1)
    assert ("rows along each panel" in str(function.explain(x, y))) == passing
    np.testing.assert_array_equal(function(x, y), expected)


def test_packed_rows_are_read_from_end_to_end_and_stored_without_masks() -> None:
    """Rows contiguous along the sum: a register tile's at a time. Six lanes of eight are stored as four and two."""
    x, y, _ = integers("nn", "f32", SIZES)
    lowered = product("nn", "f32", small(), threads=1).lower(x, y)
    packing = lowered.text("loops").split("y_panels")[0].splitlines()
    loops = [line.split("for (")[1].split(" ")[0] for line in packing if "for (" in line]
    first = loops.index("n_tile")
    assert loops[first : first + 3] == ["n_tile", "n", "k_block"]
    assert "masked.store.v8f32" not in lowered.text("llvm")
