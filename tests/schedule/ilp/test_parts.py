"""The parts of the ilp scheduler on their own, against enumeration: cones, independence, branch and bound, components."""

from __future__ import annotations

import itertools
from random import Random

import islpy as isl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyml.schedule.ilp import problem, solve
from polyml.schedule.ilp.cones import Cone, cones_of
from polyml.schedule.ilp.costs import DEFAULT_COSTS
from polyml.schedule.ilp.hyperplanes import Row, distances, satisfied
from polyml.schedule.ilp.independence import RowSpace, null_space, rank
from polyml.schedule.ilp.problem import Problem
from polyml.schedule.ilp.rows import distinct_rows, rows_of_blocks
from polyml.schedule.ilp.solve import Program, Solver, SolverLimit
from polyml.schedule.ilp.topology import components
from polyml.scop.dependences import analyse
from tests.schedule.programs import scop_of

few = settings(max_examples=60, deadline=None)

# -- cones --------------------------------------------------------------------------------------------------------------------------

TRIANGLE = """
    inout y f32[9, 9]
    inout z f32[9, 9]
    S[i, j]: 1 <= i < 7 and 1 <= j <= i: y[i, j] = y[i - 1, j] + y[i, j - 1]
    T[i, j]: 1 <= i < 6 and 1 <= j < 6: z[i, j] = y[i + j - 2, 1] + y[j, i]
"""
SCOP = scop_of(TRIANGLE)
DEPENDENCES = analyse(SCOP)
CONES = cones_of(SCOP, DEPENDENCES, relax_reductions=True)
small = st.integers(-2, 3)
rows = st.builds(lambda a, b, c: Row((a, b), (), c), small, small, small)


def pairs(cone: Cone) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The dependence's pairs of instances, enumerated."""
    relation = DEPENDENCES.flow if cone.kind == "flow" else DEPENDENCES.anti.union(DEPENDENCES.output)
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    maps = relation.get_map_list()
    for m in (maps.get_at(k) for k in range(maps.n_map())):
        ends = m.get_tuple_name(isl.dim_type.in_), m.get_tuple_name(isl.dim_type.out)
        if ends == (cone.source, cone.sink):
            points: list[isl.Point] = []
            m.wrap().foreach_point(points.append)
            for point in points:
                at = [point.get_coordinate_val(isl.dim_type.set, d).to_python() for d in range(4)]
                found.append((tuple(at[:2]), tuple(at[2:])))
    return found


def value(row: Row, point: tuple[int, ...]) -> int:
    return sum(c * x for c, x in zip(row.indices, point, strict=True)) + row.constant


@given(source=rows, sink=rows)
@few
def test_cones_tell_distances(source: Row, sink: Row) -> None:
    """Non-negative, zero, and zero on a part: as every single pair of instances says."""
    for cone in CONES:
        mine = {"S": source, "T": sink} if cone.source != cone.sink else {cone.source: source}
        exact = [value(mine[cone.sink], b) - value(mine[cone.source], a) for a, b in pairs(cone)]
        assert (not distances(cone, mine).any()) == (not any(exact))
        legal = all(
            (found >= 0).all() and not found[face.lines].any()
            for face in cone.faces
            for found in [distances(cone, mine, face)]
        )
        assert legal == (min(exact) >= 0)
        if legal:
            left = satisfied([cone], [mine])
            assert bool(left) == (0 in exact)


def test_relaxed_reductions_are_cones_of_their_own() -> None:
    scop = scop_of(
        """
        input x f32[9, 9]
        output s f32[9]
        I[i]: 0 <= i < 9: s[i] sum: 0
        U[i, j]: 0 <= i < 9 and 0 <= j < 9: s[i] sum= x[i, j]
        """
    )
    dependences = analyse(scop)
    assert "reduction" in {cone.kind for cone in cones_of(scop, dependences, relax_reductions=True)}
    kept = cones_of(scop, dependences, relax_reductions=False)
    assert {cone.kind for cone in kept} == {"flow", "order"}
    assert any(cone.source == cone.sink == "U" for cone in kept)


