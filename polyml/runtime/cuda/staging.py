"""Copies between NumPy arrays and the device: as they are, or by way of page-locked buffers that take turns, so that the processor fills one while the device empties the other.

Which is faster depends on the machine and on the size, so both are timed: per direction and power of two the first calls alternate, later ones take what was faster.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import field
from types import ModuleType
from typing import Any

import numpy as np

from polyml.records import dataclass
from polyml.runtime.arguments import Array

__all__ = ["LEAST", "Routes", "Staging"]

LEAST = 64 << 10
"""Bytes below which the driver's own copy is always taken: it goes through its own buffer then."""

CHUNK = 2 << 20
"""Bytes of a buffer: a millisecond's tenth on a bus of 20 GB/s, which hides what starting a copy costs."""

SAMPLES = 3


@dataclass(slots=True)
class Routes:
    """What copies have taken: per direction and power of two, seconds of each way. clock: of the measurement."""

    clock: Callable[[], float] = time.perf_counter
    seconds: dict[tuple[str, int], tuple[list[float], list[float]]] = field(default_factory=dict)

    def staged(self, direction: str, size: int) -> tuple[bool, list[float] | None]:
        """Whether to go through buffers, and where to put how long it takes (None: enough is known)."""
        if size < LEAST:
            return False, None
        plain, staged = self.seconds.setdefault((direction, size.bit_length()), ([], []))
        if len(staged) < SAMPLES:
            way = len(staged) < len(plain)
            return way, staged if way else plain
        return statistics.median(staged) < statistics.median(plain), None


@dataclass(slots=True)
class Staging:
    """Copies through pycuda. buffers: two page-locked ones with the event behind the last copy of each; () before the first, None where there is no memory for them."""

    driver: ModuleType
    routes: Routes = field(default_factory=Routes)
    buffers: tuple[tuple[Array, Any], ...] | None = ()
    lock: threading.Lock = field(default_factory=threading.Lock)

    def to_device(self, address: int, array: Array, stream: Any) -> None:
        """Copies a contiguous array; on return the array may change, and the copy is behind what the stream had to do.

        Args:
            stream: pycuda's, or None for the default one.
        """
        self._copy("in", array, stream, lambda way: self._in(address, array, stream, way))

    def to_host(self, array: Array, address: int, stream: Any) -> None:
        """Copies to a contiguous array, behind what the stream had to do, and waits for it."""
        self._copy("out", array, stream, lambda way: self._out(array, address, stream, way))

    def _copy(self, direction: str, array: Array, stream: Any, run: Callable[[bool], None]) -> None:
        staged, times = self.routes.staged(direction, array.nbytes)
        if times is None:
            run(staged)
            return
        self._wait(stream)
        start = self.routes.clock()
        run(staged)
        self._wait(stream)
        times.append(self.routes.clock() - start)

    def _wait(self, stream: Any) -> None:
        if stream is None:
            self.driver.Context.synchronize()
        else:
            stream.synchronize()

    def _in(self, address: int, array: Array, stream: Any, staged: bool) -> None:
        buffers = self._buffers() if staged else None
        if buffers is None:
            if stream is None:
                self.driver.memcpy_htod(address, array)
            else:
                self.driver.memcpy_htod_async(address, array, stream)
            return
        source = _bytes(array)
        with self.lock:
            for number, start in enumerate(range(0, source.size, CHUNK)):
                buffer, copied = buffers[number % 2]
                part = buffer[: min(CHUNK, source.size - start)]
                copied.synchronize()
                np.copyto(part, source[start : start + part.size])
                self.driver.memcpy_htod_async(address + start, part, stream)
                copied.record(stream)

    def _out(self, array: Array, address: int, stream: Any, staged: bool) -> None:
        buffers = self._buffers() if staged else None
        if buffers is None:
            if stream is None:
                self.driver.memcpy_dtoh(array, address)
            else:
                self.driver.memcpy_dtoh_async(array, address, stream)
                stream.synchronize()
            return
        target = _bytes(array)
        with self.lock:
            waiting: list[tuple[int, Array, Any]] = []
            for number, start in enumerate(range(0, target.size, CHUNK)):
                buffer, copied = buffers[number % 2]
                part = buffer[: min(CHUNK, target.size - start)]
                copied.synchronize()
                self.driver.memcpy_dtoh_async(part, address + start, stream)
                copied.record(stream)
                waiting.append((start, part, copied))
                if number:
                    self._land(target, *waiting.pop(0))
            for last in waiting:
                self._land(target, *last)

    def _land(self, target: Array, start: int, part: Array, copied: Any) -> None:
        copied.synchronize()
        np.copyto(target[start : start + part.size], part)

    def _buffers(self) -> tuple[tuple[Array, Any], ...] | None:
        with self.lock:
            if self.buffers == ():
                try:
                    self.buffers = tuple(
                        (self.driver.pagelocked_empty(CHUNK, np.uint8), self.driver.Event()) for _ in range(2)
                    )
                except self.driver.MemoryError:
                    self.buffers = None
            return self.buffers


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
