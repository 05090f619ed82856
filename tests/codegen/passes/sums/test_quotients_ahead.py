"""Quotients that all lanes share are read from tables: which ones, where the tables are filled, and that results stay the same."""

from __future__ import annotations

import numpy as np
import pytest

import polyml as pm
from polyml.codegen.interpret import interpret
from polyml.codegen.loops import Assign, For, Function, Node
from polyml.codegen.passes.sums.quotients_ahead import quotients_ahead
from polyml.codegen.printer import loops_text
from polyml.expressions import Expr
from polyml.records import replace
from polyml.sets.affine import affine
from polyml.testing.verify import verify
from tests.codegen.programs import array, at, call, function, loop, number, put

J = affine("j")
QUOTIENT = call("div", number(1.0), call("add", at("d", J - 1), number(2.0)))


def walk(value: Expr = QUOTIENT, *, upper: int = 9, rows: int = 32, around: str = "sequential") -> Function:
    """y[j, i] = y[j - 1, i] * value + x[j, i], lanes along i, three steps over time."""
    last = call("mul", at("y", J - 1, "i"), value)
    step = Assign(target=put("y", "j", "i"), value=call("add", last, at("x", "j", "i")))
    lanes = replace(loop("i", 0, rows, loop("j", 1, upper, step), kind="vector", step=8), width=8)
    body: Node = lanes if around == "none" else loop("t", 0, 3, lanes)
    arrays = (array("x", 9, rows), array("y", 9, rows), array("d", 9))
    return function(body, arguments=arrays, written="y")


def test_tables_are_filled_ahead_of_the_outermost_loop() -> None:
    before = walk()
    after = quotients_ahead(before)
    text = loops_text(after)
    assert "local f32 quotient[8];" in text
    assert text.index("quotient[j_ahead - 1] = 1.0 / (d[j_ahead - 1] + 2.0);") < text.index("for (t =")
    assert "y[j, i] = (y[j - 1, i] * quotient[j - 1]) + x[j, i];" in text
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.random((9, 32), np.float32),
        "y": rng.random((9, 32), np.float32),
        "d": rng.random(9, np.float32),
    }
    results = []
    for made in (before, after):
        given = {name: value.copy() for name, value in arrays.items()}
        interpret(made, given, {})
        results.append(given["y"])
    np.testing.assert_array_equal(results[0], results[1])


def test_one_table_serves_all_loops_that_read_it() -> None:
    (nest,) = walk().body
    assert isinstance(nest, For)
    (lanes,) = nest.body
    both = replace(walk(), body=(replace(nest, body=(lanes, lanes)),))
    text = loops_text(quotients_ahead(both))
    assert text.count("local f32 quotient") == 1
    assert text.count("quotient[j - 1]") == 2


@pytest.mark.parametrize(
    "kept",
    [
        walk(call("div", number(1.0), at("y", J - 1, 0))),  # it changes
        walk(call("div", number(1.0), at("x", J, "i"))),  # lanes have their own
        walk(call("div", number(1.0), at("d", J + 1))),  # beyond the array, where no loop says that it is read
        walk(call("div", number(1.0), at("d", 3))),  # the same in all iterations: nothing to keep a table of
        walk(call("mul", number(3.0), at("d", J))),  # as quick as a load
        walk(rows=16, around="none"),  # two groups of lanes
    ],
)
def test_others_stay(kept: Function) -> None:
    assert quotients_ahead(kept) is kept


def test_tables_leave_room_in_the_cache() -> None:
    assert quotients_ahead(walk(), l2_bytes=8 * 32) is not walk()
    short = walk()
    assert quotients_ahead(short, l2_bytes=8 * 31) is short


SOLVER = """
def solve(T: int, x: {dtype}["N M"], a: {dtype}["M"], b: {dtype}["M"]):
    for t in range(T):
        for i in range(N):
            for j in range(1, M):
                x[i, j] = (x[i, j] - a[j] * x[i, j - 1]) / b[j]
            for j in range(M - 2, -1, -1):
                x[i, j] = (x[i, j] - a[j] * x[i, j + 1]) / (a[j] + b[j])
    return x
"""


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_a_solver_of_many_rows_divides_once(target: str) -> None:
    x, vector = np.ones((67, 131)), np.ones(131)
    text = pm.einsum(SOLVER.format(dtype="f64"), target=target, threads=1).lower(3, x, vector, vector).text("loops")
    divisions = [line.strip() for line in text.splitlines() if " / " in line]
    assert len(divisions) >= 4  # of both terms, there and back
    assert all(line.startswith("quotient") for line in divisions)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(("steps", "rows", "columns"), [(2, 19, 23), (1, 1, 40), (0, 20, 9), (2, 33, 1), (2, 0, 5)])
@pytest.mark.few(1)
def test_solvers_of_any_shape(dtype: str, steps: int, rows: int, columns: int) -> None:
    rng = np.random.default_rng(1)
    numbers = np.float64 if dtype == "f64" else np.float32
    x = rng.random((rows, 2 * columns)).astype(numbers)[:, ::2]
    a, b = (rng.random(columns).astype(numbers) for _ in range(2))
    assert verify(pm.einsum(SOLVER.format(dtype=dtype)), steps, x, a, b + 1)


def test_quotients_that_nobody_asks_for_are_no_error() -> None:
    zeros, x = np.zeros(50), np.ones((40, 50))
    np.testing.assert_array_equal(pm.einsum(SOLVER.format(dtype="f64"))(0, x.copy(), zeros, zeros), x)
