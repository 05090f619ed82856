"""Lanes along rows: scratch memory per lane, and strips of rows that are transposed on the way; before and after, interpreted and compiled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.codegen.interpret import interpret
from polyml.codegen.loops import Allocate, Assign, For, Function, If, Variable
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.codegen.passes.transposes.transposes import transpose_rows
from polyml.codegen.passes.vectors.vectorize import vectorize
from polyml.codegen.printer import loops_text
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import f64
from polyml.expressions import Apply, Expr
from polyml.sets.affine import Affine, affine
from polyml.target import Target
from polyml.testing import verify
from tests.codegen.llvm.support import compile_functions, guarded
from tests.codegen.programs import Extent, agree, array, at, call, function, local, loop, number, put, random_arrays

I, J = affine("i"), affine("j")


def plus(*terms: Expr) -> Expr:
    total = terms[0]
    for term in terms[1:]:
        total = call("add", total, term)
    return total


def double(expr: Expr) -> Expr:
    return call("mul", expr, number(2.0))


def rows(
    n: int, m: Extent, value: Expr, *, start: int = 0, end: Extent = 0, column: Affine = J, factor: int = 1
) -> Function:
    """y[i, column] = value for j from start to end, lanes along i."""
    inner = loop("j", start, end, Assign(target=put("y", "i", column), value=value))
    nest = loop("i", 0, n, inner, kind="vector", factor=factor)
    sizes = [e for e in (m,) if isinstance(e, str)]
    return function(nest, arguments=[array("x", n, m), array("y", n, m)], written="y", sizes=sizes)


def forwards(n: int, m: Extent, factor: int = 1) -> Function:
    """A recurrence of second order, and a neighbour of x."""
    value = call("sub", plus(at("x", "i", "j"), at("x", "i", J - 1), at("y", "i", J - 1)), at("y", "i", J - 2))
    return rows(n, m, value, start=2, end=m, factor=factor)


def backwards(n: int, m: int, factor: int = 1) -> Function:
    """From the last column to the first."""
    here = m - 3 - J
    value = call("sub", plus(at("x", "i", here + 1), at("y", "i", here + 1)), at("y", "i", here + 2))
    return rows(n, m, value, start=0, end=m - 2, column=here, factor=factor)


def both_sides(n: int, m: int, factor: int = 1) -> Function:
    """Elements that the loop has written and elements that it will write."""
    value = plus(at("y", "i", J - 1), at("y", "i", "j"), double(at("y", "i", J + 1)), at("x", 0, "j"))
    return rows(n, m, value, start=1, end=m - 1, factor=factor)


def neighbours(n: int, m: int, factor: int = 1) -> Function:
    """Three rows of x per lane, and a sum into the row's last element, which stays where it is."""
    value = plus(*(at("x", I + k, "j") for k in range(3)))
    body = (
        loop("j", 0, m - 1, Assign(target=put("y", "i", "j"), value=value)),
        loop("j", 0, m - 1, Assign(target=put("y", "i", m - 1), value=at("y", "i", "j"), reduction="sum")),
    )
    nest = loop("i", 0, n, *body, kind="vector", factor=factor)
    return function(nest, arguments=[array("x", n + 2, m), array("y", n, m)], written="y")


def weighed(n: int, m: int, factor: int = 1) -> Function:
    """A recurrence over what three rows make of different columns, one of them needed by itself as well."""
    sides = plus(call("mul", at("w"), at("x", "i", J - 1)), at("x", I + 2, J + 1))
    value = call("add", at("y", "i", J - 1), call("sub", call("sub", sides, double(at("x", I + 1, "j"))), number(3.0)))
    first = Assign(target=put("y", "i", "j"), value=value)
    second = Assign(target=put("z", "i", "j"), value=at("x", I + 1, "j"))
    nest = loop("i", 0, n, loop("j", 1, m - 1, first, second), kind="vector", factor=factor)
    arrays = [array("x", n + 2, m), array("y", n, m), array("z", n, m), array("w")]
    return function(nest, arguments=arrays, written="y z")


def scratch(n: int, m: int, factor: int = 1) -> Function:
    """A row of scratch memory per lane, filled forwards and read backwards."""
    body = (
        Assign(target=put("t", 0), value=at("x", "i", 0)),
        loop("j", 1, m, Assign(target=put("t", "j"), value=plus(at("t", J - 1), at("x", "i", "j")))),
        loop("j", 0, m, Assign(target=put("y", "i", "j"), value=at("t", m - 1 - J))),
    )
    nest = loop("i", 0, n, Allocate(variable=local("t", m), body=body), kind="vector", factor=factor)
    return function(nest, arguments=[array("x", n, m), array("y", n, m)], written="y")


