"""Tensor contractions and matrix products against NumPy and every peer that is installed (benchmarks/peers.py; extra `bench`), interleaved in one run, medians.

    python -m benchmarks.contractions [--cases FILE.csv] [--odd SEED] [--gemm 16,32,...] [--only NAME,...] [--threads N] [--clock cpu] [--peers NAME,...] [--csv FILE] [--plot FILE]

The cases of data/contractions.csv come from TCCG (HPAC/tccg, "Tensor Contraction Code Generator" benchmark). A file of your own needs the same columns:
name, einsum, sizes_f32, sizes_f64. --odd: the same forms with odd sizes drawn at random, two of each. Every result is checked against NumPy in float64; the FMA peak (of one thread: in turns
with the contenders) and the read bandwidth are measured in the same run.
"""

from __future__ import annotations

import argparse
import csv
import functools
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from benchmarks.command_line import clock_of, timing_options, with_threads, write_tables
from benchmarks.peers import Array, Formulation, Runner, first_calls, peers_of
from polyml.demo.measure import SETTLING, interleaved

CASES = Path(__file__).parent / "data" / "contractions.csv"
GEMM = (16, 32, 64, 128, 256, 512, 1024, 2048)
LONG = (67, 83, 101, 127, 150, 173, 211, 250, 77, 31, 43, 23)
PEAK = "(peak)"
LAYOUTS = {"nn": "ik,kj->ij", "nt": "ik,jk->ij", "tn": "ki,kj->ij", "tt": "ki,jk->ij"}


@dataclass(frozen=True, slots=True)
class Case:
    """A product of two tensors in einsum notation, and its sizes by index."""

    name: str
    einsum: str
    sizes: dict[str, int]
    dtype: str

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        left, right, out = self.parts()
        return tuple(tuple(self.sizes[i] for i in part) for part in (left, right, out))  # type: ignore[return-value]

    def parts(self) -> tuple[str, str, str]:
        operands, out = self.einsum.split("->")
        left, right = operands.split(",")
        return left, right, out

    @property
    def flops(self) -> float:
        return 2.0 * math.prod(self.sizes.values())

    def limit(self, peak: float, bandwidth: float) -> float:
        """Seconds that no program beats: the FMA peak, or every tensor once through memory."""
        moved = sum(math.prod(shape) for shape in self.shapes()) * np.dtype(self.dtype).itemsize
        resident = moved < 64 << 20  # then bandwidths of caches apply, which are not what limits these cases
        return max(self.flops / peak, 0.0 if resident else moved / bandwidth)

    def program(self) -> str:
        """The polyml program; `L` marks tensors' parameters by index names in upper case."""
        left, right, out = self.parts()
        kind = {"float32": "f32", "float64": "f64"}[self.dtype]
        shapes = [" ".join(i.upper() for i in part) for part in (left, right)]
        names = [f"{tensor}[{', '.join(part)}]" for tensor, part in zip("zxy", (out, left, right), strict=True)]
        return (
            f'def product(x: {kind}["{shapes[0]}"], y: {kind}["{shapes[1]}"]):\n'
            f"    {names[0]} = {names[1]} * {names[2]}\n    return z\n"
        )


def read_cases(path: Path) -> Iterator[Case]:
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            for dtype in ("f32", "f64"):
                if row.get(f"sizes_{dtype}"):
                    pairs = (item.split("=") for item in row[f"sizes_{dtype}"].split(";"))
                    sizes = {index: int(size) for index, size in pairs}
                    yield Case(row["name"], row["einsum"], sizes, {"f32": "float32", "f64": "float64"}[dtype])


