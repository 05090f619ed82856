"""What the next block is packed from, fetched while a packed block is multiplied with: which lines are asked for, and where none are."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.codegen.llvm.support import guarded

WIDE = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20, cores=2)
# Of 32 registers, which fewer ones hold as well, more slowly: a machine of 16 asks for nothing.
SMALL = Target("host", vector_registers=32, asks_sources=True, l1_bytes=32 * 1024, l2_bytes=128 * 1024, cores=2)
AHEAD = "what the next block of y is packed from"
WAYS = {"along": ('y: f32["K M"]', "y[k, m]"), "across": ('y: f32["M K"]', "y[m, k]")}


def product(way: str, **options: object) -> polyml.EinsumFunction:
    argument, read = WAYS[way]
    text = f'def f(x: f32["N K"], {argument}):\n    z[n, m] = x[n, k] * {read}\n    return z\n'
    return polyml.einsum(text, threads=1, **options)


def operands(way: str, rows: int, terms: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-9, 10, shape).astype(np.float32) for shape in ((rows, terms), (terms, columns)))
    return x, y if way == "along" else np.ascontiguousarray(y.T)


def test_every_line_of_the_next_block_is_asked_for() -> None:
    x, y = operands("along", 600, 4096, 480)
    text = product("along", target=WIDE).lower(x, y).text("loops")
    depth, wide = (int(re.search(rf"{loop} \+= (\d+)", text)[1]) for loop in ("k_tile", "m_tile"))  # type: ignore[index]
    asks = compile(re.findall(r"prefetch L2 y\[(.*)\];", text)[0], "<prefetch>", "eval")
    step = int(re.search(r"for \(k = k_line; k < k_line \+ \d+; k \+= (\d+)", text)[1])  # type: ignore[index]
    for k_tile in (0, depth):
        at = [
            {"n": n, "n_tile": n, "k": k, "k_tile": k_tile, "m": m, "m_tile": 0, "m_tile_2": m}
            for n in range(0, 600, 8)
            for k in range(k_tile, k_tile + depth, step)
            for m in range(0, wide, 48)
        ]
        asked = {(row, column // 16) for row, column in (eval(asks, where) for where in at)}
        assert asked >= {(k_tile + depth + k, line) for k in range(depth) for line in range(wide // 16)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.few(1)
def test_results(way: str) -> None:
    x, y = operands(way, 150, 1300, 403)
    function = product(way, target=SMALL)
    assert AHEAD in str(function.explain(x, y))
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), x @ (y if way == "along" else y.T))


ROWS = """
def f(x: f64["K N"], y: f64["K M"]):
    z[n, m] = x[k, n] * y[k, m]
    return z
"""


def test_every_line_that_rows_are_packed_from_next_is_asked_for() -> None:
    x, y = np.ones((512, 512)), np.ones((512, 512))
    lowered = polyml.einsum(ROWS, threads=1, target=Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=1 << 20)).lower(
        x, y
    )
    assert "what the next block of x is packed from" in str(lowered.explain())
    text = lowered.text("loops")
    depth, wide, high = (int(re.search(rf"{loop} \+= (\d+)", text)[1]) for loop in ("k_tile", "m_tile", "n_tile"))  # type: ignore[index]
    asks = compile(re.findall(r"prefetch L2 x\[(.*m_tile_2.*)\];", text)[0], "<prefetch>", "eval")
    step, panel = (int(re.search(rf"for \({loop} = .*; {loop} \+= (\d+)", text)[1]) for loop in ("k", "m_tile_2"))  # type: ignore[index]
    at = [
        {"n_tile": n, "k": k, "k_tile": 0, "m_tile": 0, "m_tile_2": m}
        for n in range(0, 512, high)
        for k in range(0, depth, 1 if step > 8 else step)
        for m in range(0, wide, panel)
    ]
    asked = {(row, column // 8) for row, column in (eval(asks, where) for where in at)}
    assert asked >= {(depth + k, line) for k in range(depth) for line in range(512 // 8)}


@pytest.mark.parametrize(("n", "k", "m"), [(150, 700, 203), (64, 513, 96), (77, 301, 401)])
@pytest.mark.few(1)
def test_results_of_packed_rows(n: int, k: int, m: int) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.integers(-9, 10, (k, n)).astype(float), rng.integers(-9, 10, (k, m)).astype(float)
    found = polyml.einsum(ROWS, threads=1 + n % 2, target=SMALL)(guarded(x), guarded(y))
    np.testing.assert_array_equal(found, x.T @ y)


def test_two_sums_and_blocks_of_two_indices() -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.integers(-9, 10, shape).astype(np.float32) for shape in ((9, 40, 12, 50), (12, 37, 40)))
    function = polyml.einsum(
        'def f(x: f32["C E D A"], y: f32["D B E"]):\n    z[c, b, a] = x[c, e, d, a] * y[d, b, e]\n    return z\n',
        target=SMALL,
        threads=1,
    )
    assert "what the next block of x is packed from" in str(function.explain(x, y))
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), np.einsum("ceda,dbe->cba", x, y))


def test_what_l2_holds_is_not_asked_for() -> None:
    x, y = operands("along", 600, 1024, 480)
    assert AHEAD not in str(product("along", target=WIDE).explain(x, y))


@pytest.mark.parametrize("way", WAYS)
def test_tiles_of_few_registers_have_no_time_to_ask(way: str) -> None:
    x, y = operands(way, 600, 1100, 480)
    narrow = Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=128 * 1024, cores=2)
    assert AHEAD not in str(product(way, target=narrow).explain(x, y))
