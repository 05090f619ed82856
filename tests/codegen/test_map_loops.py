"""The walk of passes over loops: each loop is asked once, outermost first, with what is around it; what is left alone stays the same object."""

from __future__ import annotations

from dataclasses import replace

from polyml.codegen.loops import Assign, For, If
from polyml.codegen.map_loops import map_loops
from polyml.codegen.ranges import Ranges
from polyml.sets.affine import affine
from tests.codegen.programs import array, at, call, function, index, loop, number, put

STEP = Assign(target=put("y", "i"), value=at("x", "i"))
INNER = loop("k", 0, 4, STEP)
LANES = replace(loop("i", 0, 32, INNER, kind="vector"), width=8)
GUARDED = If(condition=call("lt", index("t"), number(3)), then=(LANES,))
PROGRAM = function(loop("t", 0, 5, GUARDED), INNER, arguments=[array("x", 32), array("y", 32)], written="y")


def test_loops_are_asked_outermost_first_with_what_is_around_them() -> None:
    asked = []

    def change(loop: For, ranges: Ranges, lanes: For | None) -> None:
        asked.append((loop.variable, [outer.variable for outer in ranges.loops], lanes and lanes.variable))

    assert map_loops(PROGRAM, change) is PROGRAM
    assert asked == [("t", [], None), ("i", ["t"], None), ("k", ["t", "i"], "i"), ("k", [], None)]
    assert map_loops(PROGRAM, lambda loop, *_: loop) is PROGRAM


def test_a_loop_becomes_one_node_or_several_and_is_not_asked_again() -> None:
    def halves(loop: For, ranges: Ranges, lanes: For | None) -> tuple[For, ...] | For | None:
        if lanes is None:
            return replace(loop, factor=2) if loop.variable == "k" else None
        return replace(loop, upper=affine(2)), replace(loop, lower=affine(2))

    made = map_loops(PROGRAM, halves)
    ends = (replace(INNER, upper=affine(2)), replace(INNER, lower=affine(2)))
    guarded = replace(GUARDED, then=(replace(LANES, body=ends),))
    assert made.body == (loop("t", 0, 5, guarded), replace(INNER, factor=2))
