"""Scop building and exact dependences, decided by isl against brute-force enumeration."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import islpy as isl
import numpy as np
import pytest

import polyml
from polyml.compiler import region
from polyml.dtypes import f32
from polyml.errors import BoundsError
from polyml.expressions import Read
from polyml.graph.ir import Carried, Loop
from polyml.options import Options
from polyml.scop import dependences
from polyml.scop.accesses import access_map
from polyml.scop.bounds import prove_in_bounds
from polyml.scop.dependences import Dependences, analyse
from polyml.scop.memory_based import memory_based
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine, affine
from polyml.sets.budget import BudgetExhausted, operation_budget
from polyml.sets.spaces import maps_of
from tests.schedule import programs
from tests.scop.helpers import add, equation, floyd_warshall, matmul, mul, read, scop, tensor

Instance = tuple[str, tuple[int, ...]]


def pairs(relation: isl.UnionMap) -> set[tuple[Instance, Instance]]:
    found: set[tuple[Instance, Instance]] = set()

    def visit(point: isl.Point) -> None:
        wrapped = isl.Set.from_point(point).unwrap()
        source, sink = wrapped.domain(), wrapped.range()
        ends = []
        for end in (source, sink):
            sample = end.sample_point()
            values = tuple(
                sample.get_coordinate_val(isl.dim_type.set, d).to_python() for d in range(end.dim(isl.dim_type.set))
            )
            ends.append((end.get_tuple_name(), values))
        found.add((ends[0], ends[1]))

    relation.wrap().foreach_point(visit)
    return found


def brute_force(s: Scop) -> dict[str, set[tuple[Instance, Instance]]]:
    """Memory-based order of all conflicting accesses, by enumeration."""
    time = dict(pairs(s.initial))
    reads, writes = pairs(s.reads), pairs(s.may_writes)
    order = {instance: when[1] for instance, when in time.items()}
    conflicts: set[tuple[Instance, Instance]] = set()
    for (a, ea), (b, eb) in itertools.product(writes, reads | writes):
        if ea == eb and a != b:
            conflicts.add((a, b) if order[a] < order[b] else (b, a))
    return {"conflicts": conflicts}


def closure(edges: set[tuple[Instance, Instance]]) -> set[tuple[Instance, Instance]]:
    after: dict[Instance, set[Instance]] = {}
    for a, b in edges:
        after.setdefault(a, set()).add(b)
    result: set[tuple[Instance, Instance]] = set()
    for start in after:
        seen: set[Instance] = set()
        stack = [start]
        while stack:
            for following in after.get(stack.pop(), ()):
                if following not in seen:
                    seen.add(following)
                    stack.append(following)
        result |= {(start, b) for b in seen}
    return result


def jacobi() -> Scop:
    a, inner, b, following, after = (tensor(n, 5) for n in ("a", "a_in", "b", "a_next", "a_out"))
    half = equation(b, "i", "0 <= i < 5", ["i"], read(inner, "i"))
    body = add(read(b, affine("i") - 1), read(b, affine("i") + 1))
    update = equation(following, "i", "1 <= i < 4", ["i"], body, base=inner)
    loop = Loop(
        variable="t",
        start=affine(3),
        stop=affine(0),
        step=-1,
        body=(half, update),
        carried=(Carried(a, inner, following, after),),
    )
    return scop([loop], [a], [after], {t.name: "a" for t in (a, inner, following, after)})


def accumulate() -> Scop:
    x, y, z = tensor("x", 4, 3), tensor("y", 4), tensor("y2", 4)
    ops = [
        equation(
            z,
            "n k",
            "0 <= n < 4 and 0 <= k < 3",
            ["n"],
            read(x, "n", "k"),
            reduce="sum",
            reduced="k",
            base=y,
            accumulate=True,
        )
    ]
    return scop(ops, [x, y], [z], {"y": "y", "y2": "y"})


SCOPS = {"matmul": matmul, "floyd_warshall": lambda: floyd_warshall(4), "jacobi": jacobi, "accumulate": accumulate}


@pytest.mark.parametrize("name", SCOPS)
def test_dependences_order_every_conflict(name: str) -> None:
    s = SCOPS[name]()
    d: Dependences = analyse(s)
    conflicts = brute_force(s)["conflicts"]
    kept = pairs(d.validity)
    relaxed = pairs(d.reduction)
    time = {instance: when[1] for instance, when in pairs(s.initial)}
    assert all(time[a] < time[b] for a, b in kept | relaxed)
    # Every conflict is ordered by the kept dependences alone, unless it is between updates of one reduction.
    ordered = closure(kept)
    for a, b in conflicts - ordered:
        assert a[0] == b[0]
        assert (a, b) in closure(relaxed)


SLICES = """
input x f32[3, 4, 5]
local t f32[3, 4]
output y f32[3]
loop b
I[b, i]: 0 <= b < 3 and 0 <= i < 4: t[b, i] sum: 0
U[b, i, k]: 0 <= b < 3 and 0 <= i < 4 and 0 <= k < 5: t[b, i] sum= x[b, i, k]
J[b]: 0 <= b < 3: y[b] sum: 0
V[b, j]: 0 <= b < 3 and 0 <= j < 4: y[b] sum= t[b, j]
end
"""


@pytest.mark.parametrize(("text", "dataflow"), [
    (SLICES, False),
    (SLICES.replace("t[b, j]", "t[b, 3 - j]"), False),
    (SLICES.replace("local t f32[3, 4]", "local t f32[4, 4]").replace("t[b, i]", "t[b + 1, i]"), True),  # the slice before
    (SLICES.replace("t[b, j]", "t[2 - b, j]"), True),
    (SLICES.replace("[b, i] sum: 0", "[b, i] = 0"), False),
    (SLICES.replace("end", "W[b, i]: 0 <= b < 3 and 0 <= i < 4: t[b, i] = 1\nend"), True),  # written again behind the reads
    (SLICES.replace("t[b, ", "t[0, "), True),  # slices share their elements
])  # fmt: skip
def test_elements_of_one_iteration_need_no_dataflow(text: str, dataflow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each element is used in one iteration of the loops around, the order of statements is all there is."""
    asked: list[set[str]] = []
    values = dependences._Collected.values

    def remembered(self: Any, reads: Any, writes: Any) -> None:
        asked.append({w.statement.target.array for w in writes})
        values(self, reads, writes)

    monkeypatch.setattr(dependences._Collected, "values", remembered)
    s = programs.scop_of(text)
    s = replace(s, statements={name: replace(one, loop_depth=1) for name, one in s.statements.items()})
    d = analyse(s)
    assert ({"t"} in asked) == dataflow
    assert {"y"} not in asked
    kept, relaxed = pairs(d.validity), pairs(d.reduction)
    time = {instance: when[1] for instance, when in pairs(s.initial)}
    assert all(time[a] < time[b] for a, b in kept | relaxed)
    ordered = closure(kept)
    for a, b in brute_force(s)["conflicts"] - ordered:
        assert a[0] == b[0]
        assert (a, b) in closure(relaxed)


