"""Largest errors of the vector math: f32 over all 2^32 inputs, f64 over samples of all exponents; and time per element beside NumPy.

python -m benchmarks.math_accuracy [OP ...] [--step N]     --step N: only every N-th f32 input (odd N walk all exponents and signs)

References: f32 against the C library or NumPy in f64; f64 against NumPy in long double.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from polyml.dtypes import DType, f32, f64
from tests.codegen.llvm.math_kernels import libm_kernel, math_kernel, ulps

CHUNK = 1 << 20
OPS = ("exp", "log", "tanh", "sigmoid", "erf", "sin", "cos")


def reference(op: str) -> Callable[[np.ndarray], np.ndarray]:
    """In f64, of f64."""
    if op == "sigmoid":
        return lambda x: 1 / (1 + np.exp(-x))
    if op == "erf":
        return libm_kernel("erf")
    found: Callable[[np.ndarray], np.ndarray] = getattr(np, op)
    return found


def wide_reference(op: str) -> Callable[[np.ndarray], np.ndarray]:
    """In long double, of long double (erf: of the C library's f64)."""
    if op == "erf":
        return lambda x: libm_kernel("erf")(x.astype(np.float64)).astype(np.longdouble)
    return reference(op)


def single_error(op: str, step: int) -> tuple[float, float, int]:
    """The largest error in ulp, where, and how many results are wrongly NaN or infinite."""
    kernel, exact = math_kernel(op, f32, 16), reference(op)
    worst, at, wrong = 0.0, 0.0, 0
    for start in range(0, 1 << 32, CHUNK * step):
        bits = np.arange(start, min(start + CHUNK * step, 1 << 32), step, dtype=np.uint32)
        x = bits.view(np.float32)
        with np.errstate(all="ignore"):
            errors, bad = ulps(kernel(x), exact(x.astype(np.float64)))
        where = int(errors.argmax())
        if errors[where] > worst:
            worst, at = float(errors[where]), float(x[where])
        wrong += int(bad.sum())
    return worst, at, wrong


def double_error(op: str, count: int = 1_000_000) -> tuple[float, float, int]:
    """As single_error, over random bits and the ranges where results vary."""
    generator = np.random.default_rng(11)
    parts = [
        generator.integers(0, 1 << 64, count, dtype=np.uint64).view(np.float64),
        generator.uniform(-10, 10, count),
        generator.uniform(-1, 1, count),
        generator.uniform(-750, 750, count),
        np.exp(generator.uniform(-40, 40, count)),
        np.arange(1, count) * (np.pi / 2),
    ]
    x = np.concatenate(parts)
    with np.errstate(all="ignore"):
        errors, bad = ulps(math_kernel(op, f64, 8)(x), wide_reference(op)(x.astype(np.longdouble)))
    where = int(errors.argmax())
    return float(errors[where]), float(x[where]), int(bad.sum())


def speed(op: str, dtype: DType) -> str:
    """Best time per element in the first-level cache, ours and NumPy's."""
    low, high = {"log": (0.01, 100.0), "exp": (-20.0, 20.0)}.get(op, (-8.0, 8.0))
    x = np.random.default_rng(0).uniform(low, high, 2048).astype(dtype.numpy)
    y, repeat = np.empty_like(x), 200
    ours = math_kernel(op, dtype, 64 // dtype.itemsize, repeat=repeat)
    text = f"{best_of(lambda: ours(x), 20) / repeat / x.size * 1e9:6.2f} ns"
    other = getattr(np, op, None)
    if other is not None:
        text += f"   numpy {best_of(lambda: other(x, out=y), 2000) / x.size * 1e9:6.2f} ns"
    return text


def best_of(call: Callable[[], object], count: int) -> float:
    """Seconds."""
    best = float("inf")
    for _ in range(count):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*", default=OPS)
    parser.add_argument("--step", type=int, default=1)
    arguments = parser.parse_args()
    for op in arguments.ops:
        for dtype, (worst, at, wrong) in ((f32, single_error(op, arguments.step)), (f64, double_error(op))):
            line = f"{op:8} {dtype}  max {worst:.3f} ulp at {at!r:24} wrong {wrong}"
            print(f"{line:72} {speed(op, dtype)}", flush=True)


if __name__ == "__main__":
    main()
