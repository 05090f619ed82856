"""How long dependences and scheduling take: by the number of statements, and for every PolyBench kernel; polyml's scheduler beside isl's.

    python -m benchmarks.scheduling [--size LARGE] [--csv FILE]

CPU milliseconds, best of several runs in one process. Chains alternate elementwise statements and reductions over rows; independent statements share no array.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import islpy as isl

import polyml
from benchmarks.command_line import write_csv
from benchmarks.polybench import KERNELS, SIZES
from polyml.dtypes import f32
from polyml.expressions import Apply, Const, Read
from polyml.schedule.ilp.driver import schedule_by_ilp
from polyml.schedule.isl_scheduler import tree_by_isl
from polyml.schedule.matching import Matcher
from polyml.scop.dependences import Dependences, analyse
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import affine
from polyml.sets.budget import BudgetExhausted

ROWS, COLUMNS = 1000, 500
ISL_BUDGET = 2_000_000


def chain(count: int) -> Scop:
    """About `count` statements, each reading what the one before wrote."""
    statements: list[Statement] = []
    last = "x0"
    while len(statements) < count:
        k = len(statements)
        if k % 5 == 4:
            statements.append(_statement(f"I{k}", f"r{k}", ["i"], None, "init"))
            statements.append(_statement(f"U{k}", f"r{k}", ["i"], [(last, "ij")], "update"))
            statements.append(_statement(f"S{k}", f"x{k}", ["i", "j"], [(last, "ij"), (f"r{k}", "i")]))
        else:
            statements.append(_statement(f"S{k}", f"x{k}", ["i", "j"], [(last, "ij")]))
        last = f"x{k}"
    return _scop(statements, last)


def independent(count: int) -> Scop:
    """`count` statements that have nothing to do with each other."""
    return _scop([_statement(f"S{k}", f"y{k}", ["i", "j"], [(f"a{k}", "ij")]) for k in range(count)], "y0")


def _statement(
    name: str, target: str, subscripts: list[str], reads: list[tuple[str, str]] | None, kind: str = "assign"
) -> Statement:
    indices = ("i",) if kind == "init" else ("i", "j")
    bounds = f"0 <= i < {ROWS}" + (f" and 0 <= j < {COLUMNS}" if len(indices) == 2 else "")
    values = [Read(array, tuple(affine(index) for index in at), f32) for array, at in reads or []]
    return Statement(
        name=name,
        indices=indices,
        domain=isl.Set(f"{{ {name}[{', '.join(indices)}] : {bounds} }}"),
        kind=kind,  # type: ignore[arg-type]  # one of them
        target=Access(target, tuple(affine(index) for index in subscripts)),
        value=Apply("add", (values[0], values[-1]), f32) if values else Const(0.0, f32),
        reduction="sum" if kind in ("init", "update") else None,
    )


def _scop(statements: Sequence[Statement], output: str) -> Scop:
    initial = isl.UnionMap("{ }")
    rank: dict[str, int] = {}
    for position, statement in enumerate(statements):
        rank[statement.target.array] = len(statement.target.subscripts)
        for read in polyml.expressions.reads_of(statement.value):
            rank.setdefault(read.tensor, 2)
        times = ", ".join([str(position), *statement.indices, "0"][:3])
        text = f"{{ {statement.name}[{', '.join(statement.indices)}] -> [{times}] }}"
        initial = initial.union(isl.Map(text).intersect_domain(statement.domain).to_union_map())
    written = {statement.target.array for statement in statements}
    arrays = {
        name: Array(
            name=name,
            dtype=f32,
            shape=(affine(ROWS), affine(COLUMNS))[:dimensions],
            kind="output" if name == output else "local" if name in written else "input",
        )
        for name, dimensions in rank.items()
    }
    nothing = isl.UnionMap("{ }")
    return Scop(
        name="scale", context=isl.Set("{ : }"), sizes=(), arrays=arrays, statements={s.name: s for s in statements},
        initial=initial, reads=nothing, may_writes=nothing, must_writes=nothing, reductions=nothing,
    )  # fmt: skip


def polybench(name: str, size: str) -> list[Scop]:
    """A kernel's regions."""
    kernel = KERNELS[name]
    lowered = kernel.program(scheduler="written").lower(*kernel.arguments(size))
    return [region.scop for region in lowered.stages.regions]


def milliseconds(run: Callable[[], object], least: int = 3) -> float:
    """CPU time of the fastest run."""
    best = float("inf")
    for _ in range(least):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return 1e3 * best


def measure(name: str, scops: Sequence[Scop]) -> dict[str, object]:
    """One row: dependences, polyml's scheduler, isl's (None: over its budget)."""
    found: list[Dependences] = [analyse(scop) for scop in scops]
    pairs = list(zip(scops, found, strict=True))

    def ours() -> None:
        for scop, dependences in pairs:
            matcher = Matcher(scop, dependences, relax_reductions=True)
            schedule_by_ilp(scop, matcher)

    def theirs() -> None:
        for scop, dependences in pairs:
            tree_by_isl(scop, dependences, relax_reductions=True, budget=ISL_BUDGET)

    row: dict[str, object] = {"program": name, "statements": sum(len(scop.statements) for scop in scops)}
    row["dependences_ms"] = milliseconds(lambda: [analyse(scop) for scop in scops])
    row["ilp_ms"] = milliseconds(ours)
    try:
        row["isl_ms"] = milliseconds(theirs, least=1)
    except BudgetExhausted:
        row["isl_ms"] = None
    return row


def programs(size: str) -> Iterator[tuple[str, list[Scop]]]:
    for count in (10, 50, 200):
        yield f"chain {count}", [chain(count)]
    for count in (50, 500):
        yield f"independent {count}", [independent(count)]
    for name in KERNELS:
        yield name, polybench(name, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="LARGE")
    parser.add_argument("--csv", help="file to write the rows to")
    options = parser.parse_args()
    rows = []
    print(f"{'program':18} {'statements':>10} {'dependences':>12} {'ilp':>8} {'isl':>8}   ms")
    for name, scops in programs(options.size):
        row = measure(name, scops)
        rows.append(row)
        theirs = "-" if row["isl_ms"] is None else f"{row['isl_ms']:.1f}"
        print(
            f"{name:18} {row['statements']:>10} {row['dependences_ms']:>12.1f} {row['ilp_ms']:>8.1f} {theirs:>8}",
            flush=True,
        )
    kernels = [float(f"{r['dependences_ms']}") + float(f"{r['ilp_ms']}") for r in rows if r["program"] in KERNELS]
    print(
        f"PolyBench, dependences and scheduling: median {statistics.median(kernels):.1f} ms, worst {max(kernels):.1f} ms"
    )
    write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
