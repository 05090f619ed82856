"""What layouts are called when a program has those names already."""

from __future__ import annotations

import numpy as np
import pytest

import polyml as pm
from polyml.target import Target

STENCIL = """
def f({0}: int, a: f32["N"], {1}: f32["N"]):
    for t in range({0}):
        if 1 <= i < N - 1:
            {1}[i] = 0.3 * (a[i] + a[i - 1] + a[i + 1])
            a[i] = 0.3 * ({1}[i] + {1}[i - 1] + {1}[i + 1])
    return a, {1}
"""
BATCH = """
def f(a: f32["B N N"], {1}: f32["B N"]):
    for i in range(N):
        for j in range(i):
            {1}[b, i] = {1}[b, i] - a[b, i, j] * {1}[b, j]
    return {1}
"""
TRIANGLE = """
def f({1}: f32["N M"], a: f32["N M"]):
    c: f32["N N"] = 0
    if j <= i:
        c[i, j] += {1}[i, k] * a[j, k]
    return c
"""
NEAR = Target("x86-64-v2", l1_bytes=32768, l2_bytes=524288, cores=1)
FAR = Target("x86-64-v2", l1_bytes=2048, l2_bytes=8192, cores=1)


@pytest.mark.parametrize(
    ("text", "count", "array", "new", "target", "shapes"),
    [
        (STENCIL, "p", "a_pieces", "a_pieces_", NEAR, (40, (101,), (101,))),
        (BATCH, "", "a_last", "a_last_", NEAR, ((9, 5, 5), (9, 5))),
        (TRIANGLE, "", "a_panels", "a_panels_", FAR, ((50, 40), (50, 40))),
    ],
)
def test_names_of_layouts_are_new(
    text: str, count: str, array: str, new: str, target: Target, shapes: tuple[int | tuple[int, ...], ...]
) -> None:
    rng = np.random.default_rng(0)
    arguments = [s if isinstance(s, int) else rng.standard_normal(s, np.float32) for s in shapes]

    def results(count: str, array: str) -> tuple[set[str], list[np.ndarray]]:
        program = pm.einsum(text.format(count, array), target=target, threads=1)
        own = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
        names = {name for made in program.lower(*own).schedules.values() for name in made.schedule.scop.arrays}
        return names, list(np.atleast_1d(program(*own)))

    (names, found), (_, expected) = results(count, array), results("T", "other")
    assert new in names
    for one, same in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, same, rtol=1e-5)
