"""The parts of scheduling on their own: budget, order, transforms, storage, packing, cost."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl
import numpy as np
import pytest

import polyml
from polyml.options import Options
from polyml.schedule.driver import schedule
from polyml.schedule.ilp.driver import schedule_by_ilp
from polyml.schedule.isl_scheduler import schedule_by_isl, tree_from_written_order
from polyml.schedule.legality import check_tree
from polyml.schedule.matching import Matcher
from polyml.schedule.pack import pack_operands
from polyml.schedule.register_tiles import register_tile
from polyml.schedule.storage_check import storage_faults
from polyml.schedule.strategy.facts import model_statements
from polyml.schedule.transforms import (
    distribute_band,
    graft,
    loops_of,
    merge_with_child,
    split_band,
)
from polyml.schedule.tree import Kind, kind_of, nodes, print_tree
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from polyml.sets.budget import BudgetExhausted, operation_budget
from polyml.target import Target
from tests.schedule import programs

WIDE = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20, cores=2)


def _ordered(scop: Scop, dependences: Dependences) -> isl.Schedule:
    matcher = Matcher(scop, dependences, relax_reductions=True)
    return schedule_by_ilp(scop, matcher)[0]


def _legal(tree: isl.Schedule, scop: Scop, dependences: Dependences) -> None:
    check_tree(tree, scop, dependences.validity, dependences.reduction)


# -- budget -------------------------------------------------------------------------------------------------------------------------


def test_budget_raises_and_leaves_isl_working() -> None:
    scop, dependences = programs.program(programs.JACOBI, N=20, T=5)
    with pytest.raises(BudgetExhausted, match="isl's scheduler took more than 100 isl operations"):
        schedule_by_isl(scop.domain, dependences.validity, dependences, context=scop.context, budget=100)
    assert not isl.Set("{ [i] : 0 <= i < 10 }").is_empty()
    assert isl.DEFAULT_CONTEXT.get_max_operations() == 0


def test_values_that_isl_did_not_give_exhaust_a_budget() -> None:
    sets = [isl.Set(f"{{ [i] : 0 <= i < {n} }}") for n in range(1, 1000)]
    with pytest.raises(BudgetExhausted), operation_budget(50, phase="values"):
        sum(domain.dim_max_val(0).to_python() for domain in sets)
    with pytest.raises(TypeError), operation_budget(10_000, phase="values"):
        int(None)  # type: ignore[call-overload]


def test_other_isl_errors_pass_through_a_budget() -> None:
    with pytest.raises(isl.Error), operation_budget(10_000, phase="reading"):
        isl.Set("{ [i] : nonsense")


def test_an_enclosing_budget_is_in_force_again() -> None:
    with operation_budget(5_000_000, phase="outer"):
        with operation_budget(1_000, phase="inner"):
            pass
        assert isl.DEFAULT_CONTEXT.get_max_operations() == 5_000_000
    assert isl.DEFAULT_CONTEXT.get_max_operations() == 0


# -- order --------------------------------------------------------------------------------------------------------------------------


def test_rows_are_fused_whole() -> None:
    scop, dependences = programs.program(programs.SOFTMAX, N=128, M=64)
    tree = _ordered(scop, dependences)
    _legal(tree, scop, dependences)
    band = tree.get_root().child(0)
    assert kind_of(band) == Kind.band
    assert "filter: E[n, m], SU[n, m]" in print_tree(tree, scop)


def test_a_fusion_that_leaves_too_few_parallel_iterations_is_refused() -> None:
    """Two products that share 2 rows only: fused, no parallelism would be left."""
    scop, dependences = programs.program(programs.CHAIN, N=2, K=64, H=512, M=512)
    tree = _ordered(scop, dependences)
    _legal(tree, scop, dependences)
    assert kind_of(tree.get_root().child(0)) == Kind.sequence


def test_written_time_loop_stays_outside() -> None:
    scop, dependences = programs.program(programs.JACOBI, N=50, T=10)
    tree = _ordered(scop, dependences)
    _legal(tree, scop, dependences)
    assert "band[t | permutable | coincident 0]" in print_tree(tree, scop)
    assert print_tree(tree, scop).count("band[i, j | permutable | coincident 1,1]") == 2


def test_shifted_dependences_leave_the_inner_loop_parallel() -> None:
    scop, dependences = programs.program(
        """
        inout y f32[32, 32]
        S[i, j]: 1 <= i < 31 and 1 <= j < 31: y[i, j] = y[i - 1, j + 1] + 1
        """
    )
    tree = _ordered(scop, dependences)
    _legal(tree, scop, dependences)
    assert print_tree(tree, scop).splitlines()[1:] == [
        "└─ band[i | permutable | coincident 0]",
        "   └─ band[j | permutable | coincident 1]",
    ]


@pytest.mark.parametrize("text", [programs.JACOBI, programs.DENSE, programs.SOFTMAX])
def test_isl_schedules_are_legal(text: str) -> None:
    scop, dependences = programs.program(text, N=20, T=4, K=5, M=12)
    found = schedule_by_isl(scop.domain, dependences.validity, dependences, context=scop.context, budget=1_000_000)
    leaf = isl.Schedule.from_domain(scop.domain).get_root().child(0)
    _legal(graft(leaf, found.get_root().child(0)).get_schedule(), scop, dependences)


# -- transforms ---------------------------------------------------------------------------------------------------------------------


def test_split_and_merge() -> None:
    scop, dependences = programs.program(programs.DENSE, N=20, K=5, M=30)
    split = split_band(_ordered(scop, dependences).get_root().child(0), 1)
    assert split.band_n_member() == 1
    assert merge_with_child(split).band_n_member() == 2
    _legal(split.get_schedule(), scop, dependences)


def test_distribution_over_a_sequence() -> None:
    scop, dependences = programs.program(programs.SOFTMAX, N=20, M=30)
    band = _ordered(scop, dependences).get_root().child(0)
    count = band.child(0).n_children()
    distributed = distribute_band(band, [[0, 1], list(range(2, count))])
    assert kind_of(distributed) == Kind.sequence
    assert distributed.n_children() == 2
    _legal(distributed.get_schedule(), scop, dependences)
    text = print_tree(distributed.get_schedule(), scop)
    assert text.count("band[n |") == 2


def test_a_grafted_copy_is_the_same_tree() -> None:
    scop, dependences = programs.program(programs.SOFTMAX, N=20, M=30)
    tree = _ordered(scop, dependences)
    leaf = isl.Schedule.from_domain(scop.domain).get_root().child(0)
    assert print_tree(graft(leaf, tree.get_root().child(0)).get_schedule(), scop) == print_tree(tree, scop)


def test_loops_of_a_band_say_what_is_coincident() -> None:
    scop, _ = programs.program(programs.DENSE, N=8, K=4, M=8)
    band = tree_from_written_order(scop).get_root().child(0).child(0).child(0)
    assert [loop.coincident for loop in loops_of(band)] == [False]


# -- storage ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        pytest.param("x86-64-v3", {"mx": (1,), "e": (1, 1024), "s": (1,)}, id="row by row"),
        pytest.param("x86-64-v4", {"mx": (32,), "mx_row": (32,), "e": (1, 1024), "s": (32,)}, id="blocks of rows"),
    ],
)
def test_shapes_after_contraction(name: str, shapes: dict[str, tuple[int, ...]]) -> None:
    """On AVX-512 the next row's maximum is found beside this one's exponentials."""
    scop, dependences = programs.program(programs.SOFTMAX, N=4096, M=1024)
    target = Target(name, l1_bytes=48 * 1024, l2_bytes=2 << 20, cores=2)
    found = schedule(scop, dependences, target, Options(target=target))
    assert {array: s.shape for array, s in found.storage.items()} == shapes


def test_values_that_cross_the_time_loop_stay() -> None:
    scop, dependences = programs.program(
        """
        input x f32[16]
        output y f32[16]
        local s f32[16]
        I[i]: 0 <= i < 16: s[i] = x[i]
        loop t
        S[t, i]: 0 <= t < 4 and 1 <= i < 16: s[i] = s[i - 1] + x[i]
        end
        Y[i]: 0 <= i < 16: y[i] = s[i]
        """
    )
    found = schedule(scop, dependences, WIDE, Options(target=WIDE))
    assert "s" not in found.storage
    assert any(n.stage == "storage" and n.text.startswith("kept in full") for n in found.notes)


def test_wrong_storage_is_found() -> None:
    scop, dependences = programs.program(programs.SOFTMAX, N=64, M=32)
    found = schedule(scop, dependences, WIDE, Options(target=WIDE))
    assert storage_faults(found) == []
    row = found.storage["e"]
    small = replace(found, storage={**found.storage, "e": replace(row, shape=(1, 31))})
    assert sorted(storage_faults(small)) == [f"e: {name} leaves the storage" for name in ("D", "E", "SU")]
    outside = replace(found, storage={**found.storage, "e": replace(row, place="allocate:nowhere")})
    assert storage_faults(outside) == ["e: no mark allocate:nowhere"]


def test_storage_that_overwrites_live_values_is_found() -> None:
    scop, dependences = programs.program(programs.SOFTMAX, N=64, M=32)
    found = schedule(scop, dependences, WIDE, Options(target=WIDE))
    row = found.storage["e"]
    folded = {n: isl.MultiAff(f"{{ {n}[n, m] -> [(n), (2*floor(m/2))] }}") for n in row.offsets}
    broken = replace(found, storage={**found.storage, "e": replace(row, offsets=folded)})
    assert storage_faults(broken) == ["e: two elements share a place"]
    one = {**row.offsets, "D": isl.MultiAff("{ D[n, m] -> [(n), (m - (31 - m))] }")}
    broken = replace(found, storage={**found.storage, "e": replace(row, offsets=one)})
    assert "e: statements disagree on the place of an element" in storage_faults(broken)


def test_storage_above_the_flow_is_found() -> None:
    """A scalar for a value that crosses the loop: the mark is moved inside the row loop's first nest."""
    scop, dependences = programs.program(programs.SOFTMAX, N=64, M=32)
    found = schedule(scop, dependences, WIDE, Options(target=WIDE))
    inner = next(
        n for n in nodes(found.tree.get_root()) if kind_of(n) == Kind.mark and n.mark_get_id().name == "vector:2"
    )
    moved = inner.insert_mark(isl.Id("allocate:moved")).get_schedule()
    broken = replace(found, tree=moved, storage={"e": replace(found.storage["e"], place="allocate:moved")})
    assert "e: accessed outside its place" in storage_faults(broken)


