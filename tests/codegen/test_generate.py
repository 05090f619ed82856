"""Schedule -> Loops: golden text of small trees, and results against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import islpy as isl
import numpy as np
import pytest

from polyml.codegen.generate import generate
from polyml.codegen.interpret import interpret
from polyml.codegen.loops import Allocate, For
from polyml.codegen.printer import loops_html, loops_text
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import f32, i64
from polyml.expressions import Apply, Const, IndexValue
from polyml.sets.affine import affine
from tests.codegen.hand import contracted, dense, dense_schedule, schedule, softmax_schedule
from tests.scop.helpers import equation, floyd_warshall, mul, read, scop, tensor

Golden = Callable[[str, str], None]


def test_dense_text(golden: Golden) -> None:
    # Tile, jam and vector marks; the contracted accumulator is a register.
    golden("codegen/generate_dense", loops_text(generate(dense_schedule(37, 50, 21), name="dense")))


def test_softmax_text(golden: Golden) -> None:
    # One row of scratch memory; three loops named m.
    golden("codegen/generate_softmax", loops_text(generate(softmax_schedule(5, 39), name="softmax")))


@pytest.mark.parametrize(("n", "m", "k"), [(3, 5, 4), (1, 1, 1), (9, 17, 2), (8, 1, 3)])
def test_dense_result(n: int, m: int, k: int) -> None:
    random = np.random.default_rng(n * m * k)
    x, w, b = (random.standard_normal(s).astype(np.float32) for s in ((n, k), (k, m), (m,)))
    y = np.zeros((n, m), np.float32)
    interpret(generate(dense_schedule(n, m, k), name="dense"), {"x": x, "w": w, "b": b, "y": y})
    np.testing.assert_allclose(y, np.maximum(x @ w + b, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 7), (5, 1)])
def test_softmax_result(n: int, m: int) -> None:
    x = np.random.default_rng(0).standard_normal((n, m)).astype(np.float32)
    y = np.zeros((n, m), np.float32)
    interpret(generate(softmax_schedule(n, m), name="softmax"), {"x": x, "y": y})
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_marks_of_loops_that_vanished_are_dropped() -> None:
    # n has one iteration: its jam mark must not land on the loop over m inside.
    program = dense(1, 9, 3)
    spec = ["@jam:4", "n", "m", [("S_t_init", []), ("S_t", ["k"]), ("S_y", [])]]
    function = generate(schedule(program, spec), name="f")
    loops = [node for node in walk_nodes(function.body) if isinstance(node, For)]
    assert [(loop.variable, loop.kind) for loop in loops] == [("m", "sequential"), ("k", "sequential")]


def test_only_the_outer_parallel_loop_is_parallel() -> None:
    program = dense(4, 9, 3)
    spec = ["@parallel", "n", "@parallel", "m", [("S_t_init", []), ("S_t", ["k"]), ("S_y", [])]]
    function = generate(schedule(program, spec), name="f")
    kinds = {node.variable: node.kind for node in walk_nodes(function.body) if isinstance(node, For)}
    assert kinds == {"n": "parallel", "m": "sequential", "k": "sequential"}


def test_an_element_that_a_parallel_loop_shares_is_memory() -> None:
    x, s, y = tensor("x", 8), tensor("s"), tensor("y", 8)
    ops = [
        equation(s, "n", "0 <= n < 8", [], read(x, "n"), reduce="sum", reduced="n"),
        equation(y, "n", "0 <= n < 8", ["n"], mul(read(x, "n"), read(s))),
    ]
    program = scop(ops, [x], [y])
    spec = [[("S_s_init", []), ("S_s", ["n"]), ("S_y", ["@parallel", "n"])]]
    (outer,) = generate(schedule(program, spec), name="f").body
    assert isinstance(outer, Allocate)
    assert outer.variable.scope == "local"
    spec = [[("S_s_init", []), ("S_s", ["n"]), ("S_y", ["n"])]]
    (outer,) = generate(schedule(program, spec), name="f").body
    assert isinstance(outer, Allocate)
    assert outer.variable.scope == "register"


def test_pieces_of_an_allocation_are_joined() -> None:
    # Without a loop around, isl repeats the mark above each statement of the sequence.
    function = generate(dense_schedule(1, 1, 1), name="f")
    assert len([node for node in walk_nodes(function.body) if isinstance(node, Allocate)]) == 1


def test_pieces_of_an_allocation_under_guards_are_joined() -> None:
    # The last statement runs for some sizes only: its part of the mark lies below the guard.
    x, t, y = tensor("x", 1), tensor("t", 1), tensor("y", 1)
    ops = [
        equation(t, "i", "0 <= i < 1", ["i"], mul(read(x, "i"), Const(2.0, f32))),
        equation(y, "i", "0 <= i < 1 and i < c", ["i"], read(t, "i"), params="c", base=tensor("y0", 1)),
    ]
    program = scop(ops, [x, tensor("y0", 1)], [y], {"y0": "y"})
    program = replace(program, sizes=("c",), context=isl.Set("[c] -> { : c >= 0 }"))
    spec = ["i", "@allocate:t", [("S_t", []), ("S_y", [])]]
    function = generate(schedule(program, spec, [contracted(program, "t", (1,), "i")]), name="f")
    (outer,) = function.body
    assert isinstance(outer, Allocate)
    for c, expected in ((0, 5.0), (1, 6.0)):
        result = np.array([5.0], np.float32)
        interpret(function, {"x": np.array([3.0], np.float32), "y": result}, {"c": c})
        assert result[0] == expected


def test_argmax_becomes_pairs(golden: Golden) -> None:
    x, y = tensor("x", 3, 7), tensor("y", 3, dtype=i64)
    program = scop(
        [equation(y, "n k", "0 <= n < 3 and 0 <= k < 7", ["n"], read(x, "n", "k"), reduce="argmax", reduced="k")],
        [x],
        [y],
    )
    function = generate(schedule(program, ["n", [("S_y_init", []), ("S_y", ["k"])]]), name="f")
    golden("codegen/generate_argmax", loops_text(function))
    values = np.array(
        [[1, 5, 2, 5, 0, 0, 0], [-1, -2, -3, -4, -5, -6, -7], [0, 1, np.nan, 3, np.nan, 9, 9]], np.float32
    )
    result = np.zeros(3, np.int64)
    interpret(function, {"x": values, "y": result})
    assert result.tolist() == [1, 0, 2]


def test_guards_divisions_and_index_values(golden: Golden) -> None:
    # Two domains under one loop, an access through a division, and an index as a value.
    x, y, z = tensor("x", 20), tensor("y", 20), tensor("z", 5, 4)
    ops = [
        equation(y, "i", "0 <= i < 20", ["i"], Apply("cast", (IndexValue(affine("i") * 2, i64),), f32)),
        equation(
            z,
            "i",
            "0 <= i < 20 and (i mod 3 = 1 or i > 11)",
            [affine("i") // 4, affine("i") % 4],
            mul(read(x, "i"), Const(2.0, f32)),
            base=tensor("z0", 5, 4),
        ),
    ]
    program = scop(ops, [x, tensor("z0", 5, 4)], [y, z], {"z0": "z"})
    function = generate(schedule(program, ["4*floor(i/4)", "i", [("S_y", []), ("S_z", [])]]), name="f")
    golden("codegen/generate_guards", loops_text(function))
    values = np.arange(20, dtype=np.float32)
    made, updated = np.zeros(20, np.float32), np.full((5, 4), -1, np.float32)
    interpret(function, {"x": values, "y": made, "z": updated})
    assert made.tolist() == list(range(0, 40, 2))
    assert updated.ravel().tolist() == [2.0 * i if i % 3 == 1 or i > 11 else -1.0 for i in range(20)]


def test_sequential_loop_in_place() -> None:
    program = floyd_warshall(5)
    identity = isl.Schedule.from_domain(program.domain).insert_partial_schedule(
        isl.MultiUnionPwAff.from_union_map(program.initial.intersect_domain(program.domain))
    )
    function = generate(replace(schedule(program, []), tree=identity), name="f")
    p = np.random.default_rng(1).integers(1, 50, (5, 5)).astype(np.float32)
    expected = p.copy()
    for k in range(5):
        expected = np.minimum(expected, expected[:, k : k + 1] + expected[k : k + 1, :])
    interpret(function, {"p": p})
    np.testing.assert_array_equal(p, expected)


def test_symbolic_sizes() -> None:
    x, y = (replace(tensor(name), shape=(affine("N"),)) for name in "xy")
    program = scop([equation(y, "i", "0 <= i < N", ["i"], read(x, "i"), params="N")], [x], [y])
    program = replace(program, sizes=("N",), context=isl.Set("[N] -> { : N >= 0 }"))
    function = generate(schedule(program, ["i"]), name="f")
    assert function.sizes == ("N",)
    for n in (0, 1, 5):
        result = np.zeros(n, np.float32)
        interpret(function, {"x": np.arange(n, dtype=np.float32), "y": result}, {"N": n})
        assert result.tolist() == list(range(n))


def test_a_schedule_by_cases(golden: Golden) -> None:
    # The second half runs backwards: one loop, with the index by cases.
    x, y = tensor("x", 9), tensor("y", 9)
    program = scop([equation(y, "i", "0 <= i < 9", ["i"], read(x, "i"))], [x], [y])
    band = isl.MultiUnionPwAff("[{ S_y[i] -> [(i)] : i < 5; S_y[i] -> [(13 - i)] : i >= 5 }]")
    tree = isl.Schedule.from_domain(program.domain).insert_partial_schedule(band)
    function = generate(replace(schedule(program, []), tree=tree), name="f")
    golden("codegen/generate_cases", loops_text(function))
    result = np.zeros(9, np.float32)
    interpret(function, {"x": np.arange(9, dtype=np.float32), "y": result})
    assert result.tolist() == list(range(9))


def test_instances_that_share_a_time_are_all_executed() -> None:
    x, y = tensor("x", 9), tensor("y", 9)
    program = scop([equation(y, "i", "0 <= i < 9", ["i"], read(x, "i"))], [x], [y])
    band = isl.MultiUnionPwAff("[{ S_y[i] -> [(floor(i/2))] }]")
    tree = isl.Schedule.from_domain(program.domain).insert_partial_schedule(band)
    function = generate(replace(schedule(program, []), tree=tree), name="f")
    result = np.zeros(9, np.float32)
    interpret(function, {"x": np.arange(9, dtype=np.float32), "y": result})
    assert result.tolist() == list(range(9))


def test_html_escapes() -> None:
    text = loops_html(generate(dense_schedule(3, 5, 4), name="dense"))
    assert "n &lt; 3" in text
    assert "<b>for</b>" in text
