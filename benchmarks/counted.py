"""What kernels execute on a CPU that is not there (tests/avx512/emulated.py): to compare two versions of polyml where its vectors are missing.

    AVX512=znver5 python -m tests.avx512 benchmarks.counted [--only NAME,...] [--csv FILE]

Of the second call of fused programs, models and convolutions (fused_cases.py, model_cases.py, data/convolutions.csv), one thread: instructions, reads, writes, those across two lines (straddling), the lines that L1, L2 and L3 did not hold when
they were accessed, prefetches, and the lines that these brought into each. A million instructions take about a second. What runs at once, the hardware's own prefetchers and what memory delivers are not counted.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

import numpy as np

from benchmarks import convolutions, fused, fused_cases, model_cases
from benchmarks.command_line import write_csv
from benchmarks.peers import Runner
from tests.avx512.emulated import count

NOBODY = ("nobody",)
"""The peers beside which polyml is counted."""


def programs(only: tuple[str, ...]) -> Iterator[tuple[str, Runner]]:
    """By name: those of all cases, or of those whose names begin so."""
    rng = np.random.default_rng(0)
    for case in (*fused_cases.CASES, *model_cases.CASES):
        if case.name.startswith(only):
            yield case.name, fused.contenders(case, case.arguments(rng), 1, NOBODY)["polyml"]
    for layer in convolutions.read_cases(convolutions.CASES, "float32"):
        if layer.name.startswith(only):
            x, w = (rng.standard_normal(shape).astype(layer.dtype) for shape in layer.shapes()[:2])
            yield layer.name, convolutions.contenders(layer, x, w, 1, NOBODY)["polyml"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names, or beginnings of names, comma-separated")
    parser.add_argument("--csv", default=None)
    options = parser.parse_args()
    os.environ |= {"POLYML_CACHE": "0", "POLYML_NUM_THREADS": "1"}
    rows: list[dict[str, object]] = []
    names = ("instructions", "reads", "writes", "straddling", "l1", "l2", "l3", "requests", "to_l1", "to_l2", "to_l3")
    print(f"{'thousands':<26}" + "".join(f"{name:>13}" for name in names))
    for case, run in programs(tuple(options.only.split(","))):
        count(run)
        found = count(run)
        numbers = (
            found.instructions, found.reads, found.writes, found.straddling, *found.missed, found.requests, *found.requested
        )  # fmt: skip
        rows.append({"case": case, **dict(zip(names, numbers, strict=True))})
        print(f"{case:<26}" + "".join(f"{number / 1e3:>13.1f}" for number in numbers), flush=True)
    write_csv(options.csv, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
