"""Windows of threads in shared memory: stencils and convolutions of few filters, within time loops and for any sizes, and arrays that stay in a block through a loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import polyml
from polyml.codegen.cuda.proofs.barriers import barrier_faults
from polyml.compiler.driver import lower_program
from polyml.compiler.gpu import cuda_kernel, cuda_regions, cuda_text
from polyml.target import Target
from tests.cuda.batch import compile_batch, needs_gxx, results_of
from tests.cuda.emulator.device import EmulatedDevice, EmulationFault, build_together
from tests.cuda.test_barriers import barriers, without

CROSS = """
def cross(a: f32["N M"], b: f32["N M"]):
    if 1 <= i < N - 1 and 1 <= j < M - 1:
        b[i, j] = 0.2 * (a[i, j] + a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1])
"""
STEPS = """
def steps(T: int, A: f64["N M"], B: f64["N M"]):
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            B[i, j] = 0.2 * (A[i, j] + A[i, j - 1] + A[i, j + 1] + A[i + 1, j] + A[i - 1, j])
            A[i, j] = 0.2 * (B[i, j] + B[i, j - 1] + B[i, j + 1] + B[i + 1, j] + B[i - 1, j])
"""
BLUR = 'def blur(x: f32["N M"], w: f32["K L"]):\n    y[i, j] = x[i + u, j + v] * w[u, v]\n    return y\n'
LINE = 'def line(x: f32["N"], w: f32["K"]):\n    y[i] = x[i + k] * w[k]\n    return y\n'
CUBE = """
def cube(a: f32["N M K"], b: f32["N M K"]):
    if 1 <= i < N - 1 and 1 <= j < M - 1 and 1 <= k < K - 1:
        b[i, j, k] = (a[i, j, k] + a[i - 1, j, k] + a[i + 1, j, k] + a[i, j - 1, k] + a[i, j + 1, k]
                      + a[i, j, k - 1] + a[i, j, k + 1])
"""
PADDED = """
def padded(x: f32["N M"], w: f32["K L"]):
    y[i, j] = pad(x, ((1, 1), (1, 1)))[i + u, j + v] * w[u, v]
    return y
"""
IN_PLACE = """
def update(a: f32["N M"]):
    if 1 <= i < N - 1 and 1 <= j < M - 1:
        a[i, j] = a[i, j] + a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1]
"""

RNG = np.random.default_rng(0)


def of(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def crossed(a: np.ndarray, b: np.ndarray) -> None:
    b[1:-1, 1:-1] = 0.2 * (a[1:-1, 1:-1] + a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:])


def stepped(steps: int, a: np.ndarray, b: np.ndarray) -> None:
    for _ in range(steps):
        crossed(a, b)
        crossed(b, a)


def blurred(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape)
    return np.tensordot(windows, w, w.ndim)


def cubed(a: np.ndarray, b: np.ndarray) -> None:
    c = slice(1, -1)
    b[c, c, c] = a[c, c, c] + a[:-2, c, c] + a[2:, c, c] + a[c, :-2, c] + a[c, 2:, c] + a[c, c, :-2] + a[c, c, 2:]


def updated(a: np.ndarray) -> None:
    b = a.copy()
    c = slice(1, -1)
    a[c, c] = b[c, c] + b[:-2, c] + b[2:, c] + b[c, :-2] + b[c, 2:]


Case = tuple[str, list[Any], Callable[..., Any]]

CASES: list[Case] = [
    (CROSS, [of(41, 70), of(41, 70)], crossed),
    (CROSS, [of(3, 3), of(3, 3)], crossed),
    (CROSS, [of(67, 33), of(67, 33)], crossed),
    (STEPS, [3, of(93, 101, dtype=np.float64), of(93, 101, dtype=np.float64)], stepped),
    (STEPS, [4, of(17, 30, dtype=np.float64), of(17, 30, dtype=np.float64)], stepped),
    (STEPS, [0, of(5, 6, dtype=np.float64), of(5, 6, dtype=np.float64)], stepped),
    (BLUR, [of(43, 70), of(5, 4)], blurred),
    (LINE, [of(700), of(7)], blurred),
    (CUBE, [of(9, 13, 40), of(9, 13, 40)], cubed),
    (PADDED, [of(40, 44), of(3, 3)], lambda x, w: blurred(np.pad(x, 1), w)),
    (IN_PLACE, [of(37, 45)], updated),
]  # fmt: skip


def copied(given: list[object]) -> list[object]:
    return [a.copy() if isinstance(a, np.ndarray) else a for a in given]


def agree(kernel: object, given: list[object], exact: object) -> None:
    found, wanted = copied(given), [a.astype(np.float64) if isinstance(a, np.ndarray) else a for a in given]
    results = results_of(kernel(*found))  # type: ignore[operator]
    right = exact(*wanted)  # type: ignore[operator]
    pairs = [(results[0], right)] if right is not None else list(zip(found, wanted, strict=True))
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def check_results(cases: Sequence[Case], *, dynamic: bool, verify: bool) -> str:
    """The cases in every order; a kernel for any sizes serves all that have its text. Returns the kernels' text."""
    programs = {text if dynamic else number: (text, given) for number, (text, given, _) in enumerate(cases)}
    batch = compile_batch(list(programs.values()), dynamic=dynamic, verify=verify, target=Target("cuda", cores=2))
    kernels = dict(zip(programs, batch.kernels, strict=True))
    for number, (text, given, exact) in enumerate(cases):
        kernel = kernels[text if dynamic else number]
        for order in range(4):
            kernel.module.orders = itertools.cycle((order,))
            agree(kernel, given, exact)
    return batch.text


