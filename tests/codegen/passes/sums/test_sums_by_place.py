"""Sums ordered by place, and the sums that are shifted along the lanes: the same results, interpreted and compiled, and which sums they are found in."""

from __future__ import annotations

import re

import numpy as np
import pytest

from polyml.codegen.interpret import interpret
from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.loops import Assign, For, Function
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.codegen.passes.sums.sums_by_place import order_by_place
from polyml.codegen.printer import loops_text
from polyml.codegen.rewrite import walk_nodes
from polyml.expressions import Expr
from polyml.sets.affine import affine
from tests.codegen.llvm.support import run_function
from tests.codegen.programs import array, at, call, function, loop, number, put, random_arrays

I, J = affine("i"), affine("j")
LENGTHS = (5, 16, 20, 36, 37, 53, 69)


def weighted(rows: list[list[float]], name: str = "x") -> Expr:
    """The sum of a window's elements, each times its weight; one at 0 is left out."""
    total: Expr | None = None
    for a, row in enumerate(rows):
        for b, weight in enumerate(row):
            if not weight:
                continue
            element = at(name, I + a - 1, J + b - len(row) // 2)
            term = element if abs(weight) == 1 else call("mul", number(abs(weight)), element)
            total = (
                term if total is None else call("add" if weight > 0 else "sub", total, term)
            )  # the first is positive
    assert total is not None
    return total


BOX = [[1.0] * 3] * 3
WIDE = [[1.0] * 5] * 3
GAUSS = [[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]
EDGES = [[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]]
CROSS = [[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]]
RAGGED = [[1.0, -1.0, 1.0], [0.0, 3.0, 1.0], [1.0, -1.0, 1.0]]
WINDOWS = {"box": BOX, "wide": WIDE, "gauss": GAUSS, "edges": EDGES, "cross": CROSS, "ragged": RAGGED}


def program(value: Expr, n: int, *, kind: str = "vector", more: tuple[Assign, ...] = (), target: str = "y") -> Function:
    """target[i, j] = value for the inner columns of three rows."""
    step = Assign(target=put(target, "i", "j"), value=value)
    inner = loop("j", 2, n - 2, step, *more, kind=kind)
    return function(loop("i", 1, 4, inner), arguments=[array("x", 5, n), array("y", 5, n)], written="x y")


def check(made: Function) -> Function:
    expected = random_arrays(made, {})
    given = {key: value.copy() for key, value in expected.items()}
    interpret(made, expected, {})
    after, _ = lower_loops(made, options=LoopOptions(vector_bytes=64))
    again = {key: value.copy() for key, value in given.items()}
    interpret(after, again, {})
    found = run_function(after, given, {})
    for name in ("x", "y"):
        np.testing.assert_allclose(again[name], expected[name], rtol=2e-5, atol=2e-5, err_msg=loops_text(after))
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-5, atol=2e-5, err_msg=loops_text(after))
    return after


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.few(7)
def test_windows(name: str, n: int) -> None:
    check(program(call("mul", weighted(WINDOWS[name]), number(0.25)), n))


@pytest.mark.parametrize("name", ["box", "edges"])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.few(5)
def test_rows_above_and_below_that_the_loop_does_not_write(name: str, n: int) -> None:
    # In place: rows of the same array, and elements of the row itself that are not written yet.
    rows = [*WINDOWS[name]]
    rows[1] = [0.0, 1.0, 1.0]
    check(program(call("mul", weighted(rows), number(0.1)), n, target="x"))


@pytest.mark.parametrize("n", LENGTHS)
def test_a_recurrence_beside_a_window(n: int) -> None:
    rows = [[1.0] * 3] * 3
    after = check(program(call("mul", weighted(rows), number(0.1)), n, target="x", kind="sequential"))
    if n - 4 >= 2 * 16:
        assert any(isinstance(node, Assign) and node.scan is not None for node in walk_nodes(after.body))


@pytest.mark.parametrize("n", LENGTHS)
def test_rows_that_two_statements_leave_alone(n: int) -> None:
    pairs = [call("add", at("x", I - 1, J + k), at("y", I + 1, J + k)) for k in (0, 1)]
    both = call("add", *pairs)
    check(program(both, n, target="x", more=(Assign(target=put("y", "i", "j"), value=call("mul", both, both)),)))


def shifted(value: Expr) -> int:
    """Vectors that a long loop shifts."""
    after, _ = lower_loops(program(value, 200), options=LoopOptions(vector_bytes=64))
    order = re.compile(r"shufflevector <16 x i32> %\S+, <16 x i32> %")
    return len(order.findall(emit_module([after])))


def test_a_window_is_added_up_once_for_all_places() -> None:
    made = program(weighted(BOX), 200)
    after = order_by_place(made, vector_bytes=64)
    (vector,) = (node for node in walk_nodes(after.body) if isinstance(node, For) and node.kind == "vector")
    assert vector.factor == 1
    assert "((x[i - 1, j - 1] + x[i, j - 1]) + x[i + 1, j - 1]) + (" in loops_text(after)
    # A place before, one here, one behind: the loop shifts two sums, and nothing else.
    assert shifted(weighted(BOX)) == 2
    assert shifted(weighted(EDGES)) == 1
    assert shifted(weighted(WIDE)) == 4


def test_left_alone() -> None:
    for made in (program(weighted(CROSS), 64), program(weighted(BOX), 64, kind="sequential")):
        assert order_by_place(made, vector_bytes=64) is made
    assert order_by_place(program(weighted(BOX), 64), vector_bytes=32) == program(weighted(BOX), 64)
    options = LoopOptions(vector_bytes=64, precise=True)
    after, _ = lower_loops(program(weighted(BOX), 64), options=options)
    assert "((x[i - 1, j - 1] + x[i - 1, j]) + x[i - 1, j + 1])" in loops_text(after)
