"""Device memory that is kept and used again, and page-locked buffers that copies from and to NumPy go through.

A driver's allocation takes some 100 us, and giving memory back waits for the whole device; so a call takes what an earlier one has left. Work in one queue runs in order,
so memory that a queue has given back serves its next work at once, finished or not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import field

from polyml.records import dataclass

__all__ = ["Pool", "rounded"]

LARGE, GRAIN, LARGE_GRAIN = 32 << 20, 512, 2 << 20
"""Bytes: sizes from LARGE on are multiples of LARGE_GRAIN (a driver's page), others one of eight steps between powers of two, at least GRAIN."""


def rounded(size: int) -> int:
    """The size of the piece that serves `size` bytes."""
    grain = LARGE_GRAIN if size >= LARGE else max(GRAIN, 1 << max(0, size.bit_length() - 4))
    return -(-max(size, 1) // grain) * grain


@dataclass(slots=True)
class Pool:
    """Pieces of device memory by queue and size. allocate: the driver's, None where it has no room; free: the driver's; limit: bytes that may be kept while nobody uses them."""

    allocate: Callable[[int], int | None]
    free: Callable[[int], None]
    limit: int
    sizes: dict[int, int] = field(default_factory=dict)
    idle: dict[tuple[Hashable, int], list[int]] = field(default_factory=dict)
    kept: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def take(self, queue: Hashable, size: int) -> int | None:
        """The address of `size` bytes for work in a queue; None: the device has no room, even after all that is idle went back."""
        size = rounded(size)
        with self.lock:
            found = self.idle.get((queue, size))
            if found:
                self.kept -= size
                return found.pop()
            address = self.allocate(size)
            if address is None and self.kept:
                self.trim()
                address = self.allocate(size)
            if address is not None:
                self.sizes[address] = size
            return address

    def give(self, queue: Hashable, address: int) -> None:
        """The piece back, to be used by the queue's later work."""
        with self.lock:
            size = self.sizes[address]
            if self.kept + size > self.limit:
                del self.sizes[address]
                self.free(address)
                return
            self.kept += size
            self.idle.setdefault((queue, size), []).append(address)

    def trim(self) -> None:
        """All idle pieces back to the driver."""
        with self.lock:
            for address in (address for found in self.idle.values() for address in found):
                del self.sizes[address]
                self.free(address)
            self.idle.clear()
            self.kept = 0
