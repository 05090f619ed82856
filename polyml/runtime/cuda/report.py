"""What a compiled kernel uses of a core, by the compiler's report, and how many of its blocks a core holds.

Source: NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities", technical specifications; "Occupancy Calculator".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from polyml.errors import DeviceUnavailableError
from polyml.gpu_core import CORES
from polyml.records import dataclass
from polyml.runtime.cuda.compile import compiler_report
from polyml.runtime.cuda.device import CudaCode

if TYPE_CHECKING:
    from polyml.codegen.cuda.program import Kernel

__all__ = ["Usage", "occupancy", "parse_report", "usage_lines"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one kernel: registers per thread, bytes per thread that did not fit into them, and bytes of shared memory per block."""

    registers: int
    spilled: int
    shared: int


REGISTERS, WARP, RESERVED = 65536, 32, 1024
"""Of a core of any of these; threads of a warp; bytes of shared memory that a block has beyond its own from 8.0 on. Registers are given to warps in units of 256."""


def parse_report(text: str) -> dict[str, Usage]:
    """The usage per kernel, from what `ptxas -v` writes."""
    found = {}
    for entry in re.split(r"Compiling entry function '", text)[1:]:
        registers, spilled = re.search(r"Used (\d+) registers", entry), re.search(r"(\d+) bytes spill stores", entry)
        shared = re.search(r"(\d+) bytes smem", entry)
        if registers is not None:
            name = entry.partition("'")[0]
            numbers = (int(m.group(1)) if m is not None else 0 for m in (registers, spilled, shared))
            found[name] = Usage(*numbers)
    return found


def occupancy(usage: Usage, threads: int, capability: int) -> tuple[int, int, str]:
    """Blocks that a core holds at a time, how many warps these are, and what keeps it from holding more."""
    core = CORES.get(capability, CORES[80])
    warps = -(-threads // WARP)
    own = -(-max(usage.registers, 1) * WARP // 256) * 256
    reserved = RESERVED if capability >= 80 else 0
    limits = {
        "registers": REGISTERS // own // warps,
        "warps": core.warps // warps,
        "blocks": core.blocks,
        "shared memory": core.shared * 1024 // max(1, usage.shared + reserved) if usage.shared else core.blocks,
    }
    what = min(limits, key=lambda name: limits[name])
    return limits[what], limits[what] * warps, what


def usage_lines(code: CudaCode, kernels: Sequence[Kernel]) -> list[str]:
    """A line per kernel for explain(); none without a compiler that knows the GPU."""
    architecture = code.architecture
    capability = int(re.sub(r"\D", "", architecture) or 80)
    try:
        found = parse_report(compiler_report(code, architecture)) if kernels else {}
    except DeviceUnavailableError:
        return []
    total = CORES.get(capability, CORES[80]).warps
    lines = []
    for kernel in kernels:
        usage = found.get(kernel.name)
        if usage is None:
            continue
        blocks, warps, what = occupancy(usage, prod(kernel.threads), capability)
        spilled = f", {usage.spilled} bytes spilled" if usage.spilled else ""
        held = f"a core holds {blocks} blocks, {warps} of {total} warps (limit: {what})"
        lines.append(f"  {kernel.name} on {architecture}: {usage.registers} registers{spilled}; {held}")
    return lines
