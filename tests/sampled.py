"""Tests whose cases take long to compile: `@pytest.mark.some(n)` leaves to `-m slow` what does more than meet each value of each parameter once, and n cases in all; `@pytest.mark.few(n)` all but n, which are as different as can be.

tests/pairs.py leaves out less: where two values meet is where faults hide. This is for programs that are compiled anew for each case, and whose mechanism has tests of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import combinations

import pytest
from _pytest.mark import ParameterSet

__all__ = ["few_of", "in_turn", "leave_some", "some_of"]


def leave_some(items: Sequence[pytest.Item]) -> None:
    """Marks as slow what the default run leaves out of functions that are marked with `some` or `few`."""
    functions: dict[tuple[str, str, int], list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("some") or item.get_closest_marker("few")
        if mark is not None and "slow" not in item.keywords:
            functions.setdefault((item.nodeid.partition("[")[0], mark.name, mark.args[0]), []).append(item)
    for (_, name, number), cases in functions.items():
        chosen = some_of if name == "some" else few_of
        kept = chosen([_values(case) for case in cases], number)
        for place, case in enumerate(cases):
            if place not in kept:
                case.add_marker("slow")


def in_turn(many: Iterable[object], few: Sequence[object]) -> list[ParameterSet]:
    """Arguments for parametrize, of all pairs: the default run has each of the many once, with the few by turns, and the others are slow."""
    return [
        pytest.param(one, other, marks=[] if k % len(few) == turn else [pytest.mark.slow])
        for k, one in enumerate(many)
        for turn, other in enumerate(few)
    ]


def _values(case: pytest.Item) -> dict[str, str]:
    assert isinstance(case, pytest.Function)
    return {name: repr(value) for name, value in case.callspec.params.items()}


def some_of(cases: Sequence[Mapping[str, str]], least: int) -> set[int]:
    """Places of cases in which each value of each parameter occurs, at least so many; the same ones each time. Each has as many values that are new as any, and of these as many new pairs."""
    return _differing(cases, lambda kept, values: not values and kept >= least)


def few_of(cases: Sequence[Mapping[str, str]], most: int) -> set[int]:
    """Places of so many cases; the same ones each time. Each has as many values that are new as any, of these as many new pairs, and of these it is as far from the others as can be."""
    return _differing(cases, lambda kept, _: kept >= most, apart=True)


def _differing(
    cases: Sequence[Mapping[str, str]], enough: Callable[[int, Set[object]], bool], *, apart: bool = False
) -> set[int]:
    """Cases, each the one that has most of what those before it have not, until there are enough: of so many, with these values still to come."""
    values = [set(case.items()) for case in cases]
    pairs = [set(combinations(sorted(case), 2)) for case in values]
    new_values, new_pairs = set().union(*values), set().union(*pairs)
    left, kept = list(range(len(cases))), set[int]()

    def newness(at: int) -> tuple[int, int, int]:
        distance = min((abs(at - other) for other in kept), default=0) if apart else 0
        return len(values[at] & new_values), len(pairs[at] & new_pairs), distance

    while left and not enough(len(kept), new_values):
        best = max(left, key=newness)
        new_values -= values[best]
        new_pairs -= pairs[best]
        left.remove(best)
        kept.add(best)
    return kept
