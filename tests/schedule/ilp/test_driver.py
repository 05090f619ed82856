"""Fusion policies, shifts, reversals, budgets and fallbacks of the ilp scheduler."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from benchmarks.scheduling import chain, independent, measure
from polyml.options import Options
from polyml.schedule.driver import schedule
from polyml.schedule.ilp import cones
from polyml.schedule.ilp.solve import SolverLimit
from polyml.schedule.isl_scheduler import tree_by_isl
from polyml.schedule.legality import check, check_tree
from polyml.schedule.tree import print_tree
from polyml.scop.dependences import analyse
from polyml.target import Target
from tests.schedule import programs
from tests.schedule.ilp.helpers import bands, legal_tree, regions_of, tree_text

WIDE = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20, cores=2)

# -- fusion -------------------------------------------------------------------------------------------------------------------------

PAIR = """
    input x f32[900]
    local a f32[900]
    output y f32[900]
    A[i]: 0 <= i < 900: a[i] = exp(x[i])
    Y[i]: 0 <= i < 900: y[i] = a[i] + 1
"""


def test_fusion_policies() -> None:
    assert bands(PAIR, fusion="none") == ["i | coincident 1", "i | coincident 1"]
    assert bands(PAIR, fusion="smart") == ["i | coincident 1"]


SHIFTED = PAIR.replace("Y[i]: 0 <= i < 900: y[i] = a[i] + 1", "Y[i]: 0 <= i < 899: y[i] = a[i + 1] + 1")


COLUMNS = """
    input x f32[500, WIDE]
    local a f32[500, WIDE]
    output y f32[498, WIDE]
    A[i, j]: 0 <= i < 500 and 0 <= j < WIDE: a[i, j] = exp(x[i, j])
    Y[i, j]: 0 <= i < 498 and 0 <= j < WIDE: y[i, j] = a[i, j] + a[i + 2, j]
"""


def test_long_rows_are_not_walked_down_for_what_is_handed_over() -> None:
    """All that both could share is the loop over columns; of short rows, and where more is shared, they do."""
    assert len(bands(COLUMNS.replace("WIDE", "900"))) == 2
    assert bands(COLUMNS.replace("WIDE", "100"))[0] == "j | coincident 1"
    text = """
def blur(x: f32["H W"], k: f32["R"]):
    a[i, j] = x[i, j + r] * k[r]
    y[i, j] = a[i + r, j] * k[r]
    return y
"""
    rng = np.random.default_rng(0)
    for height, width in ((40, 300), (300, 263), (61, 50)):
        x, k = rng.random((height, width), "float32"), rng.random(5, "float32")
        wide = x.astype(np.float64)
        rows = sum(k[r] * wide[:, r : width - 4 + r] for r in range(5))
        expected = sum(k[r] * rows[r : height - 4 + r] for r in range(5))
        np.testing.assert_allclose(polyml.einsum(text, verify=True)(x, k), expected, rtol=1e-5)


def test_maximal_fusion_shifts() -> None:
    """The consumer runs one iteration behind; not so where all must be gained from it: the first iteration would be apart."""
    assert bands(SHIFTED, fusion="maximal") == ["{A: i; Y: i + 1} | coincident 1"]
    assert bands(SHIFTED, fusion="smart") == ["i | coincident 1", "i | coincident 1"]


def test_maximal_fusion_reverses() -> None:
    reversed_pair = PAIR.replace("y[i] = a[i] + 1", "y[i] = a[899 - i] + 1")
    assert bands(reversed_pair, fusion="maximal") == ["{Y: -i + 899; A: i} | coincident 1"]


def test_maximal_fusion_gives_up_parallelism() -> None:
    """A stencil behind its input can share a loop with it, three iterations behind each other, serially."""
    text = PAIR.replace("Y[i]: 0 <= i < 900: y[i] = a[i] + 1", "Y[i]: 1 <= i < 899: y[i] = a[i - 1] + a[i + 1]")
    assert bands(text, fusion="maximal") == ["{A: i; Y: i + 1} | coincident 0"]
    assert bands(text, fusion="smart") == ["i | coincident 1", "i | coincident 1"]


def test_loops_that_isl_takes_apart_share_what_they_hand_over() -> None:
    """One iteration of the copy, then a loop of its reader: the contracted copy is in one place for both."""
    text = """
        def f(x: f32["N"]):
            x[i] = where(i < N - 1, x[i + 1], 0) + x[i]
            return x
    """
    program = polyml.einsum(text, fusion="maximal", verify=True)
    assert np.array_equal(program(np.array([-0.5, 1.5], np.float32)), [1.0, 1.5])


def test_a_join_around_a_third_statement_is_no_cycle() -> None:
    """A and C would share their loop, but B, which cannot, is between them."""
    text = """
        input x f32[900]
        local a f32[900]
        local b f32[900]
        output y f32[900]
        A[i]: 0 <= i < 900: a[i] = exp(x[i])
        B[i]: 0 <= i < 900: b[i] = a[899 - i] + 1
        C[i]: 0 <= i < 900: y[i] = a[i] + b[i] + x[i]
    """
    lines = [line.split("filter: ")[1] for line in tree_text(text).splitlines() if "filter" in line]
    assert lines[0] == "A[i]"
    assert "B[i], C[i]" in lines


def test_precise_reductions_keep_their_order() -> None:
    text = """
        input x f32[90, 80]
        output s f32[90]
        I[i]: 0 <= i < 90: s[i] sum: 0
        U[j, i]: 0 <= i < 90 and 0 <= j < 80: s[i] sum= x[i, j]
    """
    scop = programs.scop_of(text)
    legal_tree(scop, analyse(scop), relax=False)  # proves it


def test_every_statement_shares_with_many() -> None:
    """Five hundred statements that read one array are one loop nest."""
    lines = ["input x f32[100, 50]", *(f"output y{k} f32[100, 50]" for k in range(100))]
    lines += [f"S{k}[i, j]: 0 <= i < 100 and 0 <= j < 50: y{k}[i, j] = exp(x[i, j])" for k in range(100)]
    assert bands("\n".join(lines)) == ["i, j | coincident 1,1"]


# -- scale --------------------------------------------------------------------------------------------------------------------------


def test_chains_solve_nothing() -> None:
    """A chain of elementwise statements and reductions is one loop over rows, and needs no integer program, however long it is."""
    scop = chain(40)
    tree = legal_tree(scop, analyse(scop), nodes=0)
    assert print_tree(tree, scop).splitlines()[1] == "└─ band[i | permutable | coincident 1]"


def test_independent_statements_stay_apart() -> None:
    scop = independent(12)
    tree = legal_tree(scop, analyse(scop), nodes=0)
    assert print_tree(tree, scop).count("band[i, j | permutable | coincident 1,1]") == 12


def test_scheduling_is_measured() -> None:
    row = measure("chain", [chain(3)])  # of six statements isl needs a million operations, or more than it may have
    assert row["statements"] == 3
    assert all(isinstance(row[key], float) for key in ("dependences_ms", "ilp_ms", "isl_ms"))


# -- budgets ------------------------------------------------------------------------------------------------------------------------


def test_nodes_are_limited() -> None:
    scop, _ = programs.program(programs.WAVEFRONT, N=20)
    with pytest.raises(SolverLimit):
        legal_tree(scop, analyse(scop), nodes=0)


SOLVER = """
def f(A: f64["N N"]):
    for k in range(N):
        if i > k:
            A[i, k] /= A[k, k]
        if i > k and j > k:
            A[i, j] -= A[i, k] * A[k, j]
    return A
