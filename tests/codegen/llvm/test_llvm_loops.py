"""Emitted code against the Loops interpreter, on the programs that the loop passes are tested with: as written, and with vectors and unrolling carried out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.loops import Allocate, Function, Node
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.dtypes import f32, f64
from polyml.sets.affine import affine
from tests.codegen.llvm.support import (
    apply,
    compile_functions,
    const,
    function_of,
    loop,
    read,
    run_function,
    store,
    variable,
    vector,
)
from tests.codegen.programs import cases, run

CASES = cases()


def kind_of(name: str) -> str:
    """What makes a case, without its sizes."""
    return name.partition("-")[0]


@pytest.mark.parametrize("vector_bytes", [0, 16, 32, 64])
@pytest.mark.parametrize("kind", sorted({kind_of(name) for name, _, _ in CASES}))
@pytest.mark.few(6)
def test_code_does_what_the_interpreter_does(kind: str, vector_bytes: int) -> None:
    cases = [case for case in CASES if kind_of(case[0]) == kind]
    if vector_bytes == 32:  # between the others
        cases = cases[::3]
    functions = [function for _, function, _ in cases]
    if vector_bytes:
        functions = [lower_loops(f, options=LoopOptions(vector_bytes=vector_bytes))[0] for f in functions]
    for (name, function, sizes), call in zip(cases, compile_functions(functions), strict=True):
        arrays = run(replace(function, body=()), sizes)  # as they are before
        want = run(function, sizes)
        out = call(arrays, sizes)
        for argument in function.arguments:
            np.testing.assert_array_equal(out[argument.name], want[argument.name], err_msg=f"{name}: {argument.name}")


@pytest.mark.parametrize(("levels", "held"), [(1, False), (2, False), (4, False), (3, True), (4, True), (6, True)])
def test_counters_of_loops_around_others_are_hidden(levels: int, held: bool) -> None:
    """So many loops around one element: LLVM knows the counter of the inner one, of the inner three where a register is held across a loop; and elements are where they were."""
    names = [f"i{level}" for level in range(levels)]
    sizes = [2 + level % 2 for level in range(levels)]
    last = levels - held  # loops around the element
    array = variable("y", f64, *sizes[:last])
    body: tuple[Node, ...] = (store("y", names[:last], const(1.0, f64)),)
    if held:
        total = variable("s", f64, scope="register")
        summed = loop(names[-1], 0, sizes[-1], store("s", [], const(1.0, f64), reduction="sum"))
        result = store("y", names[:last], read("s", f64))
        body = (Allocate(variable=total, body=(store("s", [], const(0.0, f64)), summed, result)),)
    for name, size in reversed(list(zip(names[:last], sizes[:last], strict=True))):
        body = (loop(name, 0, size, *body),)
    function = Function(name="nest", arguments=(array,), written=frozenset("y"), sizes=(), body=body)
    text = emit_module([function])
    assert text.count(" phi i64 ") == levels
    assert text.count(" asm ") == max(0, levels - (3 if held else 1))
    want = np.full(sizes[:last], sizes[-1] if held else 1.0)
    np.testing.assert_array_equal(run_function(function, {"y": np.zeros(sizes[:last])}, {})["y"], want)


@pytest.mark.parametrize(("length", "loops"), [(1, 1), (8, 1), (9, 2)])
def test_what_runs_once_from_an_unknown_place_is_no_loop(length: int, loops: int) -> None:
    inner = replace(loop("j", "i", affine("i") + length, store("y", ["j"], const(1.0, f32))), step=8)
    body = (replace(loop("i", 0, affine("n") - length + 1, inner), step=8),)
    function = Function(
        name="nest", arguments=(variable("y", f32, "n"),), written=frozenset("y"), sizes=("n",), body=body
    )
    assert emit_module([function]).count(" phi i64 ") == loops
    sizes = {"n": 29}
    before = run(replace(function, body=()), sizes)
    np.testing.assert_array_equal(run_function(function, before, sizes)["y"], run(function, sizes)["y"])


def test_what_a_function_of_a_tile_writes_is_read_anew() -> None:
    """It is called in the middle of a block, ahead of which an element of its result was read."""
    names = [f"t{u}" for u in range(12)]
    sums = (
        store(name, (), apply("mul", read("x", f32, u, "k"), read("w", f32, "k", "j")), reduction="sum")
        for u, name in enumerate(names)
    )
    tile: tuple[Node, ...] = (
        loop("k", 0, 4, *sums),
        *(store("y", (u, "j"), read(name, f32)) for u, name in enumerate(names)),
    )
    tile = (*(store(name, (), const(0, f32)) for name in names), *tile)
    for name in names:
        tile = (Allocate(variable=variable(name, f32, scope="register", lanes=4), body=tile),)
    lanes = loop("j", 0, 8, *tile, kind="vector", step=4, width=4)
    body = (
        vector("i", 3, 4, store("z", ("i",), const(0, f32))),
        store("z", (0,), read("y", f32, 0, 0)),
        loop("i", 0, 1, lanes),
        store("z", (1,), read("y", f32, 0, 0)),
    )
    arrays = {
        "x": np.ones((12, 4), "f4"),
        "w": np.ones((4, 8), "f4"),
        "y": np.zeros((12, 8), "f4"),
        "z": np.ones(3, "f4"),
    }
    function = function_of(body, arrays, written=("y", "z"))
    assert ".range" in emit_module([function])
    np.testing.assert_array_equal(run_function(function, arrays, {})["z"], [0, 4, 0])
