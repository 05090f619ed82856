"""Reductions over several blocks: parts with results of their own, which a second kernel combines."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

import polyml
from polyml.codegen.cuda.program import Branch, HostStep, Launch, grid_of
from polyml.compiler.driver import lower_program
from polyml.compiler.gpu import cuda_regions
from polyml.runtime.cuda.program import value_of
from polyml.target import Target
from tests.cuda.batch import compile_batch, needs_gxx, results_of

SQUARES = 'def f(x: f32["N"]):\n    s = sum[i](x[i] * x[i])\n    return s\n'
LARGEST = 'def f(x: f32["N M"]):\n    s = max[i, j](x[i, j])\n    return s\n'
ROWS = 'def f(x: f32["N M"]):\n    s[i] = x[i, j]\n    return s\n'
COLUMNS = 'def f(x: i32["N M"]):\n    s[j] = x[i, j]\n    return s\n'
NORM = 'def f(x: f32["N"]):\n    m = sum[i](x[i]) / N\n    y[i] = x[i] - m\n    return y\n'
NORMS = 'def f(x: f32["N M"]):\n    m[i] = sum[j](x[i, j]) / M\n    s[i] = sum[j]((x[i, j] - m[i])**2)\n    return s\n'
WINNER = 'def f(x: f32["N"]):\n    s = argmax[i](x[i])\n    return s\n'
WINNERS = 'def f(x: f32["N M"]):\n    s[i] = argmin[j](x[i, j])\n    return s\n'

RNG = np.random.default_rng(0)
LONG = RNG.standard_normal(70_001, dtype=np.float32)
WIDE = RNG.standard_normal((3, 70_000), dtype=np.float32)
TIES = np.repeat(RNG.integers(0, 9, 7_000), 10).astype(np.float32)
NANS = LONG.copy()
NANS[[69_000, 40_003, 50_000]] = np.nan
CASES = [
    (SQUARES, LONG, lambda x: (x * x).sum()),
    (LARGEST, LONG[:70_000].reshape(280, 250), lambda x: x.max()),
    (ROWS, WIDE, lambda x: x.sum(1)),
    (COLUMNS, RNG.integers(-9, 9, (2000, 33)).astype(np.int32), lambda x: x.sum(0)),
    (NORM, LONG, lambda x: x - x.mean()),
    (WINNER, TIES, lambda x: x.argmax()),
    (WINNER, NANS, lambda x: x.argmax()),
    (WINNERS, WIDE, lambda x: x.argmin(1)),
]


@needs_gxx
def test_results_in_every_order() -> None:
    batch = compile_batch([(text, [x]) for text, x, _ in CASES])
    for (_, x, exact), kernel in zip(CASES, batch.kernels, strict=True):
        found = []
        for order in range(4):
            kernel.module.orders = itertools.cycle((order,))
            found += results_of(kernel(x))
        np.testing.assert_allclose(found[0], exact(x.astype(np.float64)), rtol=1e-4, atol=1e-5)
        assert all(np.array_equal(found[0], other) for other in found), "sums depend on the order of blocks"


ANY_SIZES = [
    (SQUARES, [LONG, LONG[:65_536], LONG[:65_535], LONG[:1]], lambda x: (x * x).sum()),
    (LARGEST, [LONG[:70_000].reshape(s) for s in ((280, 250), (1, 70_000), (35_000, 2), (7, 10_000))] + [LONG[:9].reshape(3, 3)], lambda x: x.max()),
    (ROWS, [WIDE, WIDE[:2, :65_536], np.ones((400, 170), np.float32), WIDE[:, :5]], lambda x: x.sum(1)),
    (COLUMNS, [RNG.integers(-9, 9, shape).astype(np.int32) for shape in ((2000, 33), (259, 256), (5, 300), (300, 1))], lambda x: x.sum(0)),
    (NORM, [LONG, LONG[:3]], lambda x: x - x.mean()),
    (WINNER, [TIES, NANS, TIES[:40]], lambda x: x.argmax()),
    (WINNERS, [WIDE, WIDE[:, :77]], lambda x: x.argmin(1)),
]  # fmt: skip


@needs_gxx
def test_results_for_any_sizes() -> None:
    """One kernel for all sizes of a program, with parts where there are few results of long sums, and without them elsewhere."""
    batch = compile_batch([(text, xs[:1]) for text, xs, _ in ANY_SIZES], dynamic=True, verify=True)
    for (_, arrays, exact), kernel in zip(ANY_SIZES, batch.kernels, strict=True):
        for x in arrays:
            found = []
            for order in range(4):
                kernel.module.orders = itertools.cycle((order,))
                found += results_of(kernel(x))
            np.testing.assert_allclose(found[0], exact(x.astype(np.float64)), rtol=1e-4, atol=1e-5)
            assert all(np.array_equal(found[0], other) for other in found), "sums depend on the order of blocks"


@pytest.mark.parametrize(
    ("text", "sizes", "grids"),
    [
        (SQUARES, {"N": 65_535}, [(1, 1, 1)]),
        (SQUARES, {"N": 65_537}, [(5, 1, 1), (1, 1, 1)]),
        (SQUARES, {"N": 1 << 30}, [(1 << 16, 1, 1), (1, 1, 1)]),
        (LARGEST, {"N": 100, "M": 3000}, [(7, 3, 1), (1, 1, 1), (1, 1, 1)]),
        (ROWS, {"N": 7, "M": 1 << 20}, [(64, 7, 1), (1, 1, 1)]),
        (ROWS, {"N": 55, "M": 1 << 20}, [(55, 1, 1)]),
        (COLUMNS, {"N": 6400, "M": 64}, [(2, 13, 1), (1, 1, 1)]),
    ],
)
def test_the_grid_follows_from_the_sizes(text: str, sizes: dict[str, int], grids: list[tuple[int, int, int]]) -> None:
    (region,) = regions_of(
        text, np.ones((2, 2) if "M" in sizes else 2, np.int32 if text is COLUMNS else np.float32), dynamic=True
    )
    assert [grid_of(region.kernels[n], sizes) for n in launched(region.steps, sizes)] == grids


def launched(steps: Sequence[HostStep], sizes: dict[str, int]) -> list[int]:
    (branch,) = steps
    assert isinstance(branch, Branch)
    taken = branch.then if value_of(branch.condition, sizes) else branch.otherwise
    return [step.kernel for step in taken if isinstance(step, Launch)]


def test_what_has_no_parts_for_any_sizes() -> None:
    product = 'def f(x: f32["N K"], w: f32["K M"]):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n'
    (region,) = regions_of(SQUARES, LONG, dynamic=True, precise=True)
    assert len(region.kernels) == 1
    program = polyml.einsum(product, target=Target("cuda"), dynamic=True)
    pair = np.ones((8, 9), np.float32), np.ones((9, 7), np.float32)
    (region,) = cuda_regions(lower_program(program.program, program.key_of(*pair), program.options))
    assert len(region.kernels) == 1, "parts of a product have more results than it has elements"


@pytest.mark.parametrize(("case", "kernels"), [(0, 2), (1, 2), (2, 2), (3, 2), (5, 2), (7, 2)])
def test_two_kernels(case: int, kernels: int) -> None:
    text, x, _ = CASES[case]
    (region,) = regions_of(text, x)
    assert len(region.kernels) == kernels


def test_what_stays_in_one_kernel() -> None:
    small, many = np.ones(40_000, np.float32), np.ones((400, 3000), np.float32)
    for text, x, options in (
        (SQUARES, small, {}),
        (ROWS, many, {}),
        (NORMS, many, {}),
        (SQUARES, LONG, {"precise": True}),
    ):
        (region,) = regions_of(text, x, **options)
        assert len(region.kernels) == 1


def regions_of(text: str, x: np.ndarray, **options: object) -> tuple[object, ...]:
    program = polyml.einsum(text, target=Target("cuda"), **options)
    return cuda_regions(lower_program(program.program, program.key_of(x), program.options))
