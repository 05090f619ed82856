"""Finished rows of sums are transposed to where they belong: line after line where rows of the result meet in L1."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import For
from polyml.codegen.rewrite import walk_nodes
from polyml.compiler.constants import lower_bound
from polyml.target import Target

LAYER = """def f(x: f32["C H W"], w: f32["O C 3 3"]):
    y[o, p, q] = pad(x, ((0, 0), (1, 1), (1, 1)))[c, p + r, q + s] * w[o, c, r, s]
    return y
"""
FOLLOWED = """def f(x: f32["C H W"], w: f32["O C 3 3"], b: f32["O"]):
    y[o, p, q] = relu(pad(x, ((0, 0), (1, 1), (1, 1)))[c, p + r, q + s] * w[o, c, r, s] + b[o])
    return y
"""


def blocks_beside(text: str, side: int, machine: str) -> set[int]:
    """How many blocks of filters are transposed for a piece of a row before the next piece."""
    values = {"x": np.zeros((8, side, side), np.float32), "w": np.zeros((64, 8, 3, 3), np.float32)}
    values |= {"b": np.zeros(64, np.float32)} if "b:" in text else {}
    target = Target(machine, l1_bytes=32 * 1024, l2_bytes=512 * 1024, cores=1)
    program = polyml.einsum(text, target=target, threads=1)
    code = lower_bound(program.program, program.key_of(*values.values()), program.options, values.keys() - {"x"})
    loops = [node for function in code.calls[2] for node in walk_nodes(function.body) if isinstance(node, For)]
    found = [loop for loop in loops if isinstance(loop.body[0], For) and loop.body[0].kind == "transpose"]
    return {(loop.upper - loop.lower).constant // loop.step for loop in found if (loop.upper - loop.lower).is_constant}


@pytest.mark.parametrize("text", [LAYER, FOLLOWED])
@pytest.mark.parametrize(
    ("side", "machine", "blocks"),
    [
        (64, "x86-64-v3", 1),  # rows of the result 16 KB apart: the 16 of a panel are in one set
        (112, "x86-64-v3", 2),  # 49 KB, in four
        (60, "x86-64-v3", 2),  # in all sets
        (160, "x86-64-v3", 1),  # 100 KB: all 64 in one set
        (150, "x86-64-v3", 8),
        (64, "x86-64-v4", 2),  # vectors are lines
    ],
)
@pytest.mark.few(2)
def test_lines_are_whole_where_rows_meet(text: str, side: int, machine: str, blocks: int) -> None:
    assert blocks_beside(text, side, machine) == {blocks}


@pytest.mark.parametrize("filters", [64, 61, 48])
@pytest.mark.parametrize("side", [64, 33])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.few(2)
def test_results(filters: int, side: int, dtype: type) -> None:
    rng = np.random.default_rng(filters)
    x, w = rng.standard_normal((5, side, side)), rng.standard_normal((filters, 5, 3, 3))
    b = rng.standard_normal(filters)
    text = FOLLOWED.replace("f32", "f64") if dtype is np.float64 else FOLLOWED
    layer = polyml.einsum(text, threads=1).bind(w=w.astype(dtype), b=b.astype(dtype))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (1, 1), (1, 1))), (3, 3), (1, 2))
    expected = np.maximum(np.tensordot(w, windows, ([1, 2, 3], [0, 3, 4])) + b[:, None, None], 0)
    np.testing.assert_allclose(layer(x.astype(dtype)), expected, atol=1e-4 if dtype is np.float32 else 1e-11)
