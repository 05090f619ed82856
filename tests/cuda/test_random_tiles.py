"""Random contractions in tiles of any shape, against numpy.einsum: batches, permuted operands, several rows, columns and reductions, sizes that no tile divides."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from polyml.codegen.loops import Allocate
from polyml.codegen.rewrite import walk_nodes
from polyml.runtime.cuda.program import CudaKernel
from polyml.target import Target
from tests.cuda.batch import compile_batch, needs_gxx, results_of

DTYPES = {"f32": "f4", "f64": "f8", "i32": "i4", "f16": "f2"}


def contraction(choose: random.Random, rng: np.random.Generator) -> tuple[str, list[np.ndarray], np.ndarray]:
    """A program's text, its arguments (small whole numbers, so that sums are exact), and the result."""
    letters = iter("ijklmnop")
    batch, rows, columns, reduced = (
        [next(letters) for _ in range(choose.randint(*many))] for many in ((0, 1), (1, 2), (1, 2), (1, 2))
    )
    extent = {i: choose.choice((1, 2, 3, 8, 16, 17, 33, 40)) for i in rows + columns}
    extent |= {i: choose.choice((1, 3)) for i in batch} | {i: choose.choice((2, 4, 7, 16, 19, 37)) for i in reduced}
    while math.prod(extent.values()) > 300_000:
        longest = max(extent, key=lambda i: extent[i])
        extent[longest] //= 2
    orders = [
        choose.sample(i, len(i)) for i in (batch + rows + reduced, batch + columns + reduced, batch + rows + columns)
    ]
    name, onward = choose.choice(list(DTYPES)), choose.random() < 0.3
    x, w, c = (rng.integers(-2, 3, [extent[i] for i in order]).astype(DTYPES[name]) for order in orders)
    shapes = [" ".join(order).upper() for order in orders]
    product = f"x[{', '.join(orders[0])}] * w[{', '.join(orders[1])}]"
    place = f"c[{', '.join(orders[2])}]"
    given, expected = [x, w], np.einsum(f"{','.join(map(''.join, orders[:2]))}->{''.join(orders[2])}", x * 1.0, w * 1.0)
    parameters = f'x: {name}["{shapes[0]}"], w: {name}["{shapes[1]}"]'
    if onward:
        text = f'def f({parameters}, c: {name}["{shapes[2]}"]):\n    {place} += {product}\n    return c\n'
        return text, [*given, c], expected + c
    return f"def f({parameters}):\n    {place} = {product}\n    return c\n", given, expected


def is_tiled(kernel: CudaKernel) -> bool:
    nodes = (n for region in kernel.regions for k in region.kernels for n in walk_nodes(k.function.body))
    return any(isinstance(n, Allocate) and n.variable.name.endswith("_tile") for n in nodes)


def check(seed: int, count: int, *, verify: bool) -> None:
    choose, rng = random.Random(seed), np.random.default_rng(seed)
    cases = [contraction(choose, rng) for _ in range(count)]
    batch = compile_batch(
        [(text, given) for text, given, _ in cases], target=Target("cuda", cores=choose.choice((1, 2))), verify=verify
    )
    assert sum(map(is_tiled, batch.kernels)) > count // 2
    for (text, given, expected), kernel in zip(cases, batch.kernels, strict=True):
        for order in range(4):
            kernel.module.orders = itertools.cycle((order,))
            (found,) = results_of(kernel(*(a.copy() for a in given)))
            np.testing.assert_allclose(
                found, expected, rtol=2e-3, atol=1e-6, err_msg=f"seed {seed}, order {order}: {text}"
            )


@needs_gxx
def test_random_contractions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyml.schedule.strategy.cuda.tiles.LEAST_TILE", 0)
    check(1, 4, verify=False)


@needs_gxx
@pytest.mark.slow
def test_random_contractions_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyml.schedule.strategy.cuda.tiles.LEAST_TILE", 0)
    for seed in range(10):
        check(seed, 30, verify=seed % 2 == 0)
