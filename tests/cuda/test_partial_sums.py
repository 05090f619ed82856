"""Reductions over several blocks: parts with results of their own, which a second kernel combines."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import polyml
from polyml.compiler import lower_program
from polyml.compiler_cuda import cuda_regions
from polyml.target import Target
from tests.cuda.batch import compile_batch, needs_gxx, results_of

SQUARES = 'def f(x: f32["N"]):\n    s = sum[i](x[i] * x[i])\n    return s\n'
LARGEST = 'def f(x: f32["N M"]):\n    s = max[i, j](x[i, j])\n    return s\n'
ROWS = 'def f(x: f32["N M"]):\n    s[i] = x[i, j]\n    return s\n'
COLUMNS = 'def f(x: i32["N M"]):\n    s[j] = x[i, j]\n    return s\n'
NORM = 'def f(x: f32["N"]):\n    m = sum[i](x[i]) / N\n    y[i] = x[i] - m\n    return y\n'
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


@pytest.mark.parametrize(("case", "kernels"), [(0, 2), (1, 2), (2, 2), (3, 2), (5, 2), (7, 2)])
def test_two_kernels(case: int, kernels: int) -> None:
    text, x, _ = CASES[case]
    (region,) = regions_of(text, x)
    assert len(region.kernels) == kernels


def test_what_stays_in_one_kernel() -> None:
    small, many = np.ones(40_000, np.float32), np.ones((400, 3000), np.float32)
    for text, x, options in ((SQUARES, small, {}), (ROWS, many, {}), (SQUARES, LONG, {"precise": True})):
        (region,) = regions_of(text, x, **options)
        assert len(region.kernels) == 1


def regions_of(text: str, x: np.ndarray, **options: object) -> tuple[object, ...]:
    program = polyml.einsum(text, target=Target("cuda"), **options)
    return cuda_regions(lower_program(program.program, program.key_of(x), program.options))