def test_times_in_many_pieces_cost_no_more_than_whole_ones() -> None:
    """What instances there are the accesses know; pieces of the same in the written order do not multiply what isl looks at."""
    whole = jacobi()
    pieces = isl.UnionMap.empty(whole.context.get_space())
    for low in range(5):
        for time in maps_of(whole.initial):
            last = time.dim(isl.dim_type.in_) - 1
            pieces = pieces.union(time.lower_bound_val(isl.dim_type.in_, last, low).to_union_map())
            pieces = pieces.union(time.upper_bound_val(isl.dim_type.in_, last, low).to_union_map())
    assert pieces.is_equal(whole.initial)
    parted = replace(whole, initial=pieces)
    budget = 1000
    while not _sufficient(budget, whole):
        budget *= 2
    assert _sufficient(2 * budget, parted)
    assert analyse(parted).flow.is_equal(analyse(whole).flow)


def _sufficient(operations: int, s: Scop) -> bool:
    try:
        with operation_budget(operations, phase="a test"):
            analyse(s)
    except BudgetExhausted:
        return False
    return True


def test_values_of_one_array_are_asked_of_its_accesses_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    s, asked = jacobi(), []
    every = analyse(s)
    monkeypatch.setattr(
        dependences, "access_map", lambda *args, **more: asked.append(args[2]) or access_map(*args, **more)
    )
    flow, before = dependences.values_of(s, "a")
    assert set(asked) == {"a"}
    assert flow.is_subset(every.flow)
    assert before.is_subset(every.live_in)


