"""Values that stay in registers from one iteration to the next: before and after, interpreted; what is left in memory, and what is not touched."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polyml.codegen.loops import Allocate, Assign, For, Function, If, Node
from polyml.codegen.passes.registers.carried import carry_values
from polyml.codegen.passes.vectors.vectorize import vectorize
from polyml.codegen.printer import loops_text
from polyml.codegen.rewrite import is_empty, uses, walk_nodes
from polyml.expressions import reads_of
from polyml.sets.affine import affine
from tests.codegen.passes.transposes.test_transposes import MAKERS, SHAPES, plus
from tests.codegen.programs import Extent, agree, array, at, call, function, local, loop, number, put

I, J = affine("i"), affine("j")


def row(body: Assign | tuple[Node, ...], *, start: int = 2, end: Extent = "M") -> Function:
    """A loop over the rows of eight lanes."""
    nodes = body if isinstance(body, tuple) else (body,)
    nest = loop("i", 0, 8, loop("j", start, end, *nodes), kind="vector")
    arrays = [array(name, 16, "M") for name in ("x", "y", "z")]
    return vectorize(function(nest, arguments=arrays, written="y z", sizes=["M"]), vector_bytes=32)[0]


def second_order(end: Extent = 20) -> Function:
    value = plus(at("y", "i", J - 1), at("x", "i", "j"), at("y", "i", J - 2))
    return row(Assign(target=put("y", "i", "j"), value=value), end=end)


def read_after_the_write() -> Function:
    value = plus(at("y", "i", "j"), at("y", "i", J - 1), at("y", "i", J + 1))
    behind = Assign(target=put("z", "i", "j"), value=plus(at("y", "i", "j"), at("y", "i", J - 1)))
    return row((Assign(target=put("y", "i", "j"), value=value), behind), end=19)


def in_steps_of_two() -> Function:
    """Elements two apart, and one of them three iterations back."""
    value = plus(at("y", "i", J * 2 - 2), at("x", "i", "j"), at("y", "i", J * 2 - 6), at("y", "i", J * 2 - 1))
    return row(Assign(target=put("y", "i", J * 2), value=value), start=3, end=10)


def sometimes() -> Function:
    """The last value is read where x is positive only."""
    then = Assign(target=put("z", "i", "j"), value=at("y", "i", J - 1))
    condition = call("gt", at("x", "i", "j"), number(0.5))
    value = plus(at("x", "i", "j"), at("y", "i", J - 2))
    return row((Assign(target=put("y", "i", "j"), value=value), If(condition=condition, then=(then,))), end=20)


CARRIED: tuple[Callable[[], Function], ...] = (second_order, read_after_the_write, in_steps_of_two, sometimes)


def memory_reads(program: Function, name: str) -> int:
    """Reads of the array inside of sequential loops."""
    loops = [n for n in walk_nodes(program.body) if isinstance(n, For) and n.kind == "sequential"]
    return sum(u.read and u.variable == name for l in loops for n in walk_nodes(l.body) for u in uses(n))


@pytest.mark.parametrize("make", CARRIED)
def test_one_row(make: Callable[[], Function]) -> None:
    program, sizes = make(), {"M": 23}
    after = carry_values(program)
    assert memory_reads(after, "y") < memory_reads(program, "y"), loops_text(after)
    agree(program, after, sizes)


@pytest.mark.parametrize("vector_bytes", [16, 32])
@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.few(3)
def test_rows_in_lanes(make: Callable[..., Function], factor: int, vector_bytes: int) -> None:
    for n, m in SHAPES:
        program = make(n, m, factor=factor)
        before = vectorize(program, vector_bytes=vector_bytes)[0]
        after = carry_values(before)
        agree(program, after, {}, f"{n} x {m}")


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 7])
def test_rows_of_any_length(length: int) -> None:
    """What is loaded ahead is in the row, whatever its length: reads two apart ask for one iteration, one read two apart for two."""
    far = row(Assign(target=put("y", "i", "j"), value=plus(at("y", "i", J - 2), at("x", "i", "j"))))
    for program, kept in ((second_order("M"), 0), (far, 1)):
        after, sizes = carry_values(program), {"M": length + 2}
        assert memory_reads(after, "y") == kept, loops_text(after)
        agree(program, after, sizes)


def test_every_read_of_a_recurrence_is_a_register() -> None:
    after = carry_values(second_order())
    assert memory_reads(after, "y") == 0
    # The row of x has a single access, which needs no register.
    assert memory_reads(after, "x") == 1


def scratch(last: int) -> Function:
    """A recurrence in scratch memory t, of which the loop behind reads the elements below `last`."""
    store = Assign(target=put("t", "j"), value=plus(at("t", J - 1), at("x", "i", "j")))
    body = (
        Assign(target=put("t", 0), value=at("x", "i", 0)),
        loop("j", 1, 20, store, Assign(target=put("y", "i", "j"), value=at("t", "j"))),
        loop("j", 0, last, Assign(target=put("z", "i", "j"), value=at("t", "j"))),
    )
    nest = loop("i", 0, 8, Allocate(variable=local("t", 20), body=body), kind="vector")
    program = function(nest, arguments=[array(name, 8, 20) for name in ("x", "y", "z")], written="y z")
    return vectorize(program, vector_bytes=32)[0]


@pytest.mark.parametrize(("last", "stores"), [(1, 1), (2, 2)])
def test_scratch_memory_that_nobody_reads_is_not_written(last: int, stores: int) -> None:
    program = scratch(last)
    after = carry_values(program)
    found = [n for n in walk_nodes(after.body) if isinstance(n, Assign) and n.target.variable == "t"]
    assert len(found) == stores, loops_text(after)
    agree(program, after, {})


def test_nothing_is_left_of_loops_that_fill_what_nobody_reads() -> None:
    """A loop that transposes is one copy to an emitter, or none."""
    step = Assign(target=put("t", "j"), value=plus(at("t", J - 1), at("x", "i", "j")))
    copy = loop("j", 20, 28, Assign(target=put("t", "j"), value=at("x", "i", "j")), kind="transpose")
    body = (
        If(condition=call("gt", at("x", 0, 0), number(0.0)), then=(loop("b", 0, 1, copy),)),
        Assign(target=put("t", 0), value=at("x", "i", 0)),
        loop("j", 1, 20, step, Assign(target=put("y", "i", "j"), value=at("t", "j"))),
    )
    nest = loop("i", 0, 8, Allocate(variable=local("t", 28), body=body), kind="vector")
    program = function(nest, arguments=[array(name, 8, 28) for name in ("x", "y")], written="y")
    program = vectorize(program, vector_bytes=32)[0]
    after = carry_values(program)
    assert sum(isinstance(n, For) for n in walk_nodes(after.body)) == 2, loops_text(after)
    assert not any(is_empty(n) for n in walk_nodes(after.body)), loops_text(after)
    agree(program, after, {})


def test_what_is_left_alone() -> None:
    last = at("y", "i", J - 1)
    store = Assign(target=put("y", "i", "j"), value=plus(last, at("x", "i", "j")))
    plain = Assign(target=put("y", "i", "j"), value=plus(at("x", "i", "j"), at("x", "i", J - 1)))
    twice = (store, Assign(target=put("y", "i", J + 1), value=last))
    other = (store, Assign(target=put("y", affine("M") - 20, "j"), value=number(1.0)))
    condition = call("gt", at("x", "i", "j"), number(0.0))
    programs = {
        "without a recurrence": row(plain, end=9),
        "written twice": row(twice, end=9),
        "written sometimes": row((If(condition=condition, then=(store,)),), end=9),
        "too few iterations": second_order(3),
        "far apart": row(Assign(target=put("y", "i", "j"), value=at("y", "i", J - 9)), start=9, end=20),
        "another row that may be this one": row(other, end=9),
        "a sum": row(Assign(target=put("y", "i", "j"), value=last, reduction="sum"), end=9),
    }
    for name, program in programs.items():
        assert carry_values(program) is program, f"{name}\n{loops_text(carry_values(program))}"


def test_a_recurrence_without_lanes() -> None:
    step = Assign(target=put("y", 0, "j"), value=plus(at("y", 0, J - 1), at("y", 0, J - 2)))
    program = function(loop("j", 2, 9, step), arguments=[array("y", 3, 9)], written="y")
    after = carry_values(program)
    reads = [
        r
        for n in walk_nodes(after.body)
        if isinstance(n, For)
        for k in walk_nodes(n.body)
        if isinstance(k, Assign)
        for r in reads_of(k.value)
    ]
    assert reads, loops_text(after)
    assert all(not r.subscripts for r in reads), loops_text(after)
    agree(program, after, {})