# -- independence -------------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(*[st.integers(-3, 3)] * 3), max_size=3), st.tuples(*[st.integers(-3, 3)] * 3))
@few
def test_null_space_decides_independence(basis: list[tuple[int, ...]], row: tuple[int, ...]) -> None:
    vectors = null_space(basis, 3)
    assert all(np.dot(v, b) == 0 for v in vectors for b in basis)
    matrix = np.array([*basis, (0, 0, 0)])
    assert rank(basis, 3) == np.linalg.matrix_rank(matrix) == 3 - len(vectors)
    independent = np.linalg.matrix_rank(np.vstack([matrix, row])) > np.linalg.matrix_rank(matrix)
    assert independent == any(np.dot(v, row) != 0 for v in vectors)


@given(st.lists(st.tuples(*[st.integers(-9, 9)] * 4), max_size=4), st.tuples(*[st.integers(-9, 9)] * 4))
@few
def test_row_space(rows: list[tuple[int, ...]], vector: tuple[int, ...]) -> None:
    span = RowSpace(rows_of_blocks([(np.arange(4), np.array(rows, np.int64).reshape(-1, 4))]))
    assert span.rank == rank(rows, 4)
    assert span.holds(dict(enumerate(vector))) == (rank([*rows, vector], 4) == rank(rows, 4))


@given(st.lists(st.tuples(st.sets(st.integers(0, 6), min_size=1), st.integers(0, 3)), max_size=4), st.randoms())
@few
def test_rows_of_blocks(shapes: list[tuple[set[int], int]], random: Random) -> None:
    """Each row has its entries at their columns, and equal rows of different blocks are equal."""
    blocks, dense = [], []
    for columns, count in shapes:
        values = np.array([[random.randint(-1, 1) for _ in columns] for _ in range(count)], np.int64)
        blocks.append((np.array(sorted(columns)), values.reshape(count, len(columns))))
        for row in blocks[-1][1]:
            dense.append(np.zeros(7, np.int64))
            dense[-1][sorted(columns)] = row
    rows = rows_of_blocks(blocks)
    point = 3 ** np.arange(7)
    assert rows.times(point).tolist() == [row @ point for row in dense]
    numbers = distinct_rows(np.concatenate([rows.columns, rows.values], axis=1))
    assert numbers == distinct_rows(np.array(dense, np.int64).reshape(-1, 7))


# -- branch and bound ---------------------------------------------------------------------------------------------------------------


def program(matrix: list[list[int]], lower: list[int], cost: list[int], top: int = 4) -> Program:
    columns = len(cost)
    return Program(
        rows=rows_of_blocks([(np.arange(columns), np.array(matrix, np.int64))]),
        lower=np.array(lower, np.float64),
        upper=np.full(len(lower), np.inf),
        column_lower=np.zeros(columns),
        column_upper=np.full(columns, float(top)),
        cost=np.array(cost, np.float64),
        integral=np.ones(columns, bool),
        priority=np.zeros(columns),
    )


entries = st.lists(st.lists(st.integers(-5, 5), min_size=3, max_size=3), min_size=1, max_size=4)


@given(
    entries, st.lists(st.integers(-4, 6), min_size=4, max_size=4), st.lists(st.integers(-3, 5), min_size=3, max_size=3)
)
@few
def test_branch_and_bound_finds_the_optimum(matrix: list[list[int]], lower: list[int], cost: list[int]) -> None:
    lower = lower[: len(matrix)]
    found = Solver(nodes=1000).solve(program(matrix, lower, cost))
    points = [np.array(p) for p in itertools.product(range(5), repeat=3)]
    feasible = [p for p in points if (np.array(matrix) @ p >= lower).all()]
    assert (found is None) == (not feasible)
    if found is not None:
        assert (np.array(matrix) @ found >= lower).all()
        assert np.dot(cost, found) == min(np.dot(cost, p) for p in feasible)


def test_branch_and_bound_stops_at_its_nodes() -> None:
    knapsack = program([[-7, -5, -3]], [-11], [-5, -4, -2])
    assert Solver(nodes=100).solve(knapsack) is not None
    with pytest.raises(SolverLimit, match="used up"):
        Solver(nodes=1).solve(knapsack)


