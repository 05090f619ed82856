"""The mapping runs every instance of every statement exactly once: isl decides it on the loops, and kernels that only count say so on the emulator. For random programs, PolyBench, and what takes tiles."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import polyml
from benchmarks.polybench import KERNELS
from polyml.codegen.cuda.program import CudaRegion
from polyml.codegen.cuda.text.emit import emit_cuda
from polyml.codegen.loops import For, Function, Node
from polyml.codegen.rewrite import with_body
from polyml.compiler.driver import Stages, lower_program
from polyml.compiler.gpu import cuda_regions
from polyml.runtime.cuda.memory import Memory
from polyml.runtime.cuda.program import _Run
from polyml.target import Target
from tests.cuda.batch import needs_gxx
from tests.cuda.counting import Box, boxes_of, count_instances, coverage_faults, expected_counts
from tests.cuda.emulator.device import EmulatedDevice, EmulatedModule, build
from tests.cuda.test_halo import CASES as WINDOWS
from tests.cuda.test_partial_sums import CASES as PARTS
from tests.cuda.test_programs import random_cases
from tests.cuda.test_tiles import CASES as TILES
from tests.cuda.test_tiles import SMALL

Program = tuple[str, Sequence[object]]
LARGE = Target("cuda")


def lowered(programs: Sequence[Program], target: Target) -> Iterator[tuple[str, Stages]]:
    for text, arguments in programs:
        program = polyml.einsum(text, target=target)
        yield text, lower_program(program.program, program.key_of(*arguments), program.options)


def tiled() -> list[Program]:
    return [(text, given) for text, given, _ in (TILES[1], TILES[4], TILES[5], TILES[8])]


def random_programs(count: int) -> list[Program]:
    return [(case.text, case.arguments) for case in random_cases(count)]


def require_covered(programs: Sequence[Program], target: Target) -> None:
    for text, stages in lowered(programs, target):
        for region in stages.regions:
            faults = coverage_faults(region.loops, boxes_of(region.schedule.scop))
            assert faults == [], text


@pytest.mark.parametrize("target", [LARGE, pytest.param(SMALL, marks=pytest.mark.slow)], ids=["large", "small"])
def test_random_programs_by_isl(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    count_instances(monkeypatch)
    require_covered(random_programs(15), target)


def test_tiles_windows_and_parts_by_isl(monkeypatch: pytest.MonkeyPatch) -> None:
    count_instances(monkeypatch)
    require_covered(tiled(), SMALL)
    windows = {text: (text, given) for text, given, _ in WINDOWS}
    require_covered([*windows.values(), *((text, [x]) for text, x, _ in PARTS)], LARGE)


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_polybench_by_isl(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    count_instances(monkeypatch)
    require_covered([(kernel.text, kernel.arguments("MINI")) for kernel in list(KERNELS.values())[::every]], LARGE)


def counted(
    regions: Sequence[tuple[CudaRegion, dict[str, Box]]], order: int, most: tuple[int, int, int] | None = None
) -> Iterator[tuple[str, str, np.ndarray, np.ndarray]]:
    """Runs regions on the emulator. *Yields* region, statement, what was counted, and what there is."""
    text = emit_cuda([region for region, _ in regions])
    device, module = EmulatedDevice(), EmulatedModule(build(text))
    module.orders, module.most = itertools.cycle((order,)), most
    device.use(module.library)
    for region, boxes in regions:
        counts = {f"count_{name}": np.zeros(box.shape, np.int32) for name, box in boxes.items()}
        memory = Memory(device)
        for name, array in counts.items():
            memory.put(name, array)
        kernel = SimpleNamespace(module=module, device=device)
        _Run(kernel, device, memory, {}).region(region, dict(memory.addresses))
        for name, array in counts.items():
            memory.get(name, array)
            box = boxes[name.removeprefix("count_")]
            yield region.name, name, array, expected_counts(box)
        memory.release()
    assert device.live == {}


def counting_regions(
    programs: Sequence[Program], target: Target, known: dict[str, dict[str, Box]]
) -> list[tuple[CudaRegion, dict[str, Box]]]:
    made = []
    for number, (_, stages) in enumerate(lowered(programs, target)):
        for lowered_region, region in zip(stages.regions, cuda_regions(stages, prefix=f"p{number}_"), strict=True):
            if not lowered_region.scop.sizes:
                made.append((region, known[lowered_region.region.name]))
    return made


def require_counted(regions: Sequence[tuple[CudaRegion, dict[str, Box]]]) -> None:
    for order, most in ((0, None), (3, (1, 1, 1))):
        for region, name, found, expected in counted(regions, order, most):
            assert np.array_equal(found, expected), f"{region}: {name}"


@needs_gxx
@pytest.mark.parametrize("target", [pytest.param(LARGE, marks=pytest.mark.slow), SMALL], ids=["large", "small"])
def test_random_programs_by_counting(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    known = count_instances(monkeypatch)
    require_counted(counting_regions(random_programs(15), target, known))


@needs_gxx
def test_tiles_and_polybench_by_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    known = count_instances(monkeypatch)
    kernels = [(kernel.text, kernel.arguments("MINI")) for kernel in list(KERNELS.values())[::15]]
    require_counted(counting_regions([*tiled(), *kernels], SMALL, known))


# -- planted bugs -----------------------------------------------------------------------------------------------------------------

MATMUL = 'def f(x: f32["N K"], w: f32["K M"]):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n'


def changed(function: Function, kind: str, **change: object) -> Function:
    """With every loop of that kind changed: `upper` is added to, the others are set."""

    def visit(node: Node) -> Node:
        node = with_body(node, lambda body: tuple(map(visit, body)))
        if not isinstance(node, For) or node.kind != kind:
            return node
        if "upper" in change:
            return replace(node, upper=node.upper + change["upper"])
        return replace(node, **change)

    return replace(function, body=tuple(map(visit, function.body)))


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("thread", {"upper": -1}, "never run"), ("thread", {"upper": 1}, "twice|two places|no instance"),
        ("block", {"step": 1}, "twice"), ("sequential", {"upper": -1}, "never run"),
    ],
)  # fmt: skip
def test_planted_bugs_are_found_by_isl(
    monkeypatch: pytest.MonkeyPatch, kind: str, change: dict[str, int], said: str
) -> None:
    count_instances(monkeypatch)
    given = [np.ones((37, 5), np.float32), np.ones((5, 70), np.float32)]
    ((_, stages),) = lowered([(MATMUL, given)], LARGE)
    (region,) = stages.regions
    boxes = boxes_of(region.schedule.scop)
    assert coverage_faults(region.loops, boxes) == []
    faults = " and ".join(coverage_faults(changed(region.loops, kind, **change), boxes))
    assert any(part in faults for part in said.split("|")), faults


@needs_gxx
@pytest.mark.parametrize(
    ("kind", "change"), [("thread", {"factor": 16}), ("block", {"upper": -16}), ("thread", {"upper": -1})]
)
def test_planted_bugs_are_counted(monkeypatch: pytest.MonkeyPatch, kind: str, change: dict[str, int]) -> None:
    """Threads and blocks that own too much or too little: only the kernels show that."""
    known = count_instances(monkeypatch)
    given = [np.ones((37, 5), np.float32), np.ones((5, 70), np.float32)]
    ((region, boxes),) = counting_regions([(MATMUL, given)], LARGE, known)
    kernels = tuple(replace(k, function=changed(k.function, kind, **change)) for k in region.kernels)
    wrong = replace(region, kernels=kernels)
    assert any(not np.array_equal(found, expected) for _, _, found, expected in counted([(wrong, boxes)], 0))
