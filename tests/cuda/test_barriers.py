"""Barriers: none is missing, by a proof apart from how they are placed; and none is there for nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.codegen.cuda.barrier_check import barrier_faults
from polyml.codegen.cuda.program import Kernel
from polyml.codegen.loops import Block, Node
from polyml.codegen.rewrite import walk_nodes, with_body
from polyml.compiler import lower_program
from polyml.compiler_cuda import cuda_regions
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


def kernels_of(text: str, arguments: object, target: Target) -> list[Kernel]:
    program = polyml.einsum(text, target=target)
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


def test_random_programs() -> None:
    for case in random_cases(8):
        for kernel in kernels_of(case.text, case.arguments, Target("cuda")):
            assert barrier_faults(kernel) == []


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
