"""The work of parallel loops, and that those with little of it wake nobody."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pytest

import polyml
from polyml.codegen.llvm.functions import outline
from polyml.codegen.loops import For, Function
from polyml.codegen.passes.parallel_work import Work, work_of_loop
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import f32
from polyml.sets.affine import affine, maximum, minimum
from polyml.target import Target
from tests.codegen.llvm import support
from tests.codegen.llvm.support import apply, compile_functions, loop, read, store, variable

N, M, K = affine("N"), affine("M"), affine("k")


def rows(kind: str = "parallel", **ends: object) -> For:
    """y[i, j] = x[i, j] + x[i, j], all of j in lanes."""
    both = apply("add", read("x", f32, "i", "j"), read("x", f32, "i", "j"))
    lanes = loop(
        "j", 0, ends.get("last", M), store("y", ["i", "j"], both), kind="vector", step=16, width=16, masked=True
    )  # type: ignore[arg-type]
    return loop("i", ends.get("first", 0), N, lanes, kind=kind)  # type: ignore[arg-type]


def test_trips_that_are_not_known_stay() -> None:
    assert work_of_loop(rows()) == (Work(1 / 16, (M, N)),)
    assert work_of_loop(rows(last=64)) == (Work(4.0, (N,)),)
    assert work_of_loop(rows(first=K + 1)) == (Work(1 / 16, (M, N - K - 1)),)


def test_inner_loops_are_taken_in_the_middle() -> None:
    (work,) = work_of_loop(rows(last=affine("i")))
    assert work == Work(1 / 16, (N // 2, N))


def test_rows_of_tiles_are_taken_in_the_middle() -> None:
    """Tiles of 8 rows of a band that a step moves down by one: the first tile of each row of tiles has a single row in its first step."""
    low, high = maximum([affine(0), affine("r") - affine("t")]), minimum([N, affine("r") - affine("t") + 8])
    inside = loop("i", low, high, store("y", ["i"], read("x", f32, "i")))
    steps = loop("t", affine("b"), affine("b") + 8, inside)
    tiles = loop("r", affine("b") - 7, N, steps, kind="stage", step=8)
    (work,) = work_of_loop(loop("b", 0, 16, tiles, kind="pipelined", step=8))
    values = {"N": 1000}
    assert [trips.evaluate(values) for trips in work.trips] == [8, 999]
    assert work.cycles == 1.0 * 8 * 2 / 8


def test_only_the_largest_products_stay() -> None:
    assigns = [loop(f"j{k}", 0, affine(f"M{k}"), store("y", ["i", f"j{k}"], read("x", f32, "i", 0))) for k in range(30)]
    works = work_of_loop(loop("i", 0, N, *assigns, store("z", ["i"], read("x", f32, "i", 0)), kind="parallel"))
    assert len(works) == 24
    assert all(len(work.trips) == 2 for work in works)


def _total(works: Iterable[Work], values: Mapping[str, int]) -> float:
    return sum(work.cycles * math.prod(max(0, trips.evaluate(values)) for trips in work.trips) for work in works)


def test_whole_tiles_stay_beside_their_edges() -> None:
    """The ends of slanted tiles are loops in loops of no or few iterations; most of the work is in whole tiles, in fewer loops."""
    row = store("y", ["i", "k"], read("x", f32, "i", "k"))
    whole = loop("k", 0, 100, row)
    edges = [loop(f"e{p}", 0, affine("i") - N, loop("k", 0, affine(f"M{p}"), row)) for p in range(30)]
    works = work_of_loop(loop("i", 0, N, whole, *edges, kind="parallel"))
    values = {"N": 64, **{f"M{p}": 4 for p in range(30)}}
    assert _total(works, values) == 64 * 100


def test_columns_of_half_a_matrix_are_worth_threads() -> None:
    """A triangular product with AVX2: the loop over column blocks within each block of rows, in its middle."""
    n = 600
    program = polyml.einsum(
        f"""
def f(a: f64["{n} {n}"], c: f64["{n} {n}"]):
    if j <= i:
        c[i, j] += sum[k](a[i, k] * a[j, k])
    return c
""",
        target=Target("x86-64-v3"),
        threads=2,
    )
    zeros = np.zeros((n, n))
    loops = [node for region in program.lower(zeros, zeros).stages.regions for node in walk_nodes(region.loops.body)]
    found = []
    for node in loops:
        if isinstance(node, For) and node.kind == "parallel":
            works = work_of_loop(node)
            names = {name for work in works for trips in work.trips for name in trips.variables()}
            found.append(_total(works, {name: n // 2 if name == "i_tile" else 0 for name in names}))
    assert max(found) > n * n / 4, found


@pytest.mark.parametrize(
    ("n", "m", "shared"), [(2, 16, False), (100, 1600, False), (400, 1600, True), (1 << 14, 64, True), (0, 0, False)]
)
def test_light_loops_run_where_they_are(n: int, m: int, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outline, "LIGHT", 20_000)
    function = Function(
        name="f",
        arguments=(variable("x", f32, "N", "M"), variable("y", f32, "N", "M")),
        written=frozenset({"y"}),
        sizes=("N", "M"),
        body=(rows(),),
    )
    (call,) = compile_functions([function])
    x = np.random.default_rng(0).random((n, m), dtype=np.float32)
    before = len(support.shared_loops)
    made = call({"x": x, "y": np.zeros_like(x)}, {"N": n, "M": m})
    np.testing.assert_array_equal(made["y"], x + x)
    assert len(support.shared_loops) - before == shared