"""


@pytest.mark.parametrize("budget", [1, 100, 1_000, 3_000, 6_000, 1_000_000])
@pytest.mark.few(3)
def test_any_budget_compiles(budget: int) -> None:
    """Less and less falls back to isl, to isl without marks, to the written order; whatever is left is right."""
    rng = np.random.default_rng(1)
    a = rng.random((9, 9)) + 9 * np.eye(9)
    expected = a.copy()
    for k in range(9):
        expected[k + 1 :, k] /= expected[k, k]
        expected[k + 1 :, k + 1 :] -= np.outer(expected[k + 1 :, k], expected[k, k + 1 :])
    ((scop, dependences),) = regions_of(SOLVER, a)
    found = schedule(scop, dependences, WIDE, Options(target=WIDE, budget=budget))
    check(found)
    fallbacks = [note for note in found.notes if note.stage == "fallback"]
    assert bool(fallbacks) == (budget <= 6_000)
    assert np.allclose(polyml.einsum(SOLVER, budget=budget)(a.copy()), expected)


def test_fallback_is_explained() -> None:
    program = polyml.einsum(SOLVER, budget=6_000)
    assert isinstance(program, polyml.Einsum)
    text = program.lower(np.eye(9)).explain()
    assert "fallback: f_0: the schedule by integer programs was dropped" in text


def test_generators_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polyhedra can have millions of them; isl's scheduler does without."""
    monkeypatch.setattr(cones, "MOST_GENERATORS", 3)
    a = np.random.default_rng(1).random((9, 9)) + 9 * np.eye(9)
    program = polyml.einsum(SOLVER, threads=1)
    text = program.lower(a).explain()
    assert "generators took more than 3" in text
    lu = program(a.copy())
    assert np.allclose((np.tril(lu, -1) + np.eye(9)) @ np.triu(lu), a)


def test_isl_trees_are_in_the_strategies_form() -> None:
    """Of a band with parallel and other members, the parallel ones come in a band of their own, outside."""
    scop, _ = programs.program(programs.DENSE, N=20, K=5, M=12)
    dependences = analyse(scop)
    tree = tree_by_isl(scop, dependences, relax_reductions=True, budget=1_000_000)
    check_tree(tree, scop, dependences.validity, dependences.reduction)
    text = print_tree(tree, scop)
    assert "coincident 1,1]" in text
    assert "1,0" not in text


def test_solver_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    program = polyml.einsum(SOLVER, debug=6)
    assert isinstance(program, polyml.Einsum)
    with polyml.options.overridden(debug=6):
        program.lower(np.eye(9))
    assert "integer programs of up to" in capsys.readouterr().err


def test_rows_have_sizes_of_statements_beside() -> None:
    """D is no size of `y`, whose rows it shifts so that its loops are those of `z`."""
    text = 'def f(b: f32["N 20"], d: f32["D"], T: int):\n    for t in range(T):\n        z: f32["33"]\n        z[i] = d[i]\n        y: f32["33 20"]\n        y[i, j] = max[r, r >= j](b[i, r])\n        m[i] = min[j](y[i, j])\n        b[i, j] = y[i, j] - m[i]\n    return b\n'
    b, d = np.random.default_rng(0).integers(-2, 3, (33, 20)).astype(np.float32), np.zeros(33, np.float32)
    expected = b
    for _ in range(3):
        expected = np.maximum.accumulate(expected[:, ::-1], axis=1)[:, ::-1]
        expected = expected - expected.min(axis=1, keepdims=True)
    program = polyml.einsum(text, dynamic=True, fusion="maximal")
    np.testing.assert_array_equal(program(b, d, 3), expected)
