"""Register tiles that stream their results: the stores fill lines, whatever the length of a vector; all others stay in the caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import Allocate, Assign, For, Function, If, Node
from polyml.codegen.passes.panels.tile_streams import stream_tiles
from polyml.codegen.rewrite import walk_nodes
from polyml.sets.affine import affine
from polyml.target import Target
from tests.codegen.programs import Extent, array, at, function, local, loop, number, put

HALF = 8
"""Elements of f32 in half a line."""


def tile(
    shape: tuple[Extent, ...], places: Sequence[tuple[int, int]], lanes: int = HALF, step: int = 8, sizes: str = ""
) -> Function:
    """Rows i, i + 1, ... of z, vectors at those columns: z[i + row, column .. column + lanes] = s, where s was a sum."""
    total = loop("k", 0, 10, Assign(target=put("s"), value=at("x", "k"), reduction="sum"))
    stores = [
        Assign(target=put("z", affine("i") + row, affine("j") + column), value=number(1.0), streaming=True)
        for row, column in places
    ]
    lane_loop = replace(loop("j", 0, lanes, total, *stores, kind="vector", step=lanes), width=lanes)
    nest = loop("i", 0, 64, lane_loop, step=step)
    return function(
        nest, arguments=[array("z", *shape), array("x", 10), array("s")], written="z s", sizes=sizes.split()
    )


def streams(program: Function, vector_bytes: int = 4 * HALF) -> int:
    """How many stores go past the caches, under the condition that the array lies at a line."""
    made = stream_tiles(program, vector_bytes=vector_bytes, line_bytes=64)
    assert all(lead.bytes == 64 for lead in made.leads)
    found = [node for node in walk_nodes(made.body) if isinstance(node, Assign) and node.streaming]
    guarded = [node for branch in walk_nodes(made.body) if isinstance(branch, If) for node in walk_nodes(branch.then)]
    assert {id(node) for node in found} == {id(node) for node in guarded}
    return len(found)


def test_lines_of_two_vectors_each() -> None:
    assert streams(tile((72, 160), [(0, 0), (0, 8), (1, 0), (1, 8)])) == 4
    assert streams(tile((72, 160), [(0, 16), (0, 24), (1, 0), (1, 8)])) == 4


@pytest.mark.parametrize(
    "places",
    [
        [(0, 0), (1, 0)],  # half lines
        [(0, 0), (0, 8), (0, 16), (1, 0), (1, 8), (1, 16)],  # and a half, then a gap
        [(0, 8), (0, 16), (1, 8), (1, 16)],  # halves of neighbouring lines
        [(0, 8), (0, 0), (1, 8), (1, 0)],  # in another order
        [(0, 0), (1, 8), (2, 0), (3, 8)],  # of different rows
    ],
)
def test_parts_of_lines_stay_in_the_caches(places: list[tuple[int, int]]) -> None:
    assert streams(tile((72, 160), places)) == 0


def test_vectors_as_long_as_lines() -> None:
    assert streams(tile((72, 160), [(0, 0), (1, 0)], lanes=16), vector_bytes=64) == 2
    assert streams(tile((72, 168), [(0, 0), (1, 0)], lanes=16), vector_bytes=64) == 0  # rows that are no whole lines


@pytest.mark.parametrize(("columns", "count"), [(256, 0), (768, 0), (128, 8), (640, 8), (272, 8)])
def test_rows_that_meet_in_a_channel_of_memory_stay_in_the_caches(columns: int, count: int) -> None:
    lines = [(row, column) for row in range(4) for column in (0, 8)]
    assert streams(tile((72, columns), lines)) == count
    assert streams(tile((72, 2 * columns), [(row, 2 * c) for row, c in lines], lanes=16), vector_bytes=64) == 8
    assert streams(tile((72, 256), [(0, 0), (0, 8), (0, 16), (0, 24)])) == 4  # one row
    pairs = [(row, column) for row in range(4) for column in (0, 8, 16, 24)]
    assert streams(tile((72, columns), pairs)) == 2 * count


@pytest.mark.parametrize(("read", "count"), [("other", 4), ("kept", 0)])
def test_what_scratch_memory_keeps_between_them_is_stored_ahead(read: str, count: int) -> None:
    """kept = v; z = v between stores of a line; not where these read what it overwrites."""
    program = tile((72, 160), [(0, 0), (0, 8), (1, 0), (1, 8)])
    keep = Assign(target=put("kept", "j"), value=at("s"))

    def between(node: Node) -> Node:
        body = tuple(between(child) for child in getattr(node, "body", ()))
        stores = [replace(n, value=at(read, "j")) for n in body if isinstance(n, Assign) and n.streaming]
        others = [n for n in body if not (isinstance(n, Assign) and n.streaming)]
        mixed = [n for store in stores for n in (store, keep)]
        return replace(node, body=(*others, *mixed)) if isinstance(node, For) else node

    body = tuple(between(node) for node in program.body)
    for name in ("other", "kept"):
        body = (Allocate(variable=local(name, 8), body=body),)
    assert streams(replace(program, body=body)) == count


def test_rows_that_follow_each_other_may_begin_anywhere() -> None:
    rows = [(row, column) for row in range(7) for column in (0, 8, 16)]
    assert streams(tile((72, 24), rows, step=7)) == 21
    assert streams(tile((72, 24), rows[:6], step=2)) == 6  # three whole lines
    assert streams(tile((72, 24), rows[:6], step=7)) == 0
    assert streams(tile((72, 24), [place for place in rows if place != (3, 8)], step=7)) == 0


def test_rows_of_unknown_length_ask_for_whole_lines() -> None:
    program = tile((72, "M"), [(0, 0), (0, 8), (1, 0), (1, 8)], sizes="M")
    assert streams(program) == 4
    (branch,) = (n for n in walk_nodes(stream_tiles(program, vector_bytes=32, line_bytes=64).body) if isinstance(n, If))
    assert "M" in str(branch.condition)
    assert "16" in str(branch.condition)
    assert "256" in str(branch.condition)  # and no multiple of a kilobyte
    assert streams(tile((72, "M"), [(0, 0), (1, 8)], sizes="M")) == 0


@pytest.mark.skipif(not Target("x86-64-v3").runs_here, reason="this machine has no AVX2")
@pytest.mark.parametrize("n", [20, 24, 40])
def test_batches_with_short_rows_are_right(n: int) -> None:
    program = polyml.einsum(
        'def f(x: f32["B N K"], y: f32["B K M"]):\n    z[b, n, m] = x[b, n, k] * y[b, k, m]\n    return z',
        target=Target("x86-64-v3", l2_bytes=64 << 10, l3_bytes=0),
    )
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((2, 300, n, n)).astype("f4")
    np.testing.assert_allclose(program(x, y), x @ y, rtol=1e-4, atol=1e-4)
