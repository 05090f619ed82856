"""Reductions whose ranges grow along a dimension go on from the element before; all others are as they were."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.testing import verify
from tests.sampled import in_turn

RUNNING = {
    "sums": "y[n, m] = sum[k <= m](x[n, k])",
    "without itself": "y[n, m] = sum[k < m](x[n, k])",
    "from the end": "y[n, m] = sum[k, k >= m](x[n, k])",
    "behind it": "y[n, m] = sum[k, k > m](x[n, k])",
    "a mask": "y[n, m] = sum[k](where(k <= m, x[n, k], 0))",
    "some ahead": "y[n, m] = sum[k, k <= m + 3](x[n, k])",
    "some behind": "y[n, m] = sum[k, k > m - 3](x[n, k])",
    "two at a time": "y[n, m] = sum[k, k <= 2*m](x[n, k])",
    "every other one": "y[n, m] = sum[k, 2*k <= m](x[n, k])",
    "another condition": "y[n, m] = sum[k, k % 3 == 1, k <= m](x[n, k])",
    "a choice": "y[n, m] = sum[k <= m](where(x[n, k] > 0, x[n, k], 2))",
    "from both ends": "y[n, m] = sum[k, m <= k < M - m](x[n, k])",
    "backwards": "y[n, m] = sum[k <= m](x[n, M - 1 - k])",
    "columns": "y[n, m] = sum[i <= n](x[i, m])",
    "a triangle": "y[n, m] = sum[i, n <= i <= m](x[i, m])",
    "squares, with a factor": "y[n, m] = sum[k <= m](x[n, k] * x[n, k]) * x[n, m]",
    "a summed-area table": "y[n, m] = sum[i <= n, j <= m](x[i, j])",
    "largest": "y[n, m] = max[k <= m](x[n, k])",
    "smallest": "y[n, m] = min[k, k >= m](x[n, k])",
    "products": "y[n, m] = prod[k < m](x[n, k])",
    "of what is computed": "e[n, k] = x[n, k] * x[n, k] + 1\n    y[n, m] = sum[k <= m](e[n, k])",
    "added": "y[n, m] = x[n, m]\n    y[n, m] += sum[k <= m](x[n, k])",
    "in a part": "y[n, m] = x[n, m]\n    if n > 0:\n        y[n, m] = sum[k < m](x[n, k])",
    "moved": "y[n, M - 1 - m] = sum[k <= m](x[n, k])",
    "in a loop": "for t in range(3):\n        y[n, m] += sum[k <= m](x[n, k] * y[n, k])",
}
SEVERAL = ("some ahead", "some behind", "two at a time", "from both ends")
"""Of which an element adds more than one term."""
OTHERS = {
    "a window": "y[n, m] = sum[k, m <= k < m + 5](x[n, k])",
    "a term of its own": "y[n, m] = sum[k <= m](x[n, k] * x[n, m - k])",
    "all": "y[n, m] = sum[k](x[n, k])",
    "apart from one": "y[n, m] = sum[k, k != m](x[n, k])",
}
SHAPES = [(3, 9), (1, 40), (9, 17), (9, 1)]


def program(body: str, dtype: str = "f64", **options: object) -> polyml.api.Einsum:
    return polyml.einsum(f'def f(x: {dtype}["N M"]):\n    y: {dtype}["N M"] = 0\n    {body}\n    return y\n', **options)


def numbers(shape: tuple[int, int], dtype: npt.DTypeLike = "f8") -> npt.NDArray[np.generic]:
    """Whose sums are exact, and whose products are small."""
    return np.random.default_rng(0).integers(0, 3, shape).astype(dtype)


@pytest.mark.parametrize("body", RUNNING.values(), ids=RUNNING)
def test_loops_without_inner_sums(body: str) -> None:
    """The loop is there, and what it adds is one term, or a few that are summed ahead."""
    graph = str(program(body).trace(numbers((20, 17))))
    assert " in range(1, " in graph or ", -1, -1)" in graph
    assert bool(re.search(r"(sum|prod|max|min)_[ijk]", graph)) == (body in map(RUNNING.get, SEVERAL))


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_what_does_not_grow_stays(body: str) -> None:
    assert " in range(" not in str(program(body).trace(numbers((20, 17))))


def test_what_is_used_once_is_made_in_the_loop() -> None:
    for made, read, inside in (
        ("e[n, k] = exp(x[n, k])", "e[n, k]", True),
        ("e[k] = exp(x[0, k])", "x[n, k] * e[k]", False),
    ):
        body = f"{made}\n    y[n, m] = sum[k <= m]({read})"
        graph = str(program(body).trace(numbers((20, 17))))
        assert ("exp" in graph[graph.index(" in range(") :]) == inside


def test_short_dimensions_stay() -> None:
    for length, runs in ((7, False), (8, True)):
        graph = str(program(RUNNING["sums"], dynamic=False).trace(numbers((20, length))))
        assert (" in range(" in graph) == runs


@pytest.mark.parametrize(("name", "dynamic"), in_turn(RUNNING, (False, True)))
@pytest.mark.few(4)
def test_the_same_numbers(name: str, dynamic: bool) -> None:
    """Of any size at all shapes, of known ones at two."""
    made = program(RUNNING[name], dynamic=dynamic, threads=1 + dynamic, verify=not dynamic)
    first = [*RUNNING].index(name) // 2 % 3
    for shape in SHAPES if dynamic else SHAPES[first : first + 2]:
        assert verify(made, numbers(shape)), shape


@pytest.mark.parametrize("dtype", ["f32", "i32", "u32"])
@pytest.mark.parametrize("name", ["sums", "behind it", "two at a time", "a summed-area table", "largest", "smallest"])
@pytest.mark.few(1)
def test_types_and_strides(name: str, dtype: str) -> None:
    running = program(RUNNING[name], dtype, dynamic=False)
    rng = np.random.default_rng(1)
    for shape in ((5, 16), (2, 33)):
        wide = 40 * rng.standard_normal((shape[0], 2 * shape[1]))
        wide = np.abs(wide) if dtype == "u32" else wide
        x = wide.astype({"f32": "f4", "i32": "i4", "u32": "u4"}[dtype])
        for view in (x[:, ::2], x[::-1, ::-2], np.asfortranarray(x[:, : shape[1]])):
            assert verify(running, view)


@pytest.mark.parametrize("name", ["sums", "from the end", "largest", "a mask", "a summed-area table"])
def test_no_numbers_and_infinities_spread_to_what_includes_them(name: str) -> None:
    running, written = program(RUNNING[name]), program(RUNNING[name], precise=True, dynamic=False)
    x = numbers((9, 40))
    x[2, 5], x[4, 7], x[4, 30], x[6, 11] = np.nan, np.inf, -np.inf, np.inf
    np.testing.assert_array_equal(running(x), np.asarray(_cumulated(name, x)))
    assert np.array_equal(written(x), running(x), equal_nan=True)


def _cumulated(name: str, x: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    with np.errstate(invalid="ignore"):
        if name == "largest":
            return np.maximum.accumulate(x, axis=1)
        if name == "from the end":
            return np.cumsum(x[:, ::-1], axis=1)[:, ::-1]
        sums = np.cumsum(x, axis=1)
        return np.cumsum(sums, axis=0) if name == "a summed-area table" else sums


def test_precise_sums_keep_their_order_and_exact_ones_run() -> None:
    for body, dtype, runs in (
        (RUNNING["sums"], "f64", False),
        (RUNNING["sums"], "i64", True),
        (RUNNING["largest"], "f64", True),
    ):
        x = numbers((20, 17), dtype.replace("64", "8"))
        assert (" in range(" in str(program(body, dtype, precise=True).trace(x))) == runs


def test_several_that_are_added_to_one_element() -> None:
    """A running sum for each of them, and the last one alone, was what they were."""
    text = 'def f(x: i64["N"]):\n    y: i64["N"] = 0\n    y[i // 2] += sum[k <= i](x[k])\n    return y\n'
    x = np.arange(1, 41)
    np.testing.assert_array_equal(polyml.einsum(text, precise=True)(x)[:20], np.cumsum(x).reshape(20, 2).sum(axis=1))


def test_truth() -> None:
    rng = np.random.default_rng(0)
    for reducer in ("any", "all"):
        running = polyml.einsum(
            f'def f(x: bool["N M"]):\n    y: bool["N M"]\n    y[n, m] = {reducer}[k <= m](x[n, k])\n    return y\n'
        )
        x = rng.random((5, 40)) < (0.1 if reducer == "any" else 0.9)
        expected = np.logical_or if reducer == "any" else np.logical_and
        np.testing.assert_array_equal(running(x), expected.accumulate(x, axis=1))
        assert " in range(" in running.lower(x).text("graph")


def test_half_precision_is_rounded_once() -> None:
    x = np.ones((2, 3000), np.float16)
    assert program(RUNNING["sums"], "f16")(x)[0, -1] == 3000


def test_empty_dimensions() -> None:
    for shape in ((0, 9), (9, 0), (0, 0)):
        assert program(RUNNING["sums"])(np.zeros(shape)).shape == shape
