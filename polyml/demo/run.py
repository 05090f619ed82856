"""The demo's three acts: learning, a table against NumPy, and one kernel shown stage by stage."""

from __future__ import annotations

import functools
import sys
import time

import numpy as np

import polyml
from polyml.demo.digits import train
from polyml.demo.measure import SETTLING, interleaved
from polyml.demo.showcase import SHOWCASES
from polyml.options import overridden
from polyml.runtime.cuda.pycuda_device import missing_parts

__all__ = ["run"]

PICTURED = """
def dense(x: f32["N K"], w: f32["K M"], b: f32["M"]):
    y[n, m] = relu(x[n, k] * w[k, m] + b[m])
    return y
"""


def run(target: str = "host") -> int:
    """Runs the demo and prints as it goes; the exit status is 0 when every result was right, and 1 where the target cannot run."""
    if target == "cuda" and (missing := missing_parts()):
        _say("The demo cannot run on a GPU here:")
        for part, remedy in missing:
            _say(f"  {part}\n    -> {remedy}")
        return 1
    with overridden(target=target):
        return _acts()


def _acts() -> int:
    start = time.perf_counter()
    _say("1. Learning to read 1,797 handwritten digits (UCI), every kernel compiled by polyml")
    outcome = train(_say)
    _say(
        f"  {outcome.tested} test digits: {100 * outcome.accuracy:.1f} % read right; {outcome.seconds:.1f} s in all, "
        f"of which the first step, with its compilation, {1e3 * outcome.compile_seconds:.0f} ms"
    )
    _say("\n2. Kernels side by side with NumPy in float32, one run; errors against NumPy in float64")
    right = _table()
    _say("\n3. One program at every stage: y[n, m] = relu(x[n, k] * w[k, m] + b[m])")
    _stages()
    _say(f"\nDone in {time.perf_counter() - start:.1f} s.")
    return 0 if right and outcome.accuracy > 0.95 else 1


def _table() -> bool:
    _say(f"  {'kernel':<20}{'max error':>11}{'compile':>11}{'NumPy':>11}{'polyml':>11}{'speedup':>9}")
    right = True
    for case in SHOWCASES:
        arguments = case.arguments(np.random.default_rng(1))
        compiled = polyml.einsum(case.text)
        before = time.perf_counter()
        result = compiled(*arguments)
        compile_seconds = time.perf_counter() - before
        exact = case.numpy(*(a.astype(np.float64) for a in arguments))
        error = float(np.max(np.abs(result.astype(np.float64) - exact)))
        # An argmin may tell apart two centres whose distances agree in all digits of float32: a share of the points, not a distance.
        error = float(np.mean(result != exact)) if result.dtype.kind == "i" else error
        right &= error < 1e-3
        times = interleaved(
            {"numpy": functools.partial(case.numpy, *arguments), "polyml": functools.partial(compiled, *arguments)},
            settle=SETTLING,
        )
        _say(
            f"  {case.name:<20}{error:>11.1e}{1e3 * compile_seconds:>8.0f} ms{1e3 * times['numpy']:>8.2f} ms"
            f"{1e3 * times['polyml']:>8.2f} ms{times['numpy'] / times['polyml']:>8.1f}x"
        )
    return right


def _stages() -> None:
    rng = np.random.default_rng(2)
    arguments = [rng.standard_normal(shape, dtype=np.float32) for shape in ((64, 48), (48, 80), (80,))]
    lowered = polyml.einsum(PICTURED).lower(*arguments)
    for what in ("domains", "dependences", "schedule", "loops"):
        _say(f"\n--- {what} ---")
        _say(lowered.text(what))


def _say(text: str) -> None:
    print(text)
    sys.stdout.flush()
