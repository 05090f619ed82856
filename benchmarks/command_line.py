"""What the benchmarks' command lines have in common: options, a process with the asked number of threads in every pool, and the table as a CSV file."""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

__all__ = ["clock_of", "timing_options", "with_threads", "write_csv"]


def timing_options(parser: argparse.ArgumentParser, *, seconds: float = 1.0) -> None:
    """Adds --only, --threads, --seconds (of that default), --csv and --clock."""
    parser.add_argument(
        "--only", default="", help="names (or beginnings of names, where there are families), comma-separated"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=seconds, help="per case")
    parser.add_argument("--csv", default=None)
    parser.add_argument(
        "--clock", default="wall", choices=("wall", "cpu"), help="cpu: time of the calling thread, for a busy machine"
    )


def clock_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Callable[[], float]:
    """The clock that was asked for; one thread's does not go with several threads."""
    if options.clock == "cpu" and options.threads != 1:
        parser.error("--clock cpu sees one thread only")
    return time.thread_time if options.clock == "cpu" else time.perf_counter


def with_threads(module: str) -> None:
    """Starts `python -m module` over with the same arguments where the thread pools of this process would have another size than its `--threads` (default: 1).

    Pools read their size when their library loads: before NumPy does its first product.
    """
    wanted = str(next((sys.argv[k + 1] for k, a in enumerate(sys.argv[:-1]) if a == "--threads"), "1"))
    if os.environ.get("OPENBLAS_NUM_THREADS") != wanted:
        os.environ.update(OPENBLAS_NUM_THREADS=wanted, OMP_NUM_THREADS=wanted, POLYML_NUM_THREADS=wanted)
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


def write_csv(path: str | None, rows: Sequence[Mapping[str, object]]) -> None:
    """One line per row, in the order of the first one's keys; nothing without a path or rows."""
    if path and rows:
        with open(path, "w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
