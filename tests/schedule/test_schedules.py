"""Schedules of whole programs: golden trees, proofs decided by isl, and the loops they generate against the written order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.polybench import KERNELS
from polyml.codegen.generate import generate
from polyml.codegen.interpret import interpret
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.options import Options
from polyml.schedule import pack
from polyml.schedule.driver import schedule
from polyml.schedule.ilp.solve import SolverLimit
from polyml.schedule.isl_scheduler import tree_from_written_order
from polyml.schedule.legality import check, check_tree
from polyml.schedule.schedule import Schedule
from polyml.schedule.storage_check import storage_faults
from polyml.schedule.tree import print_tree, tree_html
from polyml.schedule.ways import orders
from polyml.target import Target
from tests.schedule import programs

WIDE = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20, cores=2)
SMALL = Target("x86-64-v2", l1_bytes=256, l2_bytes=1024, cores=2)

REAL: dict[str, tuple[str, dict[str, int]]] = {
    "softmax": (programs.SOFTMAX, {"N": 4096, "M": 1024}),
    "layer_norm": (programs.LAYER_NORM, {"N": 4096, "M": 1024}),
    "dense": (programs.DENSE, {"N": 1024, "K": 512, "M": 1024}),
    "attention": (programs.ATTENTION, {"B": 1, "H": 8, "S": 512, "D": 64}),
    "distances": (programs.DISTANCES, {"N": 4096, "M": 4096, "K": 16}),
    "jacobi": (programs.JACOBI, {"N": 1300, "T": 500}),
    "convolution": (programs.CONVOLUTION, {"C": 64, "H": 58, "W": 58, "O": 64}),
}
TINY: dict[str, tuple[str, dict[str, int]]] = {
    "softmax": (programs.SOFTMAX, {"N": 5, "M": 13}),
    "layer_norm": (programs.LAYER_NORM, {"N": 3, "M": 11}),
    "dense": (programs.DENSE, {"N": 19, "K": 3, "M": 17}),
    "attention": (programs.ATTENTION, {"B": 1, "H": 2, "S": 7, "D": 5}),
    "distances": (programs.DISTANCES, {"N": 17, "M": 33, "K": 3}),
    "jacobi": (programs.JACOBI, {"N": 9, "T": 3}),
    "convolution": (programs.CONVOLUTION, {"C": 2, "H": 6, "W": 9, "O": 5}),
    "triangular": (programs.TRIANGULAR, {"N": 11}),
    "scan": (programs.SCAN, {"N": 6, "M": 9}),
    "histogram": (programs.HISTOGRAM, {"N": 9, "M": 4}),
    "chain": (programs.CHAIN, {"N": 21, "K": 4, "H": 9, "M": 6}),
}


@pytest.mark.parametrize("name", REAL)
def test_tree_at_real_size(name: str, golden: Callable[[str, str], None]) -> None:
    """The marks, tiles and storage that the strategy chooses at the sizes that benchmarks run."""
    text, sizes = REAL[name]
    scop, dependences = programs.program(text, **sizes)
    found = schedule(scop, dependences, WIDE, Options(target=WIDE))
    assert not any(note.stage == "fallback" for note in found.notes)
    assert storage_faults(found) == []
    storage = [f"{s.array}: {'x'.join(map(str, s.shape)) or 'scalar'}" for s in found.storage.values()]
    notes = [f"{n.stage} {n.subject}: {n.text}" for n in found.notes]
    golden(f"schedule/{name}", "\n".join([print_tree(found.tree, found.scop), *storage, *notes]))


@pytest.mark.parametrize("name", REAL)
def test_written_order_is_legal(name: str) -> None:
    text, sizes = REAL[name]
    scop, dependences = programs.program(text, **sizes)
    tree = tree_from_written_order(scop)
    check_tree(tree, scop, dependences.validity, dependences.reduction, relax_reductions=False)


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("target", [WIDE, SMALL], ids=["wide", "small"])
@pytest.mark.parametrize("name", TINY)
@pytest.mark.few(3)
def test_same_values_as_written(name: str, target: Target, precise: bool) -> None:
    """Loops of the strategy's schedule compute what the written order computes."""
    text, sizes = TINY[name]
    scop, dependences = programs.program(text, **sizes)
    options = Options(target=target, precise=precise, threads=2)
    found = schedule(scop, dependences, target, options)
    assert not any(note.stage == "fallback" for note in found.notes)
    assert storage_faults(found) == []
    plain = Schedule(scop=scop, dependences=dependences, tree=tree_from_written_order(scop), storage={})
    check(plain, relax_reductions=False)
    expected, got = _run(plain, None), _run(found, LoopOptions(vector_bytes=target.vector_bytes, precise=precise))
    for array, value in expected.items():
        np.testing.assert_allclose(got[array], value, rtol=1e-4, atol=1e-5, err_msg=array)


