"""isl's scheduler gives up in time where its numbers grow without bound, and what it gives up is computed all the same."""

from __future__ import annotations

import itertools
from unittest import mock

import islpy as isl
import numpy as np
import pytest

import polyml
from polyml.schedule import isl_scheduler
from polyml.schedule.isl_scheduler import FIRST
from polyml.sets.budget import BudgetExhausted

WINDOWS = """
def f(y: f32["Y0 Y1 Y2 Y3"], x: f32["B P0 P1"], w: f32["R1 C R0"]):
    for t in range(2):
        if r0 <= p0:
            y[2*p0 + r0 + 3, 4*p1 + 2*r1, c, b] *= x[b, p0, p1] + w[r1, c, r0]
"""


@pytest.mark.slow
def test_numbers_that_grow() -> None:
    """50,000 operations take three minutes here, and the budget would be 200,000."""
    rng = np.random.default_rng(0)
    y, x, w = (rng.integers(1, 3, shape).astype("f4") for shape in ((12, 153, 5, 5), (5, 5, 23), (33, 5, 1)))
    expected, w = y.copy(), w - 2
    factors = np.zeros((12, 153, 5, 5)) + 1
    for p0 in range(5):
        for p1 in range(23):
            for r1 in range(33):
                factors[2 * p0 + 3, 4 * p1 + 2 * r1] *= x[None, :, p0, p1] + w[r1, :, 0][:, None]
    expected = expected * factors**2
    polyml.einsum(WINDOWS, scheduler="isl", threads=1)(y, x, w)
    np.testing.assert_allclose(y, expected, rtol=1e-4)


SPINS = """
def f(s: f32["H"], r: f32["S 2 H"]):
    for t in range(S):
        for c in range(2):
            d[i] = s[i] * (s[(i + 1) % H] + s[(i + H - 1) % H])
            if (i + c) % 2 == 0:
                s[i] = where(r[t, c, i] < d[i], -s[i], s[i])
    return s
"""


def test_isl_finds_no_schedule() -> None:
    """ "unable to carry dependences": the written order is legal."""
    rng = np.random.default_rng(0)
    spins, chances = rng.standard_normal(8, "f4"), rng.standard_normal((3, 2, 8), "f4")
    expected = polyml.einsum(SPINS)(spins.copy(), chances)
    f = polyml.einsum(SPINS, scheduler="isl")
    assert "isl's scheduler gives up" in f.explain(spins, chances)
    np.testing.assert_array_equal(f(spins, chances), expected)


STEPS = [FIRST, FIRST * 3 // 2, FIRST * 9 // 4, 3 * FIRST]


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [
        pytest.param([0.0], STEPS, id="cheap"),
        pytest.param([1.0], [FIRST, FIRST], id="dear"),
        pytest.param([10.0], [FIRST], id="far too dear"),
        pytest.param([1.0, 0.0], [FIRST, *STEPS], id="the machine was away"),
        pytest.param([0.0, 1.0, 0.0], [FIRST, *STEPS[1:2], *STEPS[1:]], id="away later"),
    ],
)
def test_more_operations_while_they_are_cheap(seconds: list[float], steps: list[int]) -> None:
    """What takes long is tried again before it is given up. `seconds`: of each try, the last one's of all that follow."""
    clock, asked = [0.0], list[int]()

    def exhausted(constraints: isl.ScheduleConstraints) -> isl.Schedule:
        asked.append(isl.DEFAULT_CONTEXT.get_max_operations())
        clock[0] += seconds[min(len(asked), len(seconds)) - 1]
        raise BudgetExhausted("test", asked[-1])

    constraints = mock.Mock()
    constraints.compute_schedule = lambda: exhausted(constraints)
    with mock.patch.object(isl_scheduler, "thread_time", side_effect=lambda: clock[0]), pytest.raises(BudgetExhausted):
        isl_scheduler._compute(constraints, 3 * FIRST)
    assert asked == steps


@pytest.mark.parametrize(("each", "most"), [(1e-6, 20), (1e-5, 40), (1e-4, 1)])
def test_few_operations_at_a_time_where_numbers_grow(each: float, most: int) -> None:
    """The last operations say how long the next ones take, not all of them."""
    clock, asked = [0.0], list[int]()

    def exhausted() -> isl.Schedule:
        asked.append(isl.DEFAULT_CONTEXT.get_max_operations())
        clock[0] += 1.5 + each * asked[-1] if len(asked) > 1 else 0.0
        raise BudgetExhausted("test", asked[-1])

    constraints = mock.Mock()
    constraints.compute_schedule = exhausted
    with mock.patch.object(isl_scheduler, "thread_time", side_effect=lambda: clock[0]), pytest.raises(BudgetExhausted):
        isl_scheduler._compute(constraints, 1000 * FIRST)
    steps = [new / old for old, new in itertools.pairwise(asked[1:])]
    assert len(steps) <= most
    assert all(step < 1.03 for step in steps) or each < isl_scheduler.GROWING


def test_few_milliseconds_more_are_no_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A try took 4 ms longer than the one before, which had a few operations less."""
    taken, asked = iter([1e-3, 11e-3, 15e-3, 15e-3]), list[int]()
    made = isl.Schedule.from_domain(isl.UnionSet("{ S[] }"))

    def attempt(_: isl.ScheduleConstraints, operations: int) -> isl.Schedule | float:
        asked.append(operations)
        return next(taken, made)

    monkeypatch.setattr(isl_scheduler, "_attempt", attempt)
    constraints = isl.ScheduleConstraints.on_domain(isl.UnionSet("{ S[] }"))
    assert isl_scheduler._compute(constraints, 1000 * FIRST) is made
    assert asked == [2000, 3000, 3075, 3075, 3151]


def test_a_chain_of_products_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """200,000 operations take 40 s here, the last 15,000 of them 39: so many are never asked for."""
    asked, attempt = list[int](), isl_scheduler._attempt

    def counted(constraints: isl.ScheduleConstraints, operations: int) -> isl.Schedule | float:
        asked.append(operations)
        return attempt(constraints, operations)

    monkeypatch.setattr(isl_scheduler, "_attempt", counted)
    operands = [np.full((3, 3), k + 1.0) for k in range(12)]
    parameters = ", ".join(f'x{k}: f64["N N"]' for k in range(12))
    product = " * ".join(f"x{k}[a{k}, a{k + 1}]" for k in range(12))
    y = polyml.einsum(f"def f({parameters}):\n    y[a0, a12] = {product}\n    return y\n", scheduler="isl")(*operands)
    assert max(asked) < 200_000
    np.testing.assert_allclose(y, np.linalg.multi_dot(operands))


def test_what_it_found_no_order_for_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes may have gone by: the schedule without marks is of the same tree."""
    asked: list[int] = []

    def compute(constraints: object, budget: int) -> None:
        asked.append(budget)
        raise BudgetExhausted("isl's scheduler", budget)

    monkeypatch.setattr(isl_scheduler, "_compute", compute)
    text = 'def f(x: f64["N"]):\n    y[i] = 2 * x[i]\n    return y\n'
    lowered = polyml.einsum(text, scheduler="isl").lower(np.ones(5))
    assert len(asked) == 1
    assert str(lowered.explain()).count("isl's scheduler took more than") == 2
