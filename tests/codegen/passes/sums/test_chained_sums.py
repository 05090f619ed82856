"""Few sums as several chains: which loops, how many registers, and the same results (small integers, so that no order rounds)."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import Allocate, Assign, For, Function
from polyml.codegen.passes.sums.chained_sums import IN_FLIGHT, chain_sums
from polyml.codegen.printer import loops_text
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import i32
from polyml.expressions import Const
from polyml.target import Target
from tests.codegen.programs import array, at, call, function, loop, number, put, register, run, v

WIDE = Target("host", vector_bytes=64)
PRODUCT = 'def f(x: f32["N K"], y: f32["K M"]):\n    z[n, m] = x[n, k] * y[k, m]\n    return z\n'


def tile(rows: int, copies: int, depth: int | str = 40, *, reduction: str = "sum", lanes: int = 16) -> Function:
    """z[n, i] = sum of w[n, k] * x[k, i] for some rows, 16 lanes along i, so many terms in each iteration."""
    names = [f"s{n}" for n in range(rows)]
    terms = [
        Assign(
            target=put(name), value=call("mul", at("w", n, v("k") + c), at("x", v("k") + c, "i")), reduction=reduction
        )
        for c in range(copies)
        for n, name in enumerate(names)
    ]
    sums = loop("k", 0, v(depth) // copies * copies, *terms, step=copies)
    inside = [
        *(Assign(target=put(name), value=number(3.0)) for name in names),
        sums,
        *(Assign(target=put("z", n, "i"), value=at(name)) for n, name in enumerate(names)),
    ]
    body: tuple[Allocate | Assign | For, ...] = tuple(inside)
    for name in names:
        body = (Allocate(variable=replace(register(name), lanes=lanes), body=body),)
    vector = For(variable="i", lower=v(0), upper=v(16), step=16, kind="vector", width=16, body=body)
    arrays = [array("w", rows, v(depth) + copies), array("x", v(depth) + copies, 16), array("z", rows, 16)]
    return function(vector, arguments=arrays, written="z", sizes=[depth] if isinstance(depth, str) else [])


def registers(program: Function) -> int:
    return sum(isinstance(node, Allocate) for node in walk_nodes(program.body))


@pytest.mark.parametrize(
    ("rows", "copies", "chains"),
    [(1, 4, 4), (2, 4, 4), (3, 4, 4), (4, 4, 2), (5, 4, 2), (7, 4, 2), (1, 3, 3), (1, 16, 8), (2, 12, 4), (7, 2, 2)],
)
@pytest.mark.few(3)
def test_as_many_sums_as_do_not_wait(rows: int, copies: int, chains: int) -> None:
    program = tile(rows, copies, 96)
    made = chain_sums(program)
    assert registers(made) == rows * chains
    assert rows * chains >= IN_FLIGHT or chains == copies
    np.testing.assert_array_equal(run(made, {})["z"], run(program, {})["z"])


def test_a_depth_that_is_not_known() -> None:
    made = chain_sums(tile(2, 4, "K"))
    assert registers(made) == 8
    for depth in (0, 1, 3, 4, 5, 17):
        np.testing.assert_array_equal(run(made, {"K": depth})["z"], run(tile(2, 4, "K"), {"K": depth})["z"])


def test_left_alone() -> None:
    """Sums enough, one term each, a short loop, maxima, registers without lanes, integers."""
    for program in (tile(8, 4), tile(2, 1), tile(2, 4, 12), tile(2, 4, reduction="max"), tile(2, 4, lanes=1)):
        assert chain_sums(program) is program, loops_text(program)
    one = Assign(target=put("s"), value=Const(1, i32), reduction="sum")
    nest = loop("k", 0, 64, one, one, step=2)
    counts = Allocate(variable=replace(register("s", i32), lanes=16), body=(nest,))
    program = function(counts, arguments=[], written="")
    assert chain_sums(program) is program


@pytest.mark.parametrize("order", [1, -1])
def test_registers_of_one_name(order: int) -> None:
    """Parts of a loop have them, here with sixteen lanes and with one; each part is chained as if it were alone."""
    wide, single = tile(1, 4), tile(1, 4, lanes=1)
    (part,) = chain_sums(wide).body
    both = replace(wide, body=(*wide.body, *single.body)[::order])
    assert chain_sums(both).body == (part, *single.body)[::order]


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.few(2)
def test_products(rows: int, dynamic: bool) -> None:
    program = polyml.einsum(PRODUCT, threads=1, dynamic=dynamic, target=WIDE)
    rng = np.random.default_rng(rows)
    for depth, columns in ((1, 1), (3, 17), (40, 16), (41, 70), (130, 33), (64, 0), (0, 5)):
        if not dynamic and 0 in (depth, columns):
            continue
        x, y = (rng.integers(-4, 5, shape).astype("f4") for shape in ((rows, depth), (depth, columns)))
        np.testing.assert_array_equal(program(x, y), x @ y)


def test_a_written_order_is_kept() -> None:
    x, y = np.ones((1, 90), "f4"), np.ones((90, 16), "f4")
    chained = polyml.einsum(PRODUCT, threads=1, target=WIDE).lower(x, y).text("loops")
    assert len(set(re.findall(r"\w+_chain\w*", chained))) == 3
    assert "_chain" not in polyml.einsum(PRODUCT, threads=1, target=WIDE, precise=True).lower(x, y).text("loops")
