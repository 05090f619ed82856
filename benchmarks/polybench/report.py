"""The results as a table, as CSV and as a plot."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.plots import plot_bars
from benchmarks.polybench.measure import Result
from benchmarks.polybench.work import Work

__all__ = ["Row", "geometric_mean", "print_header", "print_row", "print_summary", "write_csv", "write_plot"]

FIELDS = ("kernel", "size", "threads", "contender", "seconds", "schedule_s", "compile_s", "gflops", "times_limit")


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel: what there is to do, and how long each contender took."""

    kernel: str
    size: str
    work: Work
    results: tuple[Result, ...]

    def seconds(self, contender: str) -> float:
        """Infinity when there is no such measurement."""
        return next((r.seconds for r in self.results if r.contender == contender), math.inf)


def geometric_mean(values: Iterable[float]) -> float:
    """NaN of nothing."""
    logs = [math.log(v) for v in values if 0 < v < math.inf]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def print_header(contenders: Sequence[str]) -> None:
    """Two lines: what the columns of the others mean, and their names."""
    rivals = "".join(f"{name.removeprefix('polyml, '):>12}" for name in contenders if name != "polyml")
    print(
        f"{'':15}{'polyml, one thread':^29}{'  time / polyml on one thread':<{12 * (len(contenders) - 1)}}   polyml compiles in"
    )
    print(f"{'kernel':15}{'ms':>11}{'GFLOP/s':>9}{'x limit':>9}{rivals}{'schedule ms':>13}{'total ms':>10}")


def print_row(row: Row, contenders: Sequence[str]) -> None:
    """Times of the others relative to polyml's: above 1 is slower than polyml."""
    ours = next(r for r in row.results if r.contender == "polyml")
    line = f"{row.kernel:15}{1e3 * ours.seconds:11.3f}{row.work.flops / ours.seconds / 1e9:9.2f}"
    line += f"{ours.seconds / row.work.limit(1):9.2f}"
    for name in contenders:
        if name != "polyml":
            line += f"{row.seconds(name) / ours.seconds:12.2f}"
    line += f"{1e3 * ours.schedule_s:13.0f}{1e3 * ours.compile_s:10.0f}"
    problems = [f"{r.contender}: {r.problem}" for r in row.results if r.problem]
    print(line + ("   " + "; ".join(problems) if problems else ""), flush=True)


def print_summary(rows: Sequence[Row], contenders: Sequence[str]) -> None:
    line = f"{'geometric mean':35}{geometric_mean(r.seconds('polyml') / r.work.limit(1) for r in rows):9.2f}"
    for name in contenders:
        if name != "polyml":
            line += f"{geometric_mean(r.seconds(name) / r.seconds('polyml') for r in rows):12.2f}"
    print(line)


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """One line per kernel and contender; no seconds where there is no measurement."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FIELDS)
        for row in rows:
            for r in row.results:
                timed = [r.seconds, row.work.flops / r.seconds / 1e9, r.seconds / row.work.limit(r.threads)]
                seconds, gflops, limit = (f"{v:.6g}" for v in timed) if r.times else ("", "", "")
                costs = (f"{r.schedule_s:.6g}", f"{r.compile_s:.6g}")
                writer.writerow((row.kernel, row.size, r.threads, r.contender, seconds, *costs, gflops, limit))


def write_plot(path: Path, rows: Sequence[Row], contenders: Sequence[str]) -> None:
    """Bars per kernel: the multiple of the physical limit, smaller is better.

    Raises:
        ImportError: matplotlib (extra `viz`) is not installed.
    """
    heights: dict[str, list[float]] = {name: [] for name in contenders}
    for row in rows:
        for name, column in heights.items():
            found = next((r for r in row.results if r.contender == name and r.times), None)
            column.append(math.nan if found is None else found.seconds / row.work.limit(found.threads))
    plot_bars(path, f"PolyBench, {rows[0].size}" if rows else "PolyBench", [row.kernel for row in rows], heights)
