"""Factorizations and triangular systems in blocks: results around the sizes of the tiles, what is joined, what is refused, and the tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import polyml
from benchmarks.polybench import KERNELS
from polyml.errors import IllegalScheduleError
from polyml.options import Options
from polyml.schedule.driver import schedule
from polyml.schedule.isl_scheduler import tree_from_written_order
from polyml.schedule.legality import check
from polyml.schedule.matching import Matcher
from polyml.schedule.pivots.joined_updates import join_updates
from polyml.schedule.pivots.parts import split_at_pivots
from polyml.schedule.pivots.plan import Pivots, plan_pivots
from polyml.schedule.schedule import Schedule
from polyml.schedule.strategy.facts import model_statements
from polyml.schedule.strategy.sequential.pivoted import build_pivoted
from polyml.schedule.tree import print_tree
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from polyml.target import Target

WIDE = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20, cores=2)
SMALL = Target("host", vector_bytes=32, vector_registers=16, l1_bytes=2048, l2_bytes=16 * 1024, cores=2)
"""This machine with vectors of AVX2 and caches so small that blocks of one register tile appear at test sizes."""
LOWER_LEFT = """
def solve(L: f64["N N"], X: f64["N M"]):
    for i in range(N):
        if k < i:
            X[i, j] -= L[i, k] * X[k, j]
        X[i, j] /= L[i, i]
    return X
"""
UPPER_LEFT = LOWER_LEFT.replace("L[i, k]", "L[k, i]")
UPPER_RIGHT = """
def solve(U: f64["N N"], X: f64["M N"]):
    for j in range(N):
        if k < j:
            X[i, j] -= X[i, k] * U[k, j]
        X[i, j] /= U[j, j]
    return X
"""
LOWER_RIGHT = UPPER_RIGHT.replace("U[k, j]", "U[j, k]")
RIGHT_LOOKING = """
def lu(A: f64["N N"]):
    for k in range(N):
        if i > k:
            A[i, k] /= A[k, k]
        if i > k and j > k:
            A[i, j] -= A[i, k] * A[k, j]
    return A
"""


def blocks_of(function: polyml.Einsum, *arguments: np.ndarray) -> str:
    """The plan as explain() tells it; nothing when there is none. Nothing may have been dropped on the way."""
    notes = [note for region in function.lower(*arguments).stages.regions for note in region.notes]
    assert not [note for note in notes if note.stage == "fallback"]
    return "".join(note.text for note in notes if note.stage == "blocking")


def region(text: str, *arguments: np.ndarray) -> tuple[Scop, Dependences]:
    """A program's region as it is before scheduling."""
    (lowered,) = polyml.einsum(text, scheduler="written").lower(*arguments).stages.regions
    return lowered.scop, lowered.dependences


def planned(scop: Scop, dependences: Dependences) -> Pivots | None:
    models = model_statements(scop, Matcher(scop, dependences, relax_reductions=True))
    return plan_pivots(scop, dependences, models, WIDE)


