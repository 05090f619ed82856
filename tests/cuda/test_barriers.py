"""Barriers: none is missing, by a proof apart from how they are placed; and none is there for nothing. Blocks, which have none, touch nothing in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import polyml
from benchmarks.polybench import KERNELS
from polyml.codegen.cuda.program import Kernel
from polyml.codegen.cuda.proofs.barriers import barrier_faults
from polyml.codegen.cuda.proofs.blocks import block_faults
from polyml.codegen.loops import Assign, Block, Node, Place
from polyml.codegen.rewrite import walk_nodes, with_body
from polyml.compiler.driver import lower_program
from polyml.compiler.gpu import cuda_regions
from polyml.expressions import Expr, Read, map_reads
from polyml.sets.affine import affine
from polyml.target import Target
from tests.cuda.test_emulator import ARGUMENTS
from tests.cuda.test_programs import ROWS, random_cases
from tests.cuda.test_tiles import CASES, SMALL

NORM = """
def norm(x: f32["N K"]):
    m[n] = sum[k](x[n, k]) / K
    y[n, k] = x[n, k] - m[n]
    v[n] = sum[k](y[n, k] * y[n, k]) / K
    z[n, k] = y[n, k] * rsqrt(v[n] + 1e-5)
    return z
"""
WINDOW = """
def window(x: f32["N K"]):
    s: f32["N K"]
    s[n, k] = x[n, k]
    for t in range(2):
        s[n, k] = max(s[n, k], s[n, K - 1 - k])
    return s
"""


def kernels_of(text: str, arguments: object, target: Target, **options: object) -> list[Kernel]:
    program = polyml.einsum(text, target=target, **options)
    stages = lower_program(program.program, program.key_of(*arguments), program.options)
    return [kernel for region in cuda_regions(stages) for kernel in region.kernels]


def programs() -> list[list[Kernel]]:
    large = Target("cuda")
    rows = np.ones((3, 400), np.float32)
    made = [kernels_of(text, given, SMALL if name == "tiles" else large) for name, (text, given) in ARGUMENTS.items()]
    made += [kernels_of(text, [rows], large) for text in (ROWS, NORM, WINDOW)]
    return made + [kernels_of(CASES[k][0], CASES[k][1], SMALL) for k in (5,)]


def barriers(kernel: Kernel) -> list[int]:
    return [id(n) for n in walk_nodes(kernel.function.body) if isinstance(n, Block) and n.barrier]


def without(kernel: Kernel, barrier: int) -> Kernel:
    def visit(node: Node) -> Node:
        node_, here = with_body(node, lambda body: tuple(map(visit, body))), id(node) == barrier
        return replace(node_, barrier=False) if here and isinstance(node_, Block) else node_

    return replace(kernel, function=replace(kernel.function, body=tuple(map(visit, kernel.function.body))))


def test_no_barrier_is_missing_and_each_is_needed() -> None:
    total = 0
    for kernels in programs():
        for kernel in kernels:
            assert barrier_faults(kernel) == []
            for barrier in barriers(kernel):
                total += 1
                assert barrier_faults(without(kernel, barrier)), "a barrier for nothing"
    assert total > 6


@pytest.mark.parametrize(
    "target", [Target("cuda"), SMALL, Target("cuda", cores=1, block_threads=64)], ids=["large", "small", "64"]
)
@pytest.mark.parametrize("atomics", [False, True])
@pytest.mark.few(2)
def test_random_programs(target: Target, atomics: bool) -> None:
    """No two threads write one element without a proof of their order: not those of a block, and not those of two."""
    for case in random_cases(5):
        for kernel in kernels_of(case.text, case.arguments, target, atomics=atomics):
            assert barrier_faults(kernel) == []
            assert block_faults(kernel) == [], case


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_blocks_of_polybench(every: int) -> None:
    for kernel in list(KERNELS.values())[::every]:
        for made in kernels_of(kernel.text, kernel.arguments("MINI"), Target("cuda")):
            assert block_faults(made) == [], kernel.name


IN_PLACE = 'def f(x: f32["N M"]):\n    x[n, m] = x[n, m] * 2\n    return x\n'
HISTOGRAM = 'def f(i: i64["N"], x: f32["K"]):\n    x[i[n]] += 1\n    return x\n'


def test_blocks_that_meet_are_named() -> None:
    """Planted: a read of the neighbour's element, a write to another tile's, and an atomic update that is none."""
    (kernel,) = kernels_of(IN_PLACE, [np.ones((40, 70), np.float32)], Target("cuda"))
    assert block_faults(kernel) == []

    def moved(expr: Expr) -> Expr:
        return map_reads(expr, lambda read: Read(read.tensor, (read.subscripts[0] + 1, read.subscripts[1]), read.dtype))

    def reading(node: Assign) -> Assign:
        return replace(node, value=moved(node.value))

    def writing(node: Assign) -> Assign:
        return replace(node, target=Place(node.target.variable, (node.target.subscripts[0], affine(0))))

    for change in (reading, writing):
        (fault,) = block_faults(with_assignments(kernel, change))
        assert fault.startswith("x: touched by two blocks, ")
    given = [np.zeros(5000, np.int64), np.zeros(10, np.float32)]
    *_, kernel = kernels_of(HISTOGRAM, given, Target("cuda"), atomics=True)
    assert kernel.blocks
    assert block_faults(kernel) == []
    assert block_faults(with_assignments(kernel, lambda node: replace(node, atomic=False)))


def with_assignments(kernel: Kernel, change: Callable[[Assign], Assign]) -> Kernel:
    def visit(node: Node) -> Node:
        return change(node) if isinstance(node, Assign) else with_body(node, lambda body: tuple(map(visit, body)))

    return replace(kernel, function=replace(kernel.function, body=tuple(map(visit, kernel.function.body))))


@pytest.mark.parametrize(("name", "count"), [("softmax", 0), ("mirrored", 1), ("steps", 2), ("tiles", 1)])
def test_how_many_there_are(name: str, count: int) -> None:
    """What a thread reads of its own needs none; reductions have theirs inside."""
    text, given = ARGUMENTS[name]
    kernels = kernels_of(text, given, SMALL if name == "tiles" else Target("cuda"))
    assert max(len(barriers(kernel)) for kernel in kernels) == count


def test_a_missing_barrier_is_named() -> None:
    text, given = ARGUMENTS["mirrored"]
    (kernel,) = kernels_of(text, given, Target("cuda"))
    (fault,) = barrier_faults(without(kernel, barriers(kernel)[0]))
    assert fault.startswith("e: no barrier between ")
