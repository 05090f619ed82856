"""Sums of hundreds of terms: right results, and work that grows little faster than their length."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest

import polyml
from polyml.compiler.driver import llvm_text


def text(terms: int) -> str:
    total = " + ".join(f"{k + 1} * x[i + {k}]" for k in range(terms))
    return f'def window(x: f32["N"]):\n    y[i] = {total}\n    return y\n'


def test_a_sum_of_four_hundred_terms() -> None:
    terms = 400
    before = sys.getrecursionlimit()
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    weights = np.arange(1, terms + 1, dtype=np.float32)
    expected = np.lib.stride_tricks.sliding_window_view(x.astype("f8"), terms) @ weights
    program = polyml.einsum(text(terms))
    np.testing.assert_allclose(program(x), expected, rtol=1e-4, atol=1)
    np.testing.assert_allclose(program.bind(x=x)(), expected, rtol=1e-4, atol=1)
    assert f"{terms} * " in str(program)
    assert "x[i" in program.lower(x).text("graph")
    assert sys.getrecursionlimit() == before


def test_a_sum_that_is_too_long_is_told_so() -> None:
    with pytest.raises(polyml.PolymlError, match="nested too deeply"):
        polyml.einsum(text(3000))(np.zeros(4000, np.float32))


def equal_terms(terms: int) -> str:
    return f'def same(x: f32["N"]):\n    y[i] = {" + ".join(["x[i]"] * terms)}\n    return y\n'


def groups_of_terms(terms: int) -> str:
    """Each constant twice."""
    total = " + ".join(f"{(k + 2) % (terms // 2)}.5 * x[i + {k}]" for k in range(terms))
    return f'def groups(x: f32["N"]):\n    y[i] = {total}\n    return y\n'


def calls(source: str) -> int:
    """Calls of Python functions for one compilation."""
    program = polyml.einsum(source)
    counted = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        counted += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        llvm_text(program.lower(np.zeros(1000, np.float32)).stages.functions, program.options)
    finally:
        sys.setprofile(before)
    return counted


@pytest.mark.parametrize("source", [text, equal_terms, groups_of_terms])
@pytest.mark.few(2)
def test_twice_the_terms_are_little_more_than_twice_the_work(source: Callable[[int], str]) -> None:
    calls(source(10))  # what the first compilation of a process does
    assert calls(source(100)) < 2.3 * calls(source(50))
