"""Sums whose ranges end elsewhere in each lane: no condition where all lanes of a tile are in range, sums in registers, and the same results at all edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import Allocate, Assign, For, Function, If
from polyml.codegen.passes.vectors.ragged_sums import has_long_sums
from polyml.codegen.passes.vectors.vectorize import vectorize
from polyml.codegen.ranges import outside
from polyml.codegen.rewrite import walk_nodes
from polyml.sets.affine import Affine, affine, maximum, minimum
from tests.codegen.programs import agree, array, at, call, loop, number, put, register

L, N, Z = (affine(name) for name in ("l", "n", "Z"))


def lags(count: Affine | int, length: int, *, begins: bool = False, source: str = "y", last: Affine = N) -> Function:
    """r[l] += (or =) the sum of y[n] * y[n + l], in tiles of two vectors."""
    value = call("mul", at(source, last), at("y", N + L))
    step = Assign(target=put("r", L), value=value, reduction="sum")
    first = (Assign(target=put("r", L), value=number(0.0)),) if begins else ()
    body = loop("l", 0, count, *first, loop("n", 0, length - L, step), kind="vector", factor=2)
    sizes = () if isinstance(count, int) else ("Z",)
    return Function(
        name="f",
        arguments=(array("y", length), array("r", count)),
        written=frozenset("r"),
        sizes=sizes,
        body=(body,),
    )


def check(program: Function, sizes: dict[str, int]) -> None:
    after, _ = vectorize(program, vector_bytes=16)
    agree(program, after, sizes)


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 9, 13, 16, 19])
@pytest.mark.few(7)
def test_same_results(count: int, begins: bool) -> None:
    check(lags(count, 21, begins=begins), {})
    check(lags(Z, 21, begins=begins), {"Z": count})


@pytest.mark.parametrize("count", [19, Z])
def test_what_all_lanes_have_is_without_conditions(count: Affine | int) -> None:
    after, _ = vectorize(lags(count, 40), vector_bytes=16)
    tile = next(node for node in walk_nodes(after.body) if isinstance(node, For) and node.width > 1)
    assert tile.step == 2 * tile.width
    whole, rest = (node for node in walk_nodes(tile.body) if isinstance(node, For))
    assert not any(isinstance(node, If) for node in walk_nodes(whole.body)), "all lanes of the tile run it"
    assert all(isinstance(node, If) for node in rest.body)
    inside = [node for node in walk_nodes((whole, rest)) if isinstance(node, Assign)]
    assert len(inside) == 4
    assert not any(node.target.variable == "r" for node in inside), "the sums are in registers"


def test_fewer_lanes_than_a_tile_overlap() -> None:
    """Seven lanes are one tile, whose second vector begins at the third lane; the sum begins there, so that nothing is added twice."""
    after, _ = vectorize(lags(7, 40, begins=True), vector_bytes=16)
    (tile,) = (node for node in walk_nodes(after.body) if isinstance(node, For) and node.width > 1)
    assert not tile.masked
    stored = [n for n in walk_nodes(tile.body) if isinstance(n, Assign) and n.target.variable == "r"]
    assert [str(node.target.subscripts[0]) for node in stored] == ["l", "l + 3"]


def test_refusals() -> None:
    """Short ranges, elements that are read meanwhile, and those that no lane has for itself."""

    def taken(program: Function, lanes: int = 8) -> bool:
        (node,) = program.body
        assert isinstance(node, For)
        return has_long_sums(node, outside(program), lanes)

    good = lags(9, 40)
    assert taken(good)
    assert not taken(good, lanes=24), "half of the range is not in common"
    assert not taken(lags(9, 40, source="r", last=minimum([N, affine(3)])))
    (lanes,) = good.body
    assert isinstance(lanes, For)
    (inner,) = lanes.body
    assert isinstance(inner, For)
    (step,) = inner.body
    assert isinstance(step, Assign)

    def changed(other: Assign) -> Function:
        return replace(good, body=(replace(lanes, body=(replace(inner, body=(other,)),)),))

    assert not taken(changed(replace(step, target=put("r", 0))))
    assert not taken(changed(replace(step, reduction=None)))
    assert not taken(replace(good, body=(replace(lanes, body=(replace(inner, upper=affine(30)),)),))), "nothing ragged"
    scratch = Allocate(variable=register("s"), body=(replace(inner, body=(replace(step, target=put("s")),)),))
    assert taken(replace(good, body=(replace(lanes, body=(scratch,)),)))


def test_windows_that_both_ends_cut() -> None:
    value = call("mul", at("y", N), at("y", N + L - 9))
    step = Assign(target=put("r", L), value=value, reduction="sum")
    inside = loop("n", maximum([affine(0), 9 - L]), minimum([affine(33), 42 - L]), step)
    body = loop("l", 0, 19, inside, kind="vector", factor=2)
    arguments = (array("y", 33), array("r", 19))
    program = Function(name="f", arguments=arguments, written=frozenset("r"), sizes=(), body=(body,))
    check(program, {})


ENDS = {"lags": "", "changed at the end": " * 3 + l"}


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32"])
@pytest.mark.parametrize("name", ENDS)
@pytest.mark.few(2)
def test_programs(name: str, dtype: str) -> None:
    """Small integers, so that sums are exact; and a series that is every other element of a row."""
    text = 'def f(y: {0}["N"]{1}):\n    r: {0}["{2}"]\n    r[l] = sum[n, n + l < N](y[n] * y[n + l]){3}\n    return r\n'
    y = np.random.default_rng(3).integers(-9, 9, 662)[::2].astype({"f32": "f4", "f64": "f8", "i32": "i4"}[dtype])
    given = polyml.einsum(text.format(dtype, ", L: int", "L", ENDS[name]), threads=1)
    for count in (21, 37, 150):
        expected = np.array([y[: 331 - lag] @ y[lag:] for lag in range(count)])
        if ENDS[name]:
            expected = expected * 3 + np.arange(count)
        known = polyml.einsum(text.format(dtype, "", count, ENDS[name]), threads=1)
        np.testing.assert_array_equal(known(y), expected)
        np.testing.assert_array_equal(given(y, count), expected)


def test_no_lag_beyond_the_series() -> None:
    """Lags as long as the series or longer have no terms: their sums are zero."""
    text = 'def f(y: f32["N"], L: int):\n    r: f32["L"]\n    r[l] = sum[n, n + l < N](y[n] * y[n + l])\n    return r\n'
    program = polyml.einsum(text, threads=1)
    y = np.arange(1, 8, dtype=np.float32)
    for count in (0, 1, 7, 40):
        expected = [y[: max(7 - lag, 0)] @ y[min(lag, 7) :] for lag in range(count)]
        np.testing.assert_array_equal(program(y, count), np.array(expected, np.float32))
