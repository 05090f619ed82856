"""Strips of an operand are packed by the first register tile that reads them."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import Function, Node
from polyml.codegen.passes.panels.pack_in_tiles import pack_in_tiles
from polyml.dtypes import f32
from polyml.sets.affine import affine
from polyml.target import Target
from tests.codegen.llvm.support import apply, loop, read, run_function, store, variable
from tests.pairs import pairwise

TEXT = 'def f(x: f32["C P"], w: f32["O C"]):\n    y[o, p] = x[c, p] * w[o, c]\n    return y\n'
TARGET = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20)


def operands(rows: int, depth: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows + columns)
    x = rng.integers(-3, 4, (depth, columns)).astype(np.float32)
    return x, rng.integers(-3, 4, (rows, depth)).astype(np.float32)


def test_whole_strips_have_no_copy_of_their_own() -> None:
    x, w = operands(64, 256, 12 * 48 + 16)
    text = polyml.einsum(TEXT, target=TARGET, threads=1).lower(x, w).text("loops")
    lines = [line.strip() for line in text.splitlines()]
    others = [line for line in lines if not line.startswith(("x_panels[", "prefetch"))]
    assert others.count("for (c = 0; c < 256; c += 2) {") == 1  # the sums of all tiles but the first
    assert lines.count("x_panels[0, c, p - p_tile + 32] = x[c, p + 32];") == 1
    assert "x_panels[0, c, p - p_tile] = x[c, p];" in lines[lines.index("for (c = 0; c < 256; c++) {") :]
    assert any(line.startswith("for (o = 8;") for line in lines)


@pairwise(("rows", [64, 65, 71]), ("depth", [255, 256, 257]), ("columns", [240, 243, 500]))
@pytest.mark.few(2)
def test_values(rows: int, depth: int, columns: int) -> None:
    x, w = operands(rows, depth, columns)
    np.testing.assert_array_equal(polyml.einsum(TEXT, threads=1)(x, w), w @ x)
    np.testing.assert_array_equal(polyml.einsum(TEXT, threads=1).bind(w=w)(x), w @ x)


def tiles(shift: int = 0, *, writes: bool = False, least: int = 0) -> Function:
    """y[i, s] = sum of panel[k + shift, s] * w[i, k] behind panel = x; writes: x[k, s] = y after each tile; least: the sums' first step."""
    lanes = {"kind": "vector", "step": 16, "width": 16}
    copy = loop("k", 0, 8, loop("s", 0, 16, store("panel", ["k", "s"], read("x", f32, "k", "s")), **lanes))
    product = apply("mul", read("panel", f32, affine("k") + shift, "s"), read("w", f32, "i", "k"))
    body: list[Node] = [loop("k", least, 8 - shift, store("y", ["i", "s"], product, reduction="sum"))]
    if writes:
        body.append(store("x", [0, "s"], read("y", f32, "i", "s")))
    nest = loop("i", 0, 4, loop("s", 0, 16, *body, **lanes))
    shapes = {"y": (4, 16), "x": (8, 16), "w": (4, 8), "panel": (8, 16)}
    arguments = tuple(variable(name, f32, *shape) for name, shape in shapes.items())
    written = frozenset({"y", "panel"} | ({"x"} if writes else set()))
    return Function(name="f", arguments=arguments, written=written, sizes=(), body=(copy, nest))


def test_the_first_tile_packs() -> None:
    before = tiles()
    after = pack_in_tiles(before)
    assert after is not before
    rng = np.random.default_rng(0)
    given = {
        "y": np.zeros((4, 16), "f"),
        "x": rng.random((8, 16), "f"),
        "w": rng.random((4, 8), "f"),
        "panel": np.zeros((8, 16), "f"),
    }
    one, other = run_function(before, given, {}), run_function(after, given, {})
    for name in given:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize(
    "function", [tiles(shift=1), tiles(writes=True), tiles(least=1)], ids=["other rows", "written", "fewer"]
)
def test_tiles_that_need_the_whole_copy_leave_it(function: Function) -> None:
    assert pack_in_tiles(function) is function