SHAPES = ((16, 64), (17, 67), (9, 9), (3, 20), (8, 3), (24, 8))
MAKERS = (forwards, backwards, both_sides, neighbours, weighed, scratch)


def cases(large: tuple[int, int], jammed: tuple[int, int]) -> list[tuple[str, Function, dict[str, int]]]:
    """large, jammed: rows and columns with whole tiles and strips, and parts of both."""
    found: list[tuple[str, Function, dict[str, int]]] = []
    for make in MAKERS:
        found += [(f"{make.__name__}-{n}-{m}", make(n, m), {}) for n, m in (*SHAPES, large)]
        found.append((f"{make.__name__}-2x{jammed[0]}-{jammed[1]}", make(*jammed, factor=2), {}))
    symbolic = ((9, large[1]), (16, 64), (5, 1), (4, 0))
    found += [(f"forwards-{n}-M{m}", forwards(n, "M"), {"M": m}) for n, m in symbolic]
    return found


def in_doubles(program: Function) -> Function:
    """The program on f64 arrays."""

    def wide(variable: Variable) -> Variable:
        return replace(variable, dtype=f64)

    def expr(value: Expr) -> Expr:
        args = tuple(expr(a) for a in value.args) if isinstance(value, Apply) else ()
        return replace(value, dtype=f64, args=args) if isinstance(value, Apply) else replace(value, dtype=f64)

    def node(one: object) -> object:
        match one:
            case Assign():
                return replace(one, value=expr(one.value))
            case Allocate():
                return replace(one, variable=wide(one.variable), body=tuple(node(c) for c in one.body))
            case For():
                return replace(one, body=tuple(node(c) for c in one.body))
        raise AssertionError

    body = tuple(node(c) for c in program.body)
    return replace(program, arguments=tuple(map(wide, program.arguments)), body=body)


def transposing(program: Function) -> list[For]:
    return [n for n in walk_nodes(program.body) if isinstance(n, For) and n.kind == "transpose"]


@pytest.mark.parametrize("vector_bytes", [16, 32])
@pytest.mark.parametrize(("name", "program", "sizes"), cases((19, 83), (21, 75)))
@pytest.mark.few(20)
def test_same_results(name: str, program: Function, sizes: dict[str, int], vector_bytes: int) -> None:
    after = transpose_rows(vectorize(program, vector_bytes=vector_bytes)[0], l1_bytes=2048)
    agree(program, after, sizes, name)


COMPILED = [
    (*case, (16, 32, 64)[k % 3])
    for k, case in enumerate(cases((35, 150), (37, 131)))
    if k % 2 == 0 or "M" in case[0] or "35" in case[0]
]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.few(1)
def test_compiled(make: object, wide: bool) -> None:
    # Arrays end at a guard page.
    chosen = [case for case in COMPILED if case[0].startswith(f"{getattr(make, '__name__', '')}-")]
    programs = [in_doubles(program) if wide else program for _, program, _, _ in chosen]
    options = [LoopOptions(vector_bytes=vector_bytes) for *_, vector_bytes in chosen]
    calls = compile_functions([lower_loops(p, options=o)[0] for p, o in zip(programs, options, strict=True)])
    for (name, _, sizes, _), program, run in zip(chosen, programs, calls, strict=True):
        start = random_arrays(program, sizes).items()
        expected = {k: a.astype(np.float64 if wide else np.float32) for k, a in start}
        given = {key: value.copy() for key, value in expected.items()}
        interpret(program, expected, sizes)
        np.testing.assert_array_equal(run(given, sizes)["y"], expected["y"], err_msg=name)


@pytest.mark.parametrize("make", MAKERS)
def test_rows_are_transposed(make: object) -> None:
    assert callable(make)
    after = transpose_rows(vectorize(make(16, 64), vector_bytes=32)[0])
    assert transposing(after)
    # No loop over a row is left that goes from lane to lane in memory.
    for inner in (n for n in walk_nodes(after.body) if isinstance(n, For) and n.variable == "j"):
        for assign in (a for a in inner.body if isinstance(a, Assign) and a.reduction is None):
            assert assign.target.variable not in ("x", "y")


def test_what_rows_make_is_transposed_once() -> None:
    """One piece of scratch memory for what three rows make, and one for a row that is needed by itself."""

    def scratch_of(program: Function) -> list[str]:
        after = transpose_rows(vectorize(program, vector_bytes=64)[0])
        return sorted(n.variable.name for n in walk_nodes(after.body) if isinstance(n, Allocate))

    assert scratch_of(weighed(16, 130)) == ["j_value_rows", "x_rows", "y_rows", "z_rows"]
    assert [name for name in scratch_of(neighbours(16, 130)) if not name.startswith("y_")] == ["j_value_rows"]
    assert "j_value_rows" not in scratch_of(backwards(16, 130))


