"""Scratch arrays get the dimension that lanes run along last: where they do, what stays as it is, and results."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.codegen.interpret import interpret
from polyml.codegen.loops import Allocate, Assign, Function, Node
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.codegen.passes.transposes.lanes_last import lanes_last
from polyml.codegen.rewrite import walk_nodes
from polyml.sets.affine import affine
from tests.codegen.llvm.support import run_function
from tests.codegen.programs import array, at, function, local, loop, put, random_arrays


def sums(*, again: Node | None = None, kind: str = "vector") -> Function:
    """y[c, w] = x[c] + w, then z[c, w] = 2 y[c, w], lanes along c, y in scratch memory with w innermost. again: what reads y once more."""
    x, z, y = array("x", 40), array("z", 40, 50), local("y", 40, 50)
    first = loop("w", 0, 50, Assign(target=put("y", "c", "w"), value=at("x", "c")))
    second = loop("w", 0, 50, Assign(target=put("z", "c", "w"), value=at("y", "c", "w")))
    body = [loop("c", 0, 40, first, kind=kind), loop("c", 0, 40, second, kind=kind)]
    return function(
        Allocate(variable=y, body=(*body, *([] if again is None else [again]))), arguments=[x, z], written="z"
    )


def shape(program: Function) -> list[str]:
    (found,) = [n.variable for n in walk_nodes(lanes_last(program).body) if isinstance(n, Allocate)]
    return [str(extent) for extent in found.shape]


def test_lanes_are_neighbours() -> None:
    program = sums()
    assert shape(program) == ["50", "40"]
    after = lanes_last(program)
    assert "y[w, c] = x[c]" in str(after)
    assert "z[c, w] = y[w, c]" in str(after)
    assert lanes_last(after) is after


@pytest.mark.parametrize("vector_bytes", [32, 64])
def test_results_stay(vector_bytes: int) -> None:
    program = sums()
    arrays = random_arrays(program, {})
    expected = {name: values.copy() for name, values in arrays.items()}
    interpret(program, expected, {})
    found = run_function(lower_loops(program, options=LoopOptions(vector_bytes=vector_bytes))[0], arrays, {})
    np.testing.assert_array_equal(found["z"], expected["z"])


def test_what_stays() -> None:
    """Lanes along another dimension, or along none of them by steps of one; loops along rows that all lanes read alike; loops without lanes; what none but loops without lanes read, or all lanes alike, decides nothing."""
    along_rows = loop("w", 0, 50, Assign(target=put("z", 0, "w"), value=at("y", 0, "w")), kind="vector")
    apart = loop("c", 0, 20, Assign(target=put("z", "c", 0), value=at("y", affine("c") * 2, 0)), kind="vector")
    diagonal = loop("c", 0, 40, Assign(target=put("z", "c", 0), value=at("y", "c", "c")), kind="vector")
    step = Assign(target=put("z", "c", 0), value=at("y", 3, "w"), reduction="sum")
    walked = loop("c", 0, 40, loop("w", 0, 50, step), kind="vector")
    for again in (along_rows, apart, diagonal, walked):
        program = sums(again=again)
        assert lanes_last(program) is program
    program = sums(kind="sequential")
    assert lanes_last(program) is program
    one = loop("c", 0, 40, Assign(target=put("z", "c", 0), value=at("y", 3, 0)), kind="vector")
    row = loop("w", 0, 50, Assign(target=put("z", 0, "w"), value=at("y", 0, "w")))
    assert shape(sums(again=one)) == shape(sums(again=row)) == ["50", "40"]


def test_sums_ahead_of_a_scatter() -> None:
    """Sums for each tap, of any number, lie in scratch memory with the points, which have lanes, innermost."""
    text = 'def f(x: f16["C H"], k: f16["R G C"]):\n    y: f16["G H+R-1"]\n    y[g, h] = 0\n    y[g, h + r] += x[c, h] * k[r, g, c]\n    return y\n'
    rng = np.random.default_rng(0)
    x, k = rng.integers(-3, 4, (3, 40)).astype("f2"), rng.integers(-3, 4, (3, 33, 3)).astype("f2")
    f = polyml.einsum(text, dynamic=True, threads=1)
    nodes = [n for made in f.lower(x, k).stages.functions for n in walk_nodes(made.body)]
    sums = [n.variable for n in nodes if isinstance(n, Allocate) and n.variable.name == "y_sum"]
    assert [str(s) for s in sums[0].shape] == ["1", "R", "H"]
    expected = np.zeros((33, 42), "f2")
    for r in range(3):
        expected[:, r : r + 40] += k[r] @ x
    np.testing.assert_array_equal(f(x, k), expected)