def odd_cases(cases: Iterable[Case], seed: int) -> Iterator[Case]:
    """Two cases of each form, with odd sizes that nothing was tuned on: 20 to 400 MFLOP, tensors of up to six million elements; few indices have more values each."""
    forms = {case.name: case for case in cases}
    draw = random.Random(f"tccg{seed}")
    for case in (case for _ in range(2) for case in forms.values()):
        choice = LONG if case.name[5:7] in ("01", "13", "15", "17") else tuple(range(5, 54, 2))
        sizes: dict[str, int] = {}
        while not sizes or not _is_small(replace(case, sizes=sizes)):
            sizes = {index: draw.choice(choice) for index in case.sizes}
            if case.name.startswith("tccg_01"):
                sizes["c"] = draw.choice((11, 17, 23, 25, 31))
        yield from (replace(case, sizes=sizes, dtype=dtype) for dtype in ("float32", "float64"))


def _is_small(case: Case) -> bool:
    return 2e7 < case.flops < 4e8 and max(math.prod(shape) for shape in case.shapes()) < 6e6


def gemm_cases(sizes: Iterable[int], layouts: Iterable[str]) -> Iterator[Case]:
    for layout in layouts:
        for n in sizes:
            for dtype in ("float32", "float64"):
                yield Case(f"gemm_{layout}_{n}", LAYOUTS[layout], dict.fromkeys("ijk", n), dtype)
    for rows in (1, 2, 8):
        yield Case(f"skinny_{rows}", "ik,kj->ij", {"i": rows, "j": 4096, "k": 4096}, "float32")


def contenders(case: Case, x: Array, y: Array, threads: int, wanted: Sequence[str] = ()) -> dict[str, Runner]:
    """wanted: names of peers; all where none are named."""
    import polyml

    found: dict[str, Runner] = {"polyml": functools.partial(polyml.einsum(case.program()), x, y)}
    left, right, _ = case.parts()
    plain = case.name.startswith(("gemm", "skinny"))
    if not wanted or "numpy" in wanted:
        if plain:
            a, b = x if left == "ik" else x.T, y if right == "kj" else y.T
            found["numpy"] = lambda: a @ b
        else:
            found["numpy"] = functools.partial(np.einsum, case.einsum, x, y, optimize=True)
    peers = Formulation(
        torch=f"lambda x, y: torch.einsum({case.einsum!r}, x, y)",
        jax=f"lambda x, y: jnp.einsum({case.einsum!r}, x, y)",
        opt_einsum=case.einsum,
        onnx=_matmul if plain and case.einsum == LAYOUTS["nn"] else None,
        compiled=False,
    )
    return found | peers_of(peers, (x, y), threads=threads, wanted=wanted)


def _matmul() -> list[object]:
    from onnx import helper

    return [helper.make_node("MatMul", ["i0", "i1"], ["y"])]


def measure(
    case: Case, threads: int, seconds: float, clock: Callable[[], float], wanted: Sequence[str] = ()
) -> list[dict[str, object]]:
    """A row per contender."""
    rng = np.random.default_rng(0)
    first, second, _ = case.shapes()
    x, y = (rng.standard_normal(shape).astype(case.dtype) for shape in (first, second))
    runs = contenders(case, x, y, threads, wanted)
    exact = np.einsum(case.einsum, x.astype(np.float64), y.astype(np.float64), optimize=True)
    return in_turns(case, runs, exact, threads=threads, seconds=seconds, clock=clock)


