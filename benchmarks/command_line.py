"""What the benchmarks' command lines have in common: options, a process with the asked number of threads in every pool, and the table as a CSV file."""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.plots import plot_bars

__all__ = ["clock_of", "timing_options", "with_threads", "write_csv", "write_tables"]

FIELDS = ("case", "dtype", "threads", "contender", "seconds", "cold_s", "gflops", "times_limit", "error")
"""The columns of a table: cold_s is the first call, compilation included; error is the largest, relative to the largest element of the result."""


def timing_options(parser: argparse.ArgumentParser, *, seconds: float = 1.0) -> None:
    """Adds --only, --threads, --seconds (of that default), --peers, --csv, --plot and --clock."""
    parser.add_argument(
        "--only", default="", help="names (or beginnings of names, where there are families), comma-separated"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=seconds, help="per case")
    parser.add_argument("--peers", default="", help="names, comma-separated; default: all that are installed")
    parser.add_argument("--csv", default=None)
    parser.add_argument("--plot", type=Path, default=None, help="an image of the multiples of the limit (extra viz)")
    parser.add_argument(
        "--clock", default="wall", choices=("wall", "cpu"), help="cpu: time of the process, for a busy machine"
    )


def clock_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Callable[[], float]:
    """The clock that was asked for. CPU time is the process's, since some peers compute in a thread of their own (JAX), and does not go with several threads, whose times it adds."""
    if options.clock == "cpu" and options.threads != 1:
        parser.error("--clock cpu goes with one thread only")
    return time.process_time if options.clock == "cpu" else time.perf_counter


def with_threads(module: str) -> None:
    """Starts `python -m module` over with the same arguments where the thread pools of this process would have another size than its `--threads` (default: 1).

    Pools read their size when their library loads: before NumPy does its first product. XLA's has as many threads as the process has processors.
    """
    wanted = str(next((sys.argv[k + 1] for k, a in enumerate(sys.argv[:-1]) if a == "--threads"), "1"))
    if os.environ.get("OPENBLAS_NUM_THREADS") != wanted:
        pools = ("OPENBLAS", "OMP", "MKL", "NUMBA", "POLYML")
        os.environ.update({f"{pool}_NUM_THREADS": wanted for pool in pools}, TORCHINDUCTOR_COMPILE_THREADS="1")
        os.environ.setdefault("POLYML_CACHE", "0")  # first calls compile
        os.environ.setdefault("PYTHONWARNINGS", "ignore:os.fork:RuntimeWarning")  # JAX's, when torch starts gcc
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: max(1, int(wanted))])
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


def write_csv(path: str | None, rows: Sequence[Mapping[str, object]]) -> None:
    """One line per row, in the order of the first one's keys; nothing without a path or rows."""
    if path and rows:
        with open(path, "w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def write_tables(options: argparse.Namespace, rows: Sequence[Mapping[str, object]], title: str) -> None:
    """The CSV file and the plot that were asked for, of rows with the columns of FIELDS."""
    write_csv(options.csv, [{name: row.get(name, "") for name in FIELDS} for row in rows])
    if options.plot is None or not rows:
        return
    cases = list(dict.fromkeys((row["case"], row.get("dtype", "")) for row in rows))
    names = list(dict.fromkeys(str(row["contender"]) for row in rows))
    found = {(row["case"], row.get("dtype", ""), row["contender"]): float(str(row["times_limit"])) for row in rows}
    heights = {name: [found.get((*case, name), math.nan) for case in cases] for name in names}
    several = len({dtype for _, dtype in cases}) > 1
    plot_bars(options.plot, title, [f"{name} {dtype}" if several else str(name) for name, dtype in cases], heights)
