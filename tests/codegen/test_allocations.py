"""Storage below marks that isl repeats: a value that is written in a loop and read behind it, by a part that belongs to the last iteration."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.source import Source

LAST_OF_A_LOOP = """
def last(x: f32["N K"], M: int):
    t[i] = x[i, j]
    y: f32["M"]
    y[i] = t[N - 1]
    return y
"""
LAST_AND_OTHERS = """
def both(x: f32["N K"], M: int):
    t[i] = x[i, j]
    z[i] = t[i] * 2
    y: f32["M"]
    y[i] = t[N - 1]
    return y, z
"""
MIDDLE = """
def middle(x: f32["N K"], M: int):
    t[i] = x[i, j]
    z[i] = t[i] + 1
    y: f32["M"]
    y[i] = t[2]
    return y, z
"""


@pytest.mark.parametrize("scheduler", ["ilp", "isl", "written"])
@pytest.mark.parametrize("text", [LAST_OF_A_LOOP, LAST_AND_OTHERS, MIDDLE])
@pytest.mark.few(3)
def test_what_a_loop_leaves_is_read_behind_it(text: str, scheduler: str) -> None:
    x = np.random.default_rng(0).standard_normal((5, 7), np.float32)
    expected = interpret(parse(Source(text)), x, 3)
    found = polyml.einsum(text, scheduler=scheduler, verify=True)(x, 3)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_elements_of_which_one_piece_has_a_parallel_loop() -> None:
    """Two arrays of one element, one inside the other, are made ahead of a loop that threads share: memory in all pieces, or registers in all."""
    program = polyml.einsum(
        """
def products(a: c64["N M"], b: c64["P P"], y: c64["M P N"]):
    y[m, l, n] += sum[p](a[n, m + p] * b[p, l])
    return y
""",
        dynamic=True,
        threads=2,
    )
    rng = np.random.default_rng(0)
    a = rng.integers(-2, 3, (64, 3)).astype(np.complex64)
    b, y = np.full((1, 1), 1 + 2j, np.complex64), np.ones((3, 1, 64), np.complex64)
    np.testing.assert_array_equal(program(a, b, y), 1 + (a * b).T[:, None])
