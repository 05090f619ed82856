"""Ranges that go along with an index of the result are counted from its place; ranges that grow or go along with none stay."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.testing import verify

COUNTED = {
    "a window": ('"N-4"', "y[i] = max[k, i <= k < i + 5](x[k])"),
    "around": ('"N"', "y[i] = sum[k, i - 2 <= k <= i + 2](x[k])"),
    "segments": ('"6"', "y[s] = sum[k, 7*s <= k < 7*s + 7](x[k])"),
    "overlapping segments": ('"9"', "y[s] = min[k, 4*s + 1 <= k < 4*s + 8](x[k])"),
    "weighed": ('"N"', "y[i] = sum[k, i - 2 <= k <= i + 2](x[k] * x[N - 1 - k])"),
    "added": ('"N"', "y[i] = x[i]\n    y[i] += sum[k, i - 2 <= k <= i + 2](x[k])"),
}
OTHERS = {
    "growing": ('"N"', "y[i] = sum[k, k <= i](x[k])"),
    "halves": ('"N"', "y[i] = sum[k, i // 2 <= k](x[k])"),
    "all": ('"N"', "y[i] = sum[k](x[k] + x[i])"),
    "the other way": ('"N"', "y[i] = sum[k, N - 1 - i <= k](x[k])"),
    "long": ('"N"', "y[i] = sum[k, i - 30 <= k <= i + 2](x[k])"),
}


def program(rows: tuple[str, str], **options: object) -> polyml.api.Einsum:
    shape, body = rows
    return polyml.einsum(f'def f(x: f64["N"]):\n    y: f64[{shape}] = 0\n    {body}\n    return y\n', **options)


@pytest.mark.parametrize("rows", COUNTED.values(), ids=COUNTED)
def test_places(rows: tuple[str, str]) -> None:
    x = np.arange(45.0) % 11
    assert re.search(r"x\[(i \+ k|k \+ \d\*s)", str(program(rows).trace(x)))


@pytest.mark.parametrize("rows", OTHERS.values(), ids=OTHERS)
def test_others_stay(rows: tuple[str, str]) -> None:
    assert not re.search(r"x\[(i \+ k|k \+ )", str(program(rows, precise=True).trace(np.arange(45.0))))


@pytest.mark.parametrize(
    "rows",
    [*COUNTED.values(), *(pytest.param(rows, marks=pytest.mark.slow) for rows in OTHERS.values())],
    ids=[*COUNTED, *OTHERS],
)
@pytest.mark.few(2)
def test_the_same_numbers(rows: tuple[str, str]) -> None:
    any_size, exact = program(rows, dynamic=True), program(rows, verify=True, dynamic=False)
    for size in (45, 52):
        x = np.arange(float(size)) * 7 % 11
        assert verify(exact, x[::-1], computed_by=any_size)
        expected = program(rows, scheduler="written", dynamic=False)(x)
        np.testing.assert_array_equal(exact(x), expected)
