"""Which loops LLVM's whole pipeline runs for, and that the few passes of all others leave nothing in them that it would take out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.llvm.hoistable import is_hoistable
from polyml.codegen.llvm.ir import TO_HOIST
from polyml.codegen.loops import Assign, For, Function
from polyml.dtypes import f64, i64
from polyml.expressions import Expr, IndexValue
from polyml.sets.affine import affine
from tests.codegen.llvm.support import apply, const, loop, read, run_function, store, variable

I, N = affine("i"), 9


def function(*body: Assign) -> Function:
    """`for i in [1, 9): body` on x, y, the single element s and a size M."""
    arguments = (variable("x", f64, N + 1), variable("y", f64, N + 1), variable("s", f64))
    written = frozenset(node.target.variable for node in body)
    return Function(name="nest", arguments=arguments, written=written, sizes=("M",), body=(loop("i", 1, N, *body),))


def twice(value: Expr) -> Expr:
    return apply("mul", value, const(2.0, f64))


CASES = {
    "x[i] = x[i - 1] * 2: the element that was just stored": (store("x", [I], twice(read("x", f64, I - 1))), True),
    "x[i] = x[i + 1] * 2: none of them": (store("x", [I], twice(read("x", f64, I + 1))), False),
    "x[i] = y[i] * 2": (store("x", [I], twice(read("y", f64, I))), False),
    "x[0] += y[i]: a sum in memory": (store("x", [0], read("y", f64, I), reduction="sum"), True),
    "x[0] += x[i]: perhaps the same element": (store("x", [0], read("x", f64, I), reduction="sum"), False),
    "x[i] = s * 2: the same every time": (store("x", [I], twice(read("s", f64))), True),
    "x[i] = y[i] + s * 2: a part of it": (
        store("x", [I], apply("add", read("y", f64, I), apply("mul", read("s", f64), const(2.0, f64)))),
        True,
    ),
    "x[i] = y[i] / s: a reciprocal": (store("x", [I], apply("div", read("y", f64, I), read("s", f64))), True),
    "x[i] = s / y[i]: none": (store("x", [I], apply("div", read("s", f64), read("y", f64, I))), False),
    "x[i] = y[i] * f64(M): a size is a number once": (
        store("x", [I], apply("mul", read("y", f64, I), apply("cast", IndexValue(affine("M"), i64), dtype=f64))),
        True,
    ),
    "x[i] = y[i] * f64(i): another one each time": (
        store("x", [I], apply("mul", read("y", f64, I), apply("cast", IndexValue(I, i64), dtype=f64))),
        False,
    ),
    "x[i] = s: only an element": (store("x", [I], read("s", f64)), False),
    "s = s * 2: another one each time": (store("s", [], twice(read("s", f64))), False),
}


@pytest.mark.parametrize("name", CASES)
def test_what_llvm_takes_out_of_loops(name: str) -> None:
    body, expected = CASES[name]
    made = function(body)
    (nest,) = made.body
    assert isinstance(nest, For)
    assert is_hoistable(nest) is expected
    assert (TO_HOIST in emit_module([made])) is expected


def test_a_loop_around_others_does_not_count() -> None:
    inner = loop("k", 0, N, store("x", [affine("k")], read("y", f64, I)))
    outer = loop("i", 1, N, store("x", [I], read("x", f64, I - 1)), inner)
    made = Function(name="nest", arguments=function().arguments, written=frozenset("x"), sizes=(), body=(outer,))
    assert TO_HOIST not in emit_module([made])


def test_one_function_of_a_module_at_a_time() -> None:
    """What has nothing to hoist is not simplified because of what has."""
    carried = replace(function(CASES["x[0] += y[i]: a sum in memory"][0]), name="carried")
    text = emit_module([function(CASES["x[i] = y[i] * 2"][0]), carried])
    (marked,) = (line for line in text.splitlines() if TO_HOIST in line)
    assert "@carried(" in marked


@pytest.mark.parametrize("name", CASES)
def test_either_way_the_result_is_the_same(name: str) -> None:
    made = function(CASES[name][0])
    x, y = np.arange(1.0, N + 2), np.arange(3.0, N + 4)
    out = run_function(made, {"x": x, "y": y, "s": np.array(5.0)}, {"M": 7})
    want = {"x": x.copy(), "y": y, "s": np.array(5.0)}
    for i in range(1, N):
        match name.split(":")[0]:
            case "x[i] = x[i - 1] * 2":
                want["x"][i] = want["x"][i - 1] * 2
            case "x[i] = x[i + 1] * 2":
                want["x"][i] = want["x"][i + 1] * 2
            case "x[i] = y[i] * 2":
                want["x"][i] = y[i] * 2
            case "x[0] += y[i]":
                want["x"][0] += y[i]
            case "x[0] += x[i]":
                want["x"][0] += want["x"][i]
            case "x[i] = s * 2":
                want["x"][i] = 10
            case "x[i] = y[i] + s * 2":
                want["x"][i] = y[i] + 10
            case "x[i] = y[i] / s":
                want["x"][i] = y[i] / 5
            case "x[i] = s / y[i]":
                want["x"][i] = 5 / y[i]
            case "x[i] = y[i] * f64(M)":
                want["x"][i] = y[i] * 7
            case "x[i] = y[i] * f64(i)":
                want["x"][i] = y[i] * i
            case "x[i] = s":
                want["x"][i] = 5
            case "s = s * 2":
                want["s"] = want["s"] * 2
            case other:
                raise AssertionError(other)
    for array in ("x", "y", "s"):
        np.testing.assert_array_equal(out[array], want[array])
