"""The GPU of this machine: cubins (cuda/compile.py) loaded and launched through pycuda.

pycuda is an optional extra and is imported when the first kernel is loaded. The first device is used, in its primary context, so that other libraries' arrays
are in the same one.
"""

from __future__ import annotations

import atexit
import functools
import threading
from collections.abc import Collection, Sequence
from dataclasses import field
from math import prod
from types import ModuleType
from typing import Any

from polyml.errors import CodegenError, DeviceUnavailableError
from polyml.gpu_core import Limits
from polyml.records import dataclass
from polyml.runtime.arguments import Array
from polyml.runtime.cuda.compile import NO_COMPILER, compile_cubin, find_compiler
from polyml.runtime.cuda.device import CudaCode
from polyml.runtime.cuda.pool import Pool
from polyml.runtime.cuda.staging import Staging
from polyml.runtime.cuda.streams import behind, driver_is_there

__all__ = ["PycudaDevice", "device_names", "missing_parts", "the_device"]

IN_ORDER = (0, 1)
"""Streams that the legacy default stream, and every stream of ours, is in order with: that one itself, by both of its names."""

KEPT = 16
"""Of the device's memory that part at most waits for the next call."""

NO_DRIVER = "install NVIDIA's driver on a machine with a GPU"

MOST_STREAMS = 32
"""Of ours, before all are made anew."""

Shape = tuple[int, int, int]


def missing_parts() -> tuple[tuple[str, str], ...]:
    """What a GPU run lacks here, each with its remedy; empty when a kernel can run."""
    found: list[tuple[str, str]] = []
    if find_compiler() is None:
        found.append(NO_COMPILER)
    try:
        _driver()
    except DeviceUnavailableError as fault:
        found.append((fault.message, fault.hint or ""))
        if isinstance(fault.__cause__, ModuleNotFoundError) and not driver_is_there():
            # Else one would learn it only with pycuda installed.
            found.append(("CUDA's driver is not there", NO_DRIVER))
    return tuple(found)


@functools.cache
def _driver() -> ModuleType:
    """pycuda's driver module, initialized, with at least one device."""
    try:
        import pycuda.driver as driver
    except ModuleNotFoundError as fault:
        raise DeviceUnavailableError("pycuda is not installed", hint="pip install 'polyml-compiler[cuda]'") from fault
    except ImportError as fault:
        raise DeviceUnavailableError(f"pycuda cannot reach CUDA's driver: {fault}", hint=NO_DRIVER) from fault
    try:
        driver.init()
        count = driver.Device.count()
    except driver.Error as fault:
        raise DeviceUnavailableError(f"CUDA's driver does not start: {fault}", hint="look at nvidia-smi") from fault
    if count == 0:
        raise DeviceUnavailableError("there is no CUDA device", hint="look at nvidia-smi and CUDA_VISIBLE_DEVICES")
    return driver  # type: ignore[no-any-return]


def device_names() -> tuple[str, ...]:
    """The devices, each with its compute capability.

    Raises:
        DeviceUnavailableError: pycuda, the driver, or a device is missing.
    """
    driver = _driver()
    found = [driver.Device(k) for k in range(driver.Device.count())]
    return tuple("{} (sm_{}{})".format(device.name(), *device.compute_capability()) for device in found)


@functools.cache
def the_device() -> PycudaDevice:
    """The first CUDA device.

    Raises:
        DeviceUnavailableError: pycuda, the driver, or a device is missing; the message says which.
    """
    driver = _driver()
    device = driver.Device(0)
    major, minor = device.compute_capability()
    context = device.retain_primary_context()
    atexit.register(
        context.detach
    )  # left to itself it goes as a context of another kind would, and the driver complains
    return PycudaDevice(driver, context, f"sm_{major}{minor}", device.total_memory(), _limits(driver, device))


def _limits(driver: ModuleType, device: Any) -> Limits:
    """As the driver says."""
    names = driver.device_attribute
    threads, shared, *grid = (
        device.get_attribute(getattr(names, name))
        for name in ("MAX_THREADS_PER_BLOCK", "MAX_SHARED_MEMORY_PER_BLOCK", "MAX_GRID_DIM_X", "MAX_GRID_DIM_Y", "MAX_GRID_DIM_Z")
    )  # fmt: skip
    return Limits(threads, shared, (grid[0], grid[1], grid[2]))


