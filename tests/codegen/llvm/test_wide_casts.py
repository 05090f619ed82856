"""Between floats and integers of 64 bits in vectors: by way of 32 bits where all lanes fit, and every number as it is elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.dtypes import DTYPES
from polyml.target import Target

NARROW = Target("x86-64-v3")
WIDE = Target("x86-64-v4", features="-prefer-256-bit")
EDGES = [0, 1, 2**24 + 1, 2**31 - 1, 2**31, 2**31 + 2**8, 2**32, 2**53 + 1, 2**62, 2**63 - 1]


def program(source: str, target: str, machine: Target = NARROW) -> polyml.api.EinsumFunction:
    return polyml.einsum(
        f'def f(x: {source}["N"]):\n    y: {target}["N"]\n    y[n] = {target}(x[n])\n    return y\n', target=machine
    )


@pytest.mark.parametrize("source", ["f32", "f64"])
@pytest.mark.parametrize("target", ["i64", "u32"])
def test_floats(source: str, target: str) -> None:
    most = 2.0**32 if target == "u32" else 2.0**63
    numbers = np.array([*EDGES, 0.99, 1.5, 3e9, 2**31 - 0.5], DTYPES[source].numpy)
    numbers = numbers[numbers < most]
    if target == "i64":
        numbers = np.concatenate([numbers, -numbers, -2 * numbers[numbers < most / 2], [-(2.0**63)]])
    numbers = numbers.astype(DTYPES[source].numpy)
    f = program(source, target)
    # One that is large in any lane, among small ones and alone, and in what a vector leaves.
    for number in numbers:
        for at in range(7):
            x = np.arange(7).astype(DTYPES[source].numpy)
            x[at] = number
            np.testing.assert_array_equal(f(x), x.astype(DTYPES[target].numpy))
    np.testing.assert_array_equal(f(numbers), numbers.astype(DTYPES[target].numpy))


@pytest.mark.parametrize("target", ["f32", "f64"])
def test_integers(target: str) -> None:
    numbers = np.array([*EDGES, *(-n for n in EDGES), -(2**63)], np.int64)
    f = program("i64", target)
    for number in numbers:
        for at in range(7):
            x = np.arange(-3, 4)
            x[at] = number
            np.testing.assert_array_equal(f(x), x.astype(DTYPES[target].numpy))
    np.testing.assert_array_equal(f(numbers), numbers.astype(DTYPES[target].numpy))


@pytest.mark.parametrize("source", ["f32", "f64"])
def test_what_does_not_fit_is_any_number(source: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e30, 5, 6, 7], DTYPES[source].numpy)
    np.testing.assert_array_equal(program(source, "i64")(x)[4:], [5, 6, 7])


def test_a_vector_is_converted_at_once() -> None:
    floats, integers = np.zeros(64, np.float32), np.zeros(64, np.int64)
    assert "vcvttps2dq" in program("f32", "i64").lower(floats).text("asm")
    assert "vcvtdq2ps" in program("i64", "f32").lower(integers).text("asm")
    assert "vcvttps2qq" in program("f32", "i64", WIDE).lower(floats).text("asm")


def test_a_place_is_compared_with_both_ends() -> None:
    source = 'def f(x: f64["N"], y: f32["M"]):\n    z[n] = y[i64(x[n] * 3)]\n    return z\n'
    lowered = polyml.einsum(source, target=NARROW, threads=1).lower(np.ones(64), np.ones(64, np.float32))
    check = lowered.text("llvm").split("@f_0(")[1].split("@f_1(")[0]
    assert check.count("@polyml.fptosi") == lowered.text("loops").count(" or ") == 4
