"""A Device whose kernels are run by g++'s code on this machine (cuda_emulator.h says how)."""

from __future__ import annotations

import ctypes
import itertools
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyml.gpu_core import Limits
from polyml.runtime.cuda.device import CudaCode
from tests.cuda.emulator.build import library_bytes

__all__ = ["EmulatedDevice", "EmulatedModule", "EmulationFault", "build", "build_together"]

FAULTS = {1: "a barrier that not all threads reach", 2: "an access outside of the arrays", 3: "a shuffle from no lane"}


class EmulationFault(AssertionError):
    """A kernel did what a GPU does not allow."""


def build(*texts: str) -> ctypes.CDLL:
    """The kernels of a text, or of several, loaded."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(library_bytes(*texts))
        file.flush()
        return ctypes.CDLL(file.name)


@dataclass(slots=True)
class EmulatedModule:
    """Loaded kernels. orders: the orders of warps and blocks to run launches in, by turns. launches: how many there were. most: blocks per axis,
    where fewer than are asked for must do too. suffix: of its kernels' names in the library."""

    library: ctypes.CDLL
    orders: itertools.cycle[int] = field(default_factory=lambda: itertools.cycle((0, 1, 2, 3)))
    launches: int = 0
    most: tuple[int, int, int] | None = None
    suffix: str = ""

    def run(
        self,
        name: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        pointers: Sequence[int],
        sizes: Sequence[int],
    ) -> None:
        words = [*pointers, *(size % 2**64 for size in sizes)]
        dims = (ctypes.c_uint * 6)(*map(min, grid, self.most or grid), *block)
        packed = (ctypes.c_ulonglong * max(1, len(words)))(*words)
        self.launches += 1
        order = next(self.orders)
        status = self.library[f"launch_{name}{self.suffix}"](dims, ctypes.c_uint(order), packed)
        if status != 0:
            raise EmulationFault(f"{name}, order {order}: {FAULTS[status]}")


def build_together(texts: Sequence[str]) -> dict[str, EmulatedModule]:
    """Modules for a device, by text, from one library: variants of a program are built in the time of a few."""
    library = build(*texts)
    suffixes = [f"_{number}" for number in range(len(texts))] if len(texts) > 1 else [""]
    return {text: EmulatedModule(library, suffix=suffix) for text, suffix in zip(texts, suffixes, strict=True)}


@dataclass(slots=True)
class EmulatedDevice:
    """modules: libraries built ahead, by text; others are built when they are loaded. live: bytes per allocation that is not freed yet.
    events: queues for other libraries' streams, and what was waited for. limits: of a block and a grid."""

    modules: dict[str, EmulatedModule] = field(default_factory=dict)
    live: dict[int, int] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    support: ctypes.CDLL | None = None
    limits: Limits = field(default_factory=Limits)

    def load(self, code: CudaCode) -> EmulatedModule:
        found = self.modules.get(code.text)
        if found is None:
            found = self.modules[code.text] = EmulatedModule(build(code.text))
        self.use(found.library)
        return found

    def use(self, library: ctypes.CDLL) -> None:
        """Memory comes from the first library."""
        if self.support is None:
            library.emu_malloc.restype = ctypes.c_void_p
            library.emu_malloc.argtypes = [ctypes.c_size_t]
            library.emu_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
            self.support = library

    def allocate(self, size: int) -> int:
        assert self.support is not None
        address = self.support.emu_malloc(size)
        if not address:
            raise MemoryError(f"no {size} bytes")
        self.live[address] = size
        return int(address)

    def free(self, address: int) -> None:
        assert self.support is not None
        self.support.emu_free(address, self.live.pop(address))

    def to_device(self, address: int, array: np.ndarray) -> None:
        assert array.flags.c_contiguous
        assert array.nbytes <= self.live[address]
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def on_device(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    def launch(self, module: EmulatedModule, name: str, *given: Any) -> None:
        module.run(name, *given)

    def queue(self, streams: Collection[int] = ()) -> EmulatedDevice:
        """Work is done at once, so that the device is its own queue."""
        self.events += [f"behind {stream}" for stream in sorted(streams) if stream not in (0, 1)]
        return self

    def close(self) -> None: ...

    def finish(self) -> None:
        self.events.append("finish")

    def to_host(self, array: np.ndarray, address: int) -> None:
        assert array.flags.c_contiguous
        assert array.nbytes <= self.live[address]
        ctypes.memmove(array.ctypes.data, address, array.nbytes)
