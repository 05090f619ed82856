"""Programs on a GPU, each checked against NumPy in float64, and timed with device events beside torch (cuBLAS, cuDNN), torch.compile and Triton, or CuPy, where these are installed.

    python -m benchmarks.cuda [--only NAME,...] [--seconds 420] [--csv FILE] [--after NAME] [--debug]

Arguments are random and stay on the device, in so many sets that together they are larger than L2: rounds take them in turns, contenders take turns in each round, after warm-up; in between
L2 is overwritten, which also hides what starting work costs. Times are medians. Every contender's result is checked, and a case that fails does not keep the others from running. At the end: what the bounds speak of (shares of the measured copy bandwidth, geometric means over
torch), and how long a first call takes. It reaches for nothing outside this machine, and starts no case after --seconds. Needs a GPU, pycuda and a compiler; it says what is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.util
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import polyml
from benchmarks.command_line import write_csv
from benchmarks.cuda_cases import CASES, Array, Case, contractions
from polyml.runtime.cuda.program import CudaKernel
from polyml.runtime.cuda.pycuda_device import PycudaDevice, device_names, missing_parts, the_device

WARM, ROUNDS, FLUSHED, L2, MOST_SETS = 3, 20, 512 << 20, 64 << 20, 8
TOLERANCE = 1e-4
"""Of the largest element of the exact result; TF32 would be above."""

Run = Callable[[], object]
FIRST = """
import os, time
import numpy as np
import polyml
x = np.ones((100, 70), np.float32)
f = polyml.einsum('def first(x: f32["N K"]):\\n    y[n, k] = exp(x[n, k]) + 1\\n    return y\\n', target="cuda")
from polyml.runtime.cuda.pycuda_device import the_device
the_device()
start = time.perf_counter()
f(x)
print(time.perf_counter() - start)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cases; 0 when all results are right, 1 when one is wrong or something is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda")
    parser.add_argument("--only", default="", help="names of cases, or their beginnings, separated by commas")
    parser.add_argument("--seconds", type=float, default=420, help="no case is started after so long")
    parser.add_argument("--after", default="", help="begin behind this case")
    parser.add_argument("--csv", help="a file for the table")
    parser.add_argument("--debug", action="store_true", help="tracebacks of cases that fail")
    chosen = parser.parse_args(arguments)
    absent = [name for name in ("islpy", "highspy", "llvmlite") if importlib.util.find_spec(name) is None]
    needed = [(f"{name} is not installed, which compiling needs", f"pip install {name}") for name in absent]
    if missing := (*needed, *missing_parts()):
        for part, remedy in missing:
            print(f"{part}\n  -> {remedy}")
        return 1
    print(
        ", ".join(device_names()),
        f"; beside it: {', '.join(rivals()) or 'nothing (neither torch nor CuPy is installed)'}",
    )
    start, rows, left, failed = time.monotonic(), list[dict[str, Any]](), list[str](), list[str]()
    prefixes = tuple(filter(None, chosen.only.split(",")))
    print(f"{'case':<28}{'contender':<15}{'ms':>10}{'TFLOP/s':>10}{'GB/s':>10}{'error':>10}", flush=True)
    lost = ""
    for case in after(chosen.after):
        if prefixes and not case.name.startswith(prefixes):
            continue
        if time.monotonic() - start > chosen.seconds:
            left.append(case.name)
            continue
        try:
            found = measure(case)
        except Exception as fault:  # what else there is to measure is worth more than a traceback
            said = (str(fault).splitlines() or [""])[0][:200]
            print(f"{case.name:<28}FAILS: {type(fault).__name__}: {said}", flush=True)
            failed.append(case.name)
            if chosen.debug:
                traceback.print_exc()
            if not alive():
                lost = case.name
                break
            continue
        for row in found:
            rows.append(row)
            print(line(row), flush=True)
        write_csv(chosen.csv, rows)
    for text in summary(rows):
        print(text)
    if lost:
        print(f"the device's context is lost with {lost}: the others go on in a new process", flush=True)
        return goes_on(chosen, lost, chosen.seconds - (time.monotonic() - start))
    if not prefixes:
        print(f"first call of a small program: {first_calls()}")
    if left:
        print(f"out of time for: {', '.join(left)}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    mine = [row for row in rows if row["contender"] == "polyml"]
    return 0 if mine and not failed and all(row["error"] < TOLERANCE for row in mine) else 1


def after(name: str) -> list[Case]:
    """The cases behind one, all without a name."""
    cases = [*CASES, *contractions()]
    return cases[1 + [case.name for case in cases].index(name) :] if name else cases


def alive() -> bool:
    """Whether the device still does anything in this process: after an illegal access it does not."""
    try:
        the_device().finish()
    except Exception:
        return False
    return True


def goes_on(chosen: argparse.Namespace, lost: str, seconds: float) -> int:
    """The cases behind a lost one, in a new process, with a table of their own; 1, since one has failed."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.cuda",
        "--only",
        chosen.only,
        "--after",
        lost,
        "--seconds",
        str(seconds),
    ]
    command += ["--csv", f"{chosen.csv}.after"] * bool(chosen.csv) + ["--debug"] * chosen.debug
    subprocess.run(command, check=False)
    return 1


def line(row: dict[str, Any]) -> str:
    rates = f"{row['flops'] / row['seconds'] / 1e12:>10.2f}{row['bytes'] / row['seconds'] / 1e9:>10.0f}"
    wrong = "" if row["error"] < TOLERANCE else "  WRONG"
    return f"{row['case']:<28}{row['contender']:<15}{1e3 * row['seconds']:>10.3f}{rates}{row['error']:>10.1e}{wrong}"


def rivals() -> list[str]:
    """What is installed to compare with."""
    found = []
    for name in ("torch", "triton", "cupy") if _torch() is not None else ("cupy",):
        with contextlib.suppress(ImportError):
            found.append(f"{name} {importlib.import_module(name).__version__}")
    return found


def measure(case: Case) -> list[dict[str, Any]]:
    """A row per contender, polyml's first."""
    device, rng = the_device(), np.random.default_rng(0)
    size = sum(4 * math.prod(shape) for shape in case.shapes)
    sets = [case.arguments(rng) for _ in range(min(MOST_SETS, 1 + -(-2 * L2 // size)))]
    begun = time.perf_counter()
    kernel = polyml.einsum(case.text, target="cuda", dynamic=case.dynamic or "auto").compile(*sets[0])
    compiled = time.perf_counter() - begun
    assert isinstance(kernel, CudaKernel)
    exact = np.asarray(case.numpy(*(a.astype(np.float64) for a in sets[0])))
    scale = max(float(np.max(np.abs(exact))), 1e-30)

    def error(result: object) -> float:
        return float(np.max(np.abs(np.asarray(result) - exact))) / scale

    errors = {"polyml": error(kernel(*sets[0]))}
    with contextlib.ExitStack() as stack:
        results = [np.empty(exact.shape, np.float32) for _ in sets]
        sizes = {n: sets[0][k].shape[d or 0] for n, (k, d) in kernel.signature.size_sources().items()}
        runs = [stack.enter_context(kernel.resident(a, [r], sizes)) for a, r in zip(sets, results, strict=True)]
        contenders: dict[str, list[Run]] = {"polyml": list(runs)}
        try:
            for name, made in others(case, sets):
                try:
                    errors[name] = error(_on_host(made[0]()))
                except Exception as fault:  # another library's contender that fails is no reason to stop
                    print(f"{case.name}: {name} fails: {(str(fault).splitlines() or [''])[0][:100]}", flush=True)
                    continue
                contenders[name] = made
        except Exception as fault:  # nor is one that cannot even begin, as for want of memory
            print(f"{case.name}: the others fail: {(str(fault).splitlines() or [''])[0][:100]}", flush=True)
        times = in_turns(device, contenders)
    return [
        {
            "case": case.name, "contender": name, "seconds": seconds, "flops": case.flops, "bytes": case.bytes,
            "error": errors[name], "family": case.family, "compile_seconds": compiled if name == "polyml" else "",
        }
        for name, seconds in times.items()
    ]  # fmt: skip


def others(case: Case, sets: Sequence[tuple[Array, ...]]) -> Iterator[tuple[str, list[Run]]]:
    """The contenders that are installed, each with a function per set of arguments: torch in f32 without TF32, or else CuPy for what it has the same words for."""
    torch = _torch()
    if torch is None:
        yield from _cupy(case, sets)
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    given = [tuple(torch.from_numpy(a).cuda() for a in arguments) for arguments in sets]
    names = "xyz"[: len(case.shapes)]
    function = eval(f"lambda {', '.join(names)}: {case.torch}", {"torch": torch, "functools": functools})
    yield "torch", [functools.partial(function, *arguments) for arguments in given]
    if case.compile:
        compiled = torch.compile(function)
        yield "torch.compile", [functools.partial(compiled, *arguments) for arguments in given]
    if case.triton:
        with contextlib.suppress(ImportError):
            kernels = importlib.import_module("benchmarks.cuda_triton")
            yield "Triton", [functools.partial(getattr(kernels, case.triton), *arguments) for arguments in given]


def _torch() -> Any:
    """torch, where it is installed and sees the device."""
    with contextlib.suppress(ImportError):
        torch: Any = importlib.import_module("torch")
        return torch if torch.cuda.is_available() else None
    return None


def _cupy(case: Case, sets: Sequence[tuple[Array, ...]]) -> Iterator[tuple[str, list[Run]]]:
    words = {
        "x @ y": lambda cupy, x, y: x @ y,
        "x.clone()": lambda cupy, x: x.copy(),
        "x.sum()": lambda cupy, x: x.sum(),
    }
    with contextlib.suppress(ImportError):
        cupy: Any = importlib.import_module("cupy")
        if case.torch in words:
            given = [tuple(map(cupy.asarray, arguments)) for arguments in sets]
            yield "CuPy", [functools.partial(words[case.torch], cupy, *arguments) for arguments in given]


def _on_host(result: Any) -> Array:
    found: Array = result.get() if hasattr(result, "get") else result.cpu().numpy()
    return found


def in_turns(device: PycudaDevice, contenders: dict[str, list[Run]]) -> dict[str, float]:
    """Median seconds per run, by device events, all on the default stream."""
    driver, found = device.driver, {name: list[float]() for name in contenders}
    device.context.push()  # type: ignore[attr-defined]
    try:
        flush, begin, end = driver.mem_alloc(FLUSHED), driver.Event(), driver.Event()
        for number in range(WARM + ROUNDS):
            for name, runs in contenders.items():
                driver.memset_d8_async(flush, number % 256, FLUSHED)
                begin.record()
                runs[number % len(runs)]()
                end.record()
                end.synchronize()
                if number >= WARM:
                    found[name].append(begin.time_till(end) / 1e3)
        flush.free()
    finally:
        device.context.pop()  # type: ignore[attr-defined]
    return {name: statistics.median(values) for name, values in found.items()}


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What bounds speak of, in ratios of this run."""
    seconds = {(row["case"], row["contender"]): row["seconds"] for row in rows}
    copies = [row["bytes"] / row["seconds"] for row in rows if row["case"] == "copy"]
    for row in rows:
        if row["family"] == "copy bandwidth" and row["contender"] == "polyml" and copies:
            share = row["bytes"] / row["seconds"] / max(copies)
            yield f"{row['case']}: {100 * share:.0f} % of the copy bandwidth ({max(copies) / 1e9:.0f} GB/s)"
    for case, family in dict.fromkeys((row["case"], row["family"]) for row in rows):
        if family != "torch.einsum" and {(case, "polyml"), (case, "torch")} <= seconds.keys():
            yield f"{case}: {seconds[case, 'torch'] / seconds[case, 'polyml']:.2f}x torch"
    both = [
        seconds[row["case"], "torch"] / row["seconds"]
        for row in rows
        if row["family"] == "torch.einsum" and row["contender"] == "polyml" and (row["case"], "torch") in seconds
    ]
    if both:
        yield f"contractions: {statistics.geometric_mean(both):.2f}x torch.einsum (geometric mean of {len(both)}; worst {min(both):.2f})"


def first_calls() -> str:
    """Seconds of a first call in a fresh process, without and with what an earlier one has kept on disk."""
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for _ in range(2):
            environment = os.environ | {"POLYML_CACHE": os.path.join(folder, "cache")}
            command = [sys.executable, "-c", FIRST]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return f"fails: {done.stderr.strip().splitlines()[-1:]}"
            found.append(float(done.stdout.split()[-1]))
    return f"{found[0]:.2f} s, from the disk cache {1e3 * found[1]:.0f} ms"


if __name__ == "__main__":
    sys.exit(main())
