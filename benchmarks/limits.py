"""What bounds a workload on this machine: bytes over the bandwidth of memory, operations over the FMA peak."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import polyml
from benchmarks.fused_cases import Array
from polyml.runtime.balance import fma_peak

__all__ = ["Stream", "seconds_at_peak"]

MUCH = 8
"""Where inputs are so many times larger than the result nothing but reading is left to measure; where they are so many times smaller, nothing but writing."""


class Stream:
    """A program that does nothing but move memory as a case must: it adds its large inputs up, element by element, or (where the result is much smaller) each row of them; where the
    result is much larger, it fills a result with one row.

    It reads the case's own arrays, which other contenders leave in caches as they do for polyml's kernel. Its stores bypass the caches where that is faster.
    """

    def __init__(self, inputs: Sequence[Array], result: Array) -> None:
        self.bytes = sum(a.nbytes for a in inputs) + result.nbytes
        largest = max(inputs, key=lambda a: a.nbytes)
        if result.nbytes > MUCH * largest.nbytes:
            self.arguments: tuple[Array, ...] = (np.ones(result.shape[-1], np.float32),)
            self.moved = 4 * result.size
            rows = result.size // result.shape[-1]
            text = f'def fill(a: f32["K"]):\n    y: f32["{rows} K"]\n    y[n, k] = a[k]\n    return y\n'
        else:
            alike = [a for a in inputs if (a.shape, a.dtype) == (largest.shape, largest.dtype)]
            self.arguments = tuple(a.reshape(-1, a.shape[-1]) for a in alike)
            read = sum(a.nbytes for a in alike)
            names = [f"a{k}" for k in range(len(alike))]
            declared = ", ".join(f'{name}: {largest.dtype.kind}{8 * largest.itemsize}["N K"]' for name in names)
            terms = " + ".join(f"{name}[n, k]" for name in names)
            place, written = ("n", 0) if read > MUCH * result.nbytes else ("n, k", largest.nbytes)
            self.moved = read + written
            text = f"def move({declared}):\n    y[{place}] = {terms}\n    return y\n"
        self.program = polyml.einsum(text)

    def run(self) -> Array:
        moved: Array = self.program(*self.arguments)
        return moved

    def of_the_case(self, seconds: float) -> float:
        """What the case's bytes take where a run of this takes so long."""
        return seconds * self.bytes / self.moved


def seconds_at_peak(operations: float, threads: int) -> float:
    """What the operations take at the FMA peak of that many cores."""
    return operations / (fma_peak() * threads) if operations else 0.0