class PycudaDevice:
    """A device through pycuda. context: is made current around each use; memory: bytes that it has in all; limits: of a block and a grid."""

    def __init__(self, driver: ModuleType, context: object, architecture: str, memory: int, limits: Limits) -> None:
        self.driver, self.context, self.architecture, self.limits = driver, context, architecture, limits
        self.pool = Pool(self._allocate, self._free, memory // KEPT)
        self.staging = Staging(driver)
        self.allocations: dict[int, object] = {}  # pycuda frees one with the last reference to it
        self.streams: dict[int, tuple[int, Any]] = {}  # by the caller's handle: a number and a stream of ours
        self.made = 0
        self.lock = threading.Lock()

    def load(self, code: CudaCode) -> PycudaModule:
        binary = compile_cubin(code, self.architecture)
        with _Current(self.context):
            return PycudaModule(self.driver.module_from_buffer(binary))

    def queue(self, streams: Collection[int] = ()) -> PycudaQueue:
        """Work behind all that is on these streams now, by their handles; what they get after the queue is closed is behind its work.

        Where only the legacy default stream is used, it is that one. Else the first stream's own companion, which the default stream is in order with.
        """
        others = tuple(sorted(stream for stream in streams if stream not in IN_ORDER))
        if not others:
            return PycudaQueue(self, 0, None, ())
        with _Current(self.context):
            number, stream = self._companion(others[0])
            for other in others:
                behind(stream.handle, other)
        return PycudaQueue(self, number, stream, others)

    def finish(self) -> None:
        """Returns when all work of all queues is done."""
        with _Current(self.context):
            self._wait()

    def _companion(self, handle: int) -> tuple[int, Any]:
        """A stream of ours for another library's, with a number that no other has (handles come and go)."""
        with self.lock:
            found = self.streams.get(handle)
            if found is None:
                if len(self.streams) >= MOST_STREAMS:
                    self._wait()
                    self.pool.trim()
                    self.streams.clear()
                self.made += 1
                found = self.streams[handle] = self.made, self.driver.Stream()
            return found

    def _wait(self) -> None:
        self.driver.Context.synchronize()

    def _allocate(self, size: int) -> int | None:
        try:
            allocation = self.driver.mem_alloc(size)
        except self.driver.MemoryError:
            return None
        self.allocations[int(allocation)] = allocation
        return int(allocation)

    def _free(self, address: int) -> None:
        self._wait()  # work that uses it may still be under way
        self.allocations.pop(address).free()  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class PycudaQueue:
    """Work in order. number: of the stream, which is pycuda's, None for the legacy default one; others: the streams that go on behind it."""

    device: PycudaDevice
    number: int
    stream: Any
    others: tuple[int, ...]

    def allocate(self, size: int) -> int:
        device = self.device
        with _Current(device.context):
            address = device.pool.take(self.number, size)
            if address is None:
                free, total = device.driver.mem_get_info()
                raise MemoryError(f"the device has no {size} bytes: {free} of {total} bytes are free")
            return address

    def free(self, address: int) -> None:
        with _Current(self.device.context):
            self.device.pool.give(self.number, address)

    def to_device(self, address: int, array: Array) -> None:
        with _Current(self.device.context):
            self.device.staging.to_device(address, array, self.stream)

    def on_device(self, target: int, source: int, size: int) -> None:
        with _Current(self.device.context):
            self.device.driver.memcpy_dtod_async(target, source, size, self.stream)

    def to_host(self, array: Array, address: int) -> None:
        with _Current(self.device.context):
            self.device.staging.to_host(array, address, self.stream)

    def launch(
        self, module: PycudaModule, name: str, grid: Shape, block: Shape, pointers: Sequence[int], sizes: Sequence[int]
    ) -> None:
        with _Current(self.device.context):
            function = module.functions.get(name)
            if function is None:
                function = module.functions[name] = _prepared(module.module, name, block, len(pointers), len(sizes))
            function.prepared_async_call(grid, block, self.stream, *pointers, *sizes)

    def close(self) -> None:
        if self.others:
            with _Current(self.device.context):
                for other in self.others:
                    behind(other, self.stream.handle)


def _prepared(module: Any, name: str, block: Shape, pointers: int, sizes: int) -> Any:
    """The kernel, ready to be launched in such blocks.

    Raises:
        CodegenError: its registers do not suffice for so many threads.
    """
    function = module.get_function(name)
    threads, most = prod(block), function.max_threads_per_block
    if threads > most:
        raise CodegenError(
            f"kernel {name} needs blocks of {threads} threads with {function.num_regs} registers each; the device has registers for {most}",
            hint=f'Target("cuda", block_threads={most}) maps loops to smaller blocks',
        )
    function.prepare("P" * pointers + "q" * sizes)
    return function


@dataclass(frozen=True, slots=True)
class _Current:
    """The context is current within the block, and whatever was before is after."""

    context: Any

    def __enter__(self) -> None:
        self.context.push()

    def __exit__(self, *reason: object) -> None:
        self.context.pop()


@dataclass(frozen=True, slots=True)
class PycudaModule:
    module: Any
    functions: dict[str, Any] = field(default_factory=dict)
