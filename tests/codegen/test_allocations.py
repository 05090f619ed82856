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
