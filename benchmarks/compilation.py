"""How long compiling takes, stage by stage: PolyBench kernels, contractions, convolutions, fused networks.

    python -m benchmarks.compilation [--families polybench,contractions,convolutions,networks] [--only NAME,..] [--size LARGE] [--rounds 3] [--dynamic] [--csv FILE]

CPU milliseconds of whole compilations without the disk cache, in a process that has compiled before (so no imports): the fastest of some rounds, each stage for itself.
`--dynamic` compiles for any sizes.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

import polyml
from benchmarks import contractions, convolutions, fused_cases, model_cases
from benchmarks.command_line import write_csv
from benchmarks.polybench import KERNELS, SIZES
from polyml.debug import Compilation, compilation

FRONT = ("build graph", "rewrite", "fuse")
BACK = ("scop", "dependences", "schedule", "loops", "loop passes", "emit", "llvm", "entry")
COLUMNS = ("graph", *BACK, "total")


@dataclass(frozen=True, slots=True)
class Case:
    """A program, its arguments, and the names of those that are bound."""

    name: str
    text: str
    arguments: Callable[[], tuple[object, ...]]
    constants: tuple[str, ...] = ()

    def compile(self, **options: object) -> Compilation:
        """Compiles it from its text."""
        arguments = self.arguments()
        program = polyml.einsum(self.text, **options)
        assert isinstance(program, polyml.Einsum)
        given = dict(zip((p.name for p in program.program.parameters), arguments, strict=True))
        with compilation(program.program.name, time.thread_time) as record:
            if self.constants:
                bound = program.bind(**{name: given.pop(name) for name in self.constants})
                bound.kernel_for(*given.values())
            else:
                program.compile(*arguments)
        return record


def polybench(size: str) -> Iterator[Case]:
    for name, kernel in KERNELS.items():
        yield Case(name, kernel.text, lambda kernel=kernel: kernel.arguments(size))  # type: ignore[misc]


def products(size: str) -> Iterator[Case]:
    sizes, layouts = (16, 128, 1024), ("nn", "tn")
    for case in (*contractions.read_cases(contractions.CASES), *contractions.gemm_cases(sizes, layouts)):
        if case.dtype == "float32":
            yield Case(case.name, case.program(), _zeros(*case.shapes()[:2]))


def layers(size: str) -> Iterator[Case]:
    for case in convolutions.read_cases(convolutions.CASES, "float32"):
        given, weights, _ = case.shapes()
        yield Case(case.name, case.program(), _zeros(given, weights[:-2] if case.kernel == 1 else weights), ("w",))


def networks(size: str) -> Iterator[Case]:
    for case in (*fused_cases.CASES, *model_cases.CASES):
        constants = tuple(case.constants.split())
        yield Case(case.name, case.text, lambda case=case: case.arguments(np.random.default_rng(0)), constants)  # type: ignore[misc]


FAMILIES: dict[str, Callable[[str], Iterator[Case]]] = {
    "polybench": polybench, "contractions": products, "convolutions": layers, "networks": networks,
}  # fmt: skip


def _zeros(*shapes: tuple[int, ...]) -> Callable[[], tuple[object, ...]]:
    return lambda: tuple(np.zeros(shape, "float32") for shape in shapes)


def measure(case: Case, rounds: int, **options: object) -> dict[str, float]:
    """Milliseconds by stage; total: the whole compilation's, which has more than the stages."""
    best: dict[str, float] = defaultdict(lambda: math.inf)
    for _ in range(rounds):
        record = case.compile(**options)
        best["graph"] = min(best["graph"], 1e3 * sum(map(record.seconds, FRONT)))
        for name in (*BACK, "total"):
            best[name] = min(best[name], 1e3 * record.seconds(name))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default="polybench")
    parser.add_argument("--only", default="", help="names, comma-separated")
    parser.add_argument("--size", choices=SIZES, default="LARGE", help="of PolyBench kernels")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dynamic", action="store_true", help="for any sizes")
    parser.add_argument("--csv", help="file to write the rows to")
    options = parser.parse_args()
    os.environ["POLYML_CACHE"] = "0"
    chosen: dict[str, object] = {"dynamic": True} if options.dynamic else {}
    only = [name for name in options.only.split(",") if name]
    warm = next(polybench("MINI"))
    warm.compile()
    for family in options.families.split(","):
        rows: list[dict[str, object]] = []
        print(f"{family:28}" + "".join(f"{name:>12}" for name in COLUMNS) + "   ms")
        for case in FAMILIES[family](options.size):
            if only and case.name not in only:
                continue
            try:
                row = measure(case, options.rounds, **chosen)
            except polyml.PolymlError as reason:  # not every program goes for any sizes
                print(f"{case.name:28} {str(reason).splitlines()[0]}")
                continue
            print(f"{case.name:28}" + "".join(f"{row[name]:>12.0f}" for name in COLUMNS), flush=True)
            rows.append({"case": case.name, **row})
        for name in ("median", "max"):
            reduce = statistics.median if name == "median" else max
            values = (reduce([float(str(row[column])) for row in rows]) for column in COLUMNS)
            print(f"{name:28}" + "".join(f"{value:>12.0f}" for value in values))
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
