"""The emulator is tested by planted bugs: kernels that are right pass, and each of these changes to their text is caught."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.compiler.driver import lower_program
from polyml.compiler.gpu import cuda_kernel, cuda_regions, cuda_text
from polyml.dtypes import DTYPES
from polyml.graph.host_steps import Allocate, Free, Launch
from polyml.runtime.cuda.program import CudaKernel
from polyml.target import Target
from tests.cuda.batch import needs_gxx
from tests.cuda.emulator.device import EmulatedDevice, EmulatedModule, EmulationFault, build_together

pytestmark = needs_gxx

SOFTMAX = """
def softmax(x: f32["N K"]):
    m[n] = max[k](x[n, k])
    e[n, k] = exp(x[n, k] - m[n])
    s[n] = e[n, k]
    y[n, k] = e[n, k] / s[n]
    return y
"""
REVERSED = """
def mirrored(x: f32["N K"]):
    e[n, k] = exp(x[n, k])
    s[n] = sum[k](e[n, k])
    y[n, k] = e[n, K - 1 - k] / s[n]
    return y
"""
STEPS = """
def steps(x: f32["N"]):
    y: f32["N"]
    y[i] = x[i]
    for t in range(3):
        y[i] = 0.5 * (y[i] + y[N - 1 - i])
        y[i] = y[i] * y[N - 1 - i] + t
    return y
"""
DENSE = """
def dense(x: f32["N K"], w: f32["K M"], b: f32["M"]):
    y[n, m] = relu(x[n, k] * w[k, m] + b[m])
    return y
"""
WIDE = 'def wide(x: f32["N M"], b: f32["M"]):\n    y[i, j] = x[i, j] * 2 + b[j]\n    return y\n'
HALF = 'def half(x: f16["N K"], w: f16["K M"]):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n'
BRAIN = 'def brain(x: bf16["N K"], w: bf16["K"]):\n    y[n, k] = x[n, k] * w[k]\n    return y\n'
COMPLEX = 'def product(x: c64["N K"], w: c64["K M"]):\n    y[n, m] = x[n, k] * conj(w[k, m])\n    return y\n'
BLUR = 'def blur(x: f32["N M"], w: f32["K L"]):\n    y[i, j] = x[i + u, j + v] * w[u, v]\n    return y\n'
REGIONS = """
def regions(x: f32["N M"], w: f32["M K"]):
    s = sum[n, m](x[n, m] * x[n, m])
    y[n, k] = x[n, m] * w[m, k] / s
    return y
