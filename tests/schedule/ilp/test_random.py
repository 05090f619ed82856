"""Random programs under every scheduler, compiled and called, against the interpreter."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

import polyml
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.source import Source
from polyml.testing import assert_close
from polyml.testing.cases import Case
from polyml.testing.strategies import programs

quick = settings(max_examples=5, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
long = settings(quick, max_examples=300)

WAYS: dict[str, dict[str, object]] = {
    "ilp": {},
    "isl": {"scheduler": "isl"},
    "written": {"scheduler": "written"},
    "maximal": {"fusion": "maximal"},
    "none": {"fusion": "none"},
    "tiling": {"costs": ("parallelism", "reuse", "coefficients", "order")},
    "precise": {"precise": True},
}


def _results(found: object) -> tuple[object, ...]:
    return found if isinstance(found, tuple) else () if found is None else (found,)


def _agrees(case: Case, *ways: str) -> None:
    expected_arguments = case.fresh_arguments()
    expected = _results(interpret(parse(Source(case.text)), *expected_arguments, wide=True))
    for way in ways:
        arguments = case.fresh_arguments()
        try:
            actual = _results(polyml.einsum(case.text, verify=True, **WAYS[way])(*arguments))
            for a, e in zip((*actual, *arguments), (*expected, *expected_arguments), strict=True):
                assert_close(a, e, case.reduction_length, computed_in=case.computed_in)  # type: ignore[arg-type]
        except Exception as fault:
            fault.add_note(f"scheduled {way}")
            raise


@pytest.mark.parametrize("way", WAYS)
@given(case=programs())
@quick
@pytest.mark.few(1)
def test_agrees_with_the_interpreter(way: str, case: Case) -> None:
    _agrees(case, way)


@pytest.mark.slow
@given(case=programs(max_statements=6))
@long
def test_every_way_agrees_with_the_interpreter_long(case: Case) -> None:
    _agrees(case, *WAYS)
