"""Random contractions, operations and convolutions, which nothing was tuned on, against NumPy, and torch if it is installed, interleaved in one run, medians, one thread.

    python -m benchmarks.held_out [contractions|operations|convolutions] [--seed N] [--first N] [--number N] [--case "ab,bc->ac a=17,b=64,c=9 f32"] [--seconds S] [--show]

Results are checked against float64. The lines below 1.0 are where to look; a seed and the number in front of a line (--first) make its case again.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Iterator
from random import Random

import numpy as np

from benchmarks.command_line import with_threads
from benchmarks.held_out_cases import DRAWN, HeldOut, contraction
from benchmarks.peers import Array, Formulation, Runner, first_calls, peers_of
from polyml.demo.measure import interleaved

WORST = 10
"""Lines that are shown once more at the end."""


def arguments_of(case: HeldOut) -> tuple[Array, ...]:
    """Normal numbers, or integers from 0 to 99."""
    rng = np.random.default_rng(0)
    return tuple(
        rng.standard_normal(shape).astype(dtype) if dtype.startswith("float") else rng.integers(0, 100, shape).astype(dtype)
        for shape, dtype in zip(case.shapes, case.dtypes, strict=True)
    )  # fmt: skip


def contenders(case: HeldOut, arguments: tuple[Array, ...]) -> dict[str, Runner]:
    """polyml, and the peers that can do the case."""
    import polyml

    runs: dict[str, Runner] = {"polyml": functools.partial(polyml.einsum(case.text), *arguments)}
    if case.numpy:
        runs["numpy"] = functools.partial(eval(case.numpy, {"np": np}), *arguments)
    peers = Formulation(torch=case.torch or None, compiled=False)
    return runs | peers_of(peers, arguments, threads=1, wanted=("torch",))


def exact(case: HeldOut, runs: dict[str, Runner], arguments: tuple[Array, ...]) -> Array:
    """The result in float64 by NumPy; by torch where NumPy has no such operation."""
    if case.numpy:
        wide = (a.astype(np.float64) if a.dtype == np.float32 else a for a in arguments)
        return np.asarray(eval(case.numpy, {"np": np})(*wide))
    return np.asarray(runs["torch"]())


def measured(case: HeldOut, seconds: float) -> tuple[float, str, float, float]:
    """Seconds of polyml, the best peer, its time over polyml's, seconds of the first call.

    Raises:
        SystemExit: no peer can do the case.
    """
    arguments = arguments_of(case)
    runs = contenders(case, arguments)
    if len(runs) == 1:
        raise SystemExit(f"{case.name} has no peer: pip install torch")
    cold = first_calls(runs, time.perf_counter)
    wanted, got = exact(case, runs, arguments), np.asarray(runs["polyml"]())
    scale = max(float(np.abs(wanted).max(initial=0)), 1e-30)
    error = float(np.abs(got.reshape(wanted.shape) - wanted).max(initial=0)) / scale
    assert error < (1e-9 if "float64" in case.dtypes else 3e-4), f"polyml is wrong on {case.name}: {error}"
    times = interleaved(runs, seconds=seconds, least=3)
    own = times.pop("polyml")
    best = min(times, key=times.__getitem__)
    return own, best, times[best] / own, cold["polyml"]


def cases_of(options: argparse.Namespace) -> Iterator[tuple[int, HeldOut]]:
    if options.case:
        subscripts, sizes, dtype = options.case.split()
        pairs = (item.split("=") for item in sizes.split(","))
        yield 0, contraction(subscripts, {index: int(size) for index, size in pairs}, dtype)
        return
    for number in range(options.first, options.first + options.number):
        yield number, DRAWN[options.kind](Random(f"{options.seed} {number}"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", default="contractions", choices=tuple(DRAWN))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--number", type=int, default=96)
    parser.add_argument("--case", default="", help="one contraction: subscripts, sizes and dtype")
    parser.add_argument("--seconds", type=float, default=0.4, help="per case")
    parser.add_argument("--show", action="store_true", help="print each program")
    options = parser.parse_args()
    found = []
    for number, case in cases_of(options):
        if options.show:
            print(case.text)
        own, best, ratio, cold = measured(case, options.seconds)
        line = f"{ratio:>8.2f}  {best:<10}{1e3 * own:>10.3f} ms {1e3 * cold:>7.0f} ms cold {number:>5}  {case.name}"
        print(line)
        sys.stdout.flush()
        found.append((ratio, line))
    print(
        f"\n{statistics.geometric_mean(r for r, _ in found):.2f} times the best peer, {len(found)} cases, {sum(r < 1 for r, _ in found)} below 1.0; the least:"
    )
    print("\n".join(line for _, line in sorted(found)[:WORST]))
    return 0


if __name__ == "__main__":
    with_threads("benchmarks.held_out")
    raise SystemExit(main())
