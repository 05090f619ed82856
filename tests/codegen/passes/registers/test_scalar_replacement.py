"""Elements in registers where nothing but a loop is sure to write them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polyml.codegen.loops import Allocate, Assign, For, If, Node
from polyml.codegen.passes.registers.scalar_replacement import scalar_replacement
from polyml.codegen.printer import loops_text
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import i32, i64
from polyml.expressions import Const, reads_of
from polyml.sets.affine import affine
from tests.codegen.programs import agree, array, at, call, function, index, local, loop, number, put


def test_a_loop_that_may_be_empty_beside_a_read_under_a_condition() -> None:
    """The sum has a register for as long as its loop runs; the condition's read stays what it was."""
    add = Assign(target=put("y", "i"), value=at("x", "i", "k"), reduction="sum")
    take = Assign(target=put("z", "i"), value=at("y", "i"))
    positive = call("gt", at("x", "i", 0), number(0.0))
    nest = loop("i", 0, 6, loop("k", 3, affine("i"), add), If(condition=positive, then=(take,)))
    program = function(nest, arguments=[array("x", 6, 6), array("y", 6), array("z", 6)], written="y z")
    after = scalar_replacement(program)
    (sums,) = (n for n in walk_nodes(after.body) if isinstance(n, For) and n.variable == "k")
    (inside,) = (n for n in sums.body if isinstance(n, Assign))
    assert not inside.target.subscripts, loops_text(after)
    kept = {
        r.tensor
        for n in walk_nodes(after.body)
        if isinstance(n, Assign) and n.target.variable == "z"
        for r in reads_of(n.value)
    }
    assert kept == {"y"}, loops_text(after)
    agree(program, after, {})


def test_loops_of_one_name() -> None:
    """One of them passes the element that the other one stops short of: it stays in memory."""
    before = Assign(target=put("y", "k"), value=call("sub", at("x", "k"), at("y", "k")))
    add = Assign(target=put("z", "k"), value=at("y", "i"), reduction="sum")
    take = Assign(target=put("y", "i"), value=call("sub", at("y", "i"), at("z", "k")))
    for second in (loop("i", 0, affine("k"), take), loop("i", affine("k") + 1, 6, take)):
        nest = loop("k", 0, 6, before, loop("i", 0, 6, add), second, before)
        program = function(nest, arguments=[array("x", 6), array("y", 6), array("z", 6)], written="y z")
        after = scalar_replacement(program)
        agree(program, after, {})
        text = loops_text(after)
        assert "y_value" not in text, text
        # Without the loop that passes it nothing keeps it from being one.
        nest = loop("k", 0, 6, before, second, before)
        program = function(nest, arguments=[array("x", 6), array("y", 6), array("z", 6)], written="y")
        after = scalar_replacement(program)
        agree(program, after, {})
        assert "y_value" in loops_text(after)


def test_several_reads_at_places_that_are_read() -> None:
    """One of them may be the element that stays, which then is in memory, though the last one never is."""
    store = Assign(target=put("y", "i", 0), value=at("x", "i"))
    other = Assign(target=put("y", affine("i") + 3, 0), value=at("x", affine("i") + 3))
    gathered = [at("y", row, at("g", 0, dtype=i32)) for row in (affine("i"), affine("i") + 3)]
    take = Assign(target=put("z", "i"), value=call("add", call("add", *gathered), at("y", "i", 0)))
    program = function(
        loop("i", 0, 3, store, other, take),
        arguments=[array("x", 6), array("g", 1, dtype=i32), array("y", 6, 1), array("z", 3)],
        written="y z",
    )
    after = scalar_replacement(program)
    assert "y_value" not in loops_text(after), loops_text(after)


def test_elements_of_which_each_lane_has_its_own() -> None:
    """Maxima along rows, which go to scratch memory of the lanes: a row's is in a register while it is looked for, stored once, and read by the lane that found it. The last lanes are masked,
    and the parts of a loop, with vectors of two lengths, have memory of one name."""
    look = Assign(target=put("r", "i"), value=at("x", "i", affine("j") + affine("s")), reduction="max")
    rows = loop("i", 0, 5, Assign(target=put("r", "i"), value=number(-np.inf)), loop("s", 0, 3, look))
    add = Assign(target=put("y", "j"), value=at("r", "i"), reduction="sum")
    parts: list[Node] = []
    for width, lower, upper, masked in ((4, 0, 8, False), (2, 8, 11, True)):
        room = Allocate(variable=replace(local("r", 5), lanes=width), body=(rows, loop("i", 0, 5, add)))
        part = loop("j", lower, upper, room, kind="vector", step=width)
        parts.append(replace(part, width=width, masked=masked))
    program = function(*parts, arguments=[array("x", 5, 13), array("y", 11)], written="y")
    after = scalar_replacement(program)
    agree(program, after, {})
    for search in (n for n in walk_nodes(after.body) if isinstance(n, For) and n.variable == "s"):
        targets = [n.target for n in walk_nodes(search.body) if isinstance(n, Assign)]
        assert not any(target.subscripts for target in targets), loops_text(after)
    room_of = [n.variable for n in walk_nodes(after.body) if isinstance(n, Allocate)]
    assert [v.lanes for v in room_of if v.name.startswith("r_value")] == [4, 2], loops_text(after)


def test_what_a_condition_reads_before_it_begins_anew_is_loaded() -> None:
    begins = If(
        condition=call("eq", index("t"), Const(2, i64)),
        then=(
            Assign(target=put("z", 0), value=at("y", "t")),
            Assign(target=put("y", "t"), value=number(0.0)),
        ),
    )
    sums = loop("k", 0, 5, Assign(target=put("y", "t"), value=at("x", "k"), reduction="sum"))
    arrays = [array("x", 5), array("y", 4), array("z", 1)]
    before = function(loop("t", 0, 4, begins, sums), arguments=arrays, written="y z")
    agree(before, scalar_replacement(before), {})
