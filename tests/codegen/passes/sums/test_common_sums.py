"""Sums that stand side by side and have terms in common: the same results, and how many operations are left."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml as pm
from polyml.codegen.interpret import interpret
from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.llvm.machine import assembly, machine_of
from polyml.codegen.loops import Assign, Function
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.codegen.printer import loops_text
from polyml.expressions import Expr
from polyml.sets.affine import affine
from polyml.target import Target
from tests.codegen.llvm.support import run_function
from tests.codegen.programs import array, at, call, function, loop, number, put, random_arrays

I, J = affine("i"), affine("j")

Term = tuple[int, int, int]
"""What it is multiplied by, 1 or -1; and where it is, from the element that is computed on."""

CROSS: list[Term] = [(1, 0, 0), (1, 0, -1), (1, 0, 1), (1, 1, 0), (1, -1, 0)]
COLUMN: list[Term] = [(1, -1, 0), (1, 0, 0), (1, 1, 0)]
SIGNED: list[Term] = [(1, 0, 0), (-1, 0, 1), (1, 1, 0), (-1, 1, 1), (-1, -1, 0)]
APART: list[Term] = [(1, -1, 0), (1, 0, 1), (1, 1, 0)]
TWICE: list[Term] = [(1, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 0), (1, 0, 2)]


def total(terms: list[Term]) -> Expr:
    made: Expr | None = None
    for sign, row, column in terms:
        term = at("x", I + row, J + column)
        made = term if made is None else call("add" if sign > 0 else "sub", made, term)
    assert made is not None
    return made


def program(value: Expr, rows: int = 4, n: int = 40) -> Function:
    """y[i, j] = value for inner columns of some rows, all at once."""
    step = Assign(target=put("y", "i", "j"), value=value)
    inner = loop("j", 2, n - 2, step, kind="vector")
    jammed = loop("i", 1, 1 + rows, inner, kind="jam", factor=rows)
    return function(jammed, arguments=[array("x", rows + 3, n), array("y", rows + 3, n)], written="y")


def lowered(made: Function, *, precise: bool = False) -> Function:
    """What the passes make of it, which gives what it gave."""
    after, _ = lower_loops(made, options=LoopOptions(vector_bytes=64, precise=precise))
    expected = random_arrays(made, {})
    given = {key: value.copy() for key, value in expected.items()}
    interpret(made, expected, {})
    again = {key: value.copy() for key, value in given.items()}
    interpret(after, again, {})
    found = run_function(after, given, {}, precise=precise)
    for values in (again, found):
        np.testing.assert_allclose(values["y"], expected["y"], rtol=2e-5, atol=2e-5, err_msg=loops_text(after))
    return after


def operations(made: Function) -> int:
    """Arithmetic in the loop of whole vectors, by the instructions of a machine with lanes of 64 bytes."""
    text = assembly(emit_module([made]), machine_of(Target("x86-64-v4")))
    return max(len(re.findall(r"\tv(?:add|sub|mul|f[n]?m)\w*ps\t.*%zmm", block)) for block in text.split("\n.L"))


BOX: list[Term] = [(1, row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)]


@pytest.mark.parametrize("rows", [2, 3, 4, 5])
@pytest.mark.parametrize("weight", [None, 0.25])
@pytest.mark.parametrize(
    "terms", [CROSS, COLUMN, SIGNED, APART, TWICE, BOX], ids=["cross", "column", "signed", "apart", "twice", "box"]
)
@pytest.mark.few(8)
def test_results(terms: list[Term], weight: float | None, rows: int) -> None:
    value = total(terms)
    lowered(program(value if weight is None else call("mul", number(weight), value), rows))


@pytest.mark.parametrize(
    ("terms", "weight", "each", "together"),
    [(CROSS, 0.25, 5, 4), (CROSS, None, 4, 3.5), (COLUMN, 0.25, 3, 2), (COLUMN, None, 2, 1.5), (APART, 0.25, 3, 3)],
)
def test_operations_of_a_row(terms: list[Term], weight: float | None, each: int, together: float) -> None:
    value = total(terms)
    made = program(value if weight is None else call("mul", number(weight), value), rows=4, n=36)
    assert operations(lowered(made, precise=True)) == 4 * each
    assert operations(lowered(made)) == 4 * together


def test_weights_that_differ_are_no_common_sum() -> None:
    steps = [
        Assign(target=put("y", I + k, "j"), value=call("mul", number(0.5 + k), total([(1, a, 0) for a in (0, 1, k + 2)])))
        for k in range(2)
    ]  # fmt: skip
    made = function(
        loop("i", 0, 1, loop("j", 0, 32, *steps, kind="vector")),
        arguments=[array("x", 5, 32), array("y", 5, 32)], written="y",
    )  # fmt: skip
    assert loops_text(lowered(made)).count("0.5 *") == 1


def test_the_first_vector_of_a_row_adds_up_as_all_do() -> None:
    """So that what comes out does not depend on where an array lies."""
    text = """
