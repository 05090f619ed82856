"""Jam, unroll, simplify, scalar replacement, and all passes in order: the same results, and the shapes they are for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.codegen.generate import generate
from polyml.codegen.loops import Allocate, Assign, Block, Bounds, For, Function, If, Node
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.codegen.passes.registers.scalar_replacement import scalar_replacement
from polyml.codegen.passes.simplify import simplify
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.passes.unrolling.unroll import unroll
from polyml.codegen.passes.unrolling.unroll_and_jam import unroll_and_jam
from polyml.codegen.printer import loops_text
from polyml.codegen.ranges import Ranges, outside, remembered
from polyml.codegen.rewrite import nodes_of, uses, walk_nodes
from polyml.expressions import Apply, Expr
from polyml.sets.affine import Affine, FloorDiv, affine, maximum, minimum
from polyml.target import Target
from tests.codegen.hand import dense_schedule, softmax_schedule
from tests.codegen.programs import (
    array,
    at,
    call,
    cases,
    function,
    index,
    local,
    loop,
    matmul,
    number,
    padded_window,
    prefix,
    put,
    register,
    run,
    tiled_rows,
    triangle,
)

Golden = Callable[[str, str], None]

WIDE = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20, cores=2)


def lowered(program: Function, vector_bytes: int = 64) -> Function:
    return lower_loops(program, options=LoopOptions(vector_bytes=vector_bytes))[0]


PASSES: dict[str, Callable[[Function], Function]] = {
    "unroll_and_jam": lambda f: unroll_and_jam(f)[0],
    "unroll": unroll,
    "simplify": simplify,
    "scalar_replacement": scalar_replacement,
    "all-64": lowered,
    "all-16": lambda f: lowered(f, 16),
}


@pytest.mark.parametrize("step", PASSES)
@pytest.mark.parametrize(("name", "program", "sizes"), cases())
@pytest.mark.few(45)
def test_same_results(name: str, program: Function, sizes: dict[str, int], step: str) -> None:
    after = PASSES[step](program)
    expected, found = run(program, sizes), run(after, sizes)
    for array_name, values in expected.items():
        np.testing.assert_array_equal(found[array_name], values, err_msg=f"{name}: {array_name}\n{loops_text(after)}")


@pytest.mark.parametrize(("name", "program", "sizes"), cases()[::7])
def test_passes_are_idempotent(name: str, program: Function, sizes: dict[str, int]) -> None:
    after = simplify(lowered(program))
    assert simplify(after) is after, name
    again = scalar_replacement(after)
    assert scalar_replacement(again) is again, name


def test_matmul_text(golden: Golden) -> None:
    # Eight accumulators (four rows, two vectors): nothing touches memory in k but the operands.
    golden("codegen/lowered_matmul", loops_text(lowered(matmul(4, 32, 9))))


def test_softmax_text(golden: Golden) -> None:
    # The exponential is added from its register, and stored once.
    golden("codegen/lowered_softmax", loops_text(lowered(generate(softmax_schedule(2, 39), name="softmax"))))


def test_dense_text(golden: Golden) -> None:
    # Rest rows are one jammed copy; the masked end is jammed as well.
    golden("codegen/lowered_dense", loops_text(lowered(generate(dense_schedule(6, 19, 5), name="dense"))))


def test_every_pass_that_changes_something_is_reported() -> None:
    seen: list[str] = []
    lower_loops(matmul(5, 40, 9), options=LoopOptions(vector_bytes=64), on_pass=lambda name, program: seen.append(name))
    assert seen == ["vectorize", "unroll_and_jam", "unroll_sums", "unroll", "simplify_copies", "scalar_replacement"]


def memory_in(node: Node, name: str) -> int:
    """How often loops of variable `name` access arrays that are written in the function."""
    found = [inner for inner in walk_nodes([node]) if isinstance(inner, For) and inner.variable == name]
    return sum(use.write and bool(use.subscripts) for f in found for inner in walk_nodes(f.body) for use in uses(inner))


def test_accumulators_stay_in_registers() -> None:
    after = lowered(matmul(9, 50, 7))
    assert all(memory_in(node, "k") == 0 for node in after.body)
    lanes = [n.variable.lanes for n in walk_nodes(after.body) if isinstance(n, Allocate)]
    assert set(lanes) == {16}


def test_accumulation_into_memory_from_before() -> None:
    # No initialization in sight: loaded before k, stored after, and only when k runs at all.
    product = call("mul", at("x", "k"), at("x", "i"))
    body = loop("i", 0, 9, loop("k", 0, "K", Assign(target=put("c", "i"), value=product, reduction="sum")))
    program = function(body, arguments=[array("x", 9), array("c", 9)], written="c", sizes=["K"])
    after = scalar_replacement(program)
    (outer,) = after.body
    assert memory_in(outer, "k") == 0
    guards = [str(node.condition) for node in walk_nodes(after.body) if isinstance(node, If)]
    assert guards == ["(0 < K)"]
    for k in (0, 1, 4):
        np.testing.assert_array_equal(run(after, {"K": k})["c"], run(program, {"K": k})["c"])


def test_aliased_elements_stay_in_memory() -> None:
    # a[0] and a[j] are different elements for 1 <= j, and a[j] is read again; with j = 0 among them nothing may move.
    assert "c_value += a_value" in loops_text(scalar_replacement(prefix(4)))
    body = (
        Assign(target=put("a", "j"), value=call("add", at("a", 0), at("a", "j"))),
        Assign(target=put("a", 0), value=number(1.0), reduction="sum"),
    )
    program = function(loop("j", 0, 4, *body), arguments=[array("a", 4)], written="a")
    assert "a[0] += 1.0" in loops_text(scalar_replacement(program))


def test_conditional_elements_stay_in_memory() -> None:
    condition = call("gt", at("x", "k"), number(0.0))
    update = If(condition=condition, then=(Assign(target=put("c", 0), value=at("x", "k"), reduction="sum"),))
    program = function(loop("k", 0, 9, update), arguments=[array("x", 9), array("c", 1)], written="c")
    assert scalar_replacement(program) is program


def test_elements_that_threads_share_stay_in_memory() -> None:
    update = Assign(target=put("c", 0), value=at("x", "i"), reduction="sum")
    nest = loop("i", 0, 9, update, kind="parallel")
    program = function(nest, arguments=[array("x", 9), array("c", 1)], written="c")
    assert scalar_replacement(program) is program


def test_overlapping_vectors_stay_in_memory() -> None:
    # Lanes of y[i] and y[i + 1] meet; those of y[i] and y[i + 16] do not.
    def vectors(distance: int) -> Function:
        body = (
            Assign(target=put("y", "i"), value=at("x", "i"), reduction="sum"),
            Assign(target=put("y", affine("i") + distance), value=at("y", "i")),
        )
        nest = For(variable="i", lower=affine(0), upper=affine(32), step=32, kind="vector", width=16, body=body)
        return function(nest, arguments=[array("x", 64), array("y", 64)], written="y")

    assert scalar_replacement(vectors(1)) == vectors(1)
    assert "y_value" in loops_text(scalar_replacement(vectors(16)))


def test_what_a_condition_replaces_is_loaded_where_it_is_kept() -> None:
    def sums(condition: Expr, *first: Assign) -> Function:
        update = Assign(target=put("y", "i"), value=at("x", "k"), reduction="sum")
        body = loop("i", 0, 4, If(condition=condition, then=first), loop("k", 0, 9, update))
        return function(body, arguments=[array("x", 9), array("y", 4)], written="y", sizes=["B"])

    first = call("eq", index("B"), index(0))
    zero = Assign(target=put("y", "i"), value=number(0.0))
    program = sums(first, zero)
    text = loops_text(scalar_replacement(program))
    assert text.index("else") < text.index("y_value = y[i]")
    for block in (0, 1):
        after = run(scalar_replacement(program), {"B": block})
        np.testing.assert_array_equal(after["y"], run(program, {"B": block})["y"])
    for other in (
        sums(call("gt", at("y", "i"), number(0.0)), zero),  # asks for what is there
        sums(first, Assign(target=put("y", "i"), value=call("mul", at("y", "i"), number(2.0)))),
    ):
        assert "else" not in loops_text(scalar_replacement(other))
        np.testing.assert_array_equal(run(scalar_replacement(other), {"B": 0})["y"], run(other, {"B": 0})["y"])


def test_scratch_memory_that_nothing_reads_vanishes() -> None:
    body = (Assign(target=put("t", "i"), value=at("x", "i")), Assign(target=put("y", "i"), value=at("t", "i")))
    program = function(
        Allocate(variable=local("t", 9), body=(loop("i", 0, 9, *body),)),
        arguments=[array("x", 9), array("y", 9)],
        written="y",
    )
    after = scalar_replacement(program)
    names = [node.variable.name for node in walk_nodes(after.body) if isinstance(node, Allocate)]
    assert names == ["t_value"]


def test_an_element_of_inner_scratch_memory_stays_inside() -> None:
    body = (
        Assign(target=put("t", 0), value=at("x", "i")),
        Assign(target=put("t", 0), value=at("x", "i"), reduction="sum"),
        Assign(target=put("y", "i"), value=at("t", 0)),
    )
    nest = loop("i", 0, 9, Allocate(variable=local("t", 2), body=body))
    program = function(nest, arguments=[array("x", 9), array("y", 9)], written="y")
    np.testing.assert_array_equal(run(scalar_replacement(program), {})["y"], run(program, {})["y"])


def test_jam_gives_way_to_triangles() -> None:
    after, notes = unroll_and_jam(triangle(5))
    assert [note.text for note in notes] == ["loop i is not jammed: bounds of inner loops depend on it"]
    assert not [n for n in walk_nodes(after.body) if isinstance(n, For) and n.kind == "jam"]


@pytest.mark.parametrize(
    ("factor", "steps"),
    [(14, [14, 7, 4, 2, 1]), (12, [12, 6, 3, 2, 1]), (9, [9, 5, 3, 2, 1]), (6, [6, 3, 1]), (4, [4, 2, 1]), (5, [5, 1]), (2, [2, 1])],
)  # fmt: skip
def test_rest_iterations_of_a_symbolic_jam(factor: int, steps: list[int]) -> None:
    body = loop("i", 0, "N", Assign(target=put("y", "i"), value=at("x", "i")), kind="jam", factor=factor)
    program = function(body, arguments=[array("x", "N"), array("y", "N")], written="y", sizes=["N"])
    after, _ = unroll_and_jam(program)
    assert [node.step for node in after.body if isinstance(node, For)] == steps
    for n in range(45):
        sizes = {"N": n}
        np.testing.assert_array_equal(run(after, sizes)["y"], run(program, sizes)["y"])


def test_jam_shares_conditions_of_outer_variables() -> None:
    condition = call("gt", at("x", "j"), number(0.0))
    inner = If(condition=condition, then=(Assign(target=put("y", "i", "j"), value=at("x", "i")),))
    nest = loop("i", 0, 4, loop("j", 0, 4, inner), kind="jam", factor=4)
    program = function(nest, arguments=[array("x", 4), array("y", 4, 4)], written="y")
    after, _ = unroll_and_jam(program)
    assert len([node for node in walk_nodes(after.body) if isinstance(node, If)]) == 1
    np.testing.assert_array_equal(run(after, {})["y"], run(program, {})["y"])


def test_padding_is_vectors_with_an_interior(golden: Golden) -> None:
    # Lanes at the edges under conditions; between them the window has constant bounds, and rows are jammed.
    golden("codegen/lowered_window", loops_text(lowered(padded_window(9, 80), 32)))


def test_padding_in_a_short_row_is_one_loop() -> None:
    after = lowered(padded_window(2, 16), 32)
    loops = [node for node in walk_nodes(after.body) if isinstance(node, For) and node.kind == "vector"]
    assert {node.width for node in loops} == {8}
    # The middle tap is inside for all lanes.
    conditions = [str(node.condition) for node in walk_nodes(after.body) if isinstance(node, If)]
    assert set(conditions) == {"(max(-w + 1, 0) <= 0)", "(2 < min(-w + 9, 3))"}


def test_full_unroll_leaves_no_loop() -> None:
    after = simplify(unroll(tiled_rows(2, 3, 4)))
    assert "j" not in [node.variable for node in walk_nodes(after.body) if isinstance(node, For)]
    assert "cast" not in loops_text(after)


def test_sums_that_share_a_vector_wait_for_each_other_anyway() -> None:
    """Eight rows of one vector are not unrolled, unless sizes are symbolic; sums with a vector each are, and nine rows."""
    row = 'def f(x: f32["N K"], y: f32["K M"]):\n    z[n, m] = x[n, k] * y[k, m]\n    return z\n'
    none = 'def f(x: f32["K"], y: f32["K M"]):\n    z[m] = x[k] * y[k, m]\n    return z\n'

    def steps(text: str, *shapes: tuple[int, ...], dynamic: bool = False) -> set[str]:
        program = polyml.einsum(text, target=WIDE, threads=1, dynamic=dynamic)
        loops = program.lower(*(np.ones(shape, "f4") for shape in shapes)).text("loops")
        return set(re.findall(r"for \(k = .*; (k.*)\) {", loops))

    assert steps(row, (8, 40), (40, 16)) == {"k++"}
    assert steps(row, (9, 40), (40, 16)) == {"k += 4"}
    assert steps(none, (40,), (40, 64)) == {"k += 4"}
    assert "k += 4" in steps(row, (8, 40), (40, 16), dynamic=True)


@pytest.mark.parametrize(("depth", "steps"), [(24, [4]), (26, [4]), (7, [1])])
def test_sums_of_a_register_tile_are_unrolled(depth: int, steps: list[int]) -> None:
    program = matmul(8, 64, depth)
    after = lowered(program)
    inner = [n for n in walk_nodes(after.body) if isinstance(n, For) and n.variable == "k" and n.kind == "sequential"]
    assert sorted({node.step for node in inner}, reverse=True) == steps
    found = run(after, {})
    for name, values in run(program, {}).items():
        np.testing.assert_allclose(found[name], values, rtol=1e-12)


def test_conditions_that_sizes_decide_are_bounds() -> None:
    """The rest of a row of tiles of 48: vectors of it share a register tile, which a condition for each would not let them."""
    n = affine("N")
    store = Assign(target=put("y", "i"), value=at("x", "i"))
    rest = If(condition=call("ge", index(n + affine("i") - n // 48 * 48), index(n)), then=(store,))
    first = If(condition=call("lt", index(n - 3), index(-affine("j") + 50)), then=(store,))
    row = If(condition=call("le", index("j"), index("i")), then=(store,))
    program = function(
        loop("i", n - 47, n, rest), loop("i", 0, 99, loop("j", 0, n, first), loop("j", 0, n, row)),
        arguments=[array("x", n), array("y", n)], written="y", sizes=["N"],
    )  # fmt: skip
    assert loops_text(simplify(program)).splitlines()[1:-1] == [
        "  for (i = 48*((N)//48); i < N; i++) {",
        "    y[i] = x[i];",
        "  }",
        "  for (i = 0; i < 99; i++) {",
        "    for (j = 0; j < min(-N + 53, N); j++) {",
        "      y[i] = x[i];",
        "    }",
        "    for (j = 0; j < N; j++) {",
        "      if (j <= i) {",
        "        y[i] = x[i];",
        "      }",
        "    }",
        "  }",
    ]


def test_simplify_decides_what_bounds_decide() -> None:
    inside = call("and", call("ge", index("i"), index(0)), call("lt", index(affine("i") + 1), index(10)))
    body = (
        If(condition=inside, then=(Assign(target=put("y", affine("i") // 16), value=at("x", "i")),)),
        Assign(target=put("y", "i"), value=Apply("select", (inside, at("x", "i"), at("x", 99)), at("x", 0).dtype)),
        Block((loop("never", 3, 3, Assign(target=put("y", 0), value=number(0.0))),)),
    )
    once = loop("once", 4, 5, Assign(target=put("y", "once"), value=at("x", "once")))
    program = function(loop("i", 0, 9, *body), once, arguments=[array("x", 9), array("y", 9)], written="y")
    assert loops_text(simplify(program)).splitlines()[1:-1] == [
        "  for (i = 0; i < 9; i++) {",
        "    y[0] = x[i];",
        "    y[i] = x[i];",
        "  }",
        "  y[4] = x[4];",
    ]


def brute(value: Affine, loops: tuple[For, ...]) -> set[int]:
    """All values of an expression inside loops."""
    points: list[dict[str, int]] = [{}]
    for each in loops:
        points = [
            {**point, each.variable: i}
            for point in points
            for i in range(each.lower.evaluate(point), each.upper.evaluate(point), each.step)
        ]
    return {value.evaluate(point) for point in points}


I, J = affine("i"), affine("j")


@pytest.mark.parametrize(
    "value",
    [
        I, -I, J - I, I - J * 2 + 3, J // 3, J - J // 3 * 3, I * 2 - J // 4 * 5, minimum([I, J]), maximum([I - J, affine(2)]),
        J - minimum([I + 2, J]), (I + J) // 4 - I, I // 7 * 7 - I, minimum([I + 8, affine(21)]) - I,
    ],
)  # fmt: skip
def test_ranges_are_safe(value: Affine) -> None:
    # j runs over a tile that starts at i, cut at 21.
    loops = (loop("i", 0, 21, step=8), loop("j", I, minimum([I + 8, affine(21)])))
    ranges = Ranges()
    for each in loops:
        ranges = ranges.enter(each)
    exact = brute(value, loops)
    low, high = ranges.lowest(value), ranges.highest(value)
    assert low is not None
    assert high is not None
    assert low <= min(exact)
    assert max(exact) <= high
    assert brute(ranges.simplify(value) - value, loops) == {0}
    divisor = ranges.multiple(value)
    assert all(number % divisor == 0 if divisor else number == 0 for number in exact)


def test_ranges_see_through_tiles() -> None:
    ranges = Ranges().enter(loop("i", 0, "N", step=8)).enter(loop("j", I, minimum([I + 8, affine("N")])))
    assert (ranges.lowest(J - I), ranges.highest(J - I)) == (0, 7)
    assert ranges.is_positive(affine("N") - J)
    assert ranges.constant((J - I) // 8) == 0
    assert ranges.multiple(minimum([I + 8, affine(24)]) - I) == 8
    assert register("t").lanes == 1


def test_what_is_found_out_belongs_to_a_loops_head() -> None:
    outer, inner = loop("i", 0, 21, step=8), loop("j", I, minimum([I + 8, affine(21)]))
    root = Ranges()
    inside = root.enter(outer)
    assert inside.enter(inner) is inside.enter(replace(inner, body=(inner,)))
    assert inside.enter(inner) is not inside.enter(replace(inner, upper=I + 8))
    assert inside.enter(inner) is not inside.enter(replace(inner, kind="vector"))
    shadow = inside.enter(loop("i", 0, 3))  # of the same name: what is asked inside is about this one
    assert (inside.highest(I), shadow.highest(I), inside.highest(I)) == (16, 2, 16)
    assert outside_of(()) is not outside_of(())
    with remembered():
        assert outside_of(()) is outside_of(())
        assert outside_of(()) is not outside_of((("N", 1, None),))
    assert outside_of(()) is not outside_of(())


def outside_of(bounds: Bounds) -> Ranges:
    return outside(Function(name="f", arguments=(), written=frozenset(), sizes=(), body=(), bounds=bounds))


def test_one_of_its_atoms_is_replaced_in_a_sum() -> None:
    tile = affine(FloorDiv(I + 3, 4))
    value = tile * 5 + I * 2 + 7
    assert value.replace("i", J - I) == tile * 5 + (J - I) * 2 + 7
    assert value.replace("i", 4) == tile * 5 + 15
    assert value.replace(FloorDiv(I + 3, 4), I) == I * 7 + 7
    assert value.replace("i", tile * -3) == 7 - tile


def test_few_rows_of_a_size_that_is_not_known_share_a_tile() -> None:
    """Blocks of 256 rows are whole tiles of 8, but for the only block of a matrix of 4 rows."""
    product = polyml.einsum(
        'def f(x: f32["N K"], y: f32["K M"]):\n    z[n, m] = x[n, k] * y[k, m]\n    return z\n',
        target=WIDE,
        dynamic=True,
    )
    text = product.lower(np.ones((300, 180), "f4"), np.ones((180, 32), "f4")).text("loops")
    plain = text.rsplit("  } else {\n", 1)[1]
    steps = [line.rsplit("n += ", 1)[1] for line in plain.splitlines() if "for (n = " in line and "n += " in line]
    assert steps[:2] == ["8) {", "4) {"]


def test_nodes_are_looked_up_once_for_each_body() -> None:
    one, other = matmul(5, 6, 7), triangle(9)
    for program in (one, other, one, replace(one, name="g"), replace(one, body=other.body), replace(one, body=())):
        nodes = nodes_of(program)
        assert [*map(id, nodes)] == [*map(id, walk_nodes(program.body))]
        assert nodes_of(replace(program, name="h")) is nodes, "the same body"
        written = {n.variable for n in nodes if isinstance(n, For)} | {v.name for v in program.arguments}
        assert names_in(program) >= written
        names_in(program).add("new")
        assert "new" not in names_in(program)
