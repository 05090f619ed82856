"""Side-by-side timing in one run: interleaved, medians. These are the only times that may be compared on a shared machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

__all__ = ["SETTLING", "interleaved"]

WAKING = 3
"""Calls after which a thread pool that slept is awake (on a virtual machine the first one or two wait for its cores)."""

AWAKE = 0.02
"""Seconds of such calls after which it is, however few they are."""

SETTLING = 0.2
"""Seconds in which the thread pools of a contender stop spinning."""


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 1.0,
    least: int = 3,
    most: int = 200,
    settle: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds per call of each contender, taken in turns until `seconds` have gone by (at least `least` rounds).

    The first, untimed round lets each one compile, fault its pages in and wake its threads. settle: seconds of sleep before each contender's turn, in which the
    thread pools of the one before stop spinning (they take the cores from whoever comes next; OpenBLAS's for more than 50 ms); untimed calls then wake its own.
    clock: what is read before and after each call.
    """
    for run in contenders.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    start = time.perf_counter()
    for rounds in range(most):
        if rounds >= least and time.perf_counter() - start > seconds:
            break
        for name, run in contenders.items():
            if settle:
                time.sleep(settle)
                _wake(run)
            before = clock()
            run()
            times[name].append(clock() - before)
    return {name: statistics.median(values) for name, values in times.items()}


def _wake(run: Callable[[], object]) -> None:
    end = time.perf_counter() + AWAKE
    for _ in range(WAKING):
        run()
        if time.perf_counter() > end:
            return
