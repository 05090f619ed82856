"""`python -m polyml fuzz`: random calls against NumPy and random programs against the interpreter, until the time is up.

Hypothesis draws, in batches with a seed each, and shrinks what it finds; a batch with the same seed finds it again.
"""

from __future__ import annotations

import faulthandler
import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, HypothesisException
from hypothesis.strategies import SearchStrategy

import polyml
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.interpreter.ready import ReadyProgram
from polyml.einsum_frontend.interpreter.run import Run
from polyml.einsum_frontend.interpreter.types import Type
from polyml.einsum_frontend.interpreter.values import Cell, Evaluator
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.syntax import Expression
from polyml.records import dataclass
from polyml.source import Source
from polyml.testing.cases import Case
from polyml.testing.compare import assert_close
from polyml.testing.einsum_calls import Call, compare
from polyml.testing.strategies import einsum_calls, programs, programs_in_other_types
from polyml.testing.variants import PLAIN, VARIANTS, Trial
from polyml.testing.verify import verify

__all__ = ["Found", "check_call", "check_large_program", "check_other_types", "check_program", "fuzz", "search"]


MOST = 2_000_000
"""Values that the interpreter evaluates for one program, in some five seconds; one that asks for more is left out."""


@dataclass(frozen=True)
class Found:
    """A failure: the smallest case, what went wrong, and the seed of its batch."""

    case: str
    fault: str
    seed: int


def check_call(call: Call) -> None:
    """A call and its repetition, through the entry point now, do what numpy.einsum does."""
    compare(call, polyml.einsum)
    compare(call, polyml.einsum)


def check_program(trial: Trial) -> None:
    """A compiled program gives what the interpreter gives, in the results and in the arguments that it updates, however it is compiled."""
    case = trial.case
    arguments = case.fresh_arguments()
    try:
        expected = interpret(parse(Source(case.text)), *arguments, wide=True, run=functools.partial(_Run, [MOST]))
    except _TooLongError:
        return
    _compare(trial, expected, arguments)


class _TooLongError(Exception):
    """Reductions within reductions take the interpreter as long as the product of their lengths."""


@dataclass
class _Counted(Evaluator):
    left: list[int]

    def value(self, expr: Expression, env: Mapping[str, int]) -> np.generic:
        self.left[0] -= 1
        if self.left[0] < 0:
            raise _TooLongError
        return super().value(expr, env)


class _Run(Run):
    """An execution that gives up after so many values."""

    def __init__(
        self, left: list[int], ready: ReadyProgram, cells: dict[str, Cell], sizes: Mapping[str, int], wide: bool
    ) -> None:
        super().__init__(ready, cells, sizes, wide)
        self.left = left

    def evaluator(self, types: Mapping[int, Type], ranges: Mapping[str, range]) -> Evaluator:
        return _Counted(self.cells, types, ranges, self.wide, self.left)


def check_large_program(trial: Trial) -> None:
    """The same for sizes that reach tiles and tails, against loops as they are written."""
    expected = PLAIN.run(trial.case)
    assert expected is not None, "internal: written loops have no sizes that stay symbolic"
    _compare(trial, *expected)


def _compare(trial: Trial, expected: Any, expected_arguments: Sequence[Any]) -> None:
    case, found = trial.case, trial.variant.run(trial.case)
    if found is None:
        return
    actual, arguments = found
    for a, e in zip(
        (*_results(actual), *arguments), (*_results(expected), *map(np.asarray, expected_arguments)), strict=True
    ):
        assert_close(a, e, case.reduction_length, computed_in=case.computed_in, scale=1 / 64)


def check_other_types(case: Case) -> None:
    """Half precision and complex numbers: nothing is off by more than rounding explains. What the language refuses for these types is no failure."""
    try:
        polyml.einsum(case.text)(*case.fresh_arguments())
    except polyml.errors.DTypeError:
        return
    report = verify(case.text, *case.fresh_arguments())
    assert report, str(report)


def _results(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else () if found is None else (found,)


def search(strategy: SearchStrategy[Any], check: Callable[[Any], None], number: int, examples: int) -> Found | None:
    """The smallest failure among so many cases drawn with the seed `number`, if there is one; the first one, where it does not come again by itself."""
    last: list[Any] = []  # Hypothesis ends with the smallest failing case
    failed: list[tuple[Any, Exception]] = []

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(case: Any) -> None:
        last[:] = [case]
        try:
            check(case)
        except Exception as fault:
            failed.append((case, fault))
            raise

    try:
        run()
    except Flaky:
        if not failed:  # what draws the cases failed
            raise
        case, fault = failed[0]
        return Found(
            repr(case), f"{type(fault).__name__}: {fault} (not by itself: what ran before has a part in it)", number
        )
    except HypothesisException:
        raise
    except Exception as fault:  # whatever the check raised is the finding
        return Found(repr(last[0]), f"{type(fault).__name__}: {fault}", number)
    return None


def fuzz(seconds: float, first_seed: int = 0) -> int:
    """Searches, once at least, until the time is up or a failure is found; prints what it did. 0: nothing found; 1: a failure, printed."""
    faulthandler.enable(sys.__stderr__ or 2)  # a crash shows where; the line above it shows the seed
    end = time.monotonic() + seconds
    trials = st.builds(Trial, programs(), st.sampled_from(VARIANTS))
    large = st.builds(Trial, programs(large=True), st.sampled_from(VARIANTS))
    counts = {"calls": 0, "programs": 0, "large programs": 0, "other types": 0}
    number = first_seed
    while number == first_seed or time.monotonic() < end:
        for name, strategy, check, examples in (
            ("calls", einsum_calls(), check_call, 40),
            ("programs", trials, check_program, 8),
            ("large programs", large, check_large_program, 4),
            ("other types", programs_in_other_types(), check_other_types, 4),
        ):
            print(f"\rseed {number}: {counts['calls']} calls, {counts['programs']} programs ", end="", file=sys.stderr)
            found = search(strategy, check, number, examples)
            if found is not None:
                print(f"\nseed {found.seed} fails:\n{found.case}\n{found.fault}")
                return 1
            counts[name] += examples
        number += 1
    print(file=sys.stderr)
    print(
        f"{counts['calls']} einsum calls, {counts['programs']} programs, {counts['large programs']} large ones and {counts['other types']} in other types, seeds {first_seed}..{number - 1}: no failure"
    )
    return 0
