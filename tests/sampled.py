"""Tests whose cases take long to compile: `@pytest.mark.some(n)` leaves to `-m slow` what does more than meet each value of each parameter once, and n cases in all.

tests/pairs.py leaves out less: where two values meet is where faults hide. This is for programs that are compiled anew for each case, and whose mechanism has tests of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import pytest
from _pytest.mark import ParameterSet

__all__ = ["in_turn", "leave_some", "some_of"]


def leave_some(items: Sequence[pytest.Item]) -> None:
    """Marks as slow what the default run leaves out of functions that are marked with `some`."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("some") is not None and "slow" not in item.keywords:
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in functions.values():
        mark = cases[0].get_closest_marker("some")
        assert mark is not None
        kept = some_of([_values(case) for case in cases], mark.args[0])
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
    values = [set(case.items()) for case in cases]
    pairs = [set(combinations(sorted(case), 2)) for case in values]
    new_values, new_pairs = set().union(*values), set().union(*pairs)
    left, kept = list(range(len(cases))), set[int]()
    while left and (new_values or len(kept) < least):
        best = max(left, key=lambda at: (len(values[at] & new_values), len(pairs[at] & new_pairs)))
        new_values -= values[best]
        new_pairs -= pairs[best]
        left.remove(best)
        kept.add(best)
    return kept
