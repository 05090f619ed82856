"""Taps of windows that are written out: in the order of places, each vector loaded once, every sum in its order."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.codegen.interpret import interpret
from polyml.codegen.loops import Assign, For, Function
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.codegen.passes.sums.window_taps import write_taps
from polyml.codegen.rewrite import walk_nodes
from polyml.sets.affine import affine
from polyml.target import Target
from tests.codegen.programs import array, at, call, function, loop, number, put
from tests.pairs import pairwise

P, Q, R, S = (affine(name) for name in "pqrs")


def window(rows: int, columns: int, taps: tuple[int, int], *, sign: int = 1, step: int = 1) -> Function:
    """y[p, q] = sum[r, s](x[step p + sign r, q + s] * w[r, s]) in tiles of four rows, with lanes along q."""
    shift = 0 if sign > 0 else taps[0] - 1
    product = call("mul", at("x", P * step + R * sign + shift, Q + S), at("w", "r", "s"))
    body = (
        Assign(target=put("y", "p", "q"), value=number(0.0)),
        loop("r", 0, taps[0], loop("s", 0, taps[1], Assign(target=put("y", "p", "q"), value=product, reduction="sum"))),
    )
    nest = loop("p", 0, rows, loop("q", 0, columns, *body, kind="vector"), kind="jam", factor=4)
    x = array("x", (rows - 1) * step + taps[0], columns + taps[1] - 1)
    return function(nest, arguments=[x, array("w", *taps), array("y", rows, columns)], written="y")


def lowered(made: Function, *, precise: bool = True, registers: int = 32) -> Function:
    options = LoopOptions(vector_bytes=32, vector_registers=registers, precise=precise)
    return lower_loops(made, options=options)[0]


def loops_left(made: Function) -> set[str]:
    return {node.variable for node in walk_nodes(made.body) if isinstance(node, For)} & {"r", "s"}


def written_out(made: Function) -> bool:
    return not loops_left(made)


@pytest.mark.parametrize("rows", [4, 8, 9, 11])
@pytest.mark.parametrize("columns", [8, 16, 19, 24])
@pytest.mark.parametrize(("taps", "sign", "step"), [((3, 3), 1, 1), ((3, 3), -1, 1), ((5, 2), 1, 2), ((2, 1), 1, 1)])
@pytest.mark.few(5)
def test_sums_are_the_same(rows: int, columns: int, taps: tuple[int, int], sign: int, step: int) -> None:
    """To the last bit: each sum keeps its order."""
    made = window(rows, columns, taps, sign=sign, step=step)
    rng = np.random.default_rng(rows * columns)
    arrays = {v.name: rng.standard_normal([e.constant for e in v.shape]).astype(np.float32) for v in made.arguments}
    wanted = {name: value.copy() for name, value in arrays.items()}
    interpret(made, wanted)
    interpret(lowered(made), arrays)
    np.testing.assert_array_equal(arrays["y"], wanted["y"])


def test_what_is_written_out() -> None:
    assert written_out(lowered(window(8, 16, (3, 3))))
    assert written_out(lowered(window(8, 16, (3, 3), sign=-1)))
    assert not written_out(lowered(window(8, 16, (3, 3), step=3))), "rows have nothing in common"
    assert not written_out(lowered(window(8, 16, (9, 9)))), "too many terms"
    plain = window(8, 16, (3, 3))
    assert write_taps(plain, vector_registers=32) is plain, "no lanes yet"


def test_what_is_written_out_in_one_direction() -> None:
    """Where coefficients are more than registers hold, and sums need not keep their order."""
    assert loops_left(lowered(window(8, 16, (7, 7)), precise=False)) == {"s"}
    assert loops_left(lowered(window(8, 16, (7, 7)), precise=True)) == {"r", "s"}
    assert loops_left(lowered(window(8, 16, (5, 5)), precise=False)) == set()
    assert loops_left(lowered(window(8, 16, (5, 5)), precise=False, registers=16)) == {"s"}
    assert loops_left(lowered(window(8, 16, (3, 3)), precise=False, registers=16)) == set()
    assert loops_left(lowered(window(8, 16, (7, 7), step=7), precise=False)) == {"r", "s"}, "nothing in common"


@pairwise(
    ("taps, sign, step", [((7, 5), 1, 1), ((9, 9), -1, 1), ((11, 3), 1, 2), ((3, 13), 1, 1)]),
    ("rows", [4, 9, 11]),
    ("columns", [8, 19]),
)
@pytest.mark.few(3)
def test_sums_in_another_order(rows: int, columns: int, taps: tuple[int, int], sign: int, step: int) -> None:
    made = window(rows, columns, taps, sign=sign, step=step)
    rng = np.random.default_rng(rows * columns)
    arrays = {v.name: rng.integers(-4, 5, [e.constant for e in v.shape]).astype("f4") for v in made.arguments}
    wanted = {name: value.copy() for name, value in arrays.items()}
    interpret(made, wanted)
    interpret(lowered(made, precise=False, registers=16), arrays)
    np.testing.assert_array_equal(arrays["y"], wanted["y"])


@pytest.mark.parametrize(("taps", "stride"), [(3, 1), (3, 2), (5, 1), (7, 1), (7, 2)])
@pytest.mark.few(3)
def test_tiles_load_each_vector_once_and_spill_nothing(taps: int, stride: int) -> None:
    edge = (taps // 2, taps // 2)
    text = f"""