def test_what_lanes_have_of_their_own_is_not_made_along_rows() -> None:
    """A register of each lane, and rows that the loop writes."""
    value = plus(at("r"), at("x", "i", "j"), at("x", I + 1, "j"))
    inner = loop("j", 0, 64, Assign(target=put("y", "i", "j"), value=value))
    own = Variable(name="r", dtype=inner.body[0].value.dtype, shape=(), scope="register")
    body = Allocate(variable=own, body=(Assign(target=put("r"), value=at("x", "i", 0)), inner))
    nest = loop("i", 0, 16, body, kind="vector")
    program = function(nest, arguments=[array("x", 17, 64), array("y", 16, 64)], written="y")
    expected = random_arrays(program, {})
    given = {key: values.copy() for key, values in expected.items()}
    interpret(program, expected, {})
    after, _ = lower_loops(program, options=LoopOptions(vector_bytes=64))
    found = compile_functions([after])[0](given, {})
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-6)
    made = [
        n.body[0] for n in transposing(after) if isinstance(n.body[0], Assign) and isinstance(n.body[0].value, Apply)
    ]
    assert all("r" not in str(assign.value) for assign in made)


def test_what_is_left_alone() -> None:
    conditional = If(
        condition=call("gt", at("x", 0, "j"), number(0.0)), then=(Assign(target=put("y", "i", "j"), value=number(1.0)),)
    )
    crossing = Assign(target=put("y", "i", "j"), value=at("y", I + 1, "j"))
    columns = Assign(target=put("y", "j", "i"), value=at("x", "j", "i"))
    for body in (conditional, crossing, columns):
        nest = loop("i", 0, 16, loop("j", 0, 20, body), kind="vector")
        program = function(nest, arguments=[array("x", 30, 30), array("y", 30, 30)], written="y")
        after = vectorize(program, vector_bytes=32)[0]
        assert transpose_rows(after) is after, loops_text(transpose_rows(after))


def streaming(program: Function) -> list[Assign]:
    return [n for n in walk_nodes(program.body) if isinstance(n, Assign) and n.streaming]


@pytest.mark.parametrize("make", [forwards, backwards])
@pytest.mark.few(1)
def test_streamed_rows(make: object) -> None:
    assert callable(make)
    for n, m, streams in ((16, 96, True), (19, 160, True), (16, 99, False)):
        program = make(n, m)

        def past(node: object) -> object:
            if isinstance(node, Assign):
                return replace(node, streaming=True)
            return replace(node, body=tuple(past(inner) for inner in node.body)) if isinstance(node, For) else node

        program = in_doubles(replace(program, body=tuple(past(node) for node in program.body)))
        after = transpose_rows(vectorize(program, vector_bytes=64)[0])
        # Rows that do not begin alike have no aligned blocks; scratch memory is not streamed at all.
        blocks = streaming(after)
        assert bool([a for a in blocks if a.aligned]) == streams
        assert all(a.target.variable == "y" for a in blocks)
        assert len(after.leads) == streams
        run = compile_functions([lower_loops(program, options=LoopOptions(vector_bytes=64))[0]])[0]
        expected = {k: a.astype(np.float64) for k, a in random_arrays(program, {}).items()}
        given = {key: value.copy() for key, value in expected.items()}
        interpret(program, expected, {})
        np.testing.assert_array_equal(run(given, {})["y"], expected["y"], err_msg=f"{n} x {m}")


def test_what_a_condition_leaves_out_is_not_made_ahead() -> None:
    """Behind the last column there is nothing, not even memory."""
    text = """
    def f(x: f32["N M"], z: f32["N M"]):
        y: f32["N M"]
        y[i, 0] = x[i, 0]
        for j in range(1, M):
            y[i, j] = y[i, j - 1] * 0.5 + where(j < M - 1 and y[i, j - 1] > 0, x[i, j + 1] * 0.3 + z[i, j + 1] * 0.2, 0)
        return y
    """
    x, z = (np.random.default_rng(k).standard_normal((16, 24), np.float32) for k in range(2))
    program = polyml.einsum(text, threads=1, target=Target("x86-64-v3"))
    assert "_value_rows" not in program.lower(x, z).text("loops")
    assert verify(program, x, z, computed_by=lambda *given: program(*map(guarded, given)))
