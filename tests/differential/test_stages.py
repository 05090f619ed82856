"""Random programs through the stages: the graph's NumPy reference against the interpreter, which shares no code with it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from polyml.einsum_frontend.arguments import ArgumentType, Signature, symbolic_ints
from polyml.einsum_frontend.interpreter import interpret
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.resolve import resolve
from polyml.graph.build import build
from polyml.graph.reference import execute
from polyml.source import Source
from polyml.testing import assert_close
from polyml.testing.cases import Argument, Case
from polyml.testing.strategies import programs

quick = settings(max_examples=60, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
long = settings(quick, max_examples=3000)


def results_of(found: object) -> tuple[np.ndarray, ...]:
    return found if isinstance(found, tuple) else () if found is None else (found,)  # type: ignore[return-value]


def run_graph(text: str, arguments: tuple[Argument, ...]) -> tuple[np.ndarray, ...]:
    """The results by the graph's reference, in the graph's dtypes; written parameters are updated."""
    program = resolve(parse(Source(text)), {})
    symbolic = symbolic_ints(program)
    signature: list[ArgumentType | int | None] = []
    inputs, sizes = [], {}
    for parameter, argument in zip(program.parameters, arguments, strict=True):
        if parameter.dtype is None:
            assert isinstance(argument, int)
            sizes[parameter.name] = argument
            signature.append(None if parameter.name in symbolic else argument)
        else:
            signature.append(ArgumentType(parameter.dtype, np.shape(argument)))
            inputs.append(argument)
    graph = build(program, Signature(tuple(signature)))
    found = execute(graph, inputs, sizes={name: sizes[name] for name in graph.sizes}, wide=True)
    return tuple(np.asarray(v).astype(t.dtype.numpy) for v, t in zip(found, graph.outputs, strict=True))


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
