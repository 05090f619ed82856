"""Who is measured: polyml itself, and other compilers on the C text of the same program in its written order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.polybench.kernel import Argument, Kernel
from benchmarks.polybench.pluto import pluto_text
from polyml.debug import compilation
from polyml.errors import PolymlError
from polyml.testing.c_program import CProgram, compiler_path

__all__ = ["CONTENDERS", "Built", "Contender", "found_contenders", "summary"]

Build = Callable[[Kernel, tuple[Argument, ...], int], "Built"]

C_FLAGS = ("-O3", "-march=native", "-ffast-math", "-fopenmp-simd")
PLUTO_FLAGS = ("--tile", "--noparallel")


@dataclass(frozen=True, slots=True)
class Built:
    """run: one call; it returns the results. Seconds that scheduling and the whole compilation took (of C: the C compiler's)."""

    run: Callable[..., object]
    schedule_s: float
    compile_s: float


@dataclass(frozen=True, slots=True)
class Contender:
    """threads: None: one; "all": as many as the benchmark has. compiler: the program that it needs, or None."""

    name: str
    build: Build
    threads: str | None = None
    compiler: str | None = None


def _polyml(kernel: Kernel, arguments: tuple[Argument, ...], threads: int) -> Built:
    program = kernel.program(threads=threads)
    start = time.perf_counter()
    with compilation(program.program.name) as record:
        compiled = program.compile(*arguments)
    seconds = time.perf_counter() - start
    new = [name for name in compiled.signature.returned if name in {r.name for r in compiled.signature.results}]
    kept: list[object] = []

    def run(*given: Argument) -> object:
        """A single result goes into the array of the first call; several are new, which the entry point is quicker with."""
        if len(kept) == 1:
            return compiled(*given, out=kept[0])
        results = compiled(*given)
        every = results if isinstance(results, tuple) else (results,)
        kept[:] = (r for name, r in zip(compiled.signature.returned, every, strict=True) if name in new)
        return results

    return Built(run, record.seconds("dependences") + record.seconds("schedule"), seconds)


def _c_compiler(name: str, *flags: str) -> Build:
    def build(kernel: Kernel, arguments: tuple[Argument, ...], threads: int) -> Built:
        assert threads == 1, "internal: the written order has no parallel loops"
        lowered = kernel.program(scheduler="written").lower(*arguments)
        compiler = compiler_path(name)
        assert compiler is not None, "internal: a compiler that is not there"
        start = time.perf_counter()
        program = CProgram(lowered, compiler, flags)
        return Built(program, 0.0, time.perf_counter() - start)

    return build


def _pluto(kernel: Kernel, arguments: tuple[Argument, ...], threads: int) -> Built:
    assert threads == 1, "internal: Pluto runs on one thread here"
    try:
        lowered = kernel.program(scheduler="written", dynamic=True).lower(*arguments)
    except PolymlError:  # a program that is not for any size
        lowered = kernel.program(scheduler="written").lower(*arguments)
    polycc, compiler = compiler_path("polycc"), compiler_path("gcc")
    assert polycc is not None, "internal: a compiler that is not there"
    assert compiler is not None, "internal: no C compiler"
    start = time.perf_counter()
    text = pluto_text(lowered, polycc, PLUTO_FLAGS)
    scheduled = time.perf_counter()
    program = CProgram(lowered, compiler, C_FLAGS, text)
    return Built(program, scheduled - start, time.perf_counter() - start)


CONTENDERS: tuple[Contender, ...] = (
    Contender("polyml", _polyml),
    Contender("polyml on all threads", _polyml, threads="all"),
    Contender("gcc", _c_compiler("gcc", *C_FLAGS), compiler="gcc"),
    Contender("clang", _c_compiler("clang", *C_FLAGS), compiler="clang"),
    Contender("polly", _c_compiler("clang", *C_FLAGS, "-mllvm", "-polly"), compiler="clang"),
    Contender("pluto", _pluto, compiler="polycc"),
)


def found_contenders(names: Sequence[str] | None, threads: int) -> tuple[Contender, ...]:
    """Those that this machine can run, of `names` (None: all)."""
    return tuple(
        contender
        for contender in CONTENDERS
        if (names is None or contender.name in names)
        and (contender.compiler is None or compiler_path(contender.compiler) is not None)
        and (contender.threads is None or threads > 1)
    )


def summary(results: object) -> list[float]:
    """Two numbers per result, to compare contenders with. Of matrices only the leading square counts: gramschmidt's wide ones are rounding beyond it."""
    every = results if isinstance(results, tuple) else (results,)
    numbers: list[float] = []
    for result in every:
        array = np.asarray(result)
        array = array[(slice(min(array.shape)),) * 2] if array.ndim == 2 else array
        numbers += [float(array.mean()), float(np.abs(array).max())]
    return numbers
