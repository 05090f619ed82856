"""Jammed loops over triangles: what all rows have is jammed, teeth stay outside, and the results are the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.codegen.interpret import interpret
from polyml.codegen.loops import Assign, For, Function, If, Node
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.codegen.passes.unrolling.triangles import cut_triangles
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, IndexValue
from polyml.sets.affine import Affine, affine, minimum
from tests.codegen.programs import array, at, call, loop, put, random_arrays

I, J, K, T = (affine(name) for name in ("i", "j", "k", "t"))


def product() -> tuple[Node, ...]:
    """c[i, j] = sum over k of x[i, k] * y[k, j]."""
    value = call("mul", at("x", I, K), at("y", K, J))
    clear = Assign(target=put("c", I, J), value=call("sub", at("c", I, J), at("c", I, J)))
    return clear, loop("k", 0, 3, Assign(target=put("c", I, J), value=value, reduction="sum"))


def rows(*body: Node, count: int = 29, factor: int = 4) -> Function:
    inside = loop("i", T, minimum([affine(count), T + factor]), *body, kind="jam", factor=factor)
    arguments = (array("x", 40, 40), array("y", 40, 40), array("c", 40, 40))
    return Function(
        name="f",
        arguments=arguments,
        written=frozenset("c"),
        sizes=(),
        body=(loop("t", 0, count, inside, step=factor),),
    )


def guarded(op: str, left: Affine, right: Affine) -> tuple[Node, ...]:
    clear, inner = product()
    condition = Apply(op, (IndexValue(left, i64), IndexValue(right, i64)), boolean)
    return clear, If(condition=condition, then=(inner,))


CASES = {
    "upper": rows(loop("j", 0, I, *product(), kind="vector", factor=2)),
    "lower": rows(loop("j", I + 1, 33, *product(), kind="vector", factor=2)),
    "both": rows(loop("j", I, I + 9, *product(), kind="vector")),
    "short": rows(loop("j", 0, I - 20, *product(), kind="vector")),
    "plain": rows(loop("j", 0, I, *product())),
    "inside": rows(loop("j", 0, 20, loop("k", 0, I, product()[1].body[0]), kind="vector")),  # type: ignore[union-attr]
    "ge": rows(loop("j", 0, 35, *guarded("ge", I, J), kind="vector", factor=2)),
    "gt": rows(loop("j", 3, 35, *guarded("gt", J, I), kind="vector")),
    "le": rows(loop("j", 0, 25, *guarded("le", I + 3, J), kind="vector")),
    "lt": rows(loop("j", 0, 25, *guarded("lt", J, I - 2), kind="vector")),
}


def whole(*body: Node, count: int = 29) -> Function:
    """The same without tiles of rows."""
    inside = loop("i", 0, count, *body, kind="jam", factor=4)
    return replace(rows(*body), body=(inside,))


def tiles(op: str, left: Affine, right: Affine, *, first: int = 0, upper: int = 37, size: int = 8) -> Node:
    """Panels of columns under a condition."""
    columns = loop("j", J0, minimum([affine(upper), J0 + size]), *guarded(op, left, right), kind="vector", factor=2)
    return loop("j0", first, upper, columns, step=size)


J0 = affine("j0")
CASES |= {
    "whole": whole(loop("j", 0, I + 1, *product(), kind="vector", factor=2)),
    "panels ge": whole(tiles("ge", I, J)),
    "panels gt": whole(tiles("gt", J, I + 2, first=3)),
    "panels le": rows(tiles("le", J + 5, I)),
    "panels lt": rows(tiles("lt", I, J, upper=30, size=4)),
    "panels twice": whole(tiles("ge", I * 2, J)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(3)
def test_same_results(name: str) -> None:
    before = CASES[name]
    cut = cut_triangles(before)
    assert cut is not before
    after, _ = lower_loops(before, options=LoopOptions(vector_bytes=16))
    start, results = random_arrays(before, {}), []
    for program in (before, cut, after):
        found = {key: value.copy() for key, value in start.items()}
        interpret(program, found)
        results.append(found["c"])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-6)
    np.testing.assert_allclose(results[2], results[0], rtol=1e-6)


@pytest.mark.parametrize(
    "name", ["upper", "lower", "both", "plain", "ge", "whole", "panels ge", "panels gt", "panels le", "panels lt"]
)
def test_jammed_parts_have_one_shape(name: str) -> None:
    """Inside a jammed loop no bound and no condition is left that depends on it."""
    jammed = [n for n in walk_nodes(cut_triangles(CASES[name]).body) if isinstance(n, For) and n.kind == "jam"]
    assert jammed
    for outer in jammed:
        inner = [n for n in walk_nodes(outer.body) if isinstance(n, For | If)]
        assert not any(isinstance(n, If) for n in inner)
        assert not any(outer.variable in n.lower.variables() | n.upper.variables() for n in inner if isinstance(n, For))


def test_rectangles_stay() -> None:
    rectangle = rows(loop("j", 0, 20, *product(), kind="vector"))
    assert cut_triangles(rectangle) is rectangle


def test_a_triangular_product_has_register_tiles() -> None:
    text = """
def f(x: f64["N M"]):
    c: f64["M M"] = 0
    if i <= j:
        c[i, j] = x[k, i] * x[k, j]
    return c
"""
    x = np.random.default_rng(0).random((53, 101))
    program = polyml.einsum(text, threads=1)
    assert "not jammed" not in program.explain(x)
    np.testing.assert_allclose(program(x), np.triu(x.T @ x), rtol=1e-12)


@pytest.mark.parametrize("channels", [1, 3, 8])
def test_rows_that_have_nothing_in_common(channels: int) -> None:
    """Bands that move on by more than they are long: no row goes past its end for what others begin with."""
    text = """
    def f(x: f32["C 5 3"], w: f32["C 3 1"]):
        y: f32["C 5 6"] = 0
        if 0 <= h - 2*r + 1 < 5 and 0 <= 3*v + s + 1 < 6:
            y[c, h - 2*r + 1, 3*v + s + 1] += x[c, h, v] * w[c, r, s]
        return y
    """
    rng = np.random.default_rng(channels)
    x, w = (rng.integers(-3, 4, (channels, *shape)).astype(np.float32) for shape in ((5, 3), (3, 1)))
    expected = np.zeros((channels, 5, 6))
    for h, r, v in np.ndindex(5, 3, 2):
        if 0 <= h - 2 * r + 1 < 5:
            expected[:, h - 2 * r + 1, 3 * v + 1] += x[:, h, v] * w[:, r, 0]
    np.testing.assert_array_equal(polyml.einsum(text, verify=True)(x, w), expected)
