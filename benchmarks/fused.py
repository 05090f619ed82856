"""Fused kernels against NumPy and every peer that is installed (benchmarks/peers.py; extra `bench`), interleaved in one run, medians.

    python -m benchmarks.fused [--threads N] [--clock cpu] [--only NAME,...] [--peers NAME,...] [--csv FILE] [--plot FILE]

Every contender's result is compared with NumPy's in float64. Only ratios of one run mean anything: `limit` is the time in which memory moves the case's inputs and result
once, measured as one more contender (benchmarks/limits.py), or in which its operations take at the FMA peak, whichever is longer; `x limit` are multiples of it.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from benchmarks.command_line import clock_of, timing_options, with_threads, write_tables
from benchmarks.fused_cases import CASES, Case
from benchmarks.limits import Stream, seconds_at_peak
from benchmarks.peers import Array, Runner, first_calls, peers_of
from polyml.demo.measure import SETTLING, interleaved

if TYPE_CHECKING:
    from polyml.api import Einsum


def contenders(case: Case, arguments: tuple[Array, ...], threads: int, wanted: Sequence[str] = ()) -> dict[str, Runner]:
    """wanted: names of peers; all where none are named."""
    import polyml

    constants = case.constants.split()
    program = polyml.einsum(case.text)
    found: dict[str, Runner] = {}
    if not wanted or "numpy" in wanted:
        found["numpy"] = functools.partial(case.numpy, *arguments)
    found["polyml"] = _polyml(program, constants, arguments)
    places = [k for k, parameter in enumerate(program.program.parameters) if parameter.name in constants]
    return found | peers_of(case.peers, arguments, threads=threads, constants=places, wanted=wanted)


def _polyml(program: Einsum, constants: Sequence[str], arguments: tuple[Array, ...]) -> Runner:
    """A call with the constants bound."""
    if not constants:
        return functools.partial(program, *arguments)
    given = dict(zip((p.name for p in program.program.parameters), arguments, strict=True))
    layer = program.bind(**{name: given.pop(name) for name in constants})
    return functools.partial(layer, *given.values())


def main(cases: Sequence[Case], description: str | None) -> int:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    timing_options(parser, seconds=2.0)
    options = parser.parse_args()
    clock = clock_of(parser, options)
    names = [n for n in options.only.split(",") if n]
    rows: list[dict[str, object]] = []
    print(
        f"{'case':<22}{'contender':<14}{'ms':>9}{'x limit':>9}{'ratio':>8}{'error':>11}   (ratio: its time over polyml's)"
    )
    for case in cases:
        if names and case.name not in names:
            continue
        arguments = case.arguments(np.random.default_rng(0))
        exact = case.numpy(*(a.astype(np.float64) for a in arguments))
        runs = contenders(case, arguments, options.threads, [name for name in options.peers.split(",") if name])
        cold = first_calls(runs, time.perf_counter)
        settle = SETTLING if options.threads > 1 else 0.0
        stream = Stream(arguments, runs["polyml"]())
        turns = {**runs, "limit": stream.run}
        times = interleaved(turns, seconds=options.seconds, least=7, settle=settle, clock=clock)
        limit = max(stream.of_the_case(times["limit"]), seconds_at_peak(case.flops, options.threads))
        print(f"{case.name:<22}{'(limit)':<14}{1e3 * limit:>9.3f}")
        for name, run in runs.items():
            row = {
                "case": case.name, "dtype": "float32", "threads": options.threads, "contender": name, "seconds": times[name],
                "cold_s": cold[name], "gflops": case.flops / times[name] / 1e9, "times_limit": times[name] / limit,
                "error": error_of(run(), exact),
            }  # fmt: skip
            rows.append(row)
            print(
                f"{case.name:<22}{name:<14}{1e3 * times[name]:>9.3f}{row['times_limit']:>9.2f}{times[name] / times['polyml']:>8.2f}"
                f"{row['error']:>11.1e}   first call {1e3 * cold[name]:.0f} ms"
            )
            sys.stdout.flush()
    write_tables(options, rows, "fused programs")
    return 0


def error_of(result: Array, exact: Array) -> float:
    """The largest error relative to the largest element; of integers, the share that is wrong."""
    found = np.asarray(result).reshape(exact.shape)
    if exact.dtype.kind == "i":
        return float(np.mean(found != exact))
    return float(np.max(np.abs(found - exact))) / max(float(np.max(np.abs(exact))), 1e-30)


def start(cases: Sequence[Case], module: str, description: str | None) -> NoReturn:
    """Runs the command line of a module, in a process whose thread pools have as many threads as it asks for."""
    with_threads(module)
    raise SystemExit(main(cases, description))


if __name__ == "__main__":
    start(CASES, "benchmarks.fused", __doc__)
