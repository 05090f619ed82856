"""Contractions in tiles: their results, that each copy moves exactly what its tile reads, and that wrong storage is found."""

from __future__ import annotations

import itertools
from dataclasses import replace

import islpy as isl
import numpy as np
import pytest

import polyml
from polyml.codegen.loops import For, Node
from polyml.codegen.rewrite import walk_nodes
from polyml.compiler.driver import Stages, lower_program
from polyml.errors import CodegenError
from polyml.expressions import reads_of
from polyml.schedule.gpu.owners import threads_of
from polyml.schedule.schedule import Schedule
from polyml.schedule.storage_check import storage_faults
from polyml.target import Target
from tests.cuda.batch import compile_batch, needs_gxx, results_of

SMALL = Target("cuda", cores=1)
"""A device so small that small contractions are worth tiles."""

MATMUL = 'def f(x: f32["N K"], w: f32["K M"]):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n'
TRANSPOSED = 'def f(x: f32["N K"], w: f32["M K"]):\n    y[n, m] = x[n, k] * w[m, k]\n    return y\n'
DENSE = (
    'def f(x: f32["N K"], w: f32["K M"], b: f32["M"]):\n    y[n, m] = relu(x[n, k] * w[k, m] + b[m])\n    return y\n'
)
BATCH = 'def f(x: f64["B K N"], w: f64["B K M"]):\n    y[b, n, m] = x[b, k, n] * w[b, k, m]\n    return y\n'
FILTER = 'def f(x: f32["C N"], w: f32["O C Q"]):\n    y[o, n] = x[c, n + q] * w[o, c, q]\n    return y\n'
HALF = 'def f(x: f16["N K"], w: f16["K M"]):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n'
DISTANCE = 'def f(x: f32["N K"], w: f32["M K"]):\n    y[n, m] = sqrt(sum[k]((x[n, k] - w[m, k])**2))\n    return y\n'

SEVERAL = 'def f(x: f32["A G E"], y: f32["B F G"]):\n    z[f, e, b, a] = x[a, g, e] * y[b, f, g]\n    return z\n'
SEVERAL_APART = 'def f(x: f32["B G D"], y: f32["A E G"]):\n    z[e, d, b, a] = x[b, g, d] * y[a, e, g]\n    return z\n'
"""Short rows and columns: threads have several of another index on each side."""

LARGE = (np.empty((4096, 4096), np.float32),) * 2

ONWARD = 'def f(c: f32["N M"], x: f32["N K"], w: f32["K M"]):\n    c[n, m] += x[n, k] * w[k, m]\n    return c\n'

RNG = np.random.default_rng(0)


def arrays(*shapes: tuple[int, ...], dtype: type = np.float32) -> list[np.ndarray]:
    return [RNG.standard_normal(shape).astype(dtype) for shape in shapes]


