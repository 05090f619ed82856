"""Requests inside of sums, each line once: which are asked for by a loop over lines, and which by each step."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import Assign, For, Function, Place, Prefetch, Variable
from polyml.codegen.prefetch.once import ask_once
from polyml.dtypes import f32, f64
from polyml.expressions import Read
from polyml.sets.affine import Affine, affine, minimum
from polyml.target import Target
from tests.codegen.llvm.support import guarded

WIDE = Target("x86-64-v4", cores=2)
SMALL = Target("host", vector_registers=32, l1_bytes=16 << 10, l2_bytes=1 << 20, cores=2)
PRODUCT = """
def f(x: {0}["N K"], y: {0}["K M"]):
    z[n, m] = x[n, k] * y[k, m]
    return z
"""


def operands(rows: int, terms: int, columns: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-9, 10, shape).astype(dtype) for shape in ((rows, terms), (terms, columns)))
    return x, y


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_tiles_ask_for_each_line_of_the_next_rows_once(dtype: str) -> None:
    x, y = operands(1024, 1024, 1024, {"f32": "f4", "f64": "f8"}[dtype])
    text = polyml.einsum(PRODUCT.format(dtype), target=WIDE, threads=1).lower(x, y).text("loops")
    loop, rest = re.findall(r"for \((k_line\w*) = .*?\1 \+= (\d+)\) \{\n(.*?)for \(", text, re.DOTALL)[0][1:]
    assert int(loop) * x.itemsize == 64
    assert rest.count("prefetch L2 x[") == rest.count("prefetch L2 z[") == 2


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("terms", [1000, 1017, 1100])
@pytest.mark.few(3)
def test_results(terms: int, dtype: str) -> None:
    x, y = operands(300, terms, 403, {"f32": "f4", "f64": "f8"}[dtype])
    function = polyml.einsum(PRODUCT.format(dtype), target=SMALL, threads=1)
    assert "k_line" in function.lower(x, y).text("loops")
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), x @ y)


def tile(asked: tuple[str, Affine], *, length: int, step: int = 1, sums: int = 8) -> Function:
    """A register tile whose steps ask for that element of x or y. length: of its sums."""
    x = Variable(name="x", dtype=f32, shape=(affine(640),), scope="global")
    y = Variable(name="y", dtype=f64, shape=(affine(640), affine(64)), scope="global")
    results = tuple(Variable(name=f"z{k}", dtype=f32, shape=(affine(16),), scope="global") for k in range(sums))
    place = Place(asked[0], (asked[1],) if asked[0] == "x" else (asked[1], affine(0)))
    term = Read("x", (affine("k"),), f32)
    adds = tuple(Assign(target=Place(z.name, (affine("m"),)), value=term, reduction="sum") for z in results)
    loop = For(variable="k", lower=affine(0), upper=affine(length), step=step, body=(Prefetch(place, 2), *adds))
    lanes = For(variable="m", lower=affine(0), upper=affine(16), step=16, kind="vector", width=16, body=(loop,))
    written = frozenset(z.name for z in results)
    return Function(name="f", arguments=(x, y, *results), written=written, sizes=(), body=(lanes,))


K = affine("k")


@pytest.mark.parametrize(
    ("asked", "length", "step", "steps"),
    [
        (("x", K + 64), 640, 1, 16),
        (("x", K + 64), 640, 2, 8),
        (("x", 3 * K), 640, 1, 5),
        (("x", 64 - K), 640, 4, 4),
        (("x", 8 * K), 640, 1, 0),  # two steps in a line
        (("x", K // 2), 640, 1, 0),  # no even pace
        (("y", K), 640, 1, 0),  # a row each
    ],
)
def test_steps_in_a_line(asked: tuple[str, Affine], length: int, step: int, steps: int) -> None:
    function = tile(asked, length=length, step=step)
    made = ask_once(function, 64, 32)
    if not steps:
        assert made is function
        return
    (lanes,) = made.body
    assert isinstance(lanes, For)
    (lines,) = lanes.body
    assert isinstance(lines, For)
    request, inner = lines.body
    assert isinstance(request, Prefetch)
    assert isinstance(inner, For)
    assert (lines.variable, lines.step, inner.step) == ("k_line", steps * step, step)
    assert request.place.subscripts == (asked[1].substitute({"k": affine("k_line")}),)
    assert (inner.lower, len(inner.body)) == (affine("k_line"), 8)
    whole = length % (steps * step) == 0
    assert inner.upper == (
        affine("k_line") + steps * step if whole else minimum((affine(length), affine("k_line") + steps * step))
    )


def test_short_tiles_and_few_registers_stay() -> None:
    function = tile(("x", K + 64), length=640)
    assert ask_once(function, 64, 16) is function
    assert ask_once(function, 0, 32) is function
    few = tile(("x", K + 64), length=640, sums=7)
    assert ask_once(few, 64, 32) is few
