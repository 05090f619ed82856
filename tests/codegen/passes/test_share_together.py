"""Two parallel loops, one right inside the other, are shared as one. Results are compared with NumPy's in float64 (small integers, so that they are exact)."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.codegen.interpret import interpret
from polyml.codegen.loops import For, Function
from polyml.codegen.passes.share_together import share_together
from polyml.codegen.printer import loops_text
from polyml.dtypes import f64
from polyml.target import Target
from tests.codegen.llvm.support import const, loop, store, variable
from tests.pairs import pairwise

WINDOWS = """def f(x: {0}["C H W"], w: {0}["O C R S"]):
    y[o, p, q] = pad(x, ((0, 0), (1, 1), (1, 1)))[c, {1}*p + r, {1}*q + s] * w[o, c, r, s]
    return y
"""


def parallel(node: For, factor: int = 1) -> For:
    return replace(node, kind="parallel", factor=factor)


def nest(rows: int, columns: int, *, step: int = 1, beside: bool = False) -> Function:
    """y[i, j] += 1 for every place of it, the outer loop in steps."""
    inner = parallel(loop("j", 2, columns, store("y", ["i", "j"], const(1, f64), reduction="sum")), 2)
    body = (inner, loop("k", 0, 1, store("y", ["i", 0], const(0, f64)))) if beside else (inner,)
    outer = replace(parallel(loop("i", 1, rows)), step=step, body=body)
    y = variable("y", f64, max(rows, 1), max(columns, 1))
    return Function(name="f", arguments=(y,), written=frozenset("y"), sizes=(), body=(outer,))


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 12])
@pytest.mark.parametrize("columns", [2, 3, 9])
@pytest.mark.parametrize("step", [1, 4])
def test_every_pair_runs_once(rows: int, columns: int, step: int) -> None:
    before = nest(rows, columns, step=step)
    found, expected = (np.zeros((max(rows, 1), max(columns, 1))) for _ in range(2))
    interpret(before, {"y": expected}, {})
    after = share_together(before)
    interpret(after, {"y": found}, {})
    np.testing.assert_array_equal(found, expected)
    pairs = len(range(1, rows, step)) * len(range(2, columns))
    if pairs:
        (shared,) = (line for line in loops_text(after).splitlines() if "parallel" in line)
        assert f"i_j < {pairs}" in shared


def test_a_loop_beside_others_stays_where_it_is() -> None:
    function = nest(7, 9, beside=True)
    assert share_together(function) is function
    assert share_together(share_together(nest(7, 9))) == share_together(nest(7, 9))


def shared(layer: polyml.api.Bound, x: np.ndarray) -> list[int]:
    """Iterations of the last region's parallel loops."""
    text = layer.lower(x).text("loops").split("convolution_")[-1]
    found = re.findall(r"parallel for \(\w+ = (\d+); \w+ < (\d+); \w+(\+\+| \+= \d+)\)", text)
    return [-(-(int(b) - int(a)) // int(c.split()[-1] if "=" in c else 1)) for a, b, c in found]


@pytest.mark.parametrize(("channels", "size", "filters"), [(64, 56, 64), (128, 28, 128), (96, 30, 48)])
@pytest.mark.few(2)
def test_few_blocks_of_filters_are_shared_with_parts_of_the_rows(channels: int, size: int, filters: int) -> None:
    """Four blocks for two threads: one of which is half as fast again as the other has two of them all the same."""
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10, l3_bytes=32 << 20, cores=2)
    x, w = np.zeros((channels, size, size), "f"), np.zeros((filters, channels, 3, 3), "f")
    program = polyml.einsum(WINDOWS.format("f32", 1), target=target, threads=2)
    assert max(shared(program.bind(w=w), x)) >= 16
    alone = polyml.einsum(WINDOWS.format("f32", 1), target=replace(target, cores=1), threads=1).bind(w=w)
    assert "_p_tile" not in alone.lower(x).text("loops")


@pairwise(
    ("kind", ["f32", "f64", "i32"]),
    ("threads", [2, 3]),
    ("stride", [1, 2]),
    ("channels, height, width, filters", [(64, 23, 31, 40), (37, 40, 17, 64), (64, 30, 30, 16), (1, 9, 5, 3)]),
)
@pytest.mark.few(1)
def test_results(kind: str, threads: int, stride: int, channels: int, height: int, width: int, filters: int) -> None:
    rng = np.random.default_rng(0)
    dtype = {"f32": np.float32, "f64": np.float64, "i32": np.int32}[kind]
    x = rng.integers(-9, 10, (width, channels, height)).astype(dtype).transpose(1, 2, 0)
    w = rng.integers(-9, 10, (filters, channels, 3, 3)).astype(dtype)
    target = Target("x86-64-v3", l1_bytes=8 << 10, l2_bytes=128 << 10, l3_bytes=32 << 20, cores=threads)
    layer = polyml.einsum(WINDOWS.format(kind, stride), target=target, threads=threads, verify=True).bind(w=w)
    padded = np.pad(x.astype(float), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::stride, ::stride]
    for given in (x, np.ascontiguousarray(x)):
        np.testing.assert_array_equal(layer(given), np.tensordot(w.astype(float), windows, ([1, 2, 3], [0, 3, 4])))
