"""Random programs through the stages: the graph's NumPy reference against the interpreter, which shares no code with it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.source import Source
from polyml.testing import assert_close
from polyml.testing.cases import Case
from polyml.testing.strategies import programs
from tests.differential.oracles import results_of, run_graph

quick = settings(max_examples=25, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
long = settings(quick, max_examples=3000)


def check_graph(case: Case) -> None:
    expected_arguments, arguments = case.fresh_arguments(), case.fresh_arguments()
    expected = results_of(interpret(parse(Source(case.text)), *expected_arguments, wide=True))
    actual = run_graph(case.text, arguments)
    for a, e in zip((*actual, *arguments), (*expected, *expected_arguments), strict=True):
        assert_close(a, e, case.reduction_length, computed_in=case.computed_in, scale=1 / 64)


@given(programs())
@quick
def test_graph_reference(case: Case) -> None:
    check_graph(case)


@pytest.mark.slow
@given(programs(max_statements=6))
@long
def test_graph_reference_long(case: Case) -> None:
    check_graph(case)