def test_reduction_is_apart() -> None:
    d = analyse(matmul())
    assert not d.reduction.is_empty()
    assert d.flow.intersect(d.reduction).is_empty()
    assert d.anti.is_empty()


def test_floyd_warshall_saves_one_row_and_one_column() -> None:
    s = floyd_warshall(6)
    saved = [a for a in s.arrays.values() if a.kind == "local"]
    assert [len(a.shape) for a in saved] == [1, 1]


def test_elementwise_update_needs_no_copy() -> None:
    x, y = tensor("x", 4), tensor("x2", 4)
    s = scop(
        [equation(y, "i", "0 <= i < 4", ["i"], mul(read(x, "i"), read(x, "i")), base=x)],
        [x],
        [y],
        {"x": "x", "x2": "x"},
    )
    assert list(s.statements) == ["S_x2"]


def test_negative_step_counts_iterations() -> None:
    s = jacobi()
    assert {st.indices[0] for st in s.statements.values()} == {"t"}
    low = s.domain.params().is_empty()
    assert not low
    first = next(iter(s.statements.values())).domain
    assert first.dim_min_val(0).to_python() == 0
    assert first.dim_max_val(0).to_python() == 2


def test_in_bounds_proof_refuses_with_a_witness() -> None:
    prove_in_bounds(matmul())
    x, y = tensor("x", 4), tensor("y", 4)
    s = scop([equation(y, "i", "0 <= i < 4", ["i"], read(x, affine("i") + 1))], [x], [y])
    with pytest.raises(BoundsError, match=r"S_y.*x\[.*4"):
        prove_in_bounds(s)
    assert x.dtype == f32


def test_no_instance_depends_on_itself() -> None:
    for make in SCOPS.values():
        d = analyse(make())
        assert all(a != b for a, b in pairs(d.validity) | pairs(d.reduction))


def test_carried_tensors_move_at_once() -> None:
    a, b, a_in, b_in, a_out, b_out = (tensor(n, 3) for n in ("a", "b", "a_in", "b_in", "a_out", "b_out"))
    swap = (Carried(a, a_in, b_in, a_out), Carried(b, b_in, a_in, b_out))
    loop = Loop(variable="t", start=affine(0), stop=affine(3), step=1, body=(), carried=swap)
    s = scop([loop], [a, b], [a_out, b_out], {"a_in": "a", "a_out": "a", "b_in": "b", "b_out": "b"})
    memory = {"a": [1, 2, 3], "b": [4, 5, 6]}
    order = sorted(pairs(s.initial), key=lambda pair: pair[1][1])
    for (name, instance), _ in order:
        statement = s.statements[name]
        values = dict(zip(statement.indices, instance, strict=True))
        source = s.statements[name].value
        assert isinstance(source, Read)
        position = source.subscripts[0]
        assert isinstance(position, Affine)
        at = position.evaluate(values)
        memory.setdefault(statement.target.array, [0, 0, 0])[at] = memory[source.tensor][at]
    assert (memory["a"], memory["b"]) == ([4, 5, 6], [1, 2, 3])  # three swaps


def test_statements_know_where_they_come_from() -> None:
    program = polyml.einsum('def f(x: f32["N K"]):\n    y[n] = x[n, k]\n    return y\n')
    lowered = program.lower(np.ones((2, 3), np.float32))
    spans = [s.span for region in lowered.stages.regions for s in region.scop.statements.values()]
    assert spans
    assert all(span is not None and span.line == 2 for span in spans)


def test_a_statement_without_instances_has_no_dependences() -> None:
    """The case of an empty guard within a loop: dataflow must not ask for its time."""
    program = polyml.einsum(
        """
        def f(x: f32["N"]):
            for t in range(3):
                x[0] = x[0] + 1
                if i > 9:
                    x[i] = x[i] + x[0]
            return x
        """
    )
    assert isinstance(program, polyml.Einsum)
    argument = np.zeros(4, np.float32)
    region = program.lower(argument).stages.regions[0]
    assert any(statement.domain.is_empty() for statement in region.scop.statements.values())
    assert np.array_equal(program(argument), [3, 0, 0, 0])