def layer(x: f32["C H W"], w: f32["C R S"]):
    y[c, p, q] = pad(x, ((0, 0), {edge}, {edge}))[c, {stride}*p + r, {stride}*q + s] * w[c, r, s]
    return y
"""
    x, w = np.zeros((64, 56, 56), np.float32), np.zeros((64, taps, taps), np.float32)
    target = Target("x86-64-v4", l1_bytes=32 * 1024, l2_bytes=1 << 20)
    layer = polyml.einsum(text, target=target, threads=1).bind(w=w).lower(x)
    loops = layer.text("loops")
    places = re.findall(r"\+=.* x(?:_padded)?\[([^]]*)\]", loops)
    assert len(places) > 1.4 * len(set(places)) > 0
    blocks = re.split(r"^\.L\w+:\n|^\tj\w+\t.*\n", layer.text("asm"), flags=re.M)
    tiles = [block for block in blocks if block.count("vfmadd") >= 54]
    assert tiles
    assert not any(re.search(r"[xyz]mm\d+, -?\d*\(%rsp\)", block) for block in tiles)


def channels_last(rows: int, channels: int, taps: int, *, moved: bool = False) -> Function:
    """y[p, c] = sum[r](x[p + r, c] * w[r, c]) in tiles of four rows, with lanes along c. moved: of w[p + r, c]."""
    product = call("mul", at("x", P + R, "c"), at("w", P + R if moved else R, "c"))
    body = (
        Assign(target=put("y", "p", "c"), value=number(0.0)),
        loop("r", 0, taps, Assign(target=put("y", "p", "c"), value=product, reduction="sum")),
    )
    nest = loop("p", 0, rows, loop("c", 0, channels, *body, kind="vector"), kind="jam", factor=4)
    arguments = [
        array("x", rows + taps - 1, channels),
        array("w", rows + taps - 1, channels),
        array("y", rows, channels),
    ]
    return function(nest, arguments=arguments, written="y")


@pytest.mark.parametrize(("rows", "channels", "taps"), [(4, 8, 3), (9, 19, 4), (12, 16, 2), (5, 24, 9)])
def test_coefficients_in_lanes(rows: int, channels: int, taps: int) -> None:
    made = channels_last(rows, channels, taps)
    rng = np.random.default_rng(rows)
    arrays = {v.name: rng.standard_normal([e.constant for e in v.shape]).astype(np.float32) for v in made.arguments}
    wanted = {name: value.copy() for name, value in arrays.items()}
    interpret(made, wanted)
    interpret(lowered(made), arrays)
    np.testing.assert_array_equal(arrays["y"], wanted["y"])


def test_coefficients_are_the_same_for_all_rows() -> None:
    assert written_out(lowered(channels_last(8, 16, 3)))
    assert not written_out(lowered(channels_last(8, 16, 3, moved=True)))


@pytest.mark.parametrize("taps", [3, 5, 7])
def test_tiles_of_channels_load_each_vector_once_and_spill_nothing(taps: int) -> None:
    text = (
        'def f(x: f32["H W 64"], w: f32["R S 64"]):\n    y[p, q, c] = x[p + r, q + s, c] * w[r, s, c]\n    return y\n'
    )
    x, w = np.zeros((30, 27 + taps, 64), np.float32), np.zeros((taps, taps, 64), np.float32)
    lowered = polyml.einsum(text, target=Target("x86-64-v4", l2_bytes=1 << 20), threads=1).lower(x, w)
    places = re.findall(r"\+= x\[([^]]*)\]", lowered.text("loops"))
    assert len(places) > 2 * len(set(places)) > 0
    blocks = re.split(r"^\.L\w+:\n|^\tj\w+\t.*\n", lowered.text("asm"), flags=re.M)
    tiles = [block for block in blocks if block.count("vfmadd") >= 14 * taps]
    assert tiles
    assert not any(re.search(r"[xyz]mm\d+, -?\d*\(%rsp\)", block) for block in tiles)


def test_taps_that_are_scattered() -> None:
    """Each tap is added to a place of its own: there is no register for them all."""
    text = 'def f(y: f64["A B C"], x: f64["P B2 Q"], w: f64["R S"]):\n    y[5*q + 2*s, 4*p + 2*r, b] += x[p, b, q] * w[r, s]\n'
    rng = np.random.default_rng(0)
    y, x, w = (rng.integers(-3, 4, shape).astype(float) for shape in ((25, 47, 5), (9, 5, 5), (8, 3)))
    exact = y.copy()
    for p, b, q in np.ndindex(*x.shape):
        exact[5 * q : 5 * q + 5 : 2, 4 * p : 4 * p + 15 : 2, b] += x[p, b, q] * w.T
    polyml.einsum(text, precise=True)(y, x, w)
    np.testing.assert_array_equal(y, exact)
