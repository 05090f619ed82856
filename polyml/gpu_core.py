"""What a core of a GPU (a streaming multiprocessor) has and how fast it reads: the numbers of which tiles, staging and launches are decided. Nothing here is measured by us.

Sources: NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities"; Jia et al., "Dissecting the NVIDIA Volta GPU architecture via microbenchmarking" (2018), which finds the rates
of shared memory and caches; NVIDIA's whitepapers of A100 and H100.
"""

from __future__ import annotations

import re

from polyml.records import dataclass

__all__ = [
    "CORES",
    "ISSUE",
    "L2_RATE",
    "LAUNCH",
    "MEMORY_RATE",
    "SHARED_RATE",
    "Core",
    "Limits",
    "core_of",
    "staging_pays",
]

ISSUE = 4
"""Warp instructions per cycle."""

SHARED_RATE, L1_RATE, L2_RATE = 128, 64, 32
"""Bytes per cycle from shared memory (its 32 banks), from the first-level cache where neighbours are read at any offset (a warp's 128 bytes lie in two lines then, of which one
is looked up per cycle), and from L2, per core."""

MEMORY_RATE = 12
"""Bytes per cycle of device memory, per core."""

SYNC = 30
"""Cycles until all warps of a block have met."""

LAUNCH = 8_500
"""Cycles of a kernel that does nothing, behind another: some 5 us."""


@dataclass(frozen=True, slots=True)
class Core:
    """Warps and blocks at a time, and KiB of shared memory."""

    warps: int
    blocks: int
    shared: int

    def resident(self, threads: int, shared: int) -> int:
        """Blocks of so many threads and bytes of shared memory at a time, where registers allow them; at least 1."""
        room = self.shared * 1024 // (shared + 1024)
        return max(1, min(self.blocks, self.warps // -(-threads // 32), room))


@dataclass(frozen=True, slots=True)
class Limits:
    """threads, shared: of a block at most, and bytes of its shared memory (what a kernel has without asking for more). grid: blocks per axis x, y, z; more work takes turns.

    The numbers of every device from compute capability 3.0 on, where nobody says others (NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities").
    """

    threads: int = 1024
    shared: int = 48 * 1024
    grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)


CORES = {
    70: Core(64, 32, 96), 75: Core(32, 16, 64), 80: Core(64, 32, 164), 86: Core(48, 16, 100), 87: Core(48, 16, 164),
    89: Core(48, 24, 100), 90: Core(64, 32, 228), 100: Core(64, 32, 228), 103: Core(64, 32, 228), 120: Core(48, 24, 100),
}  # fmt: skip
"""By compute capability."""


def core_of(architecture: str) -> Core:
    """The core of "sm_80", "sm_90a", ...; an A100's where that is not known."""
    return CORES.get(int(re.sub(r"\D", "", architecture) or 80), CORES[80])


def staging_pays(core: Core, *, elements: int, reads: int, itemsize: int, threads: int) -> bool:
    """Whether a block should copy elements to shared memory that its threads read more than once, rather than leave them to the first-level cache.

    Directly each read goes through L1; else each element does once, is stored, and read from shared memory; and the block waits twice, for its tile and before the next one
    overwrites it, while other blocks of the core work. What comes from L2 is the same. So without the barriers three reads per element are worth it.

    Args:
        elements, reads: of a visit. itemsize: bytes of an element. threads: of a block.
    """
    direct = reads * itemsize / L1_RATE
    blocks = core.resident(threads, elements * itemsize)
    staged = (elements / L1_RATE + (elements + reads) / SHARED_RATE) * itemsize + 2 * SYNC / blocks
    return staged < direct
