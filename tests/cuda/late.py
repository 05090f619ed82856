"""pycuda's driver as far as polyml.runtime.cuda.pycuda_device calls it, on the emulator, with every stream's work done when somebody waits: that stream's alone, or what all others have first.

Work of streams that no event and no rule of the legacy default stream puts in order is done in the wrong one, so that an order that is missing shows.

Source: NVIDIA, CUDA Driver API, "Stream synchronization behavior", "Event Management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from polyml.gpu_core import Limits
from polyml.runtime.cuda.pycuda_device import PycudaDevice
from tests.cuda.emulator.device import EmulatedDevice, EmulatedModule, build

__all__ = ["LateDriver", "late_device"]

DEFAULT = 0


class LateDriver:
    """queues: what each stream has still to do, by its handle. ours: streams made here, which are in order with the default one; others are not.
    others_first: whoever waits for one stream finds that all others have gone on as far as they may, else not at all."""

    MemoryError = MemoryError

    def __init__(self) -> None:
        self.others_first = False
        self.memory, self.queues, self.ours = EmulatedDevice(), dict[int, list[Callable[[], object]]](), set[int]()
        self.modules: dict[bytes, EmulatedModule] = {}
        self.Context = SimpleNamespace(synchronize=self.wait_for_all)

    # -- order --------------------------------------------------------------------------------------------------------------------

    def submit(self, handle: int, work: Callable[[], object]) -> None:
        """Behind the stream's own work; for the default stream and ours behind the other's, too."""
        behind = [DEFAULT] if handle in self.ours else sorted(self.ours) if handle == DEFAULT else []
        ahead = [self.mark(other) for other in behind]
        self.queues.setdefault(handle, []).append(lambda: (*(wait() for wait in ahead), work())[-1])

    def mark(self, handle: int) -> Callable[[], object]:
        """A wait for what the stream has now."""
        queue = self.queues.setdefault(handle, [])
        last = queue[-1] if queue else None

        def wait() -> None:
            if last is not None:
                while any(work is last for work in queue):
                    queue.pop(0)()

        return wait

    def behind(self, later: int, earlier: int) -> None:
        """What polyml.runtime.cuda.streams does with an event."""
        wait = self.mark(earlier)
        self.queues.setdefault(later, []).append(wait)

    def synchronize(self, handle: int) -> None:
        if self.others_first:
            self.wait_for_all(but=handle)
        queue = self.queues.setdefault(handle, [])
        while queue:
            queue.pop(0)()

    def wait_for_all(self, but: int | None = None) -> None:
        for handle in sorted(self.queues, reverse=True):
            while handle != but and self.queues[handle]:
                self.queues[handle].pop(0)()

    # -- what pycuda has ----------------------------------------------------------------------------------------------------------

    def push(self) -> None: ...

    def pop(self) -> None: ...

    def Stream(self) -> object:
        handle = 1000 + len(self.ours)
        self.ours.add(handle)
        return SimpleNamespace(handle=handle, synchronize=lambda: self.synchronize(handle))

    def mem_alloc(self, size: int) -> object:
        return _Allocation(self.memory, self.memory.allocate(size))

    def memcpy_htod(self, address: int, array: np.ndarray) -> None:
        self.memcpy_htod_async(address, array, None)
        self.synchronize(DEFAULT)

    def memcpy_htod_async(self, address: int, array: np.ndarray, stream: Any) -> None:
        """Of memory that is not page-locked: the driver has read it on return."""
        taken = array.tobytes()
        self.submit(stream.handle if stream else DEFAULT, lambda: ctypes.memmove(address, taken, len(taken)))

    def memcpy_dtoh(self, array: np.ndarray, address: int) -> None:
        self.memcpy_dtoh_async(array, address, None)
        self.synchronize(DEFAULT)

    def memcpy_dtoh_async(self, array: np.ndarray, address: int, stream: Any) -> None:
        self.submit(
            stream.handle if stream else DEFAULT, lambda: ctypes.memmove(array.ctypes.data, address, array.nbytes)
        )

    def memcpy_dtod_async(self, target: int, source: int, size: int, stream: Any) -> None:
        self.submit(stream.handle if stream else DEFAULT, lambda: ctypes.memmove(target, source, size))

    def module_from_buffer(self, text: bytes) -> object:
        module = self.modules.setdefault(text, EmulatedModule(build(text.decode())))
        self.memory.use(module.library)

        def function(name: str) -> object:
            kinds: list[str] = []

            def launch(grid: Any, block: Any, stream: Any, *given: int) -> None:
                pointers = kinds[-1].count("P")
                self.submit(
                    stream.handle if stream else DEFAULT,
                    lambda: module.run(name, grid, block, given[:pointers], given[pointers:]),
                )

            return SimpleNamespace(
                prepare=kinds.append, prepared_async_call=launch, max_threads_per_block=1024, num_regs=32
            )

        return SimpleNamespace(get_function=function)


class _Allocation:
    def __init__(self, memory: EmulatedDevice, address: int) -> None:
        self.memory, self.address = memory, address

    def __int__(self) -> int:
        return self.address

    def free(self) -> None:
        self.memory.free(self.address)


def late_device() -> PycudaDevice:
    """The device that polyml.runtime.cuda.pycuda_device makes of such a driver; `compile_cubin` has to give the text itself."""
    driver = LateDriver()
    return PycudaDevice(driver, driver, "sm_90", 1 << 30, Limits())  # type: ignore[arg-type]
