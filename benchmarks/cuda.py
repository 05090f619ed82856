"""Programs on a GPU, each checked against NumPy in float64, and timed with device events; CuPy and torch beside them where they are installed.

    python -m benchmarks.cuda [--only NAME,...] [--csv FILE]

Arguments stay on the device. Each time is the median of rounds in which the contenders take turns, after one warm-up round. The L2 cache is overwritten before each
measurement. Needs a GPU, nvcc and pycuda; it says what is missing.
"""

from __future__ import annotations

import argparse
import csv
import functools
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import polyml
from polyml.demo.showcase import SHOWCASES
from polyml.runtime.cuda import PycudaDevice, device_names, missing_parts, the_device
from polyml.runtime.cuda_program import CudaKernel

Array = NDArray[np.generic]
ROUNDS, FLUSHED = 20, 256 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """name, text: the program. arguments: its f32 inputs. numpy: the same function. flops, bytes: at least needed. torch: the same with torch tensors, as text."""

    name: str
    text: str
    arguments: Callable[[np.random.Generator], tuple[Array, ...]]
    numpy: Callable[..., Array]
    flops: float
    bytes: float
    torch: str


def _normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape, dtype=np.float32)


MATMUL = 'def matmul(x: f32["N K"], w: f32["K M"]):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n'
POINTWISE = 'def bias_gelu(x: f32["N K"], b: f32["K"], r: f32["N K"]):\n    y[n, k] = gelu(x[n, k] + b[k]) + r[n, k]\n    return y\n'
COPY = 'def copy(x: f32["N"]):\n    y[n] = x[n]\n    return y\n'
_SHOWN = {case.name: case for case in SHOWCASES}
_BIG = 8192


def _gelu(x: Array, b: Array, r: Array) -> Array:
    erf = np.vectorize(__import__("math").erf)
    z = x + b
    return 0.5 * z * (1 + erf(z * 0.7071067811865476)) + r


CASES: tuple[Case, ...] = (
    Case("copy", COPY, lambda rng: (_normal(rng, 1 << 26),), lambda x: x.copy(), 0, 2 * 4 * (1 << 26), "x.clone()"),
    Case(
        "matmul 4096", MATMUL, lambda rng: (_normal(rng, 4096, 4096), _normal(rng, 4096, 4096)), np.matmul,
        2 * 4096**3, 3 * 4 * 4096**2, "x @ y",
    ),
    Case(
        "bias, gelu, residual", POINTWISE, lambda rng: (_normal(rng, 4096, 4096), _normal(rng, 4096), _normal(rng, 4096, 4096)), _gelu,
        0, 3 * 4 * 4096**2, "torch.nn.functional.gelu(x + y) + z",
    ),
    Case("softmax", _SHOWN["softmax"].text, lambda rng: (_normal(rng, _BIG, _BIG),), _SHOWN["softmax"].numpy, 0, 2 * 4 * _BIG**2, "torch.softmax(x, 1)"),
    Case(
        "layer norm", _SHOWN["layer norm"].text, lambda rng: (_normal(rng, _BIG, _BIG), _normal(rng, _BIG), _normal(rng, _BIG)),
        _SHOWN["layer norm"].numpy, 0, 2 * 4 * _BIG**2, "torch.nn.functional.layer_norm(x, x.shape[1:], y, z)",
    ),
    Case(
        "attention", _SHOWN["attention"].text, lambda rng: tuple(_normal(rng, 4, 16, 1024, 64) for _ in range(3)), _SHOWN["attention"].numpy,
        4 * 4 * 16 * 1024**2 * 64, 4 * 4 * 4 * 16 * 1024 * 64, "torch.softmax(x @ y.transpose(-1, -2) / 8, -1) @ z",
    ),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cases; 0 when all results are right, 1 when one is wrong or something is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda")
    parser.add_argument("--only", default="", help="names of cases, separated by commas")
    parser.add_argument("--csv", help="a file for the table")
    chosen = parser.parse_args(arguments)
    if missing := missing_parts():
        for part, remedy in missing:
            print(f"{part}\n  -> {remedy}")
        return 1
    print(", ".join(device_names()))
    wanted = [case for case in CASES if not chosen.only or case.name in chosen.only.split(",")]
    rows = [row for case in wanted for row in _measure(case)]
    print(f"{'case':<22}{'contender':<14}{'ms':>10}{'TFLOP/s':>10}{'GB/s':>10}{'error':>10}")
    for name, contender, seconds, flops, size, error in rows:
        rates = f"{flops / seconds / 1e12:>10.2f}{size / seconds / 1e9:>10.0f}"
        print(f"{name:<22}{contender:<14}{1e3 * seconds:>10.3f}{rates}{error:>10.1e}")
    if chosen.csv:
        with open(chosen.csv, "w", newline="") as stream:
            csv.writer(stream).writerows([("case", "contender", "seconds", "flops", "bytes", "error"), *rows])
    return 0 if all(row[-1] < 1e-2 for row in rows) else 1


Row = tuple[str, str, float, float, float, float]


def _measure(case: Case) -> list[Row]:
    device = the_device()
    arguments = case.arguments(np.random.default_rng(0))
    kernel = polyml.einsum(case.text, target="cuda").compile(*arguments)
    assert isinstance(kernel, CudaKernel)
    result = kernel(*arguments)
    exact = case.numpy(*(a.astype(np.float64) for a in arguments))
    scale = float(np.max(np.abs(exact)))
    errors = {"polyml": float(np.max(np.abs(result - exact))) / scale}
    with kernel.resident(arguments, [np.empty_like(result)], {}) as run:
        contenders: dict[str, Callable[[], object]] = {"polyml": run}
        other = _torch(case, arguments)
        if other is not None:
            contenders["torch"] = other
            errors["torch"] = float(np.max(np.abs(other().cpu().numpy() - exact))) / scale  # type: ignore[attr-defined]
        times = _times(device, contenders)
    return [(case.name, name, seconds, case.flops, case.bytes, errors[name]) for name, seconds in times.items()]


def _torch(case: Case, arguments: Sequence[Array]) -> Callable[[], object] | None:
    """The case in torch (f32 without TF32), or None."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    torch.backends.cuda.matmul.allow_tf32 = False
    tensors = dict(zip("xyz", (torch.from_numpy(a).cuda() for a in arguments), strict=False))
    return functools.partial(eval, compile(case.torch, case.name, "eval"), {"torch": torch, **tensors})


def _times(device: PycudaDevice, contenders: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds per run, by device events."""
    driver, found = device.driver, {name: [] for name in contenders}
    device.context.push()  # type: ignore[attr-defined]
    try:
        flush, begin, end = driver.mem_alloc(FLUSHED), driver.Event(), driver.Event()
        for number in range(ROUNDS + 1):
            for name, run in contenders.items():
                driver.memset_d8(flush, number % 256, FLUSHED)
                begin.record()
                run()
                end.record()
                end.synchronize()
                if number:
                    found[name].append(begin.time_till(end) / 1e3)
    finally:
        device.context.pop()  # type: ignore[attr-defined]
    return {name: statistics.median(values) for name, values in found.items()}


if __name__ == "__main__":
    sys.exit(main())
