"""`python -m polyml doctor`: what polyml finds on this machine, a line each, and what to do where something is missing."""

from __future__ import annotations

import ctypes
import ctypes.util
import difflib
import os
import platform
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from polyml.errors import DeviceUnavailableError, PolymlError
from polyml.options import VARIABLES
from polyml.records import dataclass
from polyml.runtime.cache.files import store
from polyml.runtime.cuda.compile import NO_COMPILER, find_nvcc
from polyml.runtime.cuda.nvrtc import find_nvrtc
from polyml.runtime.cuda.pycuda_device import device_names
from polyml.target import Target

__all__ = ["Finding", "examine", "report_text"]


@dataclass(frozen=True, slots=True)
class Finding:
    """subject: what was looked for. text: what was found. remedy: what to do, where it is missing. needed: polyml does not work without it."""

    subject: str
    text: str
    remedy: str | None = None
    needed: bool = True

    @property
    def good(self) -> bool:
        return self.remedy is None

    def __str__(self) -> str:
        mark = "ok" if self.good else ("MISSING" if self.needed else "absent")
        line = f"{mark:<8}{self.subject:<15} {self.text}"
        return line if self.remedy is None else f"{line}\n{'':<24}-> {self.remedy}"


def report_text(findings: list[Finding]) -> str:
    """The whole report."""
    lost = [f.subject for f in findings if not f.good and f.needed]
    verdict = f"polyml cannot work here: {', '.join(lost)}" if lost else "polyml works here."
    return "\n".join([*map(str, findings), verdict])


def examine(*, measure: bool = False) -> list[Finding]:
    """Looks at everything; `measure` adds this machine's peak and bandwidth (a second)."""
    findings = [*_packages(), *_environment()]
    if all(f.good or not f.needed for f in findings):
        findings += [*_machine(), *_threads(), _entry_points(), _cache(), _round_trip()]
        if measure:
            findings += _measured()
    return [*findings, *_cuda()]


def _packages() -> Iterator[Finding]:
    yield Finding("python", f"{platform.python_version()} on {platform.platform()}")
    uses = {
        "numpy": ("arrays", True),
        "islpy": ("integer sets and schedules", True),
        "llvmlite": ("machine code", True),
        "highspy": ("the linear programs of the ILP scheduler", False),
    }
    for package, (use, needed) in uses.items():
        try:
            yield Finding(package, f"{version(package)} ({use})")
        except PackageNotFoundError:
            yield Finding(package, f"not installed ({use})", f"pip install {package}", needed)


def _environment() -> Iterator[Finding]:
    """The POLYML_* variables that are set, and whether polyml reads them."""
    known = {row.name: row.meaning for row in VARIABLES}
    for name in sorted(key for key in os.environ if key.startswith("POLYML_")):
        if name in known:
            yield Finding(name, f"{os.environ[name]} ({known[name]})")
        else:
            close = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            yield Finding(name, "polyml does not read this variable", remedy, needed=False)


def _cache() -> Finding:
    kept = store()
    if kept is None:
        return Finding("cache", "off: every process compiles its kernels again")
    trouble = kept.trouble()
    if trouble is not None:
        return Finding("cache", trouble, f"chmod 700 {kept.folder}, or another folder in POLYML_CACHE", needed=False)
    return Finding("cache", f"{kept.folder} ({kept.size() >> 10} of {kept.limit >> 10} KiB)")


def _machine() -> Iterator[Finding]:
    import llvmlite.binding as llvm  # heavy

    yield Finding("LLVM", ".".join(map(str, llvm.llvm_version_info)))
    target = Target.host()
    yield Finding("CPU", f"{target.cpu}, {target.architecture}")
    fma = "fused multiply-add" if target.fma else "no fused multiply-add"
    halves = ", executed in halves" if target.split_vectors else ""
    yield Finding("vectors", f"{target.vector_registers} registers of {8 * target.vector_bytes} bits{halves}, {fma}")
    sizes = (("L1", target.l1_bytes), ("L2", target.l2_bytes), ("L3", target.l3_bytes))
    yield Finding("caches", ", ".join(f"{name} {size // 1024} KiB" for name, size in sizes if size))


