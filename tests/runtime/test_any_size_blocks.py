"""Kernels for any sizes of programs that need blocks to be quick: a version with blocks whose sizes are numbers, a version without, and the right result of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import polyml
from benchmarks.polybench import KERNELS
from polyml.codegen.loops import If
from polyml.target import Target

SMALL_CACHES = Target("host", l1_bytes=2 << 10, l2_bytes=8 << 10)
"""This machine, with caches that small tests outgrow."""

FACTORS: dict[str, str] = {
    "lu": "N",
    "cholesky": "N",
    "syrk": "M N",
    "syr2k": "M N",
    "trmm": "M N",
    "covariance": "M N",
    "floyd-warshall": "N",
}
"""Kernels of PolyBench, and the names of their sizes."""


STENCILS: dict[str, str] = {
    "jacobi-1d": "TSTEPS N",
    "jacobi-2d": "TSTEPS N",
    "heat-3d": "TSTEPS N",
    "fdtd-2d": "TMAX NX NY",
}

SIZES: dict[str, list[tuple[int, ...]]] = {
    "jacobi-1d": [(0, 5), (1, 1), (3, 2), (20, 100), (3, 4095), (300, 4096), (40, 9001)],
    "jacobi-2d": [(0, 5), (1, 1), (3, 3), (20, 17), (3, 255), (37, 256), (16, 301)],
    "heat-3d": [(0, 5), (1, 1), (3, 3), (20, 15), (3, 16), (17, 33), (3, 41)],
    "fdtd-2d": [(1, 1, 1), (1, 3, 2), (5, 20, 30), (3, 31, 256), (33, 32, 256), (18, 47, 301), (4, 300, 5)],
}
"""What stencils are called with: around the ends of tiles, and of the conditions for having them."""


TARGETS = dict.fromkeys(STENCILS, Target("host", l1_bytes=32 << 10, l2_bytes=2 << 20))
TARGETS["floyd-warshall"] = Target("host", l1_bytes=32 << 10, l2_bytes=256 << 10)


def kernel(name: str, *, verify: bool = True) -> polyml.Einsum:
    made = KERNELS[name].program(dynamic=True, target=TARGETS.get(name, SMALL_CACHES), verify=verify)
    assert isinstance(made, polyml.Einsum)
    return made


def agrees(name: str, f: Callable[..., Any], sizes: Sequence[int]) -> None:
    """Compares a call at these sizes with NumPy."""
    known = dict(zip({**FACTORS, **STENCILS}[name].split(), sizes, strict=True))
    arguments = KERNELS[name].data(known, np.random.default_rng(sum(sizes)))

    def fresh() -> list[Any]:
        return [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]

    wanted = KERNELS[name].reference(*fresh())
    got = f(*fresh())
    for one, other in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8, err_msg=f"{name} {sizes}")


@pytest.mark.parametrize("name", FACTORS)
@pytest.mark.few(1)
def test_blocks_of_any_size(name: str) -> None:
    f = kernel(name)
    count = len(FACTORS[name].split())
    for n in (1, 2, 7, 31, 32, 33, 95, 96, 97, 257):
        agrees(name, f, (n, 3 * n // 4 + 2)[-count:] if n > 2 else (2, 3)[-count:])
        agrees(name, f, (2 * n // 3 + 2, n + 1)[:count])
    assert len(f.kernels) == 1


@pytest.mark.parametrize("name", STENCILS)
@pytest.mark.few(1)
def test_time_tiles_of_any_size(name: str) -> None:
    f = kernel(name)
    for sizes in SIZES[name]:
        agrees(name, f, sizes)
    assert len([k for k in f.kernels if k.signature.sizes]) == 1


@pytest.mark.parametrize("name", {**FACTORS, **STENCILS})
@pytest.mark.few(1)
def test_a_version_with_blocks_and_one_without(name: str) -> None:
    sizes = dict.fromkeys({**FACTORS, **STENCILS}[name].split(), 40)
    lowered = kernel(name, verify=False).lower(*KERNELS[name].data(sizes, np.random.default_rng(0)))
    notes = {note.stage for region in lowered.stages.regions for note in region.notes}
    assert notes & {"blocking", "tiling"}
    assert "fallback" not in notes
    assert any(isinstance(f.body[0], If) and f.body[0].otherwise for f in lowered.stages.functions if f.body)
