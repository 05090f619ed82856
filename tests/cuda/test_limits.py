"""Devices that have less than others: programs are mapped to what there is, or refused with what was asked for and what the device has."""

from __future__ import annotations

import itertools
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest

import polyml
from polyml.codegen.cuda.program import Kernel, grid_of
from polyml.compiler.driver import lower_program
from polyml.compiler.gpu import cuda_regions
from polyml.errors import CodegenError
from polyml.gpu_core import Limits
from polyml.runtime.cuda.pycuda_device import _prepared
from polyml.target import Target
from tests.cuda.batch import compile_batch, needs_gxx, results_of
from tests.cuda.test_halo import BLUR, CROSS, STEPS, blurred, crossed, stepped
from tests.cuda.test_tiles import MATMUL

TINY = Target("cuda", cores=2, block_threads=64, block_bytes=1024, vector_registers=32)
SMALL = Limits(threads=64, shared=1024, grid=(7, 3, 2))
"""A made-up device: two warps and 1 KiB of shared memory for a block, and grids of 42 blocks."""

SOFTMAX = 'def f(x: f32["N M"]):\n    e[i, j] = exp(x[i, j] - max[k](x[i, k]))\n    y[i, j] = e[i, j] / sum[k](e[i, k])\n    return y\n'
ARGMAX = 'def f(x: f32["N M"]):\n    s[i] = argmax[j](x[i, j])\n    return s\n'
BATCH = 'def f(x: f32["B N K"], w: f32["B K M"]):\n    y[b, n, m] = x[b, n, k] * w[b, k, m]\n    return y\n'
RNG = np.random.default_rng(3)


def of(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


CASES = [
    (SOFTMAX, [of(11, 700)], softmax),
    (MATMUL, [of(70, 65), of(65, 130)], np.matmul),
    (BATCH, [of(5, 33, 20), of(5, 20, 36)], np.matmul),
    (ARGMAX, [of(9, 333)], lambda x: x.argmax(1)),
    (BLUR, [of(43, 70), of(3, 3)], blurred),
    (CROSS, [of(41, 70), of(41, 70)], crossed),
    (STEPS, [3, of(21, 23).astype(np.float64), of(21, 23).astype(np.float64)], stepped),
]  # fmt: skip


def kernels_of(text: str, given: list[object], target: Target, **options: object) -> list[Kernel]:
    program = polyml.einsum(text, target=target, **options)
    stages = lower_program(program.program, program.key_of(*given), program.options)
    return [kernel for region in cuda_regions(stages) for kernel in region.kernels]


def size_of(kernel: Kernel) -> tuple[int, int]:
    return prod(kernel.threads), kernel.shared_bytes + kernel.exchange_bytes


@pytest.mark.parametrize("dynamic", [False, True])
def test_blocks_are_larger_where_nobody_wants_small_ones(dynamic: bool) -> None:
    text, given, _ = CASES[0]
    assert max(size_of(k)[0] for k in kernels_of(text, given, Target("cuda"), dynamic=dynamic)) == 256


@needs_gxx
@pytest.mark.parametrize(
    ("dynamic", "places"),
    [
        (False, slice(1, None, 2)),
        (True, slice(0, 1)),
        pytest.param(True, slice(4, None, 4), marks=pytest.mark.slow),
        pytest.param(True, slice(2, None, 4), marks=pytest.mark.slow),
        pytest.param(False, slice(0, None, 2), marks=pytest.mark.slow),
    ],
)
def test_results_on_a_small_device(dynamic: bool, places: slice) -> None:
    """With blocks as small as the target wants. Where a grid is too large, too, blocks take turns."""
    cases = CASES[places]
    programs = [(text, given) for text, given, _ in cases]
    batch = compile_batch(programs, target=TINY, dynamic=dynamic, verify=True, limits=SMALL)
    sizes = [size_of(kernel) for made in batch.kernels for kernel in made.cuda.kernels]
    assert all(threads <= 64 and shared <= 1024 for threads, shared in sizes)
    assert {threads for threads, _ in sizes} <= {32, 64}, "nothing is left to one thread"
    assert any(shared > 0 for _, shared in sizes)
    for (_, given, exact), kernel in zip(cases, batch.kernels, strict=True):
        for order in range(4):
            kernel.module.orders = itertools.cycle((order,))
            found, wanted = ([a.copy() if isinstance(a, np.ndarray) else a for a in given] for _ in range(2))
            results, right = results_of(kernel(*found)), exact(*wanted)
            pairs = [(results[0], right)] if right is not None else list(zip(found, wanted, strict=True))
            for one, other in pairs:
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_grids_are_the_devices() -> None:
    (kernel,) = kernels_of(CROSS, [of(4100, 700), of(4100, 700)], TINY)
    assert grid_of(kernel, {}, SMALL.grid) == (7, 3, 1)
    assert (grid_of(kernel, {}) or (0, 0, 0)) > (20, 500, 0)


@needs_gxx
@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(threads=128), r"kernel p0_f_0_k0 needs blocks of 256 x 1 x 1 threads with \d+ bytes of shared memory; the device has blocks of at most 128 threads"),
        (Limits(shared=1024), r"with 2\d\d\d bytes of shared memory; the device has blocks of at most 1024 threads with 1024 bytes\n"),
    ],
)  # fmt: skip
def test_what_is_mapped_for_more_is_refused(limits: Limits, said: str) -> None:
    with pytest.raises(CodegenError, match=said) as fault:
        compile_batch([(SOFTMAX, [of(11, 500)])], limits=limits)
    assert 'Target("cuda", block_threads=' in str(fault.value)


def test_less_than_a_warp_is_one_thread() -> None:
    for text, given, _ in CASES:
        sizes = {size_of(k) for k in kernels_of(text, given, Target("cuda", block_threads=16, block_bytes=100))}
        assert sizes == {(1, 0)}
    with pytest.raises(
        CodegenError, match=r"needs blocks of 1 x 1 x 1 threads .*; the target cuda has blocks of at most 0 threads"
    ):
        kernels_of(SOFTMAX, [of(3, 400)], Target("cuda", block_threads=0))


def test_more_registers_than_there_are() -> None:
    function = SimpleNamespace(max_threads_per_block=192, num_regs=255, prepare=lambda text: None)
    module = SimpleNamespace(get_function=lambda name: function)
    assert _prepared(module, "f_0_k0", (32, 4, 1), 2, 1) is function
    with pytest.raises(
        CodegenError,
        match="kernel f_0_k0 needs blocks of 256 threads with 255 registers each; the device has registers for 192\n",
    ):
        _prepared(module, "f_0_k0", (32, 8, 1), 2, 1)


TWO_TILES = 'def f(x: f64["N M"], a: f32):\n    y: f64["N M"]\n    y[i, j] = x[i, j] * 2\n    if j >= 1:\n        y[i, j] /= (1 + abs(a))\n    return y\n'


@needs_gxx
def test_tiles_of_two_rows_with_one_each() -> None:
    """Found by random programs: a block's loop of two tiles, each with one of its two rows, which isl would number 0, 1 in place of 0, 2."""
    x = np.arange(27.0).reshape(9, 3)
    (kernel,) = compile_batch([(TWO_TILES, [x, 2.0])], target=Target("cuda", cores=1, block_threads=64)).kernels
    expected = 2 * x
    expected[:, 1:] /= 3
    np.testing.assert_allclose(kernel(x, 2.0), expected, rtol=1e-12)
