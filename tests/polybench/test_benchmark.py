"""The benchmark's own parts: counting, measuring side by side, and what it writes."""

from __future__ import annotations

import csv
from pathlib import Path

import islpy as isl
import numpy as np
import pytest

from benchmarks.polybench import KERNELS
from benchmarks.polybench.__main__ import main
from benchmarks.polybench.kernel import worst_error
from benchmarks.polybench.pluto import pluto_text
from benchmarks.polybench.report import geometric_mean
from benchmarks.polybench.work import count_points, work_of
from polyml.errors import CodegenError
from polyml.testing.c_program import CProgram, compiler_path


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("[T] -> { S[t, i, j] : 0 <= t < T and 0 <= i < 10 and 0 <= j < 7 }", 3 * 70),
        ("{ S[k, j, i] : 0 <= k < j < i < 12 }", 12 * 11 * 10 // 6),
        ("{ S[i, j] : 0 <= i < 9 and (j = i or 20 <= j < 23) }", 9 * 4),
        ("{ S[i, j] : 0 <= i < 9 and 3 * j <= i and j >= 0 }", 3 * (1 + 2 + 3)),
        ("{ S[i] : i < 0 and i > 5 }", 0),
        ("{ S[] }", 1),
    ],
)
def test_count_points(text: str, count: int) -> None:
    assert count_points(isl.Set(text), {"T": 3, "unused": 5}) == count


def test_flops() -> None:
    n = KERNELS["gemm"].sizes("SMALL")
    product = n["NI"] * n["NJ"] * n["NK"]
    assert work_of(KERNELS["gemm"], "SMALL").flops == 2 * product + 3 * n["NI"] * n["NJ"]
    steps, n = (KERNELS["seidel-2d"].sizes("SMALL")[k] for k in ("TSTEPS", "N"))
    assert work_of(KERNELS["seidel-2d"], "SMALL").flops == 9 * steps * (n - 2) ** 2
    n = KERNELS["gesummv"].sizes("SMALL")["N"]
    assert work_of(KERNELS["gesummv"], "SMALL").flops == 4 * n * n + 3 * n, "two regions that are one but for names"
    assert work_of(KERNELS["atax"], "SMALL").bytes == 8 * (116 * 124 + 2 * 124)


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 8.0, float("inf")]) == pytest.approx(4)


@pytest.mark.skipif(compiler_path() is None, reason="gcc is not installed")
def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table.csv"
    main(["--size", "MINI", "--kernels", "atax", "--contenders", "gcc", "--seconds", "0.05", "--csv", str(table)])
    printed = capsys.readouterr().out
    assert "atax" in printed
    assert "other results" not in printed
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [(row["kernel"], row["contender"], row["threads"]) for row in rows] == [
        ("atax", "polyml", "1"),
        ("atax", "gcc", "1"),
    ]
    assert all(float(row["seconds"]) > 0 and float(row["compile_s"]) > 0 for row in rows)
    assert all(float(row["times_limit"]) > 0 for row in rows)


POLYCC = """#!/bin/sh
# Takes a file with one part marked for it, and says what it did in the names of the helpers that it defines.
test "$2" = --tile && grep -q "pragma scop" "$1" || exit 1
{ echo '#define floord(n,d) ((n)/(d))'; sed -e '/pragma/d' "$1"; } > "$5"
"""


@pytest.mark.skipif(compiler_path() is None, reason="gcc is not installed")
@pytest.mark.parametrize("name", ["gemver", "covariance", "jacobi-2d"])
def test_pluto_gets_each_region(name: str, tmp_path: Path) -> None:
    """A source-to-source step in Pluto's place, which leaves the loops as they are: the program around them is put together again."""
    polycc = tmp_path / "polycc"
    polycc.write_text(POLYCC)
    polycc.chmod(0o755)
    kernel = KERNELS[name]
    arguments = kernel.arguments("MINI")
    lowered = kernel.program(scheduler="written", dynamic=name != "covariance").lower(*arguments)
    text = pluto_text(lowered, str(polycc), ("--tile", "--noparallel"))
    assert text.count("#define floord") == 1
    assert "pragma" not in text
    assert "*alpha *" not in text
    results = CProgram(lowered, flags=("-O1",), text=text)(
        *(np.copy(a) if isinstance(a, np.ndarray) else a for a in arguments)
    )
    assert worst_error(results, kernel.reference(*kernel.arguments("MINI"))) < 1e-9
    with pytest.raises(CodegenError, match="takes none"):
        pluto_text(lowered, "false", ())
