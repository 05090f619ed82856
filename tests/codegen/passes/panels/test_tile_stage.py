"""Runs of tiles that are collected in scratch memory: how long they may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from polyml.codegen.loops import Allocate, Assign, Function
from polyml.codegen.passes.panels import tile_stage
from polyml.codegen.passes.panels.tile_stage import stage_tiles
from polyml.codegen.rewrite import walk_nodes
from polyml.sets.affine import affine
from tests.codegen.programs import array, at, function, loop, put


def rows(count: int) -> Function:
    """z[b, a] = x[b, a] past the caches, rows of 24."""
    x, z = array("x", count, 24), array("z", count, 24)
    move = Assign(target=put("z", "b", "a"), value=at("x", "b", "a"), streaming=True)
    tiles = [
        replace(loop("a", lower, upper, move, kind="vector", step=upper - lower), width=upper - lower)
        for lower, upper in ((0, 16), (16, 24))
    ]
    return function(loop("b", 0, count, *tiles), arguments=[x, z], written="z")


@pytest.mark.parametrize(("count", "staged"), [(20, True), (42, True), (44, False), (100000, False)])
def test_as_long_as_an_eighth_of_the_cache(count: int, staged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 KiB hold 42 rows; a longer loop is given up where it gets there, not at its end."""
    looked: list[object] = []
    pieces = tile_stage._pieces

    def counted(*args: object) -> Iterator[object]:
        for piece in pieces(*args):  # type: ignore[arg-type]
            looked.append(piece)
            yield piece

    monkeypatch.setattr(tile_stage, "_pieces", counted)
    made = stage_tiles(rows(count), vector_bytes=64, l1_bytes=1 << 15)
    found = [n.variable for n in walk_nodes(made.body) if isinstance(n, Allocate)]
    assert [v.shape for v in found] == ([(affine(24 * count),)] if staged else [])
    assert len(looked) <= 90
