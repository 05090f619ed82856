"""What a call of polyml.einsum costs beside numpy.einsum, on small operands, after the first call.

python -m benchmarks.einsum_calls
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import polyml

CASES = (
    ("ij,jk->ik", 2, 2), ("ij,j->i", 2, 1), ("i,i->", 1, 1), ("i,j->ij", 1, 1), ("ij,ij->ij", 2, 2), ("ij->i", 2), ("ij->ji", 2), ("ii", 2),
    ("bij,bjk->bik", 3, 3), ("...ij,...jk->...ik", 3, 3), ("ij,kj->ik", 2, 2), ("ij,jk,kl->il", 2, 2, 2), (",ij->ij", 0, 2), ("ijk,jil->kl", 3, 3),
)  # fmt: skip
SIZES = (2, 4, 8, 16)
REPEAT, SECONDS = 9, 0.004


def best(calls: list[Callable[[], object]]) -> list[float]:
    """Seconds per call, the best of interleaved batches."""
    numbers = []
    for call in calls:
        call()
        start = time.perf_counter()
        for _ in range(10):
            call()
        numbers.append(max(1, int(SECONDS / ((time.perf_counter() - start) / 10))))
    times = [math.inf] * len(calls)
    for _ in range(REPEAT):
        for k, (call, number) in enumerate(zip(calls, numbers, strict=True)):
            start = time.perf_counter()
            for _ in range(number):
                call()
            times[k] = min(times[k], (time.perf_counter() - start) / number)
    return times


def measure(
    subscripts: str, ranks: tuple[int, ...], size: int, dtype: str, listed: bool = False
) -> tuple[float, float, float]:
    """Seconds per call: polyml, numpy.einsum(optimize=True), numpy.einsum. listed: operands are lists and numbers."""
    rng = np.random.default_rng(0)
    operands: list[Any] = [np.asarray(rng.standard_normal((size,) * rank)).astype(dtype) for rank in ranks]
    if listed:
        operands = [operand.tolist() for operand in operands]
    assert np.allclose(polyml.einsum(subscripts, *operands), np.einsum(subscripts, *operands), atol=1e-3)
    polyml.einsum(subscripts, *operands)
    own, optimized, plain = best(
        [
            lambda: polyml.einsum(subscripts, *operands),
            lambda: np.einsum(subscripts, *operands, optimize=True),
            lambda: np.einsum(subscripts, *operands),
        ]
    )
    return own, optimized, plain


def main() -> int:
    print(f"{'subscripts':<22}{'size':>5}{'polyml':>10}{'optimize=True':>16}{'numpy':>10}{'speedup':>10}{'plain':>8}")
    speedups: list[float] = []
    plains: list[float] = []
    calls = [(*case, size, False) for case in CASES for size in SIZES] + [(*case, 4, True) for case in CASES]
    for subscripts, *ranks, size, listed in calls:
        own, optimized, plain = measure(subscripts, tuple(ranks), size, "f4", listed)
        speedups.append(optimized / own)
        plains.append(plain / own)
        print(
            f"{subscripts + ' (lists)' * listed:<22}{size:>5}{1e9 * own:>7.0f} ns{1e9 * optimized:>13.0f} ns{1e9 * plain:>7.0f} ns{speedups[-1]:>9.2f}x{plains[-1]:>7.2f}x"
        )
    for name, values in (("numpy.einsum(optimize=True)", speedups), ("numpy.einsum", plains)):
        mean = math.exp(sum(map(math.log, values)) / len(values))
        print(f"over {name}: geometric mean {mean:.2f}x, least {min(values):.2f}x")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