class Workload(Protocol):
    """What a row tells of a case."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def flops(self) -> float: ...
    def limit(self, peak: float, bandwidth: float) -> float: ...


def in_turns(
    case: Workload,
    runs: dict[str, Runner],
    exact: Array,
    *,
    threads: int,
    seconds: float,
    clock: Callable[[], float],
) -> list[dict[str, object]]:
    """A row per contender, "polyml" among them; every result is compared with `exact`. A peer that misses it (OpenVINO computes float64 in float32) has none, with a note."""
    from polyml.dtypes import f32, f64
    from polyml.runtime.balance import fma_peak, fma_work, read_bandwidth

    kind = f32 if case.dtype == "float32" else f64
    cold = first_calls(runs, clock)
    # The peak of one thread takes its turn with the contenders, so that it meets the clock and the load that they meet.
    turns = {**runs, PEAK: fma_work(kind, case.flops)} if threads == 1 else runs
    settle = SETTLING if threads > 1 else 0.0
    times = interleaved(turns, seconds=seconds, least=3, settle=settle, clock=clock)
    peak = case.flops / times.pop(PEAK) if threads == 1 else fma_peak(kind) * threads
    scale = max(float(np.abs(exact).max()), 1e-30)
    rows = []
    for name, run in runs.items():
        error = float(np.abs(np.asarray(run()).reshape(exact.shape) - exact).max()) / scale
        if error >= (1e-4 if case.dtype == "float32" else 1e-11):
            assert name != "polyml", f"polyml is wrong on {case.name}: {error}"
            print(f"{name} is left out of {case.name}: an error of {error:.1e}")
            continue
        rows.append(
            {
                "case": case.name, "dtype": case.dtype, "threads": threads, "contender": name, "seconds": times[name],
                "cold_s": cold[name], "gflops": case.flops / times[name] / 1e9,
                "times_limit": times[name] / case.limit(peak, read_bandwidth()), "error": error,
            }
        )  # fmt: skip
    return rows


def line(rows: list[dict[str, object]]) -> tuple[str, float, float]:
    """The printed line, the ratio to the best peer and the multiple of the limit."""
    by = {str(row["contender"]): row for row in rows}
    own = by["polyml"]
    rivals = [(float(str(r["seconds"])), name) for name, r in by.items() if name != "polyml"]
    best = min(rivals, default=(math.nan, "none"))
    ratio = best[0] / float(str(own["seconds"]))
    text = f"{own['case']:<26}{own['dtype']!s:<9}{1e3 * float(str(own['seconds'])):>10.3f}{float(str(own['gflops'])):>8.1f}"
    text += f"{float(str(own['times_limit'])):>8.2f}{ratio:>8.2f}  {best[1]:<12}{1e3 * float(str(own['cold_s'])):>7.0f}"
    return text, ratio, float(str(own["times_limit"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--gemm", default=None, help="sizes, comma-separated; alone: matrix products only")
    parser.add_argument("--layouts", default="nn,nt,tn,tt")
    parser.add_argument("--dtype", default="", choices=("", "float32", "float64"))
    timing_options(parser)
    parser.add_argument("--odd", type=int, default=None, metavar="SEED", help="odd sizes drawn at random")
    options = parser.parse_args()
    clock = clock_of(parser, options)
    only = tuple(name for name in options.only.split(",") if name)
    if options.gemm is not None:
        cases = list(gemm_cases(tuple(int(n) for n in options.gemm.split(",")), options.layouts.split(",")))
    elif options.odd is not None:
        cases = list(odd_cases(read_cases(options.cases), options.odd))
    else:
        cases = [*read_cases(options.cases), *(() if options.cases != CASES else gemm_cases(GEMM, LAYOUTS))]
    rows: list[dict[str, object]] = []
    summary: dict[str, list[tuple[float, float]]] = {}
    print(f"{'case':<26}{'dtype':<9}{'ms':>10}{'gflops':>8}{'limit x':>8}{'ratio':>8}  {'best peer':<12}{'cold ms':>7}")
    for case in cases:
        if (only and not case.name.startswith(only)) or (options.dtype and case.dtype != options.dtype):
            continue
        found = measure(case, options.threads, options.seconds, clock, [n for n in options.peers.split(",") if n])
        text, ratio, limit = line(found)
        print(text)
        sys.stdout.flush()
        rows += found
        summary.setdefault(case.name.split("_")[0] + " " + case.dtype, []).append((ratio, limit))
    for family, values in summary.items():
        ratio, limit = (statistics.geometric_mean(column) for column in zip(*values, strict=True))
        worst = min(value for value, _ in values)
        print(
            f"{family}: {ratio:.2f} times the best peer (worst {worst:.2f}), {limit:.2f} of the limit, {len(values)} cases"
        )
    write_tables(options, rows, "contractions")
    return 0


if __name__ == "__main__":
    with_threads("benchmarks.contractions")
    raise SystemExit(main())
