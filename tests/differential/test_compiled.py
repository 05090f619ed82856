"""Random programs compiled and called, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import polyml
from polyml.einsum_frontend.interpreter import interpret
from polyml.einsum_frontend.parse import parse
from polyml.source import Source
from polyml.testing import assert_close
from polyml.testing.cases import Case
from polyml.testing.strategies import programs

quick = settings(max_examples=25, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
long = settings(quick, max_examples=1000)


def results_of(found: object) -> tuple[object, ...]:
    return found if isinstance(found, tuple) else () if found is None else (found,)


def check_compiled(case: Case) -> None:
    expected_arguments, arguments = case.fresh_arguments(), case.fresh_arguments()
    expected = results_of(interpret(parse(Source(case.text)), *expected_arguments, wide=True))
    actual = results_of(polyml.einsum(case.text)(*arguments))
    for a, e in zip((*actual, *arguments), (*expected, *expected_arguments), strict=True):
        assert_close(a, e, case.reduction_length, computed_in=case.computed_in, scale=1 / 64)  # type: ignore[arg-type]


@given(programs())
@quick
def test_compiled(case: Case) -> None:
    check_compiled(case)


@pytest.mark.slow
@given(programs(max_statements=6))
@long
def test_compiled_long(case: Case) -> None:
    check_compiled(case)


def test_a_composed_program_is_inlined() -> None:
    inner = polyml.einsum('def inner(x: f32["N K"], s: f32):\n    y[k] = s * x[n, k]\n    x[n, k] = 0\n    return y\n')
    outer = polyml.einsum('def outer(a: f32["N K"]):\n    b = inner(a, 3)\n    return b\n')
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = 3 * a.sum(0)
    assert inner is not None
    assert_close(outer(a), expected, 2)
    assert not a.any()
