"""Products of any size with few rows: versions that read the large operand in order, or where it lies, and the right result of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import For, If, Prefetch
from polyml.codegen.rewrite import walk_nodes
from polyml.lowered import Lowered
from polyml.options import FusionPolicy
from polyml.target import Target

SMALL_CACHES = Target("host", l1_bytes=2 << 10, l2_bytes=8 << 10)
"""This machine, with caches that small tests outgrow."""
AVX2 = Target("x86-64-v3", l1_bytes=2 << 10, l2_bytes=8 << 10)
"""The same of one kind of machine, for what is said of its plans."""


def product(left: str, right: str, out: str, dtype: str = "f32") -> str:
    subscripts = {names: ", ".join(names.lower().split()) for names in (left, right, out)}
    return (
        f'def product(x: {dtype}["{left}"], y: {dtype}["{right}"]):\n'
        f"    z[{subscripts[out]}] = x[{subscripts[left]}] * y[{subscripts[right]}]\n    return z\n"
    )


def sizes() -> Iterator[tuple[int, int, int]]:
    """Rows, reduction, columns: around register tiles, and where operands outgrow L2 and do not."""
    for rows in range(18):
        yield rows, 19 + rows % 4, 150 + 7 * rows
    yield from ((3, 15, 700), (5, 16, 700), (7, 21, 1), (7, 300, 9), (9, 40, 49), (15, 33, 65), (2, 17, 641), (1, 0, 9))


@pytest.mark.parametrize(
    ("left", "dtype"),
    [
        pytest.param("N K", "f32", marks=pytest.mark.slow),
        ("K N", "f32"),
        pytest.param("N K", "f64", marks=pytest.mark.slow),
    ],
)
def test_products_of_few_rows(left: str, dtype: str) -> None:
    f = polyml.einsum(product(left, "K M", "N M", dtype), dynamic=True, target=SMALL_CACHES, threads=1, verify=True)
    agrees(f, left, {"f32": np.dtype("f4"), "f64": np.dtype("f8")}[dtype], sizes())


def test_threads_share_columns() -> None:
    f = polyml.einsum(product("N K", "K M", "N M"), dynamic=True, target=SMALL_CACHES, threads=2)
    agrees(f, "N K", np.dtype("f4"), [(7, 40, 3001), (1, 40, 3001), (16, 40, 301), (3, 17, 30)])


def test_a_number_of_rows() -> None:
    """One version for operands that L2 does not hold, and one for others."""
    text = 'def product(x: f32["6 K"], y: f32["K M"]):\n    z[n, m] = x[n, k] * y[k, m]\n    return z\n'
    f = polyml.einsum(text, dynamic=("K", "M"), target=SMALL_CACHES, threads=1, verify=True)
    agrees(f, "N K", np.dtype("f4"), [(6, k, m) for k, m in ((40, 301), (16, 700), (3, 3), (50, 20), (18, 64))])
    assert len(f.kernels) == 1
    lowered = f.lower(np.ones((6, 20), "f4"), np.ones((20, 200), "f4"))
    assert "read once, in order" in str(lowered.explain())
    assert len(versions(lowered)) == 1


def test_an_operand_has_a_version_that_reads_it_in_order() -> None:
    f = polyml.einsum(product("N K", "K M", "N M"), dynamic=True, target=AVX2)
    lowered = f.lower(np.ones((17, 20), "f4"), np.ones((20, 200), "f4"))
    assert len(versions(lowered)) == 2


def test_operands_that_lie_in_a_cache_are_read_in_order_too() -> None:
    """From half of L1 on, where register tiles of one, two and four rows would each bring the operand anew; sums begin every eight rows."""
    f = polyml.einsum(product("N K", "K M", "N M"), dynamic=True, target=AVX2)
    (_, few) = versions(f.lower(np.ones((17, 20), "f4"), np.ones((20, 200), "f4")))
    assert "(K * M) >= 257" in str(few.condition)
    assert "(N <= 15)" in str(few.condition)
    blocks = [node for node in walk_nodes(few.then) if isinstance(node, For) and node.variable == "k_tile"]
    assert {node.step for node in blocks} == {8}


@pytest.mark.parametrize(
    ("first", "left", "tile"),
    [
        pytest.param((7, 20, 70), "N K", "7 n x 3 vectors of m; y read where it lies", marks=pytest.mark.slow),
        pytest.param((12, 33, 40), "K N", "12 n x 2 vectors of m; y read where it lies", marks=pytest.mark.slow),
        ((2, 40, 300), "N K", "2 n x 4 vectors of m; y read once, in order"),
        pytest.param((15, 20, 70), "N K", "5 n x 3 vectors of m; y read where it lies", marks=pytest.mark.slow),
    ],
)
def test_as_many_rows_as_the_first_call(first: tuple[int, int, int], left: str, tile: str) -> None:
    """Are one register tile, or even ones; other numbers have their versions."""
    machine = Target("x86-64-v4", l1_bytes=2 << 10, l2_bytes=8 << 10)
    lowered = polyml.einsum(product(left, "K M", "N M"), dynamic=True, target=machine).lower(*ones(first, left))
    assert f"for sizes near those at hand: register tile {tile}" in str(lowered.explain())
    near = versions(lowered)[0]
    rows, depth, columns = first
    fetched = {node.place.variable for node in walk_nodes(near.then) if isinstance(node, Prefetch)}
    assert ("y" in fetched) == (tile.endswith("in order")), "which L2 holds, else"
    assert holds(near, first)
    for other in (
        (rows + 1, depth, columns),
        (0, depth, columns),
        (rows, 15, columns),
        (rows, depth, 31),
        (16, 33, 40),
    ):
        assert not holds(near, other), other
    proved = tile.endswith("in order")
    f = polyml.einsum(product(left, "K M", "N M"), dynamic=True, target=SMALL_CACHES, threads=1, verify=proved)
    f(*ones(first, left))
    around = ((n, k, m) for n in {1, rows - 1, rows, 2 * rows, 40} for k in (1, depth) for m in (1, columns, 333))
    agrees(f, left, np.dtype("f4"), [*around, (rows, 300, columns), (7, 33, 65), (rows, 2000, 50)])
    assert len(f.kernels) == 1
    agrees(f, left, np.dtype("f4"), [(0, depth, columns), (rows, 0, 9), (rows, 16, 0)])


@pytest.mark.parametrize("first", [(1, 40, 300), (16, 40, 300), (7, 8, 300)])
@pytest.mark.few(1)
def test_no_version_of_its_own(first: tuple[int, int, int]) -> None:
    """For a single row, many rows, or short sums."""
    f = polyml.einsum(product("N K", "K M", "N M"), dynamic=True, target=SMALL_CACHES)
    assert "at hand" not in str(f.lower(*ones(first, "N K")).explain())


def test_what_reads_the_few_rows_of_the_result() -> None:
    text = """