@needs_gxx
@pytest.mark.parametrize(
    "cases", [CASES[:1] + CASES[3:5] + CASES[6:7] + CASES[8:], pytest.param(CASES, marks=pytest.mark.slow)]
)
def test_results(cases: Sequence[Case]) -> None:
    text = check_results(cases, dynamic=False, verify=True)
    for name in ("a_tile", "A_tile", "B_tile", "x_tile", "A_here"):
        assert f"{name}[" in text, f"{name} is not staged"


@needs_gxx
@pytest.mark.slow
def test_results_for_any_sizes() -> None:
    text = check_results(CASES, dynamic=True, verify=True)
    for name in ("a_tile", "A_tile", "B_tile"):  # not x_tile: the window of BLUR has no numbers here
        assert f"{name}[" in text, f"{name} is not staged"


def text_of(text: str, given: list[object], **options: object) -> str:
    program = polyml.einsum(text, target=Target("cuda"), **options)
    return cuda_text(cuda_regions(lower_program(program.program, program.key_of(*given), program.options)))


def test_tiles_of_windows() -> None:
    assert "float a_tile[1156];" in text_of(CROSS, [of(5000, 600), of(5000, 600)]), "32 x 32 and a rim"
    assert "float x_tile[4752];" in text_of(BLUR, [of(500, 600), of(5, 5)])
    assert "a_tile" not in text_of(IN_PLACE, [of(500, 600)]).replace("_tile_", ""), "what the kernel writes stays"
    copy = 'def copy(x: f32["N M"]):\n    y[i, j] = 2 * x[i, j]\n    return y\n'
    assert "__shared__" not in text_of(copy, [of(500, 600)])
    three = 'def three(x: f32["N"], y: f32["N"]):\n    if i < N - 2:\n        y[i] = x[i] + x[i + 1] + x[i + 2]\n'
    assert "__shared__" not in text_of(three, [of(50_000), of(50_000)]), "the cache does as well"


def test_sums_of_whole_tiles_stay_in_registers() -> None:
    for options in ({}, {"dynamic": ("N", "M")}):
        text = text_of(BLUR, [of(500, 600), of(5, 5)], **options)
        whole, edge = text.split("} else {")
        assert "+=" in whole
        assert "] +=" not in whole
        assert "] +=" in edge, "with conditions around each element"


PLANTED = [
    ("a short copy", "e < -32 * line + 340", "e < -32 * line + 330"),
    ("the rim on one side is missing", "0 <= ((e + 32 * line) / 34) + i_tile - 1", "i_tile <= ((e + 32 * line) / 34) + i_tile - 1"),
    ("a window too far", "32 * line - 71]", "32 * line - 70]"),
    ("nobody waits for the copies", "}\n      __pipeline_commit();\n      __pipeline_wait_prior(0);\n      __syncthreads();\n      {", "}\n      {"),
    ("the next tile is copied too early", "j_tile += 32 * gridDim.x) {\n      __pipeline_commit();\n      __pipeline_wait_prior(0);\n      __syncthreads();\n", "j_tile += 32 * gridDim.x) {\n"),
    ("rows of the array's length", "a_tile[34 * i", "a_tile[70 * i"),
]  # fmt: skip


@needs_gxx
def test_planted_bugs_are_caught() -> None:
    program = polyml.einsum(CROSS, target=Target("cuda"))
    given = [of(41, 70), of(41, 70)]
    stages = lower_program(program.program, program.key_of(*given), program.options)
    regions = cuda_regions(stages)
    text = cuda_text(regions)
    assert all(old in text for _, old, _ in PLANTED), text
    texts = [text.replace(old, new) for _, old, new in PLANTED]
    device = EmulatedDevice(build_together(texts))
    for (bug, _, _), changed in zip(PLANTED, texts, strict=True):
        kernel = cuda_kernel(program.program, stages, device, regions=regions, text=changed)
        caught = False
        for most, order in itertools.product((None, (1, 1, 1)), range(4)):
            kernel.module.orders, kernel.module.most = itertools.cycle((order,)), most
            try:
                agree(kernel, given, crossed)
            except (AssertionError, EmulationFault):
                caught = True
        assert caught, bug


def test_a_missing_barrier_is_found_by_the_proof() -> None:
    program = polyml.einsum(CROSS, target=Target("cuda"))
    stages = lower_program(program.program, program.key_of(of(41, 70), of(41, 70)), program.options)
    (kernel,) = cuda_regions(stages)[0].kernels
    assert barrier_faults(kernel) == []
    found = barriers(kernel)
    assert found
    for barrier in found:
        (fault,) = barrier_faults(without(kernel, barrier))
        assert fault.startswith("a_tile: no barrier between ")
