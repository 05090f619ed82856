"""Sums of hundreds of terms: right results, and work that grows little faster than their length."""

from __future__ import annotations

import sys
from types import FrameType

import numpy as np
import pytest

import polyml
from polyml.compiler.driver import llvm_text


def text(terms: int) -> str:
    total = " + ".join(f"{k + 1} * x[i + {k}]" for k in range(terms))
    return f'def window(x: f32["N"]):\n    y[i] = {total}\n    return y\n'


def test_a_sum_of_three_hundred_terms() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    weights = np.arange(1, 301, dtype=np.float32)
    expected = np.lib.stride_tricks.sliding_window_view(x.astype("f8"), 300) @ weights
    np.testing.assert_allclose(polyml.einsum(text(300))(x), expected, rtol=1e-4, atol=1e-1)


def test_a_sum_that_is_too_long_is_told_so() -> None:
    with pytest.raises(polyml.PolymlError, match="nested too deeply"):
        polyml.einsum(text(1200))(np.zeros(2000, np.float32))


def calls(terms: int) -> int:
    """Calls of Python functions for one compilation."""
    program = polyml.einsum(text(terms))
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


def test_twice_the_terms_are_little_more_than_twice_the_work() -> None:
    calls(10)  # what the first compilation of a process does
    assert calls(160) < 3.2 * calls(80)
