"""Pipelined loops as C: threads share their iterations, wait stage by stage, and give the bits that one thread gives."""

from __future__ import annotations

import copy
import ctypes
import ctypes.util
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import polyml
from benchmarks.polybench import KERNELS
from polyml.lowered import Lowered
from polyml.target import Target
from polyml.testing.c_program import WARNINGS, CProgram, compiler_path

GOMP = ctypes.util.find_library("gomp")
pytestmark = pytest.mark.skipif(
    compiler_path() is None or GOMP is None, reason="gcc or its OpenMP library is not installed"
)
STRICT = ("-O1", "-fopenmp", *WARNINGS)
SMALL = Target("host", l1_bytes=1024, l2_bytes=4096, cores=2)

Arguments = tuple[object, ...]

# Steps that do not commute, in stages that begin and end further on in each row, and names that the emitted loop wants for itself.
NAMES = """
def begin_stage(done_to: f64["T"], rows: f64["N"], row: f64["N"]):
    for t in range(T):
        if 1 <= i < N - 1:
            row[i] = 0.3 * (rows[i - 1] + rows[i] + rows[i + 1]) + done_to[t]
            rows[i] = 0.4 * (row[i - 1] + row[i] + row[i + 1])
    return rows, row
"""


def stencil(name: str, threads: int = 4) -> tuple[Lowered, Arguments]:
    sizes = {
        "jacobi-2d": ({"TSTEPS": 9, "N": 23}, (2, 5, 9)),
        "fdtd-2d": ({"TMAX": 7, "NX": 19, "NY": 22}, (3, 4, 8)),
        "seidel-2d": ({"TSTEPS": 8, "N": 21}, (3, 4, 6)),
        "heat-3d": ({"TSTEPS": 5, "N": 9}, (2, 3, 3)),
    }
    if name == "names":
        rng = np.random.default_rng(3)
        arguments: Arguments = (rng.random(11), rng.random(77), rng.random(77))
        made = polyml.einsum(NAMES, target=Target(l2_bytes=64), tile_sizes=(2, 7), threads=threads)
        return made.lower(*arguments), arguments
    kernel = KERNELS[name]
    if name == "nussinov":
        arguments = kernel.data({"N": 263}, np.random.default_rng(0))
        return kernel.program(target=SMALL, threads=threads).lower(*arguments), arguments
    given, tiles = sizes[name]
    arguments = kernel.data(given, np.random.default_rng(1))
    return kernel.program(target=Target(l2_bytes=64), tile_sizes=tiles, threads=threads).lower(*arguments), arguments


def run(program: CProgram, arguments: Arguments, threads: int) -> tuple[NDArray[np.generic], ...]:
    assert GOMP is not None
    ctypes.CDLL(GOMP).omp_set_num_threads(threads)
    return tuple(np.array(result) for result in program(*copy.deepcopy(arguments)))


@pytest.mark.parametrize(
    "name",
    [
        "names",
        "jacobi-2d",
        pytest.param("fdtd-2d", marks=pytest.mark.slow),
        "seidel-2d",
        pytest.param("heat-3d", marks=pytest.mark.slow),
        pytest.param("nussinov", marks=pytest.mark.slow),
    ],
)
@pytest.mark.few(2)
def test_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    lowered, arguments = stencil(name)
    assert "#pragma omp parallel for schedule(static, 1)\n" in lowered.text("c")
    program = CProgram(lowered, flags=STRICT)
    one = run(program, arguments, 1)
    for threads in (2, 4, 7):
        for k, found in enumerate(run(program, arguments, threads)):
            np.testing.assert_array_equal(found, one[k])
    alone = CProgram(stencil(name, threads=1)[0], flags=STRICT)
    for found, expected in zip(run(alone, arguments, 1), one, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-13)
    without = CProgram(lowered, flags=("-O1", *WARNINGS))
    for found, expected in zip(run(without, arguments, 1), one, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_slow_row_is_waited_for() -> None:
    """The first row dallies in each stage; the next one would overtake it without the wait."""
    lowered, arguments = stencil("names")
    text = lowered.text("c")
    begins = [line for line in text.splitlines() if line.lstrip().startswith("begin_stage(row, ")][-1]
    dallies = f"{begins}\nif (row == rows + 1) usleep(2000);"
    slow = "#include <unistd.h>\n" + text.replace(begins, dallies)
    one = run(CProgram(lowered, flags=STRICT), arguments, 1)
    flags = ("-O1", "-fopenmp")
    for k, found in enumerate(run(CProgram(lowered, flags=flags, text=slow), arguments, 4)):
        np.testing.assert_array_equal(found, one[k])
    wait = "wait_until_beyond(row - 1, stage);"
    assert wait in slow
    results = run(CProgram(lowered, flags=flags, text=slow.replace(wait, "")), arguments, 4)
    assert any(not np.array_equal(found, one[k]) for k, found in enumerate(results))


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_no_warnings_with_and_without_openmp(compiler: str, tmp_path: Path) -> None:
    path = compiler_path(compiler)
    if path is None:
        pytest.skip(f"{compiler} is not installed")
    source = tmp_path / "program.c"
    source.write_text(stencil("seidel-2d")[0].text("c"))
    for flags in (["-fopenmp"], []):
        command = [path, "-O1", *flags, *WARNINGS, "-c", str(source), "-o", str(tmp_path / "program.o")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