def filtered(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    length = x.shape[1] - w.shape[2] + 1
    return sum(np.einsum("cn,oc->on", x[:, q : q + length], w[:, :, q]) for q in range(w.shape[2]))


CASES = [
    (MATMUL, arrays((128, 32), (32, 128)), lambda x, w: x @ w),
    (MATMUL, arrays((75, 21), (21, 45)), lambda x, w: x @ w),
    (TRANSPOSED, arrays((64, 40), (33, 40)), lambda x, w: x @ w.T),
    (DENSE, arrays((130, 32), (32, 64), (64,)), lambda x, w, b: np.maximum(x @ w + b, 0)),
    (BATCH, arrays((3, 20, 32), (3, 20, 40), dtype=np.float64), lambda x, w: np.einsum("bkn,bkm->bnm", x, w)),
    (FILTER, arrays((7, 66), (32, 7, 3)), filtered),
    (HALF, arrays((64, 16), (16, 64), dtype=np.float16), lambda x, w: x @ w),
    (ONWARD, arrays((75, 64), (75, 40), (40, 64)), lambda c, x, w: c + x @ w),
    (SEVERAL, arrays((24, 24, 4), (6, 24, 24)), lambda x, y: np.einsum("age,bfg->feba", x, y)),
    (SEVERAL, arrays((22, 19, 6), (2, 21, 19)), lambda x, y: np.einsum("age,bfg->feba", x, y)),
    (SEVERAL_APART, arrays((4, 24, 24), (24, 6, 24)), lambda x, y: np.einsum("bgd,aeg->edba", x, y)),
    (DISTANCE, arrays((32, 8), (40, 8)), lambda x, w: np.sqrt(((x[:, None] - w) ** 2).sum(2))),
]


def stages_of(text: str, *arguments: np.ndarray, **options: object) -> Stages:
    program = polyml.einsum(text, **({"target": SMALL} | options))
    return lower_program(program.program, program.key_of(*arguments), program.options)


@needs_gxx
@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_results_in_every_order(part: int) -> None:
    cases = CASES[part::2]
    batch = compile_batch([(text, given) for text, given, _ in cases], target=SMALL)
    assert batch.text.count("_tile[") > 50
    for (_, given, exact), kernel in zip(cases, batch.kernels, strict=True):
        expected = exact(*(a.astype(np.float64) for a in given))
        for order in range(4):
            kernel.module.orders = itertools.cycle((order,))
            (found,) = results_of(kernel(*(a.copy() for a in given)))
            bound = 4e-3 if found.dtype == np.float16 else 1e-4
            np.testing.assert_allclose(found, expected, rtol=bound, atol=bound)


def test_threads_have_several_of_other_indices() -> None:
    for text, given, _ in CASES:
        if text in (SEVERAL, SEVERAL_APART):
            (region,) = stages_of(text, *given).regions
            (note,) = (note.text for note in region.schedule.notes if note.stage == "tiles")
            assert ", with " in note, note


def schedule_of(case: int) -> Schedule:
    text, given, _ = CASES[case]
    (region,) = stages_of(text, *given).regions
    return region.schedule


@pytest.mark.parametrize("case", [0, 1, 4, 5])
def test_copies_move_what_is_read_and_all_threads_take_part(case: int) -> None:
    schedule = schedule_of(case)
    scop, threads = schedule.scop, threads_of(schedule.tree.get_root().child(0))
    tiles = [name for name in scop.arrays if name.endswith("_tile")]
    assert len(tiles) == 2
    for tile in tiles:
        (copy,) = [s for s in scop.statements.values() if s.target.array == tile]
        elements = isl.UnionSet(f"{{ {tile}[{', '.join(f'e{d}' for d in range(len(scop.arrays[tile].shape)))}] }}")
        written = scop.must_writes.intersect_range(elements)
        source = scop.arrays[tile.removesuffix("_tile")].shape  # whole tiles reach beyond it
        names = [f"e{d}" for d in range(len(scop.arrays[tile].shape))]
        there = " and ".join(f"{e} < {n.isl_text()}" for e, n in zip(names[-len(source) :], source, strict=True))
        inside = isl.UnionSet(f"{{ {tile}[{', '.join(names)}] : {there} }}")
        assert written.range().is_equal(scop.reads.intersect_range(elements).range().intersect(inside))
        assert written.is_injective(), "no element is copied twice"
        used = threads.intersect_domain(copy.domain.to_union_set())
        assert used.domain().is_equal(copy.domain.to_union_set())
        assert used.is_single_valued()
        if case == 0:
            everybody = threads.range()
            assert used.range().is_equal(everybody)


def test_wrong_storage_is_found() -> None:
    schedule = schedule_of(0)
    assert storage_faults(schedule) == []
    own = schedule.storage["y_own"]
    assert own.private
    shared = replace(schedule, storage={**schedule.storage, "y_own": replace(own, private=False)})
    assert storage_faults(shared) == ["y_own: two elements share a place"]
    short = replace(own, shape=(*own.shape[:-1], own.shape[-1] - 1))
    assert any("leaves the storage" in f for f in storage_faults(replace(schedule, storage={"y_own": short})))
    tile = schedule.storage["x_tile"]
    assert any(tile.wraps)
    alone = replace(tile, private=True)  # though others read what a thread copies
    assert "x_tile: a value leaves its visit" in storage_faults(replace(schedule, storage={"x_tile": alone}))
    once = replace(tile, shape=tuple(1 if w else e for e, w in zip(tile.shape, tile.wraps, strict=True)))
    (fault,) = storage_faults(replace(schedule, storage={"x_tile": once}))
    assert "share a place of x_tile while the first one's value is needed" in fault
    short = replace(tile, shape=(*tile.shape[:-2], tile.shape[-2] - 1, tile.shape[-1]))
    assert any("leaves the storage" in f for f in storage_faults(replace(schedule, storage={"x_tile": short})))


def test_accesses_of_16_bytes() -> None:
    """Copies, results, and what is read beside them, where rows are multiples of 16 bytes; single elements where they are not."""
    text = compile_batch([(DENSE, arrays((64, 32), (32, 64), (64,)))], build=False, target=SMALL).text
    assert text.count("__pipeline_memcpy_async(") == text.count(", 16);") == 4
    assert "const float4 b_v0 = *(const float4*)&b[" in text
    assert "*(float4*)&y[" in text
    assert "  y[" not in text
    odd = compile_batch([(MATMUL, arrays((64, 31), (31, 65)))], build=False, target=SMALL).text
    assert ", 16);" not in odd
    assert ", 4);" in odd
    assert "float4" not in odd


def test_sums_that_only_the_nest_reads_are_nowhere_else() -> None:
    scop = schedule_of(3).scop
    assert "y_sum" not in scop.arrays
    assert {r.tensor for r in reads_of(scop.statements["S_y"].value)} == {"y_sum_own", "b"}


def test_what_is_not_worth_tiles() -> None:
    for text, given in ((MATMUL, arrays((40, 8), (8, 40))), (MATMUL, arrays((640, 3), (3, 640)))):
        (region,) = stages_of(text, *given, target="cuda").regions
        assert not any(name.endswith("_tile") for name in region.schedule.scop.arrays)


@pytest.mark.usefixtures("unreported")
def test_explain_tells_the_tiles() -> None:
    said = polyml.einsum(MATMUL, target="cuda").explain(*LARGE)
    assert (
        "tiles: S_y: tiles of 64 n x 128 m x 16 k, 8 x 8 per thread; x and w staged through shared memory, twice"
        in said
    )
    assert "kernel f_0_k0: 16 x 8 x 1 threads, blocks: v0 on y, v1 on x, 26624 bytes of shared memory" in said


@needs_gxx
def test_what_cannot_be_cut_into_kernels_runs_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles and accumulators, too, are right in any order that the proof allows."""
    text, given, exact = CASES[1]
    seen: list[int] = []

    def refuse(body: tuple[Node, ...]) -> None:
        seen.append(1)
        if any(isinstance(node, For) and node.mapped for node in walk_nodes(body)):
            raise CodegenError("the loop that says who runs an assignment is missing")

    monkeypatch.setattr("polyml.codegen.cuda.split._require_bound", refuse)
    batch = compile_batch([(text, given)], target=SMALL)
    assert seen
    assert "threadIdx" not in batch.text
    np.testing.assert_allclose(results_of(batch.kernels[0](*given))[0], exact(*given), rtol=1e-4, atol=1e-4)
