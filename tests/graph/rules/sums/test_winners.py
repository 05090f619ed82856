"""Places of extrema over growing ranges are running maxima of places."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.testing import verify
from tests.sampled import in_turn

GROWING = {
    "largest": "argmax[k <= m](x[n, k])",
    "smallest": "argmin[k <= m](x[n, k])",
    "from the end": "argmax[k, k >= m](x[n, k])",
    "smallest, from the end": "argmin[k, k >= m](x[n, k])",
    "from the last on": "argmax[k, k >= M - 1 - m](x[n, k])",
    "backwards": "argmin[k <= m](x[n, M - 1 - k])",
    "squares": "argmax[k <= m](x[n, k] * x[n, k] - 1)",
    "down columns": "argmax[k <= n](x[k, m])",
}
OTHERS = {
    "all": "argmax[k](x[n, k])",
    "a window": "argmax[k, m <= k < m + 3, k < M](x[n, k])",
    "several ahead": "argmax[k, k <= m + 3](x[n, k])",
    "two at a time": "argmax[k, k <= 2*m](x[n, k])",
    "a term of its own": "argmax[k <= m](x[n, k] * x[n, m])",
}


def program(body: str, dtype: str = "f64", **options: object) -> polyml.api.Einsum:
    text = f'def f(x: {dtype}["N M"]):\n    y: i64["N M"] = 0\n    y[n, m] = {body}\n    return y\n'
    return polyml.einsum(text, **options)


@pytest.mark.parametrize("body", GROWING.values(), ids=GROWING)
def test_loops(body: str) -> None:
    graph = str(program(body).trace(np.ones((20, 17))))
    assert graph.count(" in range(") == 2
    assert "argm" not in graph


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_others_stay(body: str) -> None:
    assert "argm" in str(program(body).trace(np.ones((20, 17))))


NOT_GROWING = [pytest.param(name, dynamic, marks=pytest.mark.slow) for name in OTHERS for dynamic in (False, True)]


@pytest.mark.parametrize(("name", "dynamic"), [*in_turn(GROWING, (False, True)), *NOT_GROWING])
@pytest.mark.few(1)
def test_the_same_places(name: str, dynamic: bool) -> None:
    """Of any size at all shapes, of known ones at two."""
    rng = np.random.default_rng(0)
    made = program((GROWING | OTHERS)[name], dynamic=dynamic, verify=not dynamic)
    shapes = ((1, 20), (12, 11), (9, 1), (3, 9))
    for shape in shapes if dynamic else shapes[:2]:
        x = rng.integers(-3, 4, shape).astype("f8")
        assert verify(made, x), shape


@pytest.mark.parametrize("body", GROWING.values(), ids=GROWING)
@pytest.mark.few(2)
def test_no_numbers_infinities_and_ties(body: str) -> None:
    running, one_by_one = program(body, dynamic=False), program(body, dynamic=False, scheduler="written")
    x = np.random.default_rng(1).integers(-2, 3, (10, 40)).astype("f8")
    x[0], x[1], x[2], x[3] = -np.inf, np.inf, np.nan, 0.0
    x[4, 7], x[4, 20], x[5, 0], x[6, 39], x[7, 5], x[8, 3] = np.nan, np.nan, np.nan, np.nan, np.inf, -0.0
    np.testing.assert_array_equal(running(x), one_by_one(x))


@pytest.mark.parametrize("dtype", ["f32", "i32", "u8", "i64"])
@pytest.mark.few(1)
def test_types_and_strides(dtype: str) -> None:
    running = program(GROWING["largest"], dtype)
    x = (
        np.random.default_rng(2)
        .integers(0, 200, (6, 80))
        .astype({"f32": "f4", "i32": "i4", "u8": "u1", "i64": "i8"}[dtype])
    )
    for view in (x[:, ::2], x[::-1, ::-2], np.asfortranarray(x[:, :40])):
        expected = [[int(np.argmax(row[: m + 1])) for m in range(40)] for row in view]
        np.testing.assert_array_equal(running(view), expected)


def test_narrow_places() -> None:
    text = 'def f(x: f32["N M"]):\n    y: i32["N M"]\n    y[n, m] = argmin[k <= m](x[n, k])\n    return y\n'
    x = np.random.default_rng(3).standard_normal((4, 50), np.float32)
    expected = [[int(np.argmin(row[: m + 1])) for m in range(50)] for row in x]
    np.testing.assert_array_equal(polyml.einsum(text)(x), expected)