"""
TILES = 'def tiles(x: f32["N K"], w: f32["K M"]):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n'
X = np.random.default_rng(0).standard_normal((6, 300), dtype=np.float32)
BRAINS = DTYPES["bf16"].numpy
ARGUMENTS = {
    "softmax": (SOFTMAX, (X,)),
    "mirrored": (REVERSED, (X,)),
    "steps": (STEPS, (X[0].copy(),)),
    "tiles": (TILES, (X[:, :192].reshape(32, 36).copy(), X.reshape(36, 50).copy())),
    "wide": (WIDE, (np.resize(X, (40, 128)), X[0, :128].copy())),
    "half": (HALF, (X[:, :20].astype(np.float16), X[:4].reshape(20, 60).astype(np.float16))),
    "brain": (BRAIN, (X[:, :20].astype(BRAINS), X[0, 20:40].astype(BRAINS))),
    "complex": (COMPLEX, (X[:, :20] + 1j * X[:, 20:40], X[:4].reshape(20, 60) + 1j * X[2:].reshape(20, 60))),
    "blur": (BLUR, (X.reshape(36, 50).copy(), X[0, :15].reshape(3, 5).copy())),
    "regions": (REGIONS, (X.reshape(36, 50).copy(), X.reshape(50, 36).copy())),
    "dense": (DENSE, (X[:, :20].copy(), X[:4].reshape(20, 60).copy(), X[0, :60].copy())),
}


def stepped(x: np.ndarray) -> np.ndarray:
    for t in range(3):
        x = 0.5 * (x + x[::-1])
        x = x * x[::-1] + t
    return x


EXACT = {
    "steps": stepped,
    "softmax": lambda x: (
        np.exp(x - x.max(1, keepdims=True)) / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)
    ),
    "mirrored": lambda x: np.exp(x)[:, ::-1] / np.exp(x).sum(1, keepdims=True),
    "tiles": lambda x, w: x @ w,
    "wide": lambda x, b: 2 * x + b,
    "half": lambda x, w: x @ w,
    "brain": lambda x, w: x * w,
    "complex": lambda x, w: x @ w.conj(),
    "blur": lambda x, w: np.tensordot(np.lib.stride_tricks.sliding_window_view(x, w.shape), w, 2),
    "regions": lambda x, w: x @ w / (x**2).sum(),
    "dense": lambda x, w, b: np.maximum(x @ w + b, 0),
}

ROUNDING = {"half": 2e-3, "brain": 1e-2}
ONE_CORE = ("tiles", "wide", "blur", "regions")
"""These get tiles of several elements per thread at such small sizes."""

ONE_WARP = ("float s;\n    __syncthreads();", "float s;\n    if (threadIdx.x < 32) __syncthreads();")

PLANTED = [
    ("steps", "a barrier is missing", "    __syncthreads();\n    for", "    for"),
    ("steps", "the barrier between iterations is missing", "t += 1) {\n    __syncthreads();\n", "t += 1) {\n"),
    ("mirrored", "the barrier between tiles is missing", "float s;\n    __syncthreads();\n", "float s;\n"),
    ("mirrored", "a barrier that only one warp reaches", *ONE_WARP),
    ("tiles", "the copies are not waited for", "        __pipeline_wait_prior(0);\n", ""),
    (
        "tiles",
        "nobody waits for the others' copies",
        "v2 += 1) {\n        __pipeline_commit();\n        __pipeline_wait_prior(0);\n        __syncthreads();",
        "v2 += 1) {\n        __pipeline_wait_prior(0);",
    ),
    ("tiles", "copies to the tile that is read", "((v2 + 1) / 2)", "((v2) / 2)"),
    ("tiles", "a wait that leaves the last copies out", "__pipeline_wait_prior(0)", "__pipeline_wait_prior(1)"),
    ("tiles", "copies that no wait is for", "        __pipeline_commit();\n", ""),
    ("tiles", "a short copy", "4 * e0 + 144 * e0_tile], 16)", "4 * e0 + 144 * e0_tile], 8)"),
    ("tiles", "copies that leave out the last rows", "e0_tile < -16 * v2 + 20", "e0_tile < -16 * v2 + 16"),
    ("tiles", "16 bytes from the wrong address", "4 * e0 + 144 * e0_tile], 16)", "4 * e0 + 144 * e0_tile + 1], 16)"),
    ("tiles", "16 bytes to the wrong address", "4 * e0 + 80 * e0_tile]", "4 * e0 + 82 * e0_tile]"),
    ("tiles", "the tile that is being filled is read", "1280 * ((v2) / 2)", "1280 * ((v2 + 1) / 2)"),
    ("tiles", "two results swapped", "make_float2(y_own_0_0, y_own_0_1)", "make_float2(y_own_0_1, y_own_0_0)"),
    ("tiles", "the wrong tile of the reduction", "16 * v2", "8 * v2"),
    ("tiles", "rows without their padding", "80 * e0_tile", "64 * e0_tile"),
    ("tiles", "another's accumulator", "y_own_1_0 = 0.0f", "y_own_0_0 = 0.0f"),
    (
        "softmax",
        "no barrier within the reduction",
        "scratch[thread / 32] = value;\n  __syncthreads();",
        "scratch[thread / 32] = value;",
    ),
    ("softmax", "one warp too few", "warp < warps", "warp < warps - 1"),
    ("softmax", "a shuffle too short", "int distance = 16", "int distance = 8"),
    ("softmax", "a stride that skips elements", "k += 256", "k += 257"),
    ("softmax", "a row too far", "300 * n", "301 * n"),
    ("softmax", "a loop that ends early", "k < 300", "k < 299"),
    ("softmax", "an accumulator that is not set", "own_s = 0.0f;", ""),
    ("dense", "indices swapped", "60 * k + m", "60 * m + k"),
    ("dense", "a guard is missing", "if (m < 60)", "if (m < 64)"),
    ("dense", "the wrong tile", "32 * blockIdx.x", "16 * blockIdx.x"),
    ("wide", "a vector at the wrong address", "&x[128 * i + 4 * j_tile]", "&x[128 * i + 4 * j_tile + 1]"),
    ("wide", "a vector of half the length", "&b[4 * j_tile]", "&b[2 * j_tile]"),
    ("wide", "another vector's element", "+ b_v1.x", "+ b_v1.y"),
    ("wide", "a vector is left out", "threadIdx.x);", "threadIdx.x | 1);"),
    (
        "blur",
        "no barrier before the next tile",
        "gridDim.x) {\n      __pipeline_commit();\n      __pipeline_wait_prior(0);\n      __syncthreads();\n",
        "gridDim.x) {\n",
    ),
    ("blur", "copies that land too late", "__pipeline_wait_prior(0);", ""),
    ("blur", "a halo that is too small", "- 36 * ((e + 32 * line) / 36) < 50", "- 36 * ((e + 32 * line) / 36) < 49"),
    ("half", "a row that is not converted", "if (i0 < 6)", "if (i0 < 5)"),
    ("half", "the wrong exponent", "0x38800000u : 0x38000000u", "0x38800000u : 0x38800000u"),
    ("half", "a result that is not rounded", "narrow_f16(y_sum)", "(unsigned short)y_sum"),
    ("half", "indices swapped", "w[60 * k + m]", "w[60 * n + m]"),
    ("brain", "bits shifted too little", "half << 16", "half << 15"),
    ("brain", "indices swapped", "w[k]", "w[n]"),
    ("complex", "no conjugate", "(-w[60 * k + m].im)", "w[60 * k + m].im"),
    ("complex", "parts swapped", "c64{y_sum, y_sum_1}", "c64{y_sum_1, y_sum}"),
    ("complex", "a part taken for the other", "= x[20 * i0 + i1].im", "= x[20 * i0 + i1].re"),
    ("regions", "only one warp's sum", "warp < warps", "warp < 1"),
    ("regions", "the other kernel's result at the wrong place", "/ s[0]", "/ s[1]"),
]


def kernels_of(name: str, changes: Sequence[tuple[str, str]]) -> list[CudaKernel]:
    """The program's kernel with each of the changes to its text."""
    text, arguments = ARGUMENTS[name]
    program = polyml.einsum(text, target=Target("cuda", cores=1 if name in ONE_CORE else 100))
    key = program.key_of(*arguments)
    stages = lower_program(program.program, key, program.options)
    regions = cuda_regions(stages)
    written = cuda_text(regions)
    assert all(old in written for old, _ in changes), written
    texts = [written.replace(*change) for change in changes]
    device = EmulatedDevice(build_together(texts))
    return [cuda_kernel(program.program, stages, device, regions=regions, text=changed) for changed in texts]


