"""Half precision and complex numbers: einsum calls beside NumPy's, matrix products beside its BLAS (f16, bf16: beside f32), elementwise programs.

python -m benchmarks.element_types          one thread, CPU time, interleaved, medians; OMP_NUM_THREADS=1 is for all of them
"""

from __future__ import annotations

import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence

import numpy as np

import polyml
from polyml.dtypes import DTYPES

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

CALLS: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = (
    ("ij,jk->ik", ((3, 3), (3, 3))), ("ij,jk->ik", ((8, 8), (8, 8))), ("ij,jk->ik", ((16, 16), (16, 16))), ("ij,jk->ik", ((100, 100), (100, 100))),
    ("i,i->", ((16,), (16,))), ("i,i->", ((10_000,), (10_000,))), ("ij,j->i", ((16, 16), (16,))), ("ij,j->i", ((500, 500), (500,))), ("ij->j", ((200, 300),)),
    ("ii->", ((64, 64),)), ("ij,ij->ij", ((16, 16), (16, 16))), ("ij,ij->ij", ((300, 300), (300, 300))), ("ij,ik,kj->ij", ((12, 12),) * 3),
    ("abc,cbd->ad", ((8, 9, 10), (10, 9, 7))), ("i,j->ij", ((64,), (64,))), ("bij,bjk->bik", ((10, 16, 16), (10, 16, 16))),
)  # fmt: skip
ELEMENTWISE = {"x * y": np.multiply, "x / y": np.divide}
REPEAT, SECONDS = 5, 0.08


def values(shape: tuple[int, ...], dtype: str) -> Array:
    rng, kind = np.random.default_rng(0), DTYPES[dtype]
    real = rng.standard_normal(shape)
    return np.asarray(real + 1j * rng.standard_normal(shape) if kind.is_complex else real).astype(kind.numpy)


def times(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Seconds of CPU time per call, medians of interleaved batches."""
    numbers = []
    for call in calls:
        call()
        start = time.thread_time()
        call()
        numbers.append(max(1, int(SECONDS / REPEAT / max(time.thread_time() - start, 1e-7))))
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(REPEAT):
        for mine, call, number in zip(found, calls, numbers, strict=True):
            start = time.thread_time()
            for _ in range(number):
                call()
            mine.append((time.thread_time() - start) / number)
    return [statistics.median(mine) for mine in found]


def einsum_calls(dtype: str) -> str:
    plain, optimized = [], []
    for subscripts, shapes in CALLS:
        operands = [values(shape, dtype) for shape in shapes]
        own, numpys, best = times(
            [
                lambda s=subscripts, o=operands: polyml.einsum(s, *o),
                lambda s=subscripts, o=operands: np.einsum(s, *o),
                lambda s=subscripts, o=operands: np.einsum(s, *o, optimize=True),
            ]
        )
        plain.append(numpys / own)
        optimized.append(best / own)
    parts = [f"{_mean(found):.1f} (least {min(found):.2f})" for found in (plain, optimized)]
    return f"{dtype}: numpy.einsum takes {parts[0]} times as long, with optimize=True {parts[1]}"


def products(dtype: str, size: int) -> str:
    x, y = values((size, size), dtype), values((size, size), dtype)
    half = DTYPES[dtype].is_half
    wide = (x.astype(np.float32), y.astype(np.float32)) if half else (x, y)
    own, other = times(
        [
            lambda: polyml.einsum("ij,jk->ik", x, y, threads=1),
            (lambda: polyml.einsum("ij,jk->ik", *wide, threads=1)) if half else lambda: x @ y,
        ]
    )
    speed = (2 if half else 8) * size**3 / own / 1e9
    return f"{dtype} {size}: {speed:.0f} GFLOP/s, {'f32' if half else 'BLAS'} takes {other / own:.2f} times as long"


def elementwise(dtype: str, size: int) -> str:
    x, y = values((size,), dtype), values((size,), dtype)
    parts = []
    for text, numpys in ELEMENTWISE.items():
        body = text.replace("x", "x[i]").replace("y", "y[i]")
        source = f'def f(x: {dtype}["N"], y: {dtype}["N"]):\n    z[i] = {body}\n    return z\n'
        program = polyml.einsum(source, threads=1)
        own, other = times([lambda p=program: p(x, y), lambda n=numpys: n(x, y)])
        parts.append(f"{text} {other / own:.1f}")
    return f"{dtype}, {size} elements: NumPy takes {', '.join(parts)} times as long"


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def main() -> int:
    warnings.simplefilter("ignore")
    for dtype in ("c64", "c128", "f16"):
        print(einsum_calls(dtype), flush=True)
    for dtype in ("c64", "c128", "f16", "bf16"):
        for size in (64, 256, 512):
            print(products(dtype, size), flush=True)
    for dtype in ("c64", "c128", "f16", "bf16"):
        for size in (1000, 100_000, 4_000_000):
            print(elementwise(dtype, size), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
