"""Register tiles at a slanted edge: whole tiles with masked stores give the sums of rows over ragged lanes, and nothing is read that no row may read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.codegen.interpret import interpret
from polyml.codegen.loops import Assign, For, Function, Node
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.codegen.passes.vectors.ragged_tiles import widen_tiles
from polyml.codegen.rewrite import walk_nodes
from polyml.sets.affine import Affine, affine, maximum, minimum
from tests.codegen.programs import array, at, call, loop, put, random_arrays

I, J, K, T, U = (affine(name) for name in ("i", "j", "k", "t", "u"))


def rows(lower: Affine | int, upper: Affine | int, *, source: int = 40, name: str = "x", first: Affine = K) -> Function:
    """c[i, j] += the sum over k of x[i, k] * y[k, j], for tiles of four of 29 rows, over lanes that change from row to row."""
    value = call("mul", at(name, I, first), at("y", K, J))
    step = loop("k", 0, 5, Assign(target=put("c", I, J), value=value, reduction="sum"))
    inside = loop("j", lower, upper, step, kind="vector", factor=2)
    jammed = loop("i", T, minimum([affine(29), T + 4]), inside, kind="jam", factor=4)
    arguments = (array("x", source, 40), array("y", 40, 40), array("c", 40, 40))
    return Function(
        name="f", arguments=arguments, written=frozenset("c"), sizes=(), body=(loop("t", 0, 29, jammed, step=4),)
    )


def jammed_loop(function: Function) -> For:
    outer = function.body[0]
    assert isinstance(outer, For)
    inner = outer.body[0]
    assert isinstance(inner, For)
    return inner


CASES = {"upper": rows(3, I + 4), "lower": rows(I + 1, 33), "empty": rows(14, I), "exact": rows(0, I + 1, source=29)}


@pytest.mark.parametrize("side", ["last", "first"])
def test_rows_without_lanes_fill_a_tile(side: str) -> None:
    """Of each block of four rows the last (first) one has no lanes: no loop for three rows is left."""
    lower, upper = (I + 1, U + 4) if side == "last" else (U, I)
    inner = jammed_loop(rows(lower, upper))
    first, last = (T, minimum([U + 3, T + 4])) if side == "last" else (maximum([U + 1, T]), T + 4)
    inner = replace(inner, lower=first, upper=last)
    body = loop("u", 0, 28, loop("t", U, U + 4, inner, step=4), step=4)
    before = replace(rows(lower, upper), body=(body,))
    wide = widen_tiles(before)
    (jammed,) = (node for node in walk_nodes(wide.body) if isinstance(node, For) and node.kind == "jam")
    assert (jammed.lower, jammed.upper) == (T, T + 4)
    start, results = random_arrays(before, {}), []
    for program in (before, wide):
        found = {key: value.copy() for key, value in start.items()}
        interpret(program, found)
        results.append(found["c"])
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(3)
def test_same_results(name: str) -> None:
    before = CASES[name]
    wide = widen_tiles(before)
    assert wide is not before
    after, _ = lower_loops(before, options=LoopOptions(vector_bytes=16))
    start = random_arrays(before, {})
    results = []
    for program in (before, wide, after):
        found = {key: value.copy() for key, value in start.items()}
        interpret(program, found)
        results.append(found["c"])
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_allclose(results[2], results[0], rtol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        rows(0, 33),  # nothing is ragged
        rows(I, I + 9),  # both ends move: the lanes of all rows together are not those of one
        rows(10, I, source=20),  # rows without lanes lie beyond the array
        rows(3, I + 4, name="c", first=K + 3),  # what is read may be what another lane writes
    ],
)
def test_refused(function: Function) -> None:
    assert widen_tiles(function) is function


def test_only_sums_are_widened() -> None:
    function = rows(0, I + 1)
    inner = jammed_loop(function).body[0]
    assert isinstance(inner, For)
    plain = replace(inner, body=(Assign(target=put("c", I, J), value=at("y", I, J)),))
    body: tuple[Node, ...] = (replace(jammed_loop(function), body=(plain,)),)
    outer = function.body[0]
    assert isinstance(outer, For)
    changed = replace(function, body=(replace(outer, body=body),))
    assert widen_tiles(changed) is changed


CONDITIONS = {"i <= j": np.less_equal, "i < j": np.less, "i >= j": np.greater_equal, "i > j": np.greater}


@pytest.mark.parametrize("shape", [(1, 33), (33, 40), (50, 97)])
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.few(2)
def test_half_a_matrix_of_products(shape: tuple[int, int], condition: str) -> None:
    """Sizes between those of tiles; infinities in rows that a lane does not belong to stay out of it."""
    text = f"""
def f(x: f64["N M"], c: f64["M M"]):
    if {condition}:
        c[i, j] += x[k, i] * x[k, j]
    return c
"""
    rng = np.random.default_rng(0)
    x, c = rng.random(shape), rng.random((shape[1], shape[1]))
    x[:, 7] = np.inf
    with np.errstate(invalid="ignore"):
        product = c + x.T @ x
    expected = np.where(CONDITIONS[condition](*np.indices(product.shape)), product, c)
    target = polyml.Target("host", l1_bytes=4096, l2_bytes=16 * 1024)
    found = polyml.einsum(text, threads=1, target=target)(x, c.copy())
    np.testing.assert_allclose(found, expected, rtol=1e-12)
