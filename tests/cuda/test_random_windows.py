"""Random stencils, one to three dimensions, now and in time loops, of known and of any sizes: windows in shared memory, whole tiles and edges, arrays that stay in a block."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from polyml.target import Target
from tests.cuda.batch import compile_batch, needs_gxx

pytestmark = needs_gxx

Offsets = list[tuple[int, ...]]


def program(offsets: Offsets, low: list[int], high: list[int], steps: int) -> str:
    """b = a weighted sum of a's neighbours, inside; with steps: there and back."""
    indices, names = "ijk"[: len(low)], "NMK"[: len(low)]
    inside = " and ".join(f"{l} <= {i} < {n} - {h}" for l, h, i, n in zip(low, high, indices, names, strict=True))
    places = [", ".join(f"{i} + {o}" for i, o in zip(indices, offset, strict=True)) for offset in offsets]
    shape, here = " ".join(names), ", ".join(indices)
    head = f'def f(a: f64["{shape}"], b: f64["{shape}"]):\n'

    def line(target: str, source: str) -> str:
        total = " + ".join(f"{k + 1} * {source}[{place}]" for k, place in enumerate(places))
        return f"{target}[{here}] = 0.01 * ({total})\n"

    if not steps:
        return f"{head}    if {inside}:\n        {line('b', 'a')}"
    body = f"            {line('b', 'a')}            {line('a', 'b')}"
    return f"{head}    for t in range({steps}):\n        if {inside}:\n{body}"


def apply(x: np.ndarray, y: np.ndarray, offsets: Offsets, low: list[int], high: list[int]) -> None:
    def window(offset: tuple[int, ...]) -> tuple[slice, ...]:
        return tuple(slice(l + o, n - h + o) for l, h, n, o in zip(low, high, x.shape, offset, strict=True))

    y[window((0,) * x.ndim)] = 0.01 * sum((k + 1) * x[window(offset)] for k, offset in enumerate(offsets))


def draw(seed: int, count: int) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Programs with their arguments, and what these are after."""
    rng, numbers, made = random.Random(seed), np.random.default_rng(seed), []
    while len(made) < count:
        rank, steps = rng.choice((1, 2, 2, 3)), rng.choice((0, 0, 3))
        shape = [rng.randint(3, 90 if rank < 3 else 20) for _ in range(rank)]
        offsets = [tuple(rng.randint(-2, 2) for _ in range(rank)) for _ in range(rng.randint(1, 9))]
        low = [max(0, max(-o[d] for o in offsets)) for d in range(rank)]
        high = [max(0, max(o[d] for o in offsets)) for d in range(rank)]
        if any(l + h >= n for l, h, n in zip(low, high, shape, strict=True)):
            continue
        a, b = numbers.standard_normal(shape), numbers.standard_normal(shape)
        x, y = a.copy(), b.copy()
        for _ in range(max(1, steps)):
            apply(x, y, offsets, low, high)
            if steps:
                apply(y, x, offsets, low, high)
        made.append((program(offsets, low, high, steps), a, b, x, y))
    return made


def check(seed: int, count: int, *, dynamic: bool) -> None:
    cases = draw(seed, count)
    given = [(text, [a, b]) for text, a, b, _, _ in cases]
    batch = compile_batch(given, target=Target("cuda", cores=1), dynamic=dynamic, verify=True)
    for (text, a, b, *exact), kernel in zip(cases, batch.kernels, strict=True):
        for order in range(4):
            kernel.module.orders = itertools.cycle((order,))
            kernel.module.most = (1, 1, 1) if order == 1 else None
            found = (a.copy(), b.copy())
            kernel(*found)
            for one, other in zip(found, exact, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9, err_msg=f"order {order} of {text}")


@pytest.mark.parametrize("dynamic", [False, True])
def test_random_windows(dynamic: bool) -> None:
    check(7, 2 if dynamic else 3, dynamic=dynamic)


@pytest.mark.slow
def test_random_windows_long() -> None:
    for seed in range(10):
        check(seed, 16, dynamic=bool(seed % 2))
