"""A GPU's kernels from the disk cache: what an earlier process has lowered (signature, plan, kernels and their text) is read, so that neither isl nor a solver runs; cubins have files of
their own (cuda/compile.py), one per architecture.

Files are pickles of polyml's own classes. Nothing else is unpickled, and only from the cache's private, checked files.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable

from polyml.codegen.cuda.program import CudaRegion
from polyml.debug import compilation, stage
from polyml.einsum_frontend.syntax import Program
from polyml.graph.host_steps import Plan
from polyml.options import Options
from polyml.records import dataclass
from polyml.runtime.cache.files import store
from polyml.runtime.cache.fingerprint import digest, versions
from polyml.runtime.cuda.device import CudaCode, Device
from polyml.runtime.cuda.program import CudaKernel
from polyml.runtime.keys import Key, ints_of
from polyml.runtime.signature import KernelSignature

__all__ = ["CompiledCuda", "cached_cuda_kernel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCuda:
    """A program lowered for a GPU, before it is loaded on one."""

    signature: KernelSignature
    plan: Plan
    regions: tuple[CudaRegion, ...]
    code: CudaCode

    def on(self, device: Device) -> CudaKernel:
        """The callable kernel.

        Raises:
            DeviceUnavailableError: the compiler is missing.
        """
        return CudaKernel(self.signature, self.plan, self.regions, self.code, device)

    def to_bytes(self) -> bytes:
        """The form on disk."""
        return pickle.dumps(self, protocol=5)

    @staticmethod
    def from_bytes(data: bytes) -> CompiledCuda:
        """What `to_bytes` gave.

        Raises:
            ValueError: it is something else.
        """
        try:
            found = _Unpickler(io.BytesIO(data)).load()
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, TypeError) as error:
            raise ValueError(f"not a compiled kernel: {error}") from None
        if not isinstance(found, CompiledCuda):
            raise ValueError("not a compiled kernel")
        return found


def cached_cuda_kernel(
    program: Program, key: Key, options: Options, device: Device, compile: Callable[[], CompiledCuda]
) -> CudaKernel:
    """The kernel for one key of the dispatcher: from the cache, else by `compile`, whose result is kept.

    Whoever asks to see or to check the stages (options `debug`, `dump`, `verify`) gets them: nothing is read from the cache then.
    """
    kept = store()
    with compilation(program.name):
        if kept is None:
            return compile().on(device)
        with stage("fingerprint"):
            name = digest(versions(), "cuda", program, key, options.of_code)
        with stage("read"):
            data = None if options.debug or options.dump or options.verify else kept.get(name)
        if data is not None:
            try:
                found = CompiledCuda.from_bytes(data)
                if found.signature.serves(ints_of([p.name for p in program.parameters], key)):
                    return found.on(device)
            except ValueError:
                kept.damaged(name)
        made = compile()
        kernel = made.on(device)
        kept.put(name, made.to_bytes())
        return kernel


class _Unpickler(pickle.Unpickler):
    """Takes polyml's own classes and frozen sets, and nothing else."""

    def find_class(self, module: str, name: str) -> object:
        found = super().find_class(module, name) if module.partition(".")[0] in ("polyml", "builtins") else None
        # What a module of ours has imported is none of its classes, whatever name leads to it.
        if found is frozenset or (isinstance(found, type) and found.__module__.partition(".")[0] == "polyml"):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a kernel")
