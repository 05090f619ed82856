"""The vectorize pass: the same results, the widths and parts it chooses, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from polyml.codegen.generate import generate
from polyml.codegen.loops import Allocate, Assign, For, Function, If
from polyml.codegen.passes.vectors.vectorize import vectorize
from polyml.codegen.printer import loops_text
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import f32, f64, i64
from polyml.expressions import Apply
from polyml.sets.affine import affine, maximum, minimum
from tests.codegen.hand import dense_schedule, softmax_schedule
from tests.codegen.programs import (
    array,
    at,
    call,
    cases,
    copy_with_neighbours,
    function,
    index,
    loop,
    number,
    put,
    reductions,
    register,
    run,
    triangle,
)  # fmt: skip

Golden = Callable[[str, str], None]


def vector_loops(program: Function) -> list[For]:
    return [n for n in walk_nodes(program.body) if isinstance(n, For) and n.kind == "vector"]


@pytest.mark.parametrize("vector_bytes", [16, 64])
@pytest.mark.parametrize(("name", "program", "sizes"), cases())
@pytest.mark.few(40)
def test_same_results(name: str, program: Function, sizes: dict[str, int], vector_bytes: int) -> None:
    after, _ = vectorize(program, vector_bytes=vector_bytes)
    assert all(node.width > 1 for node in vector_loops(after))
    expected, found = run(program, sizes), run(after, sizes)
    for array_name, values in expected.items():
        np.testing.assert_array_equal(found[array_name], values, err_msg=f"{name}: {array_name}\n{loops_text(after)}")


def test_dense_text(golden: Golden) -> None:
    # Registers with lanes, two vectors jammed over a shared k loop, one vector, the masked end.
    after, _ = vectorize(generate(dense_schedule(8, 50, 21), name="dense"), vector_bytes=64)
    golden("codegen/vectorize_dense", loops_text(after))


def test_softmax_text(golden: Golden) -> None:
    # Four accumulators, combined lane by lane and then across.
    after, notes = vectorize(generate(softmax_schedule(5, 71), name="softmax"), vector_bytes=64)
    golden("codegen/vectorize_softmax", loops_text(after))
    assert [note.text for note in notes][:2] == [
        "16 lanes, 4 vectors at once, reduces top in lanes",
        "16 lanes, 4 vectors at once, reduces s in lanes",
    ]


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (3, [(4, 4, True)]),  # fewer than a vector: the shortest one that holds them, masked
        (9, [(16, 16, True)]),
        (8, [(8, 8, False)]),  # a power of two: all of its lanes
        (16, [(16, 16, False)]),
        (32, [(16, 32, False)]),  # a multiple: no tail
        (50, [(16, 32, False), (16, 16, False), (16, 16, True)]),
        (35, [(16, 32, False), (16, 16, True)]),
    ],
)
def test_parts_for_known_sizes(n: int, expected: list[tuple[int, int, bool]]) -> None:
    after, _ = vectorize(copy_with_neighbours(n), vector_bytes=64)
    assert [(part.width, part.step, part.masked) for part in vector_loops(after)] == expected


def test_width_follows_the_widest_type() -> None:
    def widths(value: Apply) -> set[int]:
        body = loop("i", 0, 256, Assign(target=put("y", "i"), value=value), kind="vector")
        program = function(body, arguments=[array("x", 256), array("y", 256, dtype=value.dtype)], written="y")
        return {part.width for part in vector_loops(vectorize(program, vector_bytes=64)[0])}

    assert widths(call("mul", at("x", "i"), at("x", "i"))) == {16}
    assert widths(Apply("cast", (at("x", "i"),), f64)) == {8}
    # An index as a number does not count: only its conversion does.
    assert widths(call("mul", at("x", "i"), Apply("cast", (index("i"),), f32))) == {16}
    # Nor does how a number is computed that all lanes share, unless they compute with it as it is.
    shared = call("sqrt", Apply("cast", (index("n"),), f64))
    assert widths(call("mul", at("x", "i"), Apply("cast", (shared,), f32))) == {16}
    assert widths(call("mul", Apply("cast", (at("x", "i"),), f64), shared)) == {8}
    own = call("sqrt", Apply("cast", (index("i"),), f64))
    assert widths(call("mul", at("x", "i"), Apply("cast", (own,), f32))) == {8}


def test_precise_sums_stay_in_order() -> None:
    after, notes = vectorize(reductions(40), vector_bytes=64, precise=True)
    assert any("lanes share the element s[1]" in note.text for note in notes)
    kinds = [node.kind for node in walk_nodes(after.body) if isinstance(node, For) and node.variable == "i"]
    assert kinds[0] == "sequential"  # the sum
    assert "vector" in kinds[1:]  # maximum and argmax


def refusals() -> list[tuple[str, Function]]:
    total = Assign(target=put("y", "k"), value=at("x", "i"), reduction="sum")
    scattered = Assign(target=put("y", at("ids", "i", dtype=i64)), value=at("x", "i"), reduction="sum")
    shared = Assign(target=put("y", affine("i") // 4), value=at("x", "i"), reduction="sum")
    last = Assign(target=put("y", 0), value=at("x", "i"))
    peeked = (
        Assign(target=put("y", 0), value=at("x", "i"), reduction="sum"),
        Assign(target=put("z", "i"), value=at("y", 0)),
    )
    arguments = [array("x", 64), array("y", 64), array("z", 64), array("ids", 64, dtype=i64)]
    bodies = {
        r"lanes share the element y\[k\]": (loop("k", 0, 3, total),),
        r"lanes may write one element of y": (scattered,),
        r"lanes may write one element of y ": (shared,),
        r"lanes share the element y\[0\]": (last,),
        r"lanes share the element y\[0\] ": peeked,
    }
    made = [
        (reason.strip(), function(loop("i", 0, 64, *body, kind="vector"), arguments=arguments, written="y z"))
        for reason, body in bodies.items()
    ]
    by_lane = Assign(target=put("y", 0), value=at("x", "k"), reduction="sum")
    body = loop("i", 0, 64, loop("k", 0, "i", by_lane), kind="vector")
    return [*made, ("lanes that share a sum", function(body, arguments=arguments, written="y"))]


def test_triangles_become_strips(golden: Golden) -> None:
    # What all lanes of a vector run, then what some do, under a condition; the end is masked.
    after, _ = vectorize(triangle(20), vector_bytes=32)
    golden("codegen/vectorize_triangle", loops_text(after))


@pytest.mark.parametrize(("reason", "program"), refusals())
def test_refusals_leave_a_scalar_loop(reason: str, program: Function) -> None:
    after, (note,) = vectorize(program, vector_bytes=64)
    assert not vector_loops(after)
    assert re.search(reason, note.text), note.text


def test_nothing_to_do_is_the_same_object() -> None:
    program = function(
        Allocate(variable=register("t"), body=(If(condition=call("gt", at("x", 0), at("x", 1)), then=()),)),
        arguments=[array("x", 2)],
        written="",
    )
    assert vectorize(program, vector_bytes=64)[0] is program


def tile(columns: int, *first: Assign, factor: int = 3) -> Function:
    """z[a] (+)= sum over k of x[k] * y[k, a], in vectors."""
    update = Assign(target=put("z", "a"), value=call("mul", at("x", "k"), at("y", "k", "a")), reduction="sum")
    body = loop("a", 0, columns, *first, loop("k", 0, 9, update), kind="vector", factor=factor)
    return function(body, arguments=[array("x", 9), array("y", 9, columns), array("z", columns)], written="z")


@pytest.mark.parametrize(("columns", "starts"), [(24, [0, 8]), (17, [0, 1]), (47, [0, 16, 31]), (33, [0, 16, 17])])
def test_the_last_vector_of_a_tile_overlaps_the_one_before(columns: int, starts: list[int]) -> None:
    before = tile(columns, Assign(target=put("z", "a"), value=number(0.0), streaming=True))
    after, (note,) = vectorize(before, vector_bytes=64)
    (found,) = vector_loops(after)
    assert (found.upper, found.step, found.masked) == (affine(16), 16, False)
    stores = [n for n in walk_nodes(found.body) if isinstance(n, Assign) and n.target.variable == "z"]
    assert [store.target.subscripts[0] for store in stores] == [affine("a") + start for start in starts]
    assert all(store.streaming and store.reduction is None for store in stores)
    assert "overlapping" in note.text
    np.testing.assert_array_equal(run(after, {})["z"], run(before, {})["z"])


@pytest.mark.parametrize(
    "first",
    [
        (),  # adds to what is there
        (Assign(target=put("z", "a"), value=at("z", "a")),),
        (Assign(target=put("y", 0, "a"), value=number(1.0)),),
    ],
)
def test_what_starts_from_memory_is_computed_once(first: tuple[Assign, ...]) -> None:
    before = tile(24, *first)
    after, _ = vectorize(before, vector_bytes=64)
    assert [(part.width, part.masked) for part in vector_loops(after)] != [(16, False)]
    np.testing.assert_array_equal(run(after, {})["z"], run(before, {})["z"])


@pytest.mark.parametrize(("columns", "factor"), [(32, 3), (12, 3), (50, 3), (24, 1)])
def test_whole_narrow_and_long_rows_do_not_overlap(columns: int, factor: int) -> None:
    before = tile(columns, Assign(target=put("z", "a"), value=number(0.0)), factor=factor)
    after, notes = vectorize(before, vector_bytes=64)
    assert not any("overlapping" in note.text for note in notes)
    np.testing.assert_array_equal(run(after, {})["z"], run(before, {})["z"])


def any_tile(*first: Assign | If, factor: int = 3, last: tuple[If, ...] = (), terms: int = 17) -> Function:
    """The same over the columns from C to M, of which nobody knows how many there are. last: what follows the sum."""
    update = Assign(target=put("z", "a"), value=call("mul", at("x", "k"), at("y", "k", "a")), reduction="sum")
    body = loop("a", affine("C"), affine("M"), *first, loop("k", 0, terms, update), *last, kind="vector", factor=factor)
    arguments = [array("x", terms), array("y", terms, "M"), array("z", "M")]
    return function(body, arguments=arguments, written="z", sizes=("M", "C", "B"))


BEGINS = Assign(target=put("z", "a"), value=number(0.0))
FIRST_BLOCK = If(condition=call("eq", index("B"), index(0)), then=(BEGINS,))
"""Sums begin in the first of several blocks, and go on in others."""


@pytest.mark.parametrize("first", [BEGINS, FIRST_BLOCK], ids=["begins", "goes on"])
@pytest.mark.parametrize("block", [0, 1, 2])
@pytest.mark.few(3)
def test_sums_that_a_condition_leaves_alone_keep_what_they_have(first: Assign | If, block: int) -> None:
    finish = Assign(target=put("z", "a"), value=call("add", at("z", "a"), number(2.0)))
    before = any_tile(first, last=(If(condition=call("eq", index("B"), index(1)), then=(finish,)),))
    after, (note,) = vectorize(before, vector_bytes=64)
    assert "overlapping" in note.text
    for columns in (30, 50, 130):
        sizes = {"C": 0, "M": columns, "B": block}
        np.testing.assert_array_equal(run(after, sizes)["z"], run(before, sizes)["z"], err_msg=str(sizes))


@pytest.mark.parametrize("first", [BEGINS, FIRST_BLOCK], ids=["begins", "goes on"])
@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.few(1)
def test_vectors_of_columns_of_unknown_number_overlap_at_the_end(first: Assign | If, factor: int) -> None:
    before = any_tile(first, factor=factor)
    after, (note,) = vectorize(before, vector_bytes=64)
    assert "the last ones overlapping at the end" in note.text
    assert [part.masked for part in vector_loops(after)] == [False, True]
    places = ((0, 0), (3, 0), (0, 1), (5, 15), (0, 16), (2, 17), (0, 31), (7, 32), (0, 33), (1, 47))
    for nth, (start, columns) in enumerate(places):
        for block, end in enumerate((start + columns, start + columns + 16 * factor)):
            sizes = {"C": start, "M": max(end, 1), "B": (block + nth) % 2}
            np.testing.assert_array_equal(run(after, sizes)["z"], run(before, sizes)["z"], err_msg=str(sizes))


def test_vectors_of_few_terms_do_not_overlap() -> None:
    before = any_tile(BEGINS, terms=16)
    after, notes = vectorize(before, vector_bytes=64)
    assert not any("overlapping" in note.text for note in notes)
    sizes = {"C": 2, "M": 60, "B": 0}
    np.testing.assert_array_equal(run(after, sizes)["z"], run(before, sizes)["z"])


@pytest.mark.parametrize(("taps", "stride", "apart", "ahead"), [(3, 1, 1, 1), (3, 2, 1, 1), (7, 1, 2, 9), (4, 3, 1, 0)])
def test_whole_windows_of_rows_of_any_length_ask_nothing(taps: int, stride: int, apart: int, ahead: int) -> None:
    # Taps that no element of x has are left out: 0 <= stride*a + apart*k - ahead < M.
    place = stride * affine("a") - ahead
    first, behind = (
        maximum([(apart - 1 - place) // apart, affine(0)]),
        minimum([(affine("M") - place + (apart - 1)) // apart, affine(taps)]),
    )
    update = Assign(
        target=put("z", "a"), value=call("mul", at("x", place + apart * affine("k")), at("y", "k")), reduction="sum"
    )
    body = loop("a", affine("C"), affine("M"), BEGINS, loop("k", first, behind, update), kind="vector")
    arguments = [array("x", "M"), array("y", taps), array("z", "M")]
    before = function(body, arguments=arguments, written="z", sizes=("M", "C"))
    after, (note,) = vectorize(before, vector_bytes=16)
    assert "whole windows" in note.text
    parts = [(any(isinstance(n, If) for n in walk_nodes(part.body)), part.masked) for part in vector_loops(after)]
    assert parts == [(False, False), (True, False), (True, True)]
    for start in (0, 1, 3):
        for columns in (0, 1, 2, 3, 4, 5, 9, 22, 37):
            sizes = {"C": start, "M": start + columns}
            np.testing.assert_array_equal(run(after, sizes)["z"], run(before, sizes)["z"], err_msg=str(sizes))


def test_windows_that_go_on_with_what_is_there_run_once() -> None:
    first, behind = maximum([1 - affine("a"), affine(0)]), minimum([affine("M") - affine("a") + 1, affine(3)])
    element = at("x", affine("a") + affine("k") - 1)
    update = Assign(target=put("z", "a"), value=call("add", call("mul", at("z", "a"), at("y", "k")), element))
    body = loop("a", 0, affine("M"), loop("k", first, behind, update), kind="vector")
    arguments = [array("x", "M"), array("y", 3), array("z", "M")]
    before = function(body, arguments=arguments, written="z", sizes=("M",))
    after, _ = vectorize(before, vector_bytes=16)
    for columns in (3, 5, 9):
        sizes = {"M": columns}
        np.testing.assert_array_equal(run(after, sizes)["z"], run(before, sizes)["z"])


@pytest.mark.parametrize(
    "first",
    [
        If(condition=call("eq", index("a"), index(0)), then=(BEGINS,)),  # in some lanes
        If(condition=call("gt", at("z", 0), number(0.0)), then=(BEGINS,)),  # by what is written
        If(condition=call("eq", index("B"), index(0)), then=(BEGINS,), otherwise=(BEGINS,)),
    ],
)
def test_sums_that_begin_otherwise_do_not_overlap(first: If) -> None:
    before = any_tile(first)
    after, notes = vectorize(before, vector_bytes=64)
    assert not any("overlapping" in note.text for note in notes)
    sizes = {"C": 2, "M": 60, "B": 0}
    np.testing.assert_array_equal(run(after, sizes)["z"], run(before, sizes)["z"])
