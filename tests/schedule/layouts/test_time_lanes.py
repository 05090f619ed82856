"""Lanes over the steps of stencils in place: which loops get them, and results where lanes, rows and strips do not divide what there is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.errors import IllegalScheduleError
from polyml.schedule.layouts.time_lanes import time_lanes, time_lanes_tree
from polyml.schedule.legality import check
from polyml.target import Target


@pytest.fixture(autouse=True)
def any_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads take grids of few strips, too, and steps that are a block and a part of one."""
    monkeypatch.setattr("polyml.schedule.layouts.time_lanes.LEAST_STRIPS", 0)
    monkeypatch.setattr("polyml.schedule.layouts.time_lanes.LEAST_BLOCKS", 1)


TARGET = Target("x86-64-v3", l1_bytes=32 * 1024)

NINE = """(A[i - 1, j - 1] + A[i - 1, j] + A[i - 1, j + 1] + A[i, j - 1] + A[i, j] + A[i, j + 1]
                           + A[i + 1, j - 1] + A[i + 1, j] + A[i + 1, j + 1]) / 9.0"""
WIDE = (
    "0.2 * (A[i - 2, j + 2] + A[i, j - 2] + A[i, j - 1] + A[i + 1, j + 2] + A[i + 2, j - 1]) + 0.001 * (i - 2 * j + t)"
)
LEAST = "min(A[i, j], A[i - 1, j] + 1, A[i, j - 1] + 2, A[i, j + 1], A[i + 1, j] + 1)"
ABOVE = "0.25 * (A[i - 1, j + 1] + A[i, j - 1] + 2 * A[i, j])"


def program(value: str, dtype: str = "f64", edge: int = 1) -> str:
    return f"""
def sweeps(T: int, A: {dtype}["N M"]):
    for t in range(T):
        for i in range({edge}, N - {edge}):
            for j in range({edge}, M - {edge}):
                A[i, j] = {value}
    return A
"""


def grid(rows: int, columns: int, dtype: str = "f64") -> np.ndarray:
    return np.random.default_rng(0).random((rows, columns)).astype({"f64": np.float64, "f32": np.float32}[dtype])


def as_written(text: str, steps: int, a: np.ndarray) -> np.ndarray:
    return np.asarray(polyml.einsum(text, scheduler="written", vectorize=False, threads=1, precise=True)(steps, a))


def loops(text: str, *arguments: object, **options: object) -> str:
    return str(polyml.einsum(text, target=TARGET, **options).lower(*arguments).text("loops"))


@pytest.mark.parametrize("value", [NINE, WIDE, LEAST, ABOVE], ids=["nine", "wide", "least", "above"])
@pytest.mark.parametrize(("rows", "columns"), [(140, 23), (133, 301)])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(1)
def test_results(value: str, rows: int, columns: int, threads: int) -> None:
    """Fewer columns than a strip and several strips; steps that are no whole blocks, and too few for one."""
    text = program(value, edge=2 if value == WIDE else 1)
    assert "A_levels" in loops(text, 19, grid(rows, columns))
    function = polyml.einsum(text, target=TARGET, threads=threads)
    for steps in (0, 1, 8, 19):
        want = as_written(text, steps, grid(rows, columns))
        np.testing.assert_allclose(function(steps, grid(rows, columns)), want, rtol=1e-11)


@pytest.mark.few(1)
@pytest.mark.parametrize("value", [NINE, LEAST])
def test_single_precision_and_what_is_not_finite(value: str) -> None:
    text = program(value, "f32")
    a = grid(150, 100, "f32")
    a[70, 50], a[20, 90], a[0, 3] = np.inf, -np.inf, np.nan
    want = as_written(text, 18, a.copy())
    np.testing.assert_allclose(polyml.einsum(text, target=TARGET)(18, a.copy()), want, rtol=1e-4)


def test_written_order() -> None:
    """With precise=True the same numbers, bit by bit."""
    text = program(NINE)
    assert "A_levels" in loops(text, 19, grid(140, 40), precise=True)
    want = as_written(text, 19, grid(140, 40))
    np.testing.assert_array_equal(polyml.einsum(text, target=TARGET, precise=True)(19, grid(140, 40)), want)


def test_rows_that_are_not_whole_memory() -> None:
    whole = np.zeros((140, 60))
    whole[:, 7:47] = grid(140, 40)
    polyml.einsum(program(NINE), target=TARGET)(19, whole[:, 7:47])
    np.testing.assert_allclose(whole[:, 7:47], as_written(program(NINE), 19, grid(140, 40)), rtol=1e-11)
    assert not whole[:, :7].any()
    assert not whole[:, 47:].any()


def test_which_loops() -> None:
    """Columns that are independent of each other, few rows and few steps, lanes that are too few: none of these."""
    large = (16, grid(200, 100))
    assert "A_levels" in loops(program(NINE), *large)
    assert "A_levels" not in loops(program("A[i - 1, j] + 0.5 * A[i + 1, j]"), *large)
    assert "A_levels" not in loops(program("A[i, j - 1] + A[j, i]"), 16, grid(200, 200))
    assert "A_levels" not in loops(program(NINE), 16, grid(30, 100))
    few = program(NINE).replace("range(T)", "range(3)")
    assert "A_levels" not in loops(few, *large)


def test_blocks_that_are_not_whole_need_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few blocks of 8 steps are whole ones, at a call, too; many may have a part of one."""
    monkeypatch.setattr("polyml.schedule.layouts.time_lanes.LEAST_BLOCKS", 4)
    for steps, taken in ((8, True), (13, False), (24, True), (29, False), (41, True)):
        text = program(NINE).replace("range(T)", f"range({steps})")
        assert ("A_levels" in loops(text, steps, grid(200, 100))) == taken
    assert "T >= 8 and T % 8 == 0" in loops(program(NINE), 16, grid(200, 100)).replace("(", "").replace(")", "")
    assert "T >= 32" in loops(program(NINE), 21, grid(200, 100))


def test_the_order_is_proved() -> None:
    """A lag of one row would let steps run at once that need each other."""
    found = polyml.einsum(program(NINE), target=TARGET).lower(16, grid(200, 100))
    schedule = found.stages.regions[0].schedule
    made = time_lanes(schedule.scop, TARGET, precise=False)
    assert made is not None
    plan, _ = made
    check(replace(schedule, tree=time_lanes_tree(schedule.scop, plan)))
    for wrong in (replace(plan, lag=1), replace(plan, slant=0)):
        with pytest.raises(IllegalScheduleError):
            check(replace(schedule, tree=time_lanes_tree(schedule.scop, wrong)))


def test_schedules_by_hand_go_on_from_the_array() -> None:
    lowered = polyml.einsum(program(NINE), target=TARGET).lower(16, grid(140, 40))
    kernel = lowered.with_schedule(lowered.schedule).compile()
    np.testing.assert_allclose(kernel(16, grid(140, 40)), as_written(program(NINE), 16, grid(140, 40)), rtol=1e-11)


def test_threads_need_many_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyml.schedule.layouts.time_lanes.LEAST_STRIPS", 16)
    assert "A_levels" in loops(program(NINE), 16, grid(140, 301), threads=1)
    assert "A_levels" not in loops(program(NINE), 16, grid(140, 301), threads=2)