def _threads() -> Iterator[Finding]:
    from polyml.runtime.threads.parallel import (  # reads the environment, which may be at fault
        find_openmp,
        thread_count,
    )

    try:
        count = thread_count()
    except PolymlError as fault:
        yield Finding("threads", fault.message, "set POLYML_NUM_THREADS to a number from 1, or unset it")
    else:
        source = "POLYML_NUM_THREADS" if os.environ.get("POLYML_NUM_THREADS") else "the cores that this process may use"
        yield Finding("threads", f"{count} ({source})")
    try:
        found = find_openmp()
    except PolymlError as fault:
        yield Finding("thread runtime", fault.message, fault.hint or "")
    else:
        yield Finding("thread runtime", "polyml's own pool" if found is None else str(found))


def _entry_points() -> Finding:
    from polyml.runtime.entry.layout import array_header  # looks into an array

    if array_header() is not None:
        return Finding("entry points", "calls go straight into machine code")
    return Finding(
        "entry points",
        "unknown array layout; calls pass through Python, about 20 us each",
        "use a release of CPython 3.11 to 3.13 and NumPy 2",
        False,
    )


def _round_trip() -> Finding:
    """A program through every stage, and its result."""
    import numpy as np  # only here

    import polyml

    x = np.arange(5, dtype=np.float32)
    try:
        program = polyml.einsum('def check(x: f32["N"]):\n    y[n] = 2 * x[n]\n    return y\n')
        right = bool(np.array_equal(program(x), 2 * x))
    except (PolymlError, OSError, RuntimeError) as fault:
        return Finding("round trip", f"{type(fault).__name__}: {fault}", "report it with this whole output")
    if right:
        return Finding("round trip", "a program compiles and gives the right result")
    return Finding("round trip", "a compiled program gives a wrong result", "report it with this whole output")


def _measured() -> list[Finding]:
    from polyml.dtypes import f32, f64
    from polyml.runtime.balance import fma_peak, read_bandwidth  # compiles when asked

    peaks = ", ".join(f"{fma_peak(dtype) / 1e9:.0f} GFLOP/s {dtype}" for dtype in (f32, f64))
    return [
        Finding("FMA peak", f"{peaks} (one core)"),
        Finding("bandwidth", f"{read_bandwidth() / 1e9:.1f} GB/s read (one core)"),
    ]


def _cuda() -> Iterator[Finding]:
    """Everything here is optional: the CPU needs none of it."""
    try:
        ctypes.CDLL("libcuda.so.1" if platform.system() == "Linux" else ctypes.util.find_library("cuda") or "libcuda")
        yield Finding("CUDA driver", "libcuda is present")
    except OSError:
        yield Finding("CUDA driver", "no libcuda", "install NVIDIA's driver, if there is such a GPU", needed=False)
    path, library = find_nvcc(), find_nvrtc()
    if path is not None:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=30)
        release = next((line.strip() for line in done.stdout.splitlines() if "release" in line), path)
        yield Finding("nvcc", release)
    if library is not None:
        yield Finding("NVRTC", library.version)
    if path is None and library is None:
        yield Finding("CUDA compiler", *NO_COMPILER, needed=False)
    try:
        yield Finding("pycuda", version("pycuda"))
    except PackageNotFoundError:
        yield Finding("pycuda", "not installed", "pip install 'polyml-compiler[cuda]' (needs nvcc)", needed=False)
        return
    try:
        yield Finding("CUDA devices", ", ".join(device_names()))
    except DeviceUnavailableError as fault:
        yield Finding("CUDA devices", fault.message, fault.hint or "look at nvidia-smi", needed=False)
