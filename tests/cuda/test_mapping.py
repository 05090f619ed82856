"""The mapping: what the strategy chooses, that every instance runs exactly once, and what legality refuses."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.codegen.cuda.program import CudaRegion, grid_of
from polyml.codegen.interpret import interpret
from polyml.codegen.loops import For
from polyml.codegen.rewrite import walk_nodes
from polyml.compiler.driver import Stages, lower_program
from polyml.compiler.gpu import cuda_regions
from polyml.errors import IllegalScheduleError
from polyml.schedule.legality import check
from polyml.schedule.schedule import Schedule
from polyml.schedule.transforms import insert_mark
from polyml.schedule.tree import Kind, kind_of


def stages_of(text: str, *arguments: np.ndarray, **options: object) -> Stages:
    program = polyml.einsum(text, target="cuda", **options)
    return lower_program(program.program, program.key_of(*arguments), program.options)


def regions_of(text: str, *arguments: np.ndarray, **options: object) -> tuple[CudaRegion, ...]:
    return cuda_regions(stages_of(text, *arguments, **options))


def mapped(region: CudaRegion) -> list[str]:
    loops = [n for k in region.kernels for n in walk_nodes(k.function.body) if isinstance(n, For) and n.mapped]
    return [f"{loop.kind}.{loop.axis} {loop.variable}" for loop in loops]


F = np.float32
MATMUL = 'def f(x: f32["N K"], w: f32["K M"]):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n'
SUMS = 'def f(x: f32["N K"]):\n    y[n] = x[n, k]\n    return y\n'
RECURRENCE = 'def f(x: f32["N"]):\n    y: f32["N"] = 0\n    for n in range(1, N):\n        y[n] = y[n - 1] * 0.5 + x[n]\n    return y\n'
SMOOTH = 'def f(y: f32["N"]):\n    for t in range(3):\n        y[i] = y[i] + y[N - 1 - i]\n'


def test_neighbouring_threads_take_neighbouring_elements() -> None:
    (region,) = regions_of(MATMUL, np.ones((64, 8), F), np.ones((8, 96), F))
    assert mapped(region) == ["block.y n_tile", "block.x m_tile", "thread.y n", "thread.x m"]
    (region,) = regions_of(MATMUL, np.ones((64, 8), F), np.ones((8, 96), F)[:, ::-1].copy())
    assert mapped(region)[-1] == "thread.x m"
    (tiled,) = regions_of(MATMUL, np.ones((512, 3), F), np.ones((3, 512), F))
    (loop,) = [n for n in walk_nodes(tiled.kernels[0].function.body) if isinstance(n, For) and n.variable == "k"]
    assert len(loop.body) == 16, "a register tile of 4 x 4"
    (columns,) = regions_of('def f(x: f32["N K"]):\n    y[k] = x[n, k]\n    return y\n', np.ones((64, 4000), F))
    assert mapped(columns) == ["block.x k_tile", "thread.x k"]


def test_a_block_shares_a_row_only_where_that_pays() -> None:
    (long,) = regions_of(SUMS, np.ones((64, 4000), F))
    assert mapped(long) == ["block.x n", "thread.x k_tile"]
    assert long.kernels[0].threads == (256, 1, 1)
    (precise,) = regions_of(SUMS, np.ones((640, 4000), F), precise=True)
    assert mapped(precise) == ["block.x n_tile", "thread.x n"], "a precise sum keeps its order"


@pytest.mark.usefixtures("unreported")
def test_explain_tells_the_kernels() -> None:
    text = 'def f(x: f32["N K"]):\n    e[n, k] = exp(x[n, k])\n    s[n] = e[n, k]\n    y[n, k] = e[n, k] / s[n]\n    return y\n'
    said = polyml.einsum(text, target="cuda").explain(np.ones((8, 500), F))
    assert "kernel f_0_k0: 256 x 1 x 1 threads, blocks: n on x, 2000 bytes of shared memory" in said
    assert "mapping: S_y: threads of a block share k, 256 at a time" in said


def test_what_cannot_be_mapped_runs_in_one_thread() -> None:
    regions = regions_of(RECURRENCE, np.ones(50, F))
    assert mapped(regions[-1]) == []
    assert regions[-1].kernels[-1].threads == (1, 1, 1)


def test_time_loops_launch_or_stay_in_a_block() -> None:
    (small,) = regions_of(SMOOTH, np.ones(300, F))
    assert [type(step).__name__ for step in small.steps] == ["Launch"]
    (large,) = regions_of(SMOOTH, np.ones(30_000, F))
    assert [kernel.threads for kernel in large.kernels] == [(256, 1, 1)] * 2
    assert [type(step).__name__ for step in large.steps] == ["Repeat"]
    assert large.scratch, "saved elements live in device memory"


@pytest.mark.parametrize("text", [MATMUL, SMOOTH, SUMS])
def test_every_instance_runs_once(text: str) -> None:
    """The loops as generated, executed in order by the interpreter of loops, give the exact result (updates count instances)."""
    rng = np.random.default_rng(0)
    shapes = {MATMUL: ((37, 5), (5, 70)), SMOOTH: ((45,),), SUMS: ((3, 600),)}[text]
    arguments = [rng.integers(0, 4, s).astype(F) for s in shapes]
    stages = stages_of(text, *arguments)
    (region,) = stages.regions
    arrays = {v.name: np.zeros([e.constant for e in v.shape], F) for v in region.loops.arguments}
    names = [item.tensor.name for item in stages.graph.inputs]
    arrays |= dict(zip(names, arguments, strict=True))
    expected = polyml.einsum(text)(*[a.copy() for a in arguments])
    if expected is None:
        expected = arguments[0].copy()
        polyml.einsum(text)(expected)
    interpret(region.loops, arrays)
    (written,) = region.loops.written
    assert np.array_equal(arrays[written], expected)


@pytest.mark.parametrize("mark", ["block.x", "thread.x:32", "block.y:8"])
def test_a_mapped_loop_must_carry_nothing(mark: str) -> None:
    (region,) = stages_of(RECURRENCE, np.ones(50, F)).regions[-1:]
    schedule = region.schedule
    assert_refused(schedule, mark)


@pytest.mark.parametrize(("mark", "refused"), [("block.x", True), ("thread.x:32", False)])
def test_threads_may_share_a_reduction_and_blocks_may_not(mark: str, refused: bool) -> None:
    (region,) = stages_of(SUMS, np.ones((64, 4000), F), precise=True).regions
    if refused:
        assert_refused(region.schedule, mark)
    else:
        check(marked(region.schedule, mark))
        with pytest.raises(IllegalScheduleError):
            check(marked(region.schedule, mark), relax_reductions=False)


def assert_refused(schedule: Schedule, mark: str) -> None:
    check(schedule)
    with pytest.raises(IllegalScheduleError):
        check(marked(schedule, mark))


def marked(schedule: Schedule, mark: str) -> Schedule:
    """The schedule with a mark on its last band that carries something."""

    def visit(node: object) -> object:
        if kind_of(node) == Kind.band and not node.band_member_get_coincident(0):
            return insert_mark(node, mark)
        return node

    from dataclasses import replace

    return replace(schedule, tree=schedule.tree.map_schedule_node_bottom_up(visit))


TWO_GRIDS = 'def f(x: f16["N K"], w: f16["K M"]):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n'


def test_block_loops_that_isl_leaves_out_are_not_those_of_the_kernel_before() -> None:
    """One tile of rows each: what converts x is a kernel of one block, what reads it one of two, which no barrier could put in order."""
    given = [np.ones(shape, np.float16) for shape in ((6, 20), (20, 60))]
    program = polyml.einsum(TWO_GRIDS, target="cuda", verify=True)
    (region,) = cuda_regions(lower_program(program.program, program.key_of(*given), program.options))
    assert [grid_of(kernel, {}) for kernel in region.kernels] == [(1, 1, 1), (2, 1, 1)]
