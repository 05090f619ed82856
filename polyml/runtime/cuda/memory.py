"""Device memory of one call."""

from __future__ import annotations

from contextvars import ContextVar

import numpy as np

from polyml.runtime.arguments import Array
from polyml.runtime.cuda.device import Queue

__all__ = ["ALIGNMENT", "ON_DEVICE", "STREAMS", "Memory"]

ALIGNMENT = 16
"""Bytes: of the first element of every array that a kernel sees."""

ON_DEVICE: ContextVar[frozenset[int]] = ContextVar("polyml_on_device", default=frozenset())
"""The ids of arrays whose memory is a device's, during a call: only their addresses, shapes and types may be looked at."""

STREAMS: ContextVar[frozenset[int]] = ContextVar("polyml_streams", default=frozenset())
"""The streams that these arrays are used on, by their handles."""


class Memory:
    """Device memory of one call, by buffer; what was allocated is given back at the end, however it ends."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.addresses: dict[str, int] = {}
        self.theirs: set[str] = set()

    def release(self) -> None:
        for name in list(self.addresses):
            self.free(name)

    def allocate(self, name: str, size: int) -> int:
        self.addresses[name] = self.queue.allocate(max(size, 1))
        return self.addresses[name]

    def free(self, name: str) -> None:
        address = self.addresses.pop(name)
        if name not in self.theirs:
            self.queue.free(address)

    def room(self, name: str, array: Array) -> bool:
        """A place for the array: its own, if it is on the device, and where vectors can be read. *Returns* whether it is."""
        if id(array) not in ON_DEVICE.get() or array.ctypes.data % ALIGNMENT:
            self.allocate(name, array.nbytes)
            return False
        self.addresses[name] = array.ctypes.data
        self.theirs.add(name)
        return True

    def put(self, name: str, array: Array) -> None:
        if self.room(name, array) or not array.size:
            return
        if id(array) in ON_DEVICE.get():
            self.queue.on_device(self.addresses[name], array.ctypes.data, array.nbytes)
        else:
            self.queue.to_device(self.addresses[name], np.ascontiguousarray(array))

    def get(self, name: str, array: Array) -> None:
        if not array.size or name in self.theirs:
            return
        if id(array) in ON_DEVICE.get():
            self.queue.on_device(array.ctypes.data, self.addresses[name], array.nbytes)
            return
        if array.flags.c_contiguous:
            self.queue.to_host(array, self.addresses[name])
            return
        copy = np.empty(array.shape, array.dtype)
        self.queue.to_host(copy, self.addresses[name])
        np.copyto(array, copy)
