"""Memory of large results, used again once nobody holds it.

A fresh array of many megabytes is not there yet: the system clears its pages when they are first written, which takes as long as many kernels do (a 64 MB result: 8 ms of computing and
9 to 80 ms of page faults). So large results are views of buffers that are kept: at most `KEPT` bytes of them (a sixteenth of memory), the least recently used go first. A buffer is free when nothing but the
pool refers to it, since every view of a result, and every view of that, refers to the buffer. Results that are not small start at a page.

Where somebody holds more results than that and lets go of the oldest as new ones come, the least recently used buffer is the one that is free next: of buffers in use any may go.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from math import prod
from pathlib import Path

import numpy as np

from polyml.runtime.arguments import Array

__all__ = ["ALIGNED", "LARGE", "empty", "empty_at"]

LARGE = 4 << 20
"""Bytes: smaller arrays are recycled by malloc itself."""

ALIGNED = LARGE // 64
"""Bytes from which on a result starts at a page. malloc's arrays start 16 bytes behind one (numpy's large ones, too): then every vector that is stored belongs to two lines. At the next line, 48 bytes further into their pages than
the operands, loads take what an earlier iteration stores for the same place, since processors compare twelve bits of addresses first (Intel's optimization manual: 4-KByte aliasing), and wait."""


def _sixteenth_of_memory() -> int:
    """Bytes, of what this process may use: the machine's memory, or its container's."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        text = ""
    return (min(memory, int(text)) if text.isdigit() else memory) // 16


KEPT = max(256 << 20, _sixteenth_of_memory())
"""Bytes that the pool holds on to, in use or not; a larger result is not pooled."""

ALIGNMENT = 4096

_GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, less whole numbers, lie evenly, wherever one begins (Knuth, "The art of computer programming", section 6.4)."""

_FREE = 2
"""References to a buffer that only the pool holds: the list's, and that of the question."""


class _Pool:
    def __init__(self) -> None:
        self.lock = threading.RLock()  # the garbage collector may run somebody's kernel in between
        self.buffers: list[Array] = []  # least recently used first
        self.forgotten = 0  # that were in use

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        size = prod(shape) * dtype.itemsize
        with self.lock:
            buffer = self._free(size)
            if buffer is None:
                buffer = self._fresh(size)
            self.buffers.append(buffer)
        return _aligned(buffer, shape, dtype)

    def _free(self, size: int) -> Array | None:
        """A free buffer that is large enough, and not much larger, out of the list."""
        for position in range(len(self.buffers)):
            room = self.buffers[position].nbytes - ALIGNMENT
            if size <= room <= size + size // 4 and sys.getrefcount(self.buffers[position]) == _FREE:
                return self.buffers.pop(position)
        return None

    def _fresh(self, size: int) -> Array:
        """A new buffer, after older ones have made room for it."""
        while self.buffers and sum(buffer.nbytes for buffer in self.buffers) + size > KEPT:
            del self.buffers[self._dispensable()]
        return np.empty(size + ALIGNMENT, np.uint8)

    def _dispensable(self) -> int:
        """The least recently used buffer where it is free; else one of those in use, each time another."""
        used = [k for k in range(len(self.buffers)) if sys.getrefcount(self.buffers[k]) != _FREE]
        if not used or used[0]:
            return 0
        self.forgotten += 1
        return used[int(self.forgotten * _GOLDEN % 1 * len(used))]


_POOL = _Pool()


def _in_child() -> None:
    """Another thread may have held the lock when the process was forked."""
    _POOL.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def empty(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """numpy.empty, from kept memory where the array is large, and at a page where it is not small."""
    size = prod(shape) * dtype.itemsize
    if LARGE <= size <= KEPT:
        return _POOL.empty(shape, dtype)
    if size < ALIGNED:
        return np.empty(shape, dtype)
    try:
        memory = np.empty(size + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError):  # the latter for more bytes than an address can count
        raise MemoryError(f"no memory for a result of {dtype} {shape}") from None
    return _aligned(memory, shape, dtype)


def _aligned(buffer: Array, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """The array that starts at the first page of these bytes."""
    start = -buffer.ctypes.data % ALIGNMENT
    view: Array = buffer[start : start + prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
    return view


def empty_at(rank: int, dtype: np.dtype[np.generic], address: int) -> Array:
    """The same for a shape that lies at an address, as i64."""
    return empty(tuple((ctypes.c_int64 * rank).from_address(address)), dtype)