TWO = """
    inout {y} f32[9, 9]
    inout {z} f32[9, 9]
    {S}[t, i]: 1 <= t < 9 and 1 <= i < 8: {y}[t, i] = {z}[t - 1, i + 1] + {z}[t - 1, i - 1]
    {T}[t, i]: 1 <= t < 9 and 1 <= i < 8: {z}[t, i] = {y}[t, i] + {y}[t, i - 1]
"""


def test_groups_that_are_alike_are_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever statements and arrays are called; a budget suffices for as much as before."""
    monkeypatch.setattr(problem, "_SOLVED", {})

    def band(names: tuple[str, str], nodes: int) -> tuple[list[dict[str, Row]], Solver]:
        lines = TWO.format(y=f"a{names[0]}", z=f"b{names[0]}", S=names[0], T=names[1]).strip().splitlines()
        scop = scop_of("\n".join([*lines[:2], "loop t", *lines[2:], "end"]))
        cones = cones_of(scop, analyse(scop), relax_reductions=True)
        solver = Solver(nodes)
        loops = Problem(scop, DEFAULT_COSTS, solver).band(names, cones, dict.fromkeys(names, ()))
        return [dict(loop.rows) for loop in loops], solver

    first, solver = band(("S", "T"), 100)
    assert first
    assert solver.programs
    again, spared = band(("P", "Q"), 100)
    assert again == [{"P": rows["S"], "Q": rows["T"]} for rows in first]
    assert (spared.programs, spared.nodes) == (0, solver.nodes)
    with pytest.raises(SolverLimit, match="used up"):
        band(("P", "Q"), 100 - solver.nodes - 1)


def test_long_work_takes_more_of_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear program with thousands of rows takes seconds, if it needs many iterations; one that would take more than what is left is broken off."""
    cover = program([[2, 1, 1], [1, 3, 1], [1, 1, 4]], [5, 6, 7], [3, 4, 5])
    assert Solver(nodes=100).solve(cover) is not None
    monkeypatch.setattr(solve, "WORK", 3)
    solver = Solver(nodes=100)
    assert solver.solve(cover) is not None
    assert solver.nodes < 100 - solver.solved
    with pytest.raises(SolverLimit, match="used up"):
        Solver(nodes=(100 - solver.nodes) // solver.solved - 2).solve(cover)


def test_patience_ends_with_the_best_so_far() -> None:
    """What is returned early is a solution, if not the best one; with none in time, the search gives up."""
    rng = np.random.default_rng(2)
    weights, value, room = (rng.integers(5, 40, 6).tolist() for _ in range(3))
    knapsack = program([[-w for w in weights], [-r for r in room]], [-101, -97], [-v for v in value])
    thorough, early = Solver(nodes=1000, patience=1000), Solver(nodes=1000, patience=8)
    optimum, found = thorough.solve(knapsack), early.solve(knapsack)
    assert optimum is not None
    assert found is not None
    assert (knapsack.rows.times(found) >= knapsack.lower).all()
    assert knapsack.cost @ found >= knapsack.cost @ optimum
    assert early.solved < thorough.solved
    with pytest.raises(SolverLimit, match="no solution after 3 nodes"):
        Solver(nodes=1000, patience=1).solve(knapsack)


# -- components ---------------------------------------------------------------------------------------------------------------------


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=14))
@few
def test_components_in_topological_order(edges: set[tuple[int, int]]) -> None:
    names = [f"S{k}" for k in range(7)]
    graph: dict[str, set[str]] = {name: set() for name in names}
    for a, b in edges - {(k, k) for k in range(7)}:
        graph[f"S{a}"].add(f"S{b}")
    found = components(names, graph)
    assert sorted(name for part in found for name in part) == names
    place = {name: k for k, part in enumerate(found) for name in part}
    reach = np.eye(7, dtype=bool)
    for a, b in edges:
        reach[a, b] = True
    for k in range(7):
        reach |= np.outer(reach[:, k], reach[k])
    for a, b in itertools.product(range(7), repeat=2):
        assert (place[f"S{a}"] == place[f"S{b}"]) == (reach[a, b] and reach[b, a])
        if reach[a, b]:
            assert place[f"S{a}"] <= place[f"S{b}"]
