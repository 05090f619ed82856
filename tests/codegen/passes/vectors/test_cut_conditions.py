"""Vector loops cut where a condition along the lanes changes: the same results, and that nothing asks any more."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml as pm
from polyml.codegen.loops import Assign, Function, If
from polyml.codegen.passes.vectors.cut_conditions import cut_conditions
from polyml.codegen.printer import loops_text
from polyml.expressions import Expr
from polyml.sets.affine import affine
from tests.codegen.programs import agree, array, at, call, function, index, loop, number, put

J, T = affine("j"), affine("t")

FIRST = Assign(target=put("y", 0, "j"), value=at("x", 0, "j"))
THEN = Assign(target=put("x", 0, "j"), value=call("mul", number(2.0), at("x", 1, "j")))


def program(*conditions: Expr, lower: int = 0, upper: int = 40) -> Function:
    """A loop of two statements, the second of them under all of the conditions, at each of three times."""
    inner: Expr = conditions[0]
    for other in conditions[1:]:
        inner = call("and", inner, other)
    lanes = loop("j", lower, upper, FIRST, If(condition=inner, then=(THEN,)), kind="vector")
    return function(loop("t", 0, 3, lanes), arguments=[array("x", 2, 40), array("y", 2, 40)], written="y")


BEFORE = call("lt", index(J), index(30 - 8 * T))
BEHIND = call("ge", index(J + T), index(affine(5)))
NEVER = call("lt", index(J), index(T - 9))
ALWAYS = call("le", index(T), index(J + 3))
OUTSIDE = call("ge", index(T), index(affine(1)))


@pytest.mark.parametrize(
    ("conditions", "loops"),
    [((BEFORE,), 2), ((BEHIND,), 2), ((NEVER,), 2), ((ALWAYS,), 2), ((OUTSIDE, BEFORE), 2), ((BEHIND, BEFORE), 3)],
)
def test_no_part_asks_along_the_lanes(conditions: tuple[Expr, ...], loops: int) -> None:
    made = program(*conditions)
    cut = cut_conditions(made)
    text = loops_text(cut)
    assert text.count("vector") == loops
    assert text.count("if (") == (1 if OUTSIDE in conditions else 0)
    agree(made, cut, {})
    empty = program(*conditions, lower=12, upper=12)
    agree(empty, cut_conditions(empty), {})


def test_what_stays() -> None:
    """A condition on something else, in steps of the lanes, or on all that the loop does."""
    even = call("lt", index(2 * J), index(affine(30)))
    for condition in (OUTSIDE, call("gt", at("x", 1, "j"), number(0.5)), even):
        made = program(condition)
        assert cut_conditions(made) is made
    alone = function(
        loop("j", 0, 40, If(condition=call("lt", index(J), index(affine(9))), then=(THEN,)), kind="vector"),
        arguments=[array("x", 2, 40), array("y", 2, 40)],
        written="x",
    )
    assert cut_conditions(alone) is alone


WAVE = """
def wave(T: int, a: {dtype}["N M"], b: {dtype}["N M"], c: {dtype}["N M"]):
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            c[i, j] = 2 * b[i, j] - a[i, j] + 0.1 * (b[i - 1, j] + b[i + 1, j] + b[i, j - 1] + b[i, j + 1] - 4 * b[i, j])
        a[i, j] = b[i, j]
        b[i, j] = c[i, j]
    return b
"""


@pytest.mark.parametrize("dtype", ["f32", pytest.param("f64", marks=pytest.mark.slow)])
def test_levels_that_move_on_by_copies(dtype: str) -> None:
    """In tiles over time no store of a vector in the middle is under a mask where masks are vectors."""
    given = np.random.default_rng(3).random((3, 130, 171)).astype("f4" if dtype == "f32" else "f8")
    target = pm.Target("x86-64-v3", l1_bytes=16 << 10, l2_bytes=128 << 10)
    loops = pm.einsum(WAVE.format(dtype=dtype), target=target, threads=1).lower(9, *given).text("loops")
    assert "t_tile" in loops
    assert not re.search(r"if \(.*>= j\b", loops)
    a, b, c = given.astype("f8")
    for _ in range(9):
        c[1:-1, 1:-1] = 2 * b[1:-1, 1:-1] - a[1:-1, 1:-1] - 0.4 * b[1:-1, 1:-1]
        c[1:-1, 1:-1] += 0.1 * (b[:-2, 1:-1] + b[2:, 1:-1] + b[1:-1, :-2] + b[1:-1, 2:])
        a, b = b.copy(), c.copy()
    found = pm.einsum(WAVE.format(dtype=dtype), threads=1)(9, *given.copy())
    np.testing.assert_allclose(found, b, rtol=1e-3 if dtype == "f32" else 1e-12, atol=1e-4 if dtype == "f32" else 1e-12)


@pytest.mark.parametrize("length", [1, 2, 7, 14, 15, 40, 41])
def test_a_loop_in_steps_of_two_is_not_cut_where_it_has_no_step(length: int) -> None:
    """Even and odd elements share a loop, and the last one is one of the even elements."""
    alternating = pm.einsum(
        """
def f(x: f32["N"]):
    y: f32["N"]
    if k % 2 == 0:
        y[k] = x[k]
    else:
        y[k] = x[k] + 100
    return y
""",
        fusion="maximal",
    )
    x = np.arange(length, dtype=np.float32)
    assert np.array_equal(alternating(x), np.where(x % 2 == 0, x, x + 100))
