"""Sums in recurrences: what the last iteration made is added last; nothing else moves."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import Assign, Function
from polyml.codegen.passes.sums.recurrences import order_sums
from polyml.codegen.printer import loops_text
from polyml.expressions import Expr
from polyml.sets.affine import affine
from tests.codegen.programs import array, at, call, loop, number, put

J = affine("j")


def ordered(value: Expr, *, step: int = 1, kind: str = "sequential") -> str:
    body = loop("j", 4, 20, Assign(target=put("c", J), value=value), step=step, kind=kind)  # type: ignore[arg-type]
    arrays = (array("c", 40), array("x", 40))
    function = Function(name="f", arguments=arrays, written=frozenset("c"), sizes=(), body=(body,))
    lines = loops_text(order_sums(function)).splitlines()
    return next(line.strip() for line in lines if "c[j] =" in line)


def total(*terms: Expr) -> Expr:
    result = terms[0]
    for term in terms[1:]:
        result = call("add", result, term)
    return result


LAST, BEFORE, NEW = at("c", J - 1), at("c", J - 2), at("x", J)


def test_the_nearest_iteration_comes_last() -> None:
    assert ordered(total(LAST, NEW, BEFORE, at("x", J + 1))) == "c[j] = ((x[j] + x[j + 1]) + c[j - 2]) + c[j - 1];"


def test_signs_and_products_stay() -> None:
    value = call("sub", call("sub", call("mul", LAST, at("x", 0)), NEW), call("sub", BEFORE, at("x", J + 1)))
    assert ordered(value) == "c[j] = ((x[j + 1] - x[j]) - c[j - 2]) + (c[j - 1] * x[0]);"


def test_inside_other_operations() -> None:
    assert ordered(call("abs", total(LAST, NEW, BEFORE))) == "c[j] = abs(((x[j] + c[j - 2]) + c[j - 1]));"


def test_a_divisor_goes_to_both_parts() -> None:
    quotient = call("div", total(LAST, NEW, BEFORE), at("x", 0))
    assert ordered(quotient) == "c[j] = (c[j - 1] * (1.0 / x[0])) + ((x[j] + c[j - 2]) / x[0]);"
    quotient = call("div", call("sub", NEW, call("mul", at("x", 1), LAST)), at("x", J))
    assert ordered(quotient) == "c[j] = (c[j - 1] * (neg(x[1]) / x[j])) + (x[j] / x[j]);"
    for divisor in (call("add", LAST, number(2.0)), call("exp", NEW)):  # it waits itself; it would be computed twice
        assert ordered(call("div", call("add", NEW, BEFORE), divisor)).count("/") == 1
    square = call("div", call("add", NEW, call("mul", LAST, LAST)), at("x", 0))
    assert ordered(square).count("/") == 1


SOLVER = """
def f(x: f64["N M"], d: f64["{divisor}"]):
    y: f64["N M"] = 0
    for i in range(N):
        for j in range(1, M):
            y[i, j] = (x[i, j] - 0.5 * y[i, j - 1]) / d[{index}]
    return y
"""


@pytest.mark.parametrize(("divisor", "index", "parts"), [("M", "j", 2), ("N M", "i, j", 1)])
def test_lanes_share_the_divisor(divisor: str, index: str, parts: int) -> None:
    # Two divisions for all lanes, none in each of them; or the one that is written, since two in each lane would take longer than they are waited for.
    rng = np.random.default_rng(0)
    x, d = rng.random((19, 131)), 1 + rng.random((19, 131) if parts == 1 else 131)
    program = polyml.einsum(SOLVER.format(divisor=divisor, index=index))
    step = next(
        line for line in program.lower(x, d).text("loops").splitlines() if line.strip().startswith("y") and "/" in line
    )
    assert step.count("/") == parts
    assert ("* (1.0 / d[j])" in step) == (parts == 2)
    expected = np.zeros_like(x)
    for j in range(1, 131):
        expected[:, j] = (x[:, j] - 0.5 * expected[:, j - 1]) / d[..., j]
    np.testing.assert_allclose(program(x, d), expected, rtol=1e-13, atol=1e-15)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_large_and_infinite_quotients_are_those_of_the_written_order() -> None:
    rng = np.random.default_rng(1)
    x, d = rng.standard_normal((19, 131)), 1 + rng.random(131)
    d[20], d[40], d[60], d[110] = np.inf, 1e300, 1e-300, np.nan
    x[3, 40], x[5, 20] = np.inf, 1e300
    text = SOLVER.format(divisor="M", index="j")
    found, in_order = (polyml.einsum(text, precise=precise)(x, d) for precise in (False, True))
    np.testing.assert_allclose(found, in_order, rtol=1e-13, atol=1e-15)


def test_a_constant_factor_goes_to_what_waits() -> None:
    quotient = call("div", total(LAST, NEW, BEFORE), number(4.0))
    assert ordered(quotient) == "c[j] = (c[j - 1] * 0.25) + ((x[j] + c[j - 2]) * 0.25);"
    product = call("mul", number(3.0), call("sub", NEW, LAST))
    assert ordered(product) == "c[j] = (c[j - 1] * -3.0) + (x[j] * 3.0);"
    untouched = call("div", call("add", NEW, at("x", J + 1)), number(4.0))
    assert ordered(untouched) == "c[j] = (x[j] + x[j + 1]) / 4.0;"


@pytest.mark.parametrize(
    "value",
    [
        total(NEW, BEFORE, LAST),  # already
        total(at("c", J + 1), NEW, at("x", J + 1)),  # a later element, not made yet
        total(at("c", 3), NEW, BEFORE),  # no element of an iteration
        total(LAST, NEW),  # nothing to choose
    ],
)
def test_what_has_no_better_order_stays(value: Expr) -> None:
    before = f"c[j] = {value}".replace("c[j] = (", "c[j] = ", 1)
    assert ordered(value) == before[:-1] + ";"


def test_steps_and_vectors() -> None:
    text = "c[j] = (x[j] + c[j - 4]) + c[j - 2];"
    assert ordered(total(BEFORE, NEW, at("c", J - 4)), step=2) == text
    unmoved = "c[j] = (c[j - 2] + x[j]) + c[j - 1];"
    assert ordered(total(BEFORE, NEW, LAST), kind="vector") == unmoved
    assert ordered(total(LAST, NEW, at("c", J - 3)), step=2) == "c[j] = (c[j - 1] + x[j]) + c[j - 3];"


def test_precise_keeps_the_written_order() -> None:
    text = """
def f(x: f64["N"], y: f64["N"]):
    for i in range(1, N):
        y[i] = y[i - 1] + x[i] + x[i - 1]
    return y
"""
    x = np.random.default_rng(0).random(50)
    expected = x.copy()
    for i in range(1, 50):
        expected[i] = expected[i - 1] + x[i] + x[i - 1]
    np.testing.assert_array_equal(polyml.einsum(text, precise=True)(x, x.copy()), expected)
    np.testing.assert_allclose(polyml.einsum(text)(x, x.copy()), expected, rtol=1e-14)
