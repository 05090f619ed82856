"""Whether kernels get by with what a device gives one block."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from polyml.codegen.cuda.program import Kernel
from polyml.errors import CodegenError
from polyml.gpu_core import Limits

__all__ = ["require_fits"]


def require_fits(kernels: Iterable[Kernel], limits: Limits, *, where: str) -> None:
    """Nothing where each kernel's block fits.

    Args:
        where: who has the limits, for the message.

    Raises:
        CodegenError: with what the kernel asks for and what there is.
    """
    for kernel in kernels:
        threads, shared = prod(kernel.threads), kernel.shared_bytes + kernel.exchange_bytes
        if threads > limits.threads or shared > limits.shared:
            shape = " x ".join(map(str, kernel.threads))
            raise CodegenError(
                f"kernel {kernel.name} needs blocks of {shape} threads with {shared} bytes of shared memory; {where} has blocks of at most {limits.threads} threads with {limits.shared} bytes",
                hint=f'Target("cuda", block_threads={limits.threads}, block_bytes={limits.shared}) maps loops to blocks that fit',
            )
