"""What a call costs: dispatch on 8x8 operands, with `out=` and without, beside numpy.add and numpy.einsum, the first call of a small program, and the import.

python -m benchmarks.calls
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

SMALL = """
def small(x: f32["N M"], y: f32["N M"]):
    z[n, m] = x[n, m] + y[n, m]
    return z
"""
SEVERAL = """
def several(x: f32["N M"], y: f32["N M"]):
    a[n, m] = x[n, m] + y[n, m]
    b[n, m] = x[n, m] - y[n, m]
    c[n, m] = x[n, m] * y[n, m]
    return a, b, c
"""
DENSE = """
def dense(x: f32["N K"], w: f32["K M"], b: f32["M"]):
    y[n, m] = relu(x[n, k] * w[k, m] + b[m])
    return y
"""


def best_of(calls: dict[str, Callable[[], object]], repeat: int = 60, number: int = 2000) -> dict[str, float]:
    """Median seconds per call over `repeat` interleaved batches."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeat):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(number):
                call()
            times[name].append((time.perf_counter() - start) / number)
    return {name: statistics.median(values) for name, values in times.items()}


def in_fresh_process(code: str, *, cached: bool, processes: int = 7) -> tuple[float, float]:
    """Medians over some processes of the two floats that `code` prints. Modules are compiled beforehand, as those of an installed package are, and kernels
    too where they are `cached`."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        variables["PYTHONPYCACHEPREFIX"] = folder
        variables["POLYML_CACHE"] = f"{folder}/kernels" if cached else "0"
        runs = [
            subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=variables)
            for _ in range(processes + 1)
        ]
    found = [tuple(map(float, run.stdout.split())) for run in runs[1:]]
    return statistics.median(wall for wall, _ in found), statistics.median(cpu for _, cpu in found)


def report(title: str, setup: str, statement: str, *, cached: bool = False) -> None:
    """Wall and CPU time of a statement in a fresh process; they differ where others use the cores."""
    code = (
        f"import time; {setup}; wall, cpu = time.perf_counter(), time.process_time(); {statement}; "
        "print(time.perf_counter() - wall, time.process_time() - cpu)"
    )
    wall, cpu = in_fresh_process(code, cached=cached)
    print(f"{title:<32}{1e3 * wall:>6.0f} ms wall{1e3 * cpu:>6.0f} ms CPU")


def main() -> int:
    import polyml

    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((8, 8), dtype=np.float32) for _ in range(2))
    add = polyml.einsum(SMALL)
    kernel = add.compile(x, y)
    several, out, outs = polyml.einsum(SEVERAL), np.empty_like(x), tuple(np.empty_like(x) for _ in range(3))
    several(x, y)
    assert np.array_equal(add(x, y), x + y)
    calls: dict[str, Callable[[], object]] = {
        "numpy.add": lambda: np.add(x, y),
        "polyml program": lambda: add(x, y),
        "polyml kernel": lambda: kernel(x, y),
        "one in out=": lambda: add(x, y, out=out),
        "three results": lambda: several(x, y),
        "three in out=": lambda: several(x, y, out=outs),
        "numpy.einsum": lambda: np.einsum("ij,ij->ij", x, y),
    }
    times = best_of(calls)
    for name, seconds in times.items():
        print(f"{name:<20}{1e9 * seconds:>9.0f} ns{seconds / times['numpy.add']:>8.2f} x numpy.add")
    for title, statement in (("import numpy", "import numpy"), ("import polyml", "import polyml")):
        report(title, "pass", statement)
    for title, text, shapes in (("x + y", SMALL, ((8, 8), (8, 8))), ("relu(x @ w + b)", DENSE, ((8, 5), (5, 7), (7,)))):
        setup = (
            f"import numpy as np, polyml; f = polyml.einsum({text!r}); a = [np.ones(s, np.float32) for s in {shapes!r}]"
        )
        report(f"first call of {title}", setup, "f(*a)")
        report("the same, from the cache", f"{setup}; import polyml.runtime.cache.kernels", "f(*a)", cached=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