@pytest.mark.parametrize("name", SCOPS)
def test_memory_based_dependences_hold_every_conflict(name: str) -> None:
    s = SCOPS[name]()
    assert brute_force(s)["conflicts"] <= pairs(memory_based(s).validity)
    assert analyse(s).validity.is_subset(memory_based(s).validity)


@pytest.mark.parametrize("budget", [1, 300, 3_000, 30_000])
def test_any_budget_compiles_the_whole_way(budget: int) -> None:
    text = """
def f(x: f32["N K"], p: f32["N N"]):
    y[n] = x[n, k]
    for t in range(N):
        p[i, j] = min(p[i, j], p[i, t] + p[t, j])
    z[n] = max[m](p[n, m] * y[m])
    return z
"""
    rng = np.random.default_rng(0)
    x, p = rng.random((5, 3), dtype=np.float32), rng.random((5, 5), dtype=np.float32)
    expected = p.copy()
    for t in range(5):
        expected = np.minimum(expected, expected[:, t, None] + expected[t])
    program = polyml.einsum(text, budget=budget)
    assert "fallback" in program.lower(x, p.copy()).explain()
    assert np.allclose(program(x, p), (expected * x.sum(1)).max(1))


@pytest.mark.parametrize("budget", [None, 1, 3_000_000])
def test_dataflow_gets_a_part_of_the_budget(budget: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What exact dependences take long for, all stages behind them do; many statements get more."""
    asked: dict[str, int] = {}

    def remembered(operations: int, *, phase: str) -> Any:
        asked[phase] = operations
        return operation_budget(operations, phase=phase)

    monkeypatch.setattr(region, "operation_budget", remembered)
    text = 'def f(x: f32["N M"]):\n    s[i] = sum[j](x[i, j])\n    return s\n'
    program = polyml.einsum(text) if budget is None else polyml.einsum(text, budget=budget)
    program.lower(np.zeros((4, 5), "f"))
    assert asked["dataflow"] == {None: 1_000_000, 1: 1, 3_000_000: 150_000}[budget]
    x, many = tensor("x", 5), [tensor(f"s{k}", 5) for k in range(45)]
    copies = scop([equation(s, "i", "0 <= i < 5", ["i"], read(x, "i")) for s in many], [x], many)
    region._dependences(copies, Options(budget=budget or Options().budget))
    assert asked["dataflow"] == {None: 2_000_000, 1: 2, 3_000_000: 300_000}[budget]


def test_texts_and_runs_are_looked_at_once() -> None:
    made = [access_map("S", ("i", "k"), "x", (affine("i"),), (affine(3),)) for _ in range(2)]
    assert made[0] is made[1]
    x, s = tensor("x", 5, 7), tensor("s", 5)
    program = scop(
        [equation(s, "i k", "0 <= i < 5 and 0 <= k < 7", ["i"], read(x, "i", "k"), reduce="sum", reduced="k")], [x], [s]
    )
    collected = dependences._Collected(program)
    _, writes = dependences._references(program, {"s"})["s"]
    (update,) = [write for write in writes if write.own]
    assert collected.run(update) is collected.run(update)


def test_what_scops_have_in_common_is_analysed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scops that are made of one another share statements: dataflow is asked for arrays whose accesses changed."""
    monkeypatch.setattr(dependences, "_FLOWS", {})
    asked = []
    made = dependences._Collected._dataflow
    monkeypatch.setattr(
        dependences._Collected, "_dataflow", lambda self, r, w: asked.append(w[0].array) or made(self, r, w)
    )
    text = """
        inout x f32[9, 9]
        inout y f32[9, 9]
        loop t
        S[t, i]: 1 <= t < 9 and 1 <= i < 8: x[t, i] = x[t - 1, i - 1] + x[t - 1, i + 1]
        T[t, i]: 1 <= t < 9 and 1 <= i < 8: y[t, i] = y[t - 1, i] + x[t, i]
        end
    """
    scop = programs.scop_of(text)
    first = analyse(scop)
    assert sorted(asked) == ["x", "y"]
    statement = scop.statements["T"]
    value = Read("y", (affine("t") - 1, affine("i")), f32)
    other = replace(scop, statements={**scop.statements, "T": replace(statement, value=value)})
    second = analyse(other)
    assert sorted(asked) == ["x", "x", "y"]
    assert second.flow.is_strict_subset(first.flow)
    assert analyse(scop).validity.is_equal(first.validity)