def f(x: f32["B N K"], y: f32["K M"], b: f32["M"]):
    z[i, n, m] = relu(x[i, n, k] * y[k, m] + b[m])
    return z
"""
    f = polyml.einsum(text, dynamic=True, target=SMALL_CACHES, threads=1, verify=True)
    rng = np.random.default_rng(0)
    for rows in ((1, 6), (1, 12), (2, 3), (3, 0), (0, 6), (1, 5), (4, 9)):
        for depth, columns in ((20, 70), (40, 300), (16, 33), (3, 5), (0, 7)):
            if 0 in (*rows, depth) and (rows, depth) not in (((3, 0), 20), ((0, 6), 3), ((2, 3), 0)):
                continue  # kernels of their own
            x, y = rng.integers(-3, 4, (*rows, depth)).astype("f4"), rng.integers(-3, 4, (depth, columns)).astype("f4")
            b = rng.integers(-9, 9, columns).astype("f4")
            np.testing.assert_array_equal(f(x, y, b), np.maximum(x @ y + b, 0))


def test_rows_of_tiles_lie_near_each_other() -> None:
    """Sizes that are not known do not tell which of two indices suits a register tile; memory does."""
    text = 'def f(x: f64["Q R K"], w: f64["K P"]):\n    y[r, q, p] = x[q, r, s] * w[s, p]\n    return y\n'
    f = polyml.einsum(text, dynamic=True, target=SMALL_CACHES, threads=1, verify=True)
    rng = np.random.default_rng(0)
    loops = f.lower(np.ones((3, 17, 20)), np.ones((20, 30))).text("loops")  # which the first call compiles
    for q, r, k, p in ((3, 17, 20, 30), (1, 1, 1, 1), (9, 8, 24, 24), (2, 70, 31, 9), (5, 0, 4, 4), (8, 9, 0, 5)):
        x, w = rng.integers(-3, 4, (q, r, k)).astype("f8"), rng.integers(-3, 4, (k, p)).astype("f8")
        np.testing.assert_array_equal(f(x, w), (x @ w).transpose(1, 0, 2))
    assert "y[r, q + 1, p] = " in loops
    assert "y[r + 1, q, p] = " not in loops


@pytest.mark.parametrize("fusion", ["smart", "maximal"])
@pytest.mark.slow
def test_products_that_share_their_loops_have_no_version_of_their_own(fusion: FusionPolicy) -> None:
    text = 'def f(x: f32["N K"], y: f32["K M"]):\n    z[n, m] = x[n, k] * y[k, m]\n    s[k] = max[m](y[k, m])\n    return z, s\n'
    f = polyml.einsum(text, dynamic=True, fusion=fusion)
    for n, k, m in ((3, 65, 37), (70, 5, 90)):
        x, y = np.ones((n, k), np.float32), np.arange(k * m, dtype=np.float32).reshape(k, m) % 7
        z, s = f(x, y)
        assert np.array_equal(z, x @ y)
        assert np.array_equal(s, y.max(1))


def versions(lowered: Lowered) -> list[If]:
    """The choices between them at the top of the only region, one inside the other."""
    found, nodes = [], lowered.stages.regions[0].loops.body
    while len(nodes) == 1 and isinstance(nodes[0], If):
        found.append(nodes[0])
        nodes = nodes[0].otherwise
    return found


def holds(version: If, sizes: tuple[int, int, int]) -> bool:
    """Whether products of so many rows, terms and columns have this version."""
    return bool(eval(str(version.condition), dict(zip("NKM", sizes, strict=True))))


def ones(sizes: tuple[int, int, int], left: str) -> tuple[np.ndarray, np.ndarray]:
    rows, depth, columns = sizes
    return np.ones((rows, depth) if left.endswith("K") else (depth, rows), "f4"), np.ones((depth, columns), "f4")


def agrees(f: polyml.Einsum, left: str, dtype: np.dtype[Any], sizes: Iterable[tuple[int, int, int]]) -> None:
    """Compares one kernel's calls with NumPy, exactly: elements are small integers."""
    rng = np.random.default_rng(0)
    for rows, depth, columns in sizes:
        x = rng.integers(-4, 5, (rows, depth) if left.endswith("K") else (depth, rows)).astype(dtype)
        y = rng.integers(-4, 5, (depth, columns)).astype(dtype)
        wanted = (x if left.endswith("K") else x.T) @ y
        np.testing.assert_array_equal(f(x, y), wanted, err_msg=f"{rows} x {depth} x {columns}")