# -- packing and cost ---------------------------------------------------------------------------------------------------------------


def test_strided_operand_is_packed() -> None:
    scop, dependences = programs.program(programs.DISTANCES, N=512, M=512, K=16)
    matcher = Matcher(scop, dependences, relax_reductions=True)
    packed = pack_operands(scop, dependences, model_statements(scop, matcher), WIDE)
    assert dict(packed.copies) == {"S_y_by_0": None}
    assert str(packed.scop.statements["S_y_by_0"].target) == "y_by_0[e1, e0]"
    assert str(packed.scop.statements["DU"].value) == "((x[n, k] - y_by_0[k, m]) * (x[n, k] - y_by_0[k, m]))"
    _legal(tree_from_written_order(packed.scop), packed.scop, packed.dependences)


@pytest.mark.parametrize("sizes", [{"N": 4, "M": 512, "K": 16}, {"N": 1, "M": 64, "K": 64}])
def test_little_reuse_is_not_packed(sizes: dict[str, int]) -> None:
    scop, dependences = programs.program(programs.DISTANCES, **sizes)
    matcher = Matcher(scop, dependences, relax_reductions=True)
    packed = pack_operands(scop, dependences, model_statements(scop, matcher), WIDE)
    assert "S_y_by_0" not in packed.copies


@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64"])
def test_register_tile_fits_the_registers(name: str) -> None:
    target = Target(name)
    scop, dependences = programs.program(programs.DENSE, N=512, K=256, M=1024)
    model = model_statements(scop, Matcher(scop, dependences, relax_reductions=True))["CU"]
    tile = register_tile(model, "n", "m", target)
    assert tile.rows * tile.vectors + tile.vectors + 2 <= target.vector_registers
    assert tile.rows * tile.vectors >= 8
    assert tile.cost < register_tile(model, None, "m", target).cost


def test_what_is_read_once_is_read_in_long_pieces() -> None:
    """Sums down the columns of several matrices: along their rows, not a vector of each matrix at a time."""
    function = polyml.einsum(
        'def f(x: f32["B S D"]):\n    e[b, s, d] = exp(x[b, s, d])\n    z[b, d] = sum[s](e[b, s, d])\n    return e, z\n',
        target=WIDE,
    )
    text = str(function.explain(np.zeros((8, 300, 64), np.float32)))
    assert "lanes along d, 4 vectors at once" in text
    assert "jam b" not in text
