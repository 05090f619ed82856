"""What is computed ahead of innermost loops, and that results stay the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.llvm.ir import Instructions
from polyml.codegen.llvm.unchanging import unchanging
from polyml.codegen.loops import Assign, For, Function, If
from polyml.dtypes import boolean, f64, i64
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


S, Y = read("s", f64), read("y", f64, I)
SIZE = apply("cast", IndexValue(affine("M"), i64), dtype=f64)
HALF = apply("div", S, const(2.0, f64))

CASES: dict[str, tuple[Assign, list[Expr], list[Expr]]] = {
    "x[i] = x[i - 1] * 2": (store("x", [I], twice(read("x", f64, I - 1))), [], []),
    "x[i] = y[i] * 2": (store("x", [I], twice(Y)), [], []),
    "x[0] += y[i]": (store("x", [0], Y, reduction="sum"), [], []),
    "x[i] = s * 2": (store("x", [I], twice(S)), [twice(S)], []),
    "x[i] = y[i] + s * 2": (store("x", [I], apply("add", Y, twice(S))), [twice(S)], []),
    "x[i] = y[i] / s": (store("x", [I], apply("div", Y, S)), [], [S]),
    "x[i] = s / y[i]": (store("x", [I], apply("div", S, Y)), [], []),
    "x[i] = y[i] / (s / 2)": (store("x", [I], apply("div", Y, HALF)), [], [HALF]),
    "x[i] = y[i] * f64(M)": (store("x", [I], apply("mul", Y, SIZE)), [SIZE], []),
    "x[i] = y[i] * f64(i)": (store("x", [I], apply("mul", Y, apply("cast", IndexValue(I, i64), dtype=f64))), [], []),
    "x[i] = s": (store("x", [I], S), [], []),
    "s = s * 2": (store("s", [], twice(S)), [], []),
    "x[i] = s * 2 if y[i] > 7 else y[i]": (store("x", [I], apply("select", apply("gt", Y, const(7.0, f64), dtype=boolean), twice(S), Y)), [], []),
}  # fmt: skip
"""Bodies of loops, and what `unchanging` finds in them: values and divisors."""


@pytest.mark.parametrize("name", CASES)
def test_what_stays_the_same(name: str) -> None:
    body, values, divisors = CASES[name]
    (nest,) = function(body).body
    assert isinstance(nest, For)
    found = unchanging(nest)
    assert (list(found.values), list(found.divisors)) == (values, divisors)


def test_under_a_condition_nothing_is_computed_ahead() -> None:
    """The element may not exist where the condition does not hold."""
    condition = apply("gt", Y, const(0.0, f64), dtype=boolean)
    nest = loop("i", 1, N, If(condition=condition, then=(store("x", [I], twice(S)),)))
    assert not unchanging(nest)


def test_a_loop_around_others_does_not_count() -> None:
    inner = loop("k", 0, N, store("x", [affine("k")], Y))
    assert not unchanging(loop("i", 1, N, store("x", [I], twice(S)), inner))


@pytest.mark.parametrize("width", [1, 8])
def test_computed_once(width: int) -> None:
    """A square root and a reciprocal stand ahead of the loop, in lanes or not."""
    root = apply("sqrt", S)
    kind = "vector" if width > 1 else "sequential"
    body = (store("x", [I], apply("mul", Y, root)), store("y", [I], apply("div", Y, S)))
    nest = replace(loop("i", 0, 8 * N, *body), kind=kind, width=width, step=width)
    arguments = (variable("x", f64, 8 * N), variable("y", f64, 8 * N), variable("s", f64))
    made = Function(name="nest", arguments=arguments, written=frozenset({"x", "y"}), sizes=(), body=(nest,))
    text = emit_module([made])
    ahead, inside = text[text.index("@nest(") :].split("\nloop", 1)
    assert ahead.count("@llvm.sqrt") == 1
    assert "@llvm.sqrt" not in inside.split("\n}")[0]
    assert ("fdiv" in ahead) is (width > 1)
    y = np.arange(1.0, 8 * N + 1)
    out = run_function(made, {"x": np.zeros(8 * N), "y": y, "s": np.array(3.0)}, {})
    np.testing.assert_array_equal(out["x"], y * np.sqrt(3.0))
    np.testing.assert_array_equal(out["y"], y / 3.0)


@pytest.mark.parametrize("name", CASES)
def test_either_way_the_result_is_the_same(name: str) -> None:
    made = function(CASES[name][0])
    x, y = np.arange(1.0, N + 2), np.arange(3.0, N + 4)
    out = run_function(made, {"x": x, "y": y, "s": np.array(5.0)}, {"M": 7})
    want = {"x": x.copy(), "y": y, "s": np.array(5.0)}
    for i in range(1, N):
        match name:
            case "x[i] = x[i - 1] * 2":
                want["x"][i] = want["x"][i - 1] * 2
            case "x[i] = y[i] * 2":
                want["x"][i] = y[i] * 2
            case "x[0] += y[i]":
                want["x"][0] += y[i]
            case "x[i] = s * 2":
                want["x"][i] = 10
            case "x[i] = y[i] + s * 2":
                want["x"][i] = y[i] + 10
            case "x[i] = y[i] / s":
                want["x"][i] = y[i] / 5
            case "x[i] = y[i] / (s / 2)":
                want["x"][i] = y[i] / 2.5
            case "x[i] = s * 2 if y[i] > 7 else y[i]":
                want["x"][i] = 10 if y[i] > 7 else y[i]
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


def test_nothing_of_what_a_condition_chooses() -> None:
    """Parts of a choice that itself changes: the element that they read may not exist."""
    choice = apply("select", apply("gt", Y, const(7.0, f64), dtype=boolean), apply("add", Y, twice(S)), Y)
    assert not unchanging(loop("i", 1, N, store("x", [I], choice)))


@pytest.mark.parametrize(
    ("vectors", "division", "reciprocals"),
    [(1, 20.0, False), (4, 20.0, False), (16, 20.0, True), (16, 6.0, False), (256, 6.0, True), (256, 4.0, False)],
)
def test_reciprocals_where_they_save_time(vectors: int, division: float, reciprocals: bool) -> None:
    """Correcting a quotient takes as long as some multiply-adds, and so does what stands ahead of the loop."""
    extent = 8 * vectors
    nest = replace(loop("i", 0, extent, store("y", [I], apply("div", Y, S))), kind="vector", width=8, step=8)
    arguments = (variable("y", f64, extent), variable("s", f64))
    made = Function(name="nest", arguments=arguments, written=frozenset({"y"}), sizes=(), body=(nest,))
    text = emit_module([made], Instructions(division=division))
    assert ("@polyml.quotient" in text) is reciprocals
    y = np.arange(1.0, extent + 1)
    np.testing.assert_array_equal(run_function(made, {"y": y.copy(), "s": np.array(3.0)}, {})["y"], y / 3.0)


def test_elements_that_lanes_gather_are_read_ahead() -> None:
    """Down a column of a[j, 5], for all steps i; elements side by side are left to LLVM."""
    lanes, rows = affine("j"), 8
    product = apply("mul", read("a", f64, lanes, 1), read("x", f64, I, lanes))
    step = loop("i", 1, N, store("x", [I, lanes], apply("add", product, read("b", f64, lanes))))
    nest = replace(loop("j", 0, rows, step), kind="vector", width=rows, step=rows)
    arguments = (variable("x", f64, N, rows), variable("a", f64, rows, 5), variable("b", f64, rows))
    made = Function(name="nest", arguments=arguments, written=frozenset({"x"}), sizes=(), body=(nest,))
    text = emit_module([made])
    ahead, inside = text[text.index("@nest(") :].split("\nloop", 1)
    assert ahead.count("@llvm.masked.gather") == 1
    assert "@llvm.masked.gather" not in inside.split("\n}")[0]
    assert "load <8 x double>" not in ahead
    x, a, b = (
        np.arange(1.0, N * rows + 1).reshape(N, rows),
        np.arange(2.0, 5 * rows + 2).reshape(rows, 5),
        np.arange(float(rows)),
    )
    out = run_function(made, {"x": x, "a": a, "b": b}, {})
    want = x.copy()
    want[1:] = a[:, 1] * x[1:] + b
    np.testing.assert_array_equal(out["x"], want)


def test_elements_that_the_loop_writes_are_not_read_ahead() -> None:
    written = loop("i", 1, N, store("x", [I], apply("add", read("x", f64, affine("j")), Y)))
    assert not unchanging(written, lambda _: True)
    kept = loop("i", 1, N, store("x", [I], apply("add", S, Y)))
    assert list(unchanging(kept, lambda _: True).reads) == [S]
    assert not unchanging(kept, lambda _: False)
