"""Panels copied along loops that are one in memory: compiled code against the interpreter, and which nests stay as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.codegen.interpret import interpret
from polyml.codegen.loops import Allocate, Assign, For, Function, Node
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.codegen.passes.transposes.collapse_copies import collapse_copies
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import DType, f32, f64
from polyml.sets.affine import affine
from polyml.target import Target
from tests.codegen.llvm.support import run_function
from tests.codegen.programs import array, at, function, local, loop, put, random_arrays


def packed(extents: tuple[int, ...], filters: int, width: int, dtype: DType = f32, *, gap: int = 0) -> Function:
    """p[.., o] = w[o, ..], lanes along o outermost, and y = p. gap: elements of w between rows of its innermost index."""
    names = [f"k{d}" for d in range(len(extents))]
    *outer, last = extents
    w, y = array("w", filters, *outer, last + gap, dtype=dtype), array("y", *extents, width, dtype=dtype)
    p = local("p", *extents, width, dtype=dtype)
    fill: Node = Assign(target=put("p", *names, "o"), value=at("w", "o", *names, dtype=dtype))
    back: Node = loop("o", 0, filters, Assign(target=put("y", *names, "o"), value=at("p", *names, "o", dtype=dtype)))
    for name, extent in zip(reversed(names), reversed(extents), strict=True):
        fill, back = loop(name, 0, extent, fill), loop(name, 0, extent, back)
    return function(
        Allocate(variable=p, body=(loop("o", 0, filters, fill, kind="vector"), back)), arguments=[w, y], written="y"
    )


def lowered(program: Function, vector_bytes: int = 64) -> Function:
    return lower_loops(program, options=LoopOptions(vector_bytes=vector_bytes))[0]


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize(("extents", "filters"), [((5, 3, 3), 32), ((7, 2), 19), ((2, 3, 1, 3), 16), ((40, 3), 7)])
@pytest.mark.few(7)
def test_results_stay(extents: tuple[int, ...], filters: int, vector_bytes: int, dtype: DType) -> None:
    program = packed(extents, filters, 32, dtype)
    kind = np.float64 if dtype == f64 else np.float32
    arrays = {name: values.astype(kind) for name, values in random_arrays(program, {}).items()}
    expected = {name: values.copy() for name, values in arrays.items()}
    interpret(program, expected, {})
    found = run_function(lowered(program, vector_bytes), arrays, {})
    np.testing.assert_array_equal(found["y"], expected["y"])


def test_one_row_for_each_filter() -> None:
    assert collapsed(packed((5, 3, 3), 32, 32)) == [45]
    assert collapsed(packed((2, 3, 1, 3), 32, 48)) == [18]
    assert collapsed(packed((64,), 32, 32)) == []


def test_gaps_part_rows() -> None:
    assert collapsed(packed((5, 3, 3), 32, 32, gap=1)) == []
    program = packed((5, 3, 3), 32, 32)
    (w, y), (allocate,) = program.arguments, program.body
    apart = replace(w, strides=(99, 18, 3, 1))  # three rows of taps follow each other, channels do not
    assert collapsed(replace(program, arguments=(apart, y), body=(allocate,))) == [9]


def test_rows_that_move_with_the_loop_around_stay() -> None:
    a, place = affine("a"), affine("a") * 3 + affine("b")
    fill = Assign(target=put("p", place, "o"), value=at("w", "o", place))
    nest = loop("o", 0, 8, loop("a", 0, 4, loop("b", a, a + 3, fill)), kind="vector")
    inside = Allocate(variable=local("p", 16, 8), body=(nest,))
    assert collapsed(function(inside, arguments=[array("w", 8, 16)], written="")) == []


def collapsed(program: Function) -> list[int]:
    spans = (
        n.upper - n.lower
        for n in walk_nodes(collapse_copies(program).body)
        if isinstance(n, For) and n.variable == "term"
    )
    return [span.constant for span in spans]


def test_weights_of_a_call() -> None:
    text = 'def f(x: f32["C H W"], w: f32["O C 3 3"]):\n    y[o, p, q] = pad(x, ((0, 0), (1, 1), (1, 1)))[c, p + r, q + s] * w[o, c, r, s]\n    return y\n'
    rng = np.random.default_rng(0)
    x, w = rng.integers(-3, 4, (70, 14, 14)).astype("f4"), rng.integers(-3, 4, (128, 70, 3, 3)).astype("f4")
    program = polyml.einsum(
        text, target=Target("x86-64-v4", cores=1) if Target("x86-64-v4").runs_here else None, threads=1
    )
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (1, 1), (1, 1))), (3, 3), (1, 2))
    assert "transpose for (term = " in program.lower(x, w).text("loops") or Target.host().vector_bytes < 64
    np.testing.assert_array_equal(program(x, w), np.tensordot(w, windows, ([1, 2, 3], [0, 3, 4])))
