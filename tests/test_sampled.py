"""Some cases of tests that take long: each value occurs, and the rest is there for `-m slow`."""

from __future__ import annotations

from itertools import product

import pytest

from tests.sampled import few_of, in_turn, some_of

CASES = [{"size": str(a), "dtype": str(b), "threads": str(c)} for a, b, c in product(range(5), "uvw", (1, 2))]


@pytest.mark.parametrize("least", [1, 5, 9, 30, 50])
def test_each_value_occurs(least: int) -> None:
    kept = some_of(CASES, least)
    assert len(kept) == min(max(least, 5), len(CASES))
    for name in CASES[0]:
        assert {CASES[k][name] for k in kept} == {case[name] for case in CASES}


@pytest.mark.parametrize("most", [1, 2, 5, 40])
def test_no_more_than_so_many_occur(most: int) -> None:
    kept = few_of(CASES, most)
    assert len(kept) == min(most, len(CASES))
    for name in CASES[0]:
        values = {case[name] for case in CASES}
        assert len({CASES[k][name] for k in kept}) == min(most, len(values))


def test_cases_of_one_parameter_are_apart() -> None:
    assert few_of([{"a": str(k)} for k in range(9)], 3) == {0, 4, 8}


def test_the_same_ones_in_every_process() -> None:
    """Workers must collect the same tests."""
    assert some_of(CASES[:6], 3) == {0, 3, 4}
    assert few_of(CASES[:6], 3) == {0, 2, 5}


@pytest.mark.some(2)
@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", range(3))
def test_what_is_left_is_slow(request: pytest.FixtureRequest, a: int, b: int) -> None:
    cases = [case for case in request.session.items if case.nodeid.startswith(request.node.nodeid.partition("[")[0])]
    if len(cases) > 1:  # not where one was asked for by its name
        assert len(cases) == (6 if "slow" in request.node.keywords else 3)


def test_values_by_turns() -> None:
    cases = in_turn("abcde", (1, 2))
    assert [case.values for case in cases if not case.marks] == [("a", 1), ("b", 2), ("c", 1), ("d", 2), ("e", 1)]
    assert {case.values for case in cases} == {*product("abcde", (1, 2))}
