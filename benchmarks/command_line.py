"""What the benchmarks' command lines have in common: a process with the asked number of threads in every pool, and the table as a CSV file."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Mapping, Sequence

__all__ = ["with_threads", "write_csv"]


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
