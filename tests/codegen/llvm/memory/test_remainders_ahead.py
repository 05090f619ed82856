"""Remainders along the lanes that are the same in all rounds of a loop are computed ahead of it."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.codegen.llvm.ir import INDEX, Builder, Lines, Module, Value
from polyml.codegen.llvm.memory.addresses import Level, Nest
from polyml.sets.affine import Affine, affine
from polyml.testing import verify

H, W = affine("h"), affine("w")


@pytest.mark.parametrize(
    ("expression", "step", "ahead"),
    [
        ((H + W) % 2, 16, True),
        (W % 4 + 3 * H, 8, True),
        ((3 * W + H) % 6, 8, True),
        ((H + W) % 3, 16, False),  # the step is no multiple
        ((3 * W + H) % 12, 6, False),
        ((H + W) % 2 + W, 16, False),
        (W // 2, 16, False),
        ((W % 32) // 2, 16, False),
    ],
)
def test_where_lanes_are_made(expression: Affine, step: int, ahead: bool) -> None:
    top: Lines = []
    around: Lines = []
    body: Lines = []
    nest = Nest(Builder(Module(), top), top)
    for name, lines, start in (("h", around, affine(0)), ("w", body, H)):
        nest.levels.append(Level(lines))
        nest.variables[name] = (len(nest.levels) - 1, Value(INDEX, f"%{name}"))
        nest.grids[name] = (start, step if name == "w" else 1)
    nest.lanes_index(expression, "w", 4)
    assert around or not ahead
    assert ahead is (not body)


PATTERNS = {
    "checkerboard": "where((h + w) % 2 == 0, 0.5 * (x[h, w] + x[h, w + 2]), x[h, w + 1])",
    "three in turn": "where((h + w) % 3 == 1, x[h, w], x[h, w + 2])",
    "four, backwards": "where((3 - w + 2*h) % 4 < 2, x[h, w], -x[h, w + 2])",
    "three, and a number": "where((h + 2*w + 1) % 3 + 5 == 6, x[h, w], x[h, w + 2])",
    "many numbers": "x[h, w] * ((h + 5*w) % 97)",
    "many numbers, backwards": "x[h, w] * ((h - 5*w) % 97)",
    "four numbers": "x[h, w] * ((h + 3*w) % 8)",
    "Bayer": "where(h % 2 == 0, where(w % 2 == 1, x[h, w], x[h, w + 1]), where(w % 2 == 1, x[h, w + 2], -x[h, w]))",
    "quotients": "x[h // 2, w // 2] + where(w % 2 == 0, x[h, (w + 1) // 2], x[(h + 1) // 2, w // 2])",
    "places from the remainder": "x[h, w - w % 4] + x[h, w - (h + w) % 2 + 1]",
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.few(7)
def test_patterns(pattern: str, dynamic: bool) -> None:
    text = f'def f(x: f32["H W"]):\n    y: f32["H W-2"]\n    y[h, w] = {pattern}\n    return y\n'
    compiled = polyml.einsum(text, dynamic=dynamic, verify=True)
    rng = np.random.default_rng(0)
    for shape in ((5, 77), (3, 3), (1, 36), (2, 130)):
        assert verify(compiled, rng.standard_normal(shape, dtype=np.float32)), shape


def test_loops_that_begin_elsewhere() -> None:
    """Rows that begin at places of their own, and sweeps of two colors."""
    compiled = polyml.einsum(
        """
def f(u: f64["N N"]):
    for c in range(2):
        if 1 <= i < N - 1 and i <= j < N - 1:
            u[i, j] = where((i + j) % 2 == c, 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]), u[i, j])
    return u
""",
        verify=True,
    )
    for n in (4, 19, 45):
        assert verify(compiled, np.random.default_rng(n).standard_normal((n, n)))


@pytest.mark.parametrize("divisor", [2, 4])
def test_results_that_begin_anywhere_in_a_line(divisor: int) -> None:
    """The loops of long results begin where vectors are aligned, those of short ones with the first element: their lanes differ."""
    compiled = polyml.einsum(
        f"""
def f(x: f32, K: int):
    y: f32["K"]
    y[i] = where(i % {divisor} == 0, i, x)
    return y
""",
        dynamic=True,
    )
    for size in (1, 3, 20, 600_001):
        memory = np.zeros(size + 32, np.float32)
        first = -memory.ctypes.data // 4 % 16
        i = np.arange(size)
        expected = np.where(i % divisor == 0, i, 7).astype("f4")
        for place in range(first, first + 8):
            out = memory[place : place + size]
            np.testing.assert_array_equal(compiled(7, size, out=out), expected)


def test_long_rows() -> None:
    """Remainders that are short numbers, and ones that are not, of places that are none."""
    compiled = polyml.einsum(
        """
def f(x: f64["W"]):
    y[w] = x[w] * (w % 7) + x[w] * (3*w % 32749) + x[w] * (w % 40000) + x[w] * (5*w % 70001)
    return y
"""
    )
    x = np.random.default_rng(0).integers(-9, 9, 140_003).astype("f8")
    w = np.arange(len(x))
    np.testing.assert_array_equal(compiled(x), x * (w % 7 + 3 * w % 32749 + w % 40000 + 5 * w % 70001))
