"""Side-by-side timing in one run: interleaved, medians. These are the only times that may be compared on a shared machine."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping

__all__ = ["SETTLING", "interleaved"]

SETTLING = 0.2
"""Seconds in which the thread pools of a contender stop spinning."""

AWAKE = 0.01
"""Seconds of calls after which a thread pool that slept is awake, its operands are in the caches and a virtual machine's cores run at full speed again (calls of 0.1 ms take 2.7, 1.5, 1.4 and 1.3 times their limit one after the other)."""

CALLS = 5
"""Calls that are timed, one by one, once it is awake, ..."""

LASTING = 0.02
"""... or as many as take these seconds."""


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 1.0,
    least: int = 3,
    most: int = 200,
    settle: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds per call of each contender, taken in turns until `seconds` have gone by (at least `least` rounds), in another order each round: what the one before leaves in the caches speeds up or slows down whoever comes next.

    The first, untimed round lets each one compile, fault its pages in and wake its threads. settle: seconds of sleep before each contender's turn, in which the
    thread pools of the one before stop spinning (they take the cores from whoever comes next; OpenBLAS's for more than 50 ms); untimed calls then wake its own,
    and a few calls are timed: what a program takes that calls again and again, not what a call takes after a pause. clock: what is read before and after each call.
    """
    for run in contenders.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order, shuffled = list(contenders.items()), random.Random(0)
    start = time.perf_counter()
    for rounds in range(most):
        if rounds >= least and time.perf_counter() - start > seconds:
            break
        shuffled.shuffle(order)
        for name, run in order:
            if settle:
                time.sleep(settle)
                _awake(run)
            times[name] += _timed(run, clock, CALLS if settle else 1)
    return {name: statistics.median(values) for name, values in times.items()}


def _awake(run: Callable[[], object]) -> None:
    """Calls run for AWAKE seconds, at least once."""
    end = time.perf_counter() + AWAKE
    while True:
        run()
        if time.perf_counter() > end:
            return


def _timed(run: Callable[[], object], clock: Callable[[], float], calls: int) -> list[float]:
    """The seconds of each of that many calls, or of the first ones that take LASTING seconds together."""
    end = time.perf_counter() + LASTING
    taken: list[float] = []
    while len(taken) < calls and (not taken or time.perf_counter() < end):
        before = clock()
        run()
        taken.append(clock() - before)
    return taken
