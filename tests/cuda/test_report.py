"""The compiler's report, and how many blocks a core holds by it."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.gpu_core import CORES, core_of, staging_pays
from polyml.runtime.cuda.compile import find_nvcc
from polyml.runtime.cuda.report import Usage, occupancy, parse_report

REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'f_0_k1' for 'sm_80'
ptxas info    : Function properties for f_0_k1
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers, 368 bytes cmem[0]
ptxas info    : Compiling entry function 'f_0_k0' for 'sm_80'
ptxas info    : Function properties for f_0_k0
    24 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 26624 bytes smem, 376 bytes cmem[0]
"""


def test_a_report_is_read() -> None:
    assert parse_report(REPORT) == {"f_0_k1": Usage(10, 0, 0), "f_0_k0": Usage(255, 8, 26624)}


@pytest.mark.parametrize(
    ("usage", "threads", "capability", "expected"),
    [
        (Usage(128, 0, 26624), 128, 80, (4, 16, "registers")),
        (Usage(32, 0, 0), 256, 80, (8, 64, "registers")),
        (Usage(16, 0, 0), 256, 86, (6, 48, "warps")),
        (Usage(16, 0, 0), 32, 90, (32, 32, "blocks")),
        (Usage(32, 0, 40960), 64, 80, (4, 8, "shared memory")),
        (Usage(33, 0, 0), 64, 90, (25, 50, "registers")),  # of 40: they come in units of 8 per thread
    ],
)
def test_blocks_that_a_core_holds(usage: Usage, threads: int, capability: int, expected: tuple[int, int, str]) -> None:
    assert occupancy(usage, threads, capability) == expected


MATMUL = 'def f(x: f32["N K"], w: f32["K M"]):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n'


@pytest.mark.usefixtures("unreported")
def test_explain_tells_work() -> None:
    """Operations and bytes, and of a tiled kernel its tile; without a compiler, too."""
    arrays = np.ones((1024, 512), np.float32), np.ones((512, 2048), np.float32)
    said = polyml.einsum(MATMUL, target="cuda").explain(*arrays)
    moved = 4 * (1024 * 512 + 512 * 2048 + 1024 * 2048)
    work = f"work of f_0: {2 * 1024 * 512 * 2048:,} floating-point operations at most, {moved:,} bytes of device memory at least, "
    assert work + f"{2 * 1024 * 512 * 2048 / moved:.1f} per byte" in said
    assert "per thread; x and w staged through shared memory, twice" in said
    assert "work of" not in polyml.einsum(MATMUL, target="cuda", dynamic=True).explain(*arrays), "sizes are not known"
    copied = polyml.einsum('def f(x: f64["N"]):\n    y[i] = x[i]\n    return y\n', target="cuda").explain(np.ones(10))
    assert "work of f_0: 0 floating-point operations at most, 160 bytes of device memory at least\n" in copied
    updated = 'def f(x: f32["N N"]):\n    for t in range(3):\n        x[i, j] = exp(x[i, j]) / 2\n'
    said = polyml.einsum(updated, target="cuda").explain(np.ones((8, 8), np.float32))
    assert f"{3 * 64 * 2} floating-point operations at most, {2 * 256} bytes" in said


@pytest.mark.skipif(find_nvcc() is None, reason="nvcc is not installed")
def test_explain_tells_registers() -> None:
    text = 'def f(x: f32["N"]):\n    y[i] = 2 * x[i]\n    return y\n'
    said = polyml.einsum(text, target="cuda").explain(np.ones(1000, np.float32))
    assert "f_0_k0 on sm_80: " in said
    assert " registers; a core holds 8 blocks, 64 of 64 warps" in said


def test_when_a_tile_in_shared_memory_pays() -> None:
    """Three reads per element and what barriers take, which weighs less in large tiles and where other blocks work meanwhile."""

    def least(elements: int, threads: int = 256) -> float:
        tries = range(elements, 12 * elements)
        pays = (staging_pays(CORES[90], elements=elements, reads=r, itemsize=4, threads=threads) for r in tries)
        return next(r for r, enough in zip(tries, pays, strict=True) if enough) / elements

    assert 3 < least(1156) < 3.3
    assert 3.5 < least(258) < 4.5
    assert least(4752) < least(1156) < least(258)
    assert least(1156) < least(1156, threads=1024)


def test_cores_are_known_by_name() -> None:
    assert core_of("sm_90a") == CORES[90]
    assert core_of("") == CORES[80]
