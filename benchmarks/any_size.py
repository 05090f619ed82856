"""Kernels for any sizes against those for the sizes at hand: how much of their speed is reached, medians of thread time, interleaved, one thread.

    python -m benchmarks.any_size [--only NAME,...] [--seconds S] [--compile]

Both results are compared with each other first. Ratios below 1: the specialized kernel is faster. `--compile` adds the seconds that each of the two takes to compile.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import polyml
from benchmarks.any_size_cases import CASES, Case
from polyml.errors import PolymlError

__all__ = ["main", "ratio"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of names, comma-separated")
    parser.add_argument("--seconds", type=float, default=0.6, help="of timing per case")
    parser.add_argument("--compile", action="store_true")
    asked = parser.parse_args(arguments)
    wanted = [part for part in asked.only.split(",") if part]
    for case in CASES:
        if wanted and not any(part in case.name for part in wanted):
            continue
        try:
            found, milliseconds, compiled = ratio(case, asked.seconds)
        except PolymlError as refused:
            print(f"{case.name:44} refused: {refused.message[:90]}", flush=True)
            continue
        more = f"  compiled in {compiled[0]:.2f} and {compiled[1]:.2f} s" if asked.compile else ""
        print(f"{case.name:44} {found:5.2f}  {milliseconds:9.3f} ms{more}", flush=True)


def ratio(case: Case, seconds: float) -> tuple[float, float, tuple[float, float]]:
    """The specialized kernel's time by the other's, the latter in milliseconds, and what both took to compile."""
    programs = [polyml.einsum(case.text, dynamic=dynamic, threads=1) for dynamic in (case.dynamic, False)]
    arguments = case.arguments(np.random.default_rng(0))
    compiled = []
    results: list[tuple[Any, ...]] = []
    for program in programs:
        given = fresh(arguments)
        start = time.thread_time()
        program.compile(*given)
        compiled.append(time.thread_time() - start)
        made = program(*given)
        results.append((*(made if isinstance(made, tuple) else () if made is None else (made,)), *given))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-2, atol=1e-2 * (1 + np.abs(other).max(initial=0)))
    if len(programs[0].kernels) != 1:
        raise AssertionError(f"{case.name}: not one kernel")
    times: list[list[float]] = [[], []]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for program, own in zip(programs, times, strict=True):
            given = fresh(arguments)
            start = time.thread_time()
            program(*given)
            own.append(time.thread_time() - start)
    anything, special = (statistics.median(own) for own in times)
    return special / anything, anything * 1e3, (compiled[0], compiled[1])


def fresh(arguments: Sequence[Any]) -> list[Any]:
    """Arguments that a program may update: copies of arrays."""
    return [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]


if __name__ == "__main__":
    main()
