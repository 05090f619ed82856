"""What compiled code for a GPU needs of one; polyml.runtime.cuda.pycuda_device has the real one, the tests have an emulation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from polyml.records import dataclass

if TYPE_CHECKING:
    from polyml.codegen.cuda.program import Kernel
    from polyml.gpu_core import Limits
    from polyml.runtime.arguments import Array

__all__ = ["CudaCode", "Device", "Queue", "Shape"]

Shape = tuple[int, int, int]


class Queue(Protocol):
    """Work that a device does in order, while the host goes on."""

    def allocate(self, size: int) -> int:
        """The address of `size` bytes (at least 1) for the queue's work.

        Raises:
            MemoryError: with the sizes.
        """

    def free(self, address: int) -> None:
        """The memory is not needed behind the work so far."""

    def to_device(self, address: int, array: Array) -> None:
        """Copies a contiguous array in; it may change once this returns."""

    def on_device(self, target: int, source: int, size: int) -> None:
        """Copies so many bytes from one address to another."""

    def to_host(self, array: Array, address: int) -> None:
        """Copies into a contiguous array, after all work before; returns when it is there."""

    def launch(
        self, module: Any, name: str, grid: Shape, block: Shape, pointers: Sequence[int], sizes: Sequence[int]
    ) -> None:
        """Starts a kernel of a module that the device has loaded: its arguments are device addresses, then sizes as i64."""

    def close(self) -> None:
        """No more work: what the streams that it was made for get from now on comes behind it."""


class Device(Protocol):
    """A GPU, or what stands for one."""

    @property
    def limits(self) -> Limits:
        """What a block and a grid may have."""

    def load(self, code: CudaCode) -> object:
        """The code, compiled and loaded.

        Raises:
            DeviceUnavailableError: the device, its driver or its compiler is missing.
        """

    def queue(self, streams: Collection[int] = ()) -> Queue:
        """A queue whose work is behind all that other libraries' streams, by their handles, have now."""

    def finish(self) -> None:
        """Returns when all work of all queues is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaCode:
    """CUDA C and how it is to be compiled. precise: without fused multiply-add. architecture: where no device says its own."""

    text: str
    kernels: tuple[Kernel, ...]
    architecture: str
    precise: bool = False