def f(a: f64["N M"], b: f64["N M"]):
    for t in range(40):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            b[i, j] = 0.2 * (a[i, j] + a[i, j - 1] + a[i, j + 1] + a[i + 1, j] + a[i - 1, j])
            a[i, j] = 0.2 * (b[i, j] + b[i, j - 1] + b[i, j + 1] + b[i + 1, j] + b[i - 1, j])
    return a, b
"""
    target = pm.Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=2 << 20)
    loops = pm.einsum(text, target=target, threads=1).lower(*np.zeros((2, 400, 400))).text("loops")
    jammed = re.findall(r"a_?\w*\[i, j\] = 0.2 .*;\n *\w+\[i \+ 1, j\] = .*", loops)
    rows = re.findall(r"\w+\[i, j\] = \(0.2 \* .*;\n *\w+\[i \+ 1, j\] = \(0.2 \* .*", loops)
    assert not jammed
    assert len(rows) == 2 * 6, "first, whole and last vectors of both statements, with copied rows and without"


def narrow(made: Function, *, precise: bool = False) -> int:
    """Arithmetic in the loop of whole vectors, of a machine with lanes of 32 bytes; the results are what they were."""
    after, _ = lower_loops(made, options=LoopOptions(vector_bytes=32, vector_registers=16, precise=precise))
    expected = random_arrays(made, {})
    found = run_function(after, {key: value.copy() for key, value in expected.items()}, {}, precise=precise)
    interpret(made, expected, {})
    np.testing.assert_allclose(found["y"], expected["y"], rtol=2e-5, atol=2e-5, err_msg=loops_text(after))
    text = assembly(emit_module([after]), machine_of(Target("x86-64-v3")))
    return max(len(re.findall(r"\tv(?:add|sub|mul|f[n]?m)\w*ps\t.*%ymm", block)) for block in text.split("\n.L"))


def test_rows_of_windows_are_added_up_once() -> None:
    """Six rows of three terms, each of which up to three sums have: two additions each, and one for two rows together in each pair; four products that something is added to, and two of what pairs have."""
    value = call("mul", number(0.25), total(BOX))
    assert narrow(program(value, n=36), precise=True) == 4 * 9
    assert narrow(program(value, n=36)) == 6 * 2 + 2 + 4 + 2


def test_parts_of_sums_with_weights_of_their_own() -> None:
    """A side of a cross that is a corner's pair of the next row; what is subtracted, and a part that is all of a sum."""
    sides = total([(1, 0, -1), (1, 0, 1), (1, -1, 0), (1, 1, 0)])
    corners = total([(1, -1, -1), (1, -1, 1), (1, 1, -1), (1, 1, 1)])
    value = call("sub", call("mul", number(0.5), sides), call("mul", number(0.125), corners))
    made = program(value, n=36)
    assert narrow(made) <= 4 * 8 - 6
    pairs = total([(1, -1, 0), (1, 0, 0), (-1, 1, 1)])
    both = [
        Assign(target=put("y", I + k, "j"), value=call("mul", number(1.5 + k), pairs if k else total([(1, -1, 0), (1, 0, 0), (-1, 1, 1), (1, 2, 0)])))
        for k in range(2)
    ]  # fmt: skip
    narrow(function(loop("i", 1, 2, loop("j", 2, 34, *both, kind="vector")), arguments=[array("x", 5, 36), array("y", 5, 36)], written="y"))  # fmt: skip
