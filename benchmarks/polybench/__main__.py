"""PolyBench, side by side in one run.

    python -m benchmarks.polybench [--size LARGE] [--kernels a,b] [--contenders polyml,gcc] [--threads N] [--seconds S] [--cap S] [--clock cpu] [--csv FILE] [--plot FILE]

polyml on one thread and on all, against the C text of the same program in its written order through gcc, clang, clang with Polly, and Pluto (its `polycc`), where they are
installed, all with -O3 -march=native -ffast-math. Contenders take turns, each in a process of its own; medians. The physical limit: the program's
floating-point operations at the measured FMA peak, or its arguments and results once at the measured bandwidth.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.polybench import KERNELS, SIZES
from benchmarks.polybench.contenders import CONTENDERS, found_contenders
from benchmarks.polybench.measure import measure
from benchmarks.polybench.report import Row, print_header, print_row, print_summary, write_csv, write_plot
from benchmarks.polybench.work import work_of
from polyml.dtypes import f64
from polyml.runtime.balance import fma_peak, read_bandwidth
from polyml.target import available_cores


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.polybench", description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="LARGE")
    parser.add_argument("--kernels", type=_names, default=list(KERNELS), help="names, separated by commas")
    parser.add_argument("--contenders", type=_names, help=f"of: {', '.join(c.name for c in CONTENDERS)}")
    parser.add_argument("--threads", type=int, default=available_cores(), help="of the contender with all threads")
    parser.add_argument("--seconds", type=float, default=4.0, help="per kernel, after each one's first call")
    parser.add_argument("--cap", type=float, default=60.0, help="seconds; who takes longer for one call is dropped")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: thread time, for shared machines"
    )
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--plot", type=Path)
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.kernels) - KERNELS.keys()
    if unknown:
        parser.error(f"no kernel {min(unknown)!r}; there are {', '.join(KERNELS)}")
    wanted = None if chosen.contenders is None else ["polyml", *chosen.contenders]
    contenders = found_contenders(wanted, chosen.threads)
    names = [contender.name for contender in contenders]
    print(
        f"{chosen.size}; one core: {fma_peak(f64) / 1e9:.0f} GFLOP/s in f64, reads {read_bandwidth() / 1e9:.1f} GB/s; "
        f"all threads: {chosen.threads}"
    )
    print_header(names)
    rows: list[Row] = []
    for name in chosen.kernels:
        results = measure(
            name,
            chosen.size,
            contenders,
            threads=chosen.threads,
            seconds=chosen.seconds,
            cap=chosen.cap,
            clock=chosen.clock,
        )
        row = Row(name, chosen.size, work_of(KERNELS[name], chosen.size), tuple(results))
        print_row(row, names)
        rows.append(row)
        if chosen.csv is not None:
            write_csv(chosen.csv, rows)
    print_summary(rows, names)
    if chosen.plot is not None:
        write_plot(chosen.plot, rows, names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
