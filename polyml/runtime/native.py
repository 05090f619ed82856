"""Kernels whose code LLVM has made for this machine: object files linked into this process, and entered from Python without a Python frame."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from polyml.codegen.llvm.machine import assembly, load_object
from polyml.dtypes import bf16
from polyml.errors import SubscriptError
from polyml.records import dataclass
from polyml.runtime.arguments import Array, Prepared, strides_overlap
from polyml.runtime.bad_index import bad_index
from polyml.runtime.compiled import Compiled
from polyml.runtime.entry.function import entry_objects
from polyml.runtime.kernel import Kernel
from polyml.runtime.load import builtin_function
from polyml.runtime.signature import NO_MEMORY, OK, ArrayParameter, KernelSignature, ScalarParameter
from polyml.runtime.support.module import parallel_limited, support

__all__ = ["Code", "NativeKernel", "load_compiled"]


@dataclass(frozen=True, slots=True)
class Code:
    """The loaded code of a kernel, and what it was loaded from. host, entry: addresses; entry is 0 where there is none. owners: what keeps it loaded."""

    compiled: Compiled
    host: int
    entry: int
    owners: tuple[object, ...]


def load_compiled(compiled: Compiled, *, threads: int | None = None) -> NativeKernel:
    """Links a kernel's code into this process.

    Args:
        threads: the most that parallel loops may use; None: what the process has set.

    Raises:
        RuntimeError: LLVM cannot link it.
    """
    shared = support()
    symbols = dict(shared.symbols)
    owners: list[object] = [shared]
    if threads is not None:
        symbols["polyml_parallel"], owner = parallel_limited(threads)
        owners.append(owner)
    if any(isinstance(p, ScalarParameter) and p.dtype == bf16 for p in compiled.signature.parameters):
        shared.know_bfloat16()
    entry = compiled.entry if shared.header is not None else ""
    exports = (compiled.host, entry) if entry else (compiled.host,)
    loaded = load_object(compiled.objects, exports, symbols)
    owners.append(loaded)
    addresses = loaded.addresses
    return NativeKernel(Code(compiled, addresses[compiled.host], addresses[entry] if entry else 0, tuple(owners)))


class NativeKernel(Kernel):
    """A kernel in machine code."""

    __slots__ = ("_host", "code")

    def __init__(self, code: Code) -> None:
        super().__init__(code.compiled.signature)
        self.code = code
        self._host = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(code.host)
        self.entry = self.entry_before(self._fit_and_run)

    def entry_before(self, slow: Callable[..., object]) -> Callable[..., Any]:
        if not self.code.entry or _updates_overlapping(self.signature):
            return slow
        objects = entry_objects(self.signature, slow, self._fault)
        return builtin_function(self.signature.name, self.code.entry, (*objects, self.code))

    def execute(self, arguments: Sequence[Prepared], results: Sequence[Array], sizes: Mapping[str, int]) -> None:
        """Runs the code: reads and updates the arguments' arrays, and fills the results."""
        buffers = [a.value for a in arguments if isinstance(a.value, np.ndarray)] + list(results)
        addresses = (ctypes.c_void_p * max(1, len(buffers)))(*(b.ctypes.data for b in buffers))
        numbers = (ctypes.c_int64 * max(1, len(sizes)))(*(sizes[name] for name in self.signature.sizes))
        status = self._host(addresses, numbers)
        if status > OK:
            raise bad_index(self.signature, status - 1, arguments, sizes)
        if status != OK:
            self._fault(status)

    def _fault(self, status: int) -> object:
        if status == NO_MEMORY:
            raise MemoryError(f"{self.signature.name}: no memory for temporary arrays")
        raise SubscriptError(self.signature.checks[status - 1])

    # -- looking -----------------------------------------------------------------------------------------------------------------

    @property
    def plan(self) -> str:
        """The host program: what is allocated, launched and checked, in order."""
        return self.code.compiled.text(0)

    @property
    def llvm(self) -> str:
        """The LLVM IR of the regions, before LLVM's passes."""
        return self.code.compiled.text(1)

    @property
    def assembly(self) -> str:
        """The machine code of the regions, as text."""
        return assembly(self.llvm, self.code.compiled.machine)


def _updates_overlapping(signature: KernelSignature) -> bool:
    """Whether an updated array's elements share memory in its layout, which the slow path refuses: the first call with it has compiled the kernel, and another one must not find a way past."""
    updated = [p for p in signature.parameters if isinstance(p, ArrayParameter) and p.written]
    return any(
        p.strides is not None and strides_overlap([extent.constant for extent in p.shape], p.strides) for p in updated
    )
