"""Sums are written out a few times. Along rows of up to sixteen elements, with lanes across the rows, wholly: rows are loaded whole and shuffled, and no lane has a load of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import For, Function
from polyml.codegen.passes.unrolling.unroll_sums import unroll_sums
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import f32
from polyml.expressions import Apply, Expr, map_reads
from polyml.sets.affine import affine
from polyml.target import Target
from tests.codegen.llvm.support import apply, loop, read, store, variable

DOTS = """
def f(v: f32["N K"], w: f32["N K"]):
    y[i] = sum[k](v[i, k] * w[i, k])
    return y
"""

LOG_SUMS = """
def f(x: f32["N K"], y: f32["K M"]):
    z[n, m] = log(sum[k](exp(x[n, k] + y[k, m])))
    return z
"""


def rows(n: int, k: int) -> np.ndarray:
    return np.random.default_rng(n + k).standard_normal((n, k), dtype=np.float32)


@pytest.mark.parametrize("k", [8, 9, 12])
def test_short_rows(k: int) -> None:
    v, w = rows(101, k), rows(101, k)[::-1].copy()
    got = polyml.einsum(DOTS, verify=True)(v, w)
    np.testing.assert_allclose(got, (v.astype(np.float64) * w).sum(1), atol=1e-4)


def test_no_lane_has_a_load_of_its_own() -> None:
    wide = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=1 << 20, cores=1)
    text = polyml.einsum(DOTS, target=wide).lower(rows(960, 9), rows(960, 9)).text("llvm")
    assert "masked.gather" not in text


@pytest.mark.parametrize(("size", "sums", "copies"), [(48, 8, 4), ("K", 8, 2), ("K", 4, 2), ("K", 2, 4)])
def test_sums_of_unknown_length_have_the_copies_that_chains_need(size: int | str, sums: int, copies: int) -> None:
    """Eight sums have been in flight with four of two chains each, and with two of four."""
    terms = [
        store("y", [row, "i"], apply("mul", read("a", f32, row, "k"), read(name, f32, "k", "i")), reduction="sum")
        for row in range(sums // 2)
        for name in "bc"
    ]
    body = loop("i", 0, 16, loop("k", 0, size, *terms), kind="vector", step=16, width=16)
    arguments = [variable("a", f32, 9, size), variable("b", f32, size, 16), variable("c", f32, size, 16)]
    sizes = ("K",) if isinstance(size, str) else ()
    function = Function(
        name="f",
        arguments=(*arguments, variable("y", f32, 9, 16)),
        written=frozenset("y"),
        sizes=sizes,
        body=(body,),
    )
    (made,) = (
        n for n in walk_nodes(unroll_sums(function, chains=True).body) if isinstance(n, For) and n.variable == "k"
    )
    assert (made.kind, made.factor) == ("unroll", copies)


@pytest.mark.parametrize(("rows", "copied"), [(64, True), (640, False)])
def test_edges_that_are_a_small_part_of_all_sums_are_written_once(rows: int, copied: bool) -> None:
    """The last four rows behind tiles of six."""
    text = 'def f(x: f32["I K"], y: f32["K J"]):\n    z[i, j] = x[i, k] * y[k, j]\n    return z\n'
    x, y = np.zeros((rows, 200), "f4"), np.zeros((200, 320), "f4")
    target = Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024)
    loops = polyml.einsum(text, target=target, threads=1).lower(x, y).text("loops")
    assert (f"x[{rows - 1}, k + 1]" in loops) == copied


@pytest.mark.parametrize(("rows", "written"), [(12, True), (4, False)])
def test_parts_of_a_sum_that_would_take_several_rounds_are_written_out(rows: int, written: bool) -> None:
    """Of twelve rows of y that are read from end to end there are three rounds of four; of eight two."""
    text = 'def f(x: f32["I K"], y: f32["K J"]):\n    z[i, j] = x[i, k] * y[k, j]\n    return z\n'
    x, y = np.zeros((rows, 2000), "f4"), np.zeros((2000, 3008), "f4")
    target = Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024, fills_l2=False)
    loops = polyml.einsum(text, target=target, threads=1).lower(x, y).text("loops")
    assert ("for (k = k_tile" not in loops) == written


@pytest.mark.parametrize(("steps", "copies"), [(12, 12), (32, 32), (120, 4)])
def test_long_parts_of_a_sum_stay_loops(steps: int, copies: int) -> None:
    """One sum for each vector: 120 copies of a step ran as fast as four, and took twice as long to compile."""
    term = store("y", ["i"], apply("mul", read("a", f32, "k"), read("b", f32, "k", "i")), reduction="sum")
    sums = loop("k", "t", affine("t") + steps, term)
    body = loop("t", 0, 10 * steps, loop("i", 0, 16, sums, kind="vector", step=16, width=16), step=steps)
    arguments = (variable("a", f32, 10 * steps), variable("b", f32, 10 * steps, 16), variable("y", f32, 16))
    function = Function(name="f", arguments=arguments, written=frozenset("y"), sizes=(), body=(body,))
    found = walk_nodes(unroll_sums(function, chains=True).body)
    (made,) = (n for n in found if isinstance(n, For) and n.variable == "k")
    assert (made.kind, made.factor) == ("unroll", copies)


@pytest.mark.parametrize(("rows", "registers", "copies"), [(9, 16, 1), (13, 16, 1), (9, 32, 4), (13, 32, 3)])
def test_sums_of_one_vector_are_copied_where_registers_are_many(rows: int, registers: int, copies: int) -> None:
    """Each product goes to the register of its broadcast, so that copies move sums about: of 16 registers there is no room for that."""
    terms = [
        store("y", [row, "i"], apply("mul", read("a", f32, row, "k"), read("b", f32, "k", "i")), reduction="sum")
        for row in range(rows)
    ]
    body = loop("i", 0, 16, loop("k", 0, 48, *terms), kind="vector", step=16, width=16)
    arguments = (variable("a", f32, rows, 48), variable("b", f32, 48, 16), variable("y", f32, rows, 16))
    function = Function(name="f", arguments=arguments, written=frozenset("y"), sizes=(), body=(body,))
    found = walk_nodes(unroll_sums(function, vector_registers=registers).body)
    (made,) = (n for n in found if isinstance(n, For) and n.variable == "k")
    assert (made.kind, made.factor if made.kind == "unroll" else 1) == (
        "unroll" if copies > 1 else "sequential",
        copies,
    )


def at(term: Expr, row: int, column: int) -> Expr:
    """The term of another sum of the tile."""
    places = {"a": (affine(row), affine("k")), "b": (affine("k"), affine("i") + column)}
    return map_reads(term, lambda element: replace(element, subscripts=places[element.tensor]))


A, B = read("a", f32, 0, "k"), read("b", f32, "k", "i")


@pytest.mark.parametrize(
    ("term", "registers", "copied"),
    [
        (apply("mul", apply("sub", A, B), apply("sub", A, B)), 16, False),
        (apply("mul", apply("sub", A, B), apply("sub", A, B)), 32, True),
        (apply("mul", apply("mul", A, B), A), 16, False),
        (apply("mul", A, B), 16, True),
        (apply("neg", apply("mul", A, B)), 16, True),
        (apply("mul", apply("mul", A, A), B), 16, True),
    ],
)
def test_terms_that_are_made_apart_leave_no_room_for_copies(term: Apply, registers: int, copied: bool) -> None:
    """Six rows by two vectors of squares of differences fill sixteen registers; of products, which are added by the instruction that makes them, there is room for the next copy's vectors."""
    terms = []
    for row in range(6):
        for column in (0, 16):
            terms.append(store("y", [row, affine("i") + column], at(term, row, column), reduction="sum"))
    body = loop("i", 0, 16, loop("k", 0, 48, *terms), kind="vector", step=16, width=16)
    arguments = (variable("a", f32, 6, 48), variable("b", f32, 48, 32), variable("y", f32, 6, 32))
    function = Function(name="f", arguments=arguments, written=frozenset("y"), sizes=(), body=(body,))
    found = walk_nodes(unroll_sums(function, vector_registers=registers).body)
    (made,) = (n for n in found if isinstance(n, For) and n.variable == "k")
    assert (made.kind == "unroll") == copied


def test_sums_of_functions_have_two_copies_and_their_loop_is_not_written_out() -> None:
    """Counting is little beside four exponentials, each of which is some fifty lines; of four copies all rounds were written out."""
    tile = Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024, cores=1)
    text = polyml.einsum(LOG_SUMS, target=tile).lower(rows(8, 20), rows(20, 16)).text("llvm")
    assert text.count("call <8 x float> @polyml.exp.v8f32(") == 8