@pytest.mark.parametrize("name", ["dense", "distances", "attention", "convolution"])
def test_same_values_with_everything_packed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels and rows of tiny operands, which would not pay."""
    for limit in ("MIN_REUSE", "PANEL_REUSE", "PANEL_DEPTH"):
        monkeypatch.setattr(pack, limit, 0.5)
    monkeypatch.setattr(pack, "GAIN", 0.25)
    text, sizes = TINY[name]
    scop, dependences = programs.program(text, **sizes)
    small = Target("x86-64-v2", l1_bytes=64, l2_bytes=64, cores=2)
    found = schedule(scop, dependences, small, Options(target=small, threads=2))
    assert any(note.stage == "packing" for note in found.notes)
    assert storage_faults(found) == []
    plain = Schedule(scop=scop, dependences=dependences, tree=tree_from_written_order(scop), storage={})
    expected, got = _run(plain, None), _run(found, LoopOptions(vector_bytes=small.vector_bytes))
    for array, value in expected.items():
        np.testing.assert_allclose(got[array], value, rtol=1e-4, atol=1e-5, err_msg=array)


def _run(found: Schedule, passes: LoopOptions | None) -> dict[str, np.ndarray]:
    function = generate(found, name="region")
    if passes is not None:
        function, _ = lower_loops(function, options=passes)
    rng = np.random.default_rng(7)
    arrays = {}
    for variable in function.arguments:
        shape = tuple(extent.constant for extent in variable.shape)
        if variable.dtype.is_float:
            arrays[variable.name] = rng.standard_normal(shape).astype(variable.dtype.numpy)
        else:
            arrays[variable.name] = rng.integers(0, 4, shape).astype(variable.dtype.numpy)
    interpret(function, arrays)
    return {name: arrays[name] for name in sorted(function.written)}


def test_one_thread_has_no_parallel_loop() -> None:
    scop, dependences = programs.program(programs.SOFTMAX, N=4096, M=1024)
    found = schedule(scop, dependences, WIDE, Options(target=WIDE, threads=1))
    assert "parallel" not in print_tree(found.tree, found.scop)


def test_precise_reductions_stay_in_order() -> None:
    """Without reassociation no lanes run along a reduction."""
    scop, dependences = programs.program(programs.SOFTMAX, N=4096, M=1024)
    found = schedule(scop, dependences, WIDE, Options(target=WIDE, precise=True))
    check(found, relax_reductions=False)


def test_without_vectors() -> None:
    scop, dependences = programs.program(programs.DENSE, N=512, K=256, M=1024)
    found = schedule(scop, dependences, WIDE, Options(target=WIDE, vectorize=False))
    assert "vector" not in print_tree(found.tree, scop)
    assert "jam" not in print_tree(found.tree, scop)


def test_written_scheduler_keeps_the_order() -> None:
    scop, dependences = programs.program(programs.DENSE, N=8, K=4, M=8)
    found = schedule(scop, dependences, WIDE, Options(target=WIDE, scheduler="written"))
    assert found.tree.plain_is_equal(tree_from_written_order(scop))


def test_exhausted_budget_falls_back_and_says_so() -> None:
    scop, dependences = programs.program(programs.ATTENTION, B=1, H=2, S=8, D=4)
    found = schedule(scop, dependences, WIDE, Options(target=WIDE, budget=60_000))
    assert [note.stage for note in found.notes].count("fallback") >= 1
    check(found)


def test_next_to_no_budget_leaves_the_written_order() -> None:
    scop, dependences = programs.program(programs.ATTENTION, B=1, H=2, S=8, D=4)
    found = schedule(scop, dependences, WIDE, Options(target=WIDE, budget=50))
    assert [note.stage for note in found.notes].count("fallback") == 4
    assert found.tree.plain_is_equal(tree_from_written_order(scop))
    check(found)


def test_statements_without_instances() -> None:
    scop, dependences = programs.program(programs.SOFTMAX, N=4, M=0)
    found = schedule(scop, dependences, WIDE, Options(target=WIDE))
    assert print_tree(found.tree, scop).splitlines()[0] == "domain: MI[n], SI[n]"
    scop, dependences = programs.program(programs.SCAN, N=4, M=1)
    found = schedule(scop, dependences, WIDE, Options(target=WIDE))
    assert found.tree.get_domain().is_empty()


def test_symbolic_sizes_stay_legal() -> None:
    scop, dependences = programs.program(programs.SYMBOLIC)
    found = schedule(scop, dependences, WIDE, Options(target=WIDE))
    assert not any(note.stage == "fallback" for note in found.notes)
    assert "vector" in print_tree(found.tree, scop)
    assert storage_faults(found) == []


def test_skewed_wavefront_by_isl() -> None:
    """A recurrence with no parallel loop as written: isl's scheduler finds one, or the written loops stay."""
    scop, dependences = programs.program(programs.WAVEFRONT, N=20)
    found = schedule(scop, dependences, WIDE, Options(target=WIDE))
    check(found)


def test_html_holds_the_tree() -> None:
    scop, dependences = programs.program(programs.DENSE, N=8, K=4, M=8)
    found = schedule(scop, dependences, WIDE, Options(target=WIDE))
    assert "<b>mark: vector" in tree_html(found.tree, scop)


def test_isl_stands_in_within_its_share_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """isl's scheduler would take minutes for nussinov's expanded scalar: where it stands in for the integer programs it is cut off soon."""
    kernel = KERNELS["nussinov"]
    (region,) = kernel.program(target=WIDE).lower(*kernel.arguments("SMALL")).stages.regions

    def fail(*_: object, **__: object) -> None:
        raise SolverLimit("no time left")

    monkeypatch.setattr(orders, "schedule_by_ilp", fail)
    found = schedule(region.scop, region.dependences, WIDE, Options(target=WIDE))
    dropped = [note.text.partition(" was dropped")[0] for note in found.notes if note.stage == "fallback"]
    assert dropped[-3:] == ["the schedule by integer programs", "isl's schedule", "isl's schedule without marks"]
    check(found)