# -- results ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param("lu", 97, marks=pytest.mark.slow),
        ("lu", 120),
        ("lu", 145),
        pytest.param("cholesky", 120, marks=pytest.mark.slow),
        ("cholesky", 127),
        pytest.param("ludcmp", 119, marks=pytest.mark.slow),
    ],
)
@pytest.mark.few(1)
def test_factorizations_around_the_tiles(name: str, size: int) -> None:
    kernel = KERNELS[name]
    arguments = kernel.data({"N": size}, np.random.default_rng(size))
    (expected,) = kernel.reference(*(a.copy() for a in arguments))
    function = kernel.program(target=SMALL, threads=1, verify=True)
    assert "blocks of 24 k" in blocks_of(function, *(a.copy() for a in arguments))
    np.testing.assert_allclose(function(*(a.copy() for a in arguments)), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("options", [{"threads": 2, "precise": True}, {"target": "x86-64-v3", "threads": 1}])
@pytest.mark.parametrize("name", ["lu", "cholesky"])
@pytest.mark.few(1)
def test_factorizations_under_options(name: str, options: dict[str, object]) -> None:
    if isinstance(options.get("target"), str) and not Target(str(options["target"])).runs_here:
        pytest.skip("not on this machine")
    kernel = KERNELS[name]
    (a,) = kernel.data({"N": 203}, np.random.default_rng(1))
    (expected,) = kernel.reference(a.copy())
    function = kernel.program(**options)
    assert blocks_of(function, a.copy())
    np.testing.assert_allclose(function(a.copy()), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("shape", [pytest.param((97, 24), marks=pytest.mark.slow), (121, 65)])
@pytest.mark.parametrize("text", [LOWER_LEFT, UPPER_LEFT, UPPER_RIGHT, LOWER_RIGHT])
@pytest.mark.few(1)
def test_triangular_systems_with_many_right_sides(text: str, shape: tuple[int, int]) -> None:
    n, m = shape
    rng = np.random.default_rng(n)
    factor = rng.random((n, n)) + n * np.eye(n)
    sides = rng.random((n, m) if text in (LOWER_LEFT, UPPER_LEFT) else (m, n))
    function = polyml.einsum(text, target=SMALL, threads=1, verify=True)
    assert "blocks of 24 k" in blocks_of(function, factor, sides.copy())
    triangle = np.tril(factor) if text in (LOWER_LEFT, LOWER_RIGHT) else np.triu(factor)
    if text == LOWER_LEFT:
        expected = np.linalg.solve(triangle, sides)
    elif text == UPPER_LEFT:
        expected = np.linalg.solve(triangle.T, sides)
    else:
        other = triangle.T if text == UPPER_RIGHT else triangle
        expected = np.linalg.solve(other, sides.T).T
    np.testing.assert_allclose(function(factor, sides.copy()), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("dtype", [pytest.param("f32", marks=pytest.mark.slow), "f64"])
def test_written_pivot_by_pivot(dtype: str) -> None:
    """Assignments in a loop over pivots instead of sums; a row stride that is a power of two."""
    (a,) = KERNELS["lu"].data({"N": 256}, np.random.default_rng(2))
    a = a.astype({"f32": np.float32, "f64": np.float64}[dtype])
    function = polyml.einsum(RIGHT_LOOKING.replace("f64", dtype), target=SMALL, threads=1)
    assert "blocks of" in blocks_of(function, a.copy())
    (expected,) = KERNELS["lu"].reference(a.astype(np.float64))
    np.testing.assert_allclose(
        function(a.copy()), expected, rtol=1e-3 if dtype == "f32" else 1e-11, atol=1e-5 if dtype == "f32" else 1e-12
    )


def test_integers_are_exact() -> None:
    """Sums modulo 2**64 are the same in any order, so that one term too many or too few shows."""
    text = """
def update(A: i64["N N"]):
    for i in range(N):
        for j in range(i):
            if k < j:
                A[i, j] -= A[i, k] * A[k, j]
        if j >= i and k < i:
            A[i, j] -= A[i, k] * A[k, j]
    return A
"""
    a = np.random.default_rng(3).integers(-9, 10, (131, 131))
    function = polyml.einsum(text, target=SMALL, threads=1)
    assert blocks_of(function, a.copy())
    expected = a.copy()
    for k in range(131):
        expected[k + 1 :, k + 1 :] -= np.outer(expected[k + 1 :, k], expected[k, k + 1 :])
    np.testing.assert_array_equal(function(a.copy()), expected)


# -- analysis -----------------------------------------------------------------------------------------------------------------------


def test_updates_on_both_sides_of_the_diagonal_are_one() -> None:
    (a,) = KERNELS["lu"].data({"N": 200}, np.random.default_rng(0))
    scop, dependences = region(KERNELS["lu"].text, a)
    joined, _ = join_updates(scop, dependences)
    assert len(scop.statements) == 3
    assert [s.kind for s in joined.statements.values()] == ["update", "assign"]
    update = next(iter(joined.statements.values()))
    i, j, k = update.indices
    wanted = update.domain.read_from_str(
        update.domain.get_ctx(), f"{{ {update.name}[{i}, {j}, {k}] : 0 <= {k} < {i}, {j} and {i}, {j} < 200 }}"
    )
    assert update.domain.is_equal(wanted)


def test_what_happens_on_the_diagonal_joins_with_two_indices_equal() -> None:
    (a,) = KERNELS["cholesky"].data({"N": 200}, np.random.default_rng(0))
    scop, dependences = region(KERNELS["cholesky"].text, a)
    joined, _ = join_updates(scop, dependences)
    assert (len(scop.statements), len(joined.statements)) == (4, 3)
    other = KERNELS["cholesky"].text.replace("A[i, k] * A[i, k]", "A[i, k] * A[i, k] * 2")
    scop, dependences = region(other, a)
    assert join_updates(scop, dependences) == (scop, dependences)


def test_every_statement_stands_on_the_three_loops() -> None:
    (a,) = KERNELS["cholesky"].data({"N": 400}, np.random.default_rng(0))
    plan = planned(*join_updates(*region(KERNELS["cholesky"].text, a)))
    assert plan is not None
    found = {(own.rows, own.lanes, own.pivot) for own in plan.loops.values()}
    assert found == {("i", "j", "k"), ("i", "j", "j"), ("i", "i", "i")}
    assert (plan.tile.rows, plan.width) == (8, 24)
    assert plan.block % 24 == 0
    assert not plan.contiguous


def test_right_sides_are_free() -> None:
    rng = np.random.default_rng(0)
    for text, free in ((LOWER_LEFT, "lanes"), (UPPER_RIGHT, "rows")):
        plan = planned(*region(text, rng.random((400, 400)), rng.random((400, 400))))
        assert plan is not None
        assert plan.free == {free}


def test_no_plan_where_a_statement_needs_what_comes_later() -> None:
    """A row is read whole before it is updated: no order of tiles fits."""
    text = """
def rows(A: f64["N N"], s: f64["N"]):
    for i in range(N):
        s[i] = sum[j](A[i, j] * A[N - 1 - i, j])
        if k < i:
            A[i, j] -= A[i, k] * A[k, j] * s[k]
    return A, s
"""
    a = np.random.default_rng(0).random((130, 130)) / 130
    function = polyml.einsum(text, target=SMALL, threads=1)
    expected, sums = a.copy(), np.zeros(130)
    for i in range(130):
        sums[i] = expected[i] @ expected[129 - i]
        expected[i] -= (expected[i, :i] * sums[:i]) @ expected[:i]
    assert not blocks_of(function, a.copy(), np.zeros(130))
    _, found_sums = function(a.copy(), np.zeros(130))
    np.testing.assert_allclose(found_sums, sums, rtol=1e-11)


def test_small_ones_and_explicit_choices_stay_without_blocks() -> None:
    (a,) = KERNELS["lu"].data({"N": 60}, np.random.default_rng(0))
    assert not blocks_of(KERNELS["lu"].program(target=WIDE), a.copy())
    (a,) = KERNELS["lu"].data({"N": 400}, np.random.default_rng(0))
    assert blocks_of(KERNELS["lu"].program(target=WIDE), a.copy())
    for options in ({"vectorize": False}, {"tile_sizes": (8, 8)}, {"scheduler": "isl"}):
        assert not blocks_of(KERNELS["lu"].program(target=WIDE, **options), a.copy())


@pytest.mark.parametrize(("size", "block"), [(60, 48), (600, 72), (1600, 120)])
@pytest.mark.few(1)
def test_blocks_of_any_size_suit_the_call_at_hand(size: int, block: int) -> None:
    """And two of them are enough, not four: what has none goes row by row."""
    target = Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024)
    function = KERNELS["lu"].program(target=target, dynamic=True, threads=1)
    (a,) = KERNELS["lu"].data({"N": size}, np.random.default_rng(0))
    assert f"blocks of {block} k" in blocks_of(function, a.copy())
    assert f"if (((N >= {2 * block})" in function.lower(a.copy()).text("loops")


# -- proofs -------------------------------------------------------------------------------------------------------------------------


def test_the_proof_refuses_parts_in_another_order() -> None:
    """A plan whose blocks are no multiple of the register tile, and copies that forget what they wait for: refused, or nothing of the sort is believed."""
    (a,) = KERNELS["cholesky"].data({"N": 400}, np.random.default_rng(0))
    scop, dependences = join_updates(*region(KERNELS["cholesky"].text, a))
    plan = planned(scop, dependences)
    assert plan is not None
    parts = split_at_pivots(scop, dependences, plan)
    assert parts is not None
    tree = build_pivoted(parts, tree_from_written_order(scop), parallel=False)
    made = Schedule(scop=parts.scop, dependences=parts.dependences, tree=tree, storage=dict(parts.storage))
    check(made)
    early = replace(parts, copies={"both": parts.copies["rows"], "rows": parts.copies["both"]})
    tree = build_pivoted(early, tree_from_written_order(scop), parallel=False)
    with pytest.raises(IllegalScheduleError, match="flow dependence"):
        check(replace(made, tree=tree))


def test_written_order_of_a_blocked_schedule() -> None:
    """Copies have a place in the written order, so that a user can start from there."""
    (a,) = KERNELS["cholesky"].data({"N": 130}, np.random.default_rng(0))
    lowered = KERNELS["cholesky"].program(target=SMALL, threads=1).lower(a.copy())
    written = lowered.schedule.written()
    kernel = lowered.with_schedule(written).compile()
    np.testing.assert_allclose(kernel(a.copy()), KERNELS["cholesky"].reference(a.copy())[0], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["lu", "cholesky"])
def test_tree_at_real_size(name: str, golden: Callable[[str, str], None]) -> None:
    (a,) = KERNELS[name].data({"N": 2000}, np.random.default_rng(0))
    found = schedule(*region(KERNELS[name].text, a), WIDE, Options(target=WIDE, threads=2))
    storage = [f"{s.array}: {'x'.join(map(str, s.shape)) or 'scalar'}" for s in found.storage.values()]
    notes = [f"{n.stage} {n.subject}: {n.text}" for n in found.notes]
    golden(f"schedule/{name}", "\n".join([print_tree(found.tree, found.scop), *storage, *notes]))
