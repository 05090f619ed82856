"""Random programs compiled and called, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import polyml
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.source import Source
from polyml.testing import assert_close
from polyml.testing.cases import Case
from polyml.testing.strategies import programs
from tests.differential.oracles import results_of, run_graph

quick = settings(max_examples=6, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
long = settings(quick, max_examples=1000)


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


def check_large(case: Case, **options: object) -> None:
    """Against the graph's reference, as built: these are too large for the interpreter."""
    expected_arguments, arguments = case.fresh_arguments(), case.fresh_arguments()
    expected = run_graph(case.text, expected_arguments)
    actual = results_of(polyml.einsum(case.text, **options)(*arguments))
    for a, e in zip((*actual, *arguments), (*expected, *expected_arguments), strict=True):
        assert_close(a, e, case.reduction_length, computed_in=case.computed_in, scale=1 / 64)


@given(programs(large=True))
@quick
def test_compiled_at_sizes_with_tiles_and_tails(case: Case) -> None:
    check_large(case)


@given(programs(large=True))
@quick
def test_compiled_for_any_sizes(case: Case) -> None:
    """Where the program can be compiled so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyml.runtime.dispatch.SPECIAL", 0)
        check_large(case)


OPTIONS: tuple[dict[str, object], ...] = (
    {"tile_sizes": (8, 16, 8), "register_tile": (2, 16)},
    {"tile_sizes": ()},
    {"threads": 3},
    {"precise": True},
    {"scheduler": "written", "fusion": False},
    {"vectorize": False, "parallel": False},
    {"verify": True},
)


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_do_not_change_results(options: dict[str, object]) -> None:
    @given(programs(large=True))
    @settings(quick, max_examples=200)
    def check(case: Case) -> None:
        check_large(case, **options)

    check()


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


# -- programs that random testing found wrong once: each the smallest of its kind ---------------------------------------------------


def test_an_unsigned_value_is_subtracted_after_promotion() -> None:
    f = polyml.einsum('def f(x: u8["N"]):\n    t: f64["N"] = 1\n    t[i] -= x[i]\n    return t\n')
    assert_close(f(np.array([1, 3], np.uint8)), np.array([0.0, -2.0]))


def test_padding_of_a_bool_is_false() -> None:
    f = polyml.einsum('def f(x: bool["N"]):\n    s: bool["N"]\n    s[i] = pad(x, ((2, 0),))[i + 1]\n    return s\n')
    assert_close(f(np.array([True, True])), np.array([False, True]))


@pytest.mark.parametrize("length", [0, 1, 2, 9])
def test_a_sweep_in_place_saves_its_neighbours(length: int) -> None:
    f = polyml.einsum(
        'def f(x: f64["N"], steps: int):\n    for n in range(steps):\n        if 1 <= i < N - 1:\n'
        "            x[i] = (x[i - 1] + x[i + 1]) / 2\n",
        verify=True,
    )
    x = np.arange(float(length)) ** 2
    expected = x.copy()
    for _ in range(3):
        expected[1:-1] = (expected[:-2] + expected[2:]) / 2
    f(x, 3)
    assert_close(x, expected, 3)


def test_an_invariant_of_a_loop_is_hoisted() -> None:
    text = (
        'def f(x: f64["N"], w: f64["N"]):\n    t: f64["N"] = 1\n    for n in range(3):\n        v[i] = sum[k](x[k] * w[k])\n'
        "        t[i] = t[i] / 2 + v[i]\n    return t\n"
    )
    with pytest.raises(polyml.PolymlError, match="range"):
        polyml.einsum(text)(np.ones(3), np.ones(3))
    whole = text.replace("v[i] = sum[k](x[k] * w[k])", "v[i] = w[i] * sum[k](x[k] * w[k])")
    x, w = np.array([1.0, 2, 3]), np.array([1.0, 0.5, 2])
    expected = np.ones(3)
    for _ in range(3):
        expected = expected / 2 + w * (x @ w)
    assert_close(polyml.einsum(whole)(x, w), expected, 3)