def kernel_of(name: str, change: tuple[str, str] = ("", "")) -> CudaKernel:
    """The program's kernel, its text changed."""
    (kernel,) = kernels_of(name, [change])
    return kernel


def widened(a: np.ndarray) -> np.ndarray:
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)


def is_right(name: str, kernel: CudaKernel, grid: tuple[int, int, int] | None) -> bool:
    """Whether the kernel gives the right result in every order of warps and blocks.

    Args:
        grid: the most blocks per axis: fewer than there are tiles, so that each runs several, one after another.
    """
    arguments = ARGUMENTS[name][1]
    exact = EXACT[name](*map(widened, arguments))
    module = kernel.module
    assert isinstance(module, EmulatedModule)
    module.most = grid
    for order in range(6):
        module.orders = itertools.cycle((order,))
        try:
            found = kernel(*arguments)
        except EmulationFault:
            return False
        if not np.allclose(widened(found), exact, rtol=ROUNDING.get(name, 1e-4), atol=ROUNDING.get(name, 1e-6)):
            return False
    return True


@pytest.mark.parametrize("name", ARGUMENTS)
def test_kernels_are_right_in_every_order_and_on_any_grid_and_planted_bugs_are_caught(name: str) -> None:
    planted = [(bug, (old, new)) for of, bug, old, new in PLANTED if of == name]
    kernel, *others = kernels_of(name, [("", ""), *(change for _, change in planted)])
    assert is_right(name, kernel, None)
    assert is_right(name, kernel, (1, 1, 1))
    assert is_right(name, kernel, (2, 3, 1))
    assert planted
    for (bug, _), other in zip(planted, others, strict=True):
        assert not (is_right(name, other, None) and is_right(name, other, (1, 1, 1))), bug


def test_a_deadlock_is_named() -> None:
    kernel = kernel_of("mirrored", ONE_WARP)
    with pytest.raises(EmulationFault, match="a barrier that not all threads reach"):
        kernel(X)


def test_an_access_outside_is_named() -> None:
    kernel = kernel_of("softmax", ("300 * n]", "300000 * n]"))
    with pytest.raises(EmulationFault, match="an access outside of the arrays"):
        kernel(X)


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (0, 1, 3, 2)], ids=["launched too early", "memory freed too early"])
def test_regions_in_the_wrong_order_are_caught(order: tuple[int, ...]) -> None:
    """The plan allocates what lies between two kernels, launches both, and frees it."""
    kernel = kernel_of("regions")
    plan = kernel.program
    assert [type(step) for step in plan.steps] == [Allocate, Launch, Launch, Free]
    kernel.program = replace(plan, steps=tuple(plan.steps[k] for k in order))
    if order[-1] == 2:
        with pytest.raises((EmulationFault, KeyError)):
            kernel(*ARGUMENTS["regions"][1])
    else:
        assert not is_right("regions", kernel, None)
