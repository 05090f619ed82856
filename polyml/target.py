"""Target: the machine that code is made for, as numbers that strategies and emitters use.

Detected (`Target.host()`) or named (`Target("x86-64-v3")`). A named target is the same on every machine, so that what is chosen for it can be
compared with stored text. Nothing here is measured; polyml.runtime.balance measures.
"""

from __future__ import annotations

import functools
import math
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from polyml.errors import DeviceUnavailableError, PolymlError
from polyml.records import dataclass

__all__ = ["FEW_REGISTERS", "SHORTEST", "Target", "available_cores", "named_targets"]

_KIB, _MIB = 1024, 1024 * 1024

SHORTEST = 8
"""Bytes of a vector, at least."""

FEW_REGISTERS = 16
"""Vector registers of SSE and AVX2; AVX-512 and NEON have 32. Register tiles of more of them share what is read among more rows: some rules were measured with these alone, and hold for no more."""


@dataclass(frozen=True, slots=True, init=False)
class Target:
    """One kind of machine. `Target("host")` is this one; any field can be given to replace what the name says.

    name: as asked for. triple, cpu, features: LLVM's; features is "+avx2,-avx512f" text, empty for what `cpu` implies.
    vector_bytes: of one vector register, at the width that code should use. vector_registers: how many there are.
    split_vectors: a vector of these bytes is executed in two halves, so that half of one takes half the time. fma: fused multiply-add exists in hardware. masked: predicated vector loads and stores are cheap.
    adds_apart: vectors are added and compared by units of their own, as many as those for multiply-adds.
    window: instructions that a core looks ahead, from the oldest one that is not finished.
    division: how many vector multiply-adds of f32 take as long as one division of a vector of f32. assists: results that are too small for normal numbers take hundreds of cycles, zeros by underflow among them. dot_bf16: how many vector multiply-adds of f32 take as long as one instruction that adds two products of bf16 to each f32; 0: there is none.
    l1_bytes, l2_bytes: data cache of one core. l3_bytes: last level, shared (a virtual machine may report more than it gets); 0: there is none.
    line_bytes: of a cache line. rows_ahead: bytes of coming rows that are asked for while one is computed with. asks_near: so are, into L1, lines of rows that are in L2 and a few steps away (codegen/prefetch/near.py), and short rows that follow several of which a loop reads side by side (codegen/prefetch/swept_rows.py). asks_along: so are rows that are read side by side, each once, where few rows of a result are made of them (codegen/prefetch/along.py). asks_sources: register tiles ask for what the next block is packed from (codegen/prefetch/sources.py). near_l3: what L2 has no room for comes from the last cache while tiles compute, so that strips of an operand may be more than it has. fills_l2: a line that is asked for into L2 stays out of L1. streams_apart: stores past the caches wait in buffers of their own, and a loop of theirs asks for coming lines, twice each (codegen/prefetch/swept_rows.py). cores: that a process on this machine may use.
    block_threads, block_bytes: (GPUs) threads, and bytes of shared memory, of one block at most; 0 elsewhere.
    """

    name: str
    triple: str
    cpu: str
    features: str
    vector_bytes: int
    vector_registers: int
    split_vectors: bool
    fma: bool
    masked: bool
    adds_apart: bool
    window: int
    division: float
    assists: bool
    dot_bf16: float
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    line_bytes: int
    rows_ahead: int
    asks_near: bool
    asks_along: bool
    asks_sources: bool
    near_l3: bool
    fills_l2: bool
    streams_apart: bool
    cores: int
    block_threads: int
    block_bytes: int

    def __init__(self, name: str = "host", **fields: str | float | bool) -> None:
        """The machine called `name`, with `fields` replaced.

        Raises:
            PolymlError: when the name or a field is unknown, or a value does not fit its field.
        """
        row = _host_fields() if name == "host" else _NAMED.get(name)
        if row is None:
            raise PolymlError(f'unknown target "{name}"', hint=f"known targets: host, {', '.join(_NAMED)}")
        if unknown := sorted(set(fields) - set(row)):
            raise PolymlError(f"Target has no field {', '.join(unknown)}", hint=f"fields: {', '.join(row)}")
        for key, value in fields.items():
            _check_field(key, value, row[key])
        object.__setattr__(self, "name", name)
        for key, value in {**row, **fields}.items():
            object.__setattr__(self, key, value)

    @staticmethod
    def host() -> Target:
        """The machine this process runs on."""
        return _host()

    @property
    def architecture(self) -> str:
        """The first part of the triple: "x86_64", "aarch64", ..."""
        return self.triple.partition("-")[0]

    @property
    def scalef(self) -> bool:
        """Whether it has AVX-512's instructions on floats (vscalef, vrange): full vectors are only used where it has (DQ and VL too)."""
        return self.vector_bytes >= 64 and self._has("avx512dq", "x86-64-v4")

    @property
    def avx2(self) -> bool:
        """Whether it has AVX2's instructions and not AVX-512's: 16 registers, a number from memory in all lanes takes an instruction of its own, and masks are vectors, under which AMD's processors store in 18 cycles."""
        return self.vector_bytes == 32 and self._has("avx2", "x86-64-v3", "x86-64-v4")

    def _has(self, feature: str, *levels: str) -> bool:
        """Whether it is a CPU of x86 with the feature: one that says so, or of one of the levels. Vectors may be longer than those of the CPU, whose instructions then do not know them."""
        return self.architecture == "x86_64" and (
            f"+{feature}" in self.features.split(",") or not {self.name, self.cpu}.isdisjoint(levels)
        )

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU, whose code is CUDA C."""
        return self.architecture == "nvptx64"

    @property
    def converts_half(self) -> bool:
        """Whether it has instructions between f16 and f32."""
        return self._has("f16c", "x86-64-v3", "x86-64-v4") or self.architecture in ("aarch64", "arm64")

    @property
    def least_masked(self) -> int:
        """Bits of the smallest elements whose vectors it reads and writes under a mask by one instruction: vpmaskmovd of AVX2, vmovdqu8 of AVX-512BW. For smaller ones LLVM writes a branch for each element."""
        if self.architecture == "x86_64":
            return 8 if self._has("avx512bw", "x86-64-v4") else 32
        return 8

    @property
    def masks_by_sign(self) -> bool:
        """Whether vectors are read under a mask by AVX's instructions, for which the sign of a lane says whether it acts; AVX-512 has registers for masks."""
        return self._has("avx", "x86-64-v3") and not self._has("avx512vl", "x86-64-v4")

    @property
    def gathers(self) -> bool:
        """Whether elements of a vector are read from places of their own by an instruction that is as fast as a load for each of them: AVX-512's, SVE's and RISC-V's. AVX2's is slower on Zen 3 (measured: 1.6 times the time of eight loads), and on Intel's cores with the microcode against Downfall; not known of others, for which LLVM writes loads as well unless it knows the core."""
        return self.masked and (self.architecture != "x86_64" or self.scalef)

    @property
    def multiplies_bf16(self) -> bool:
        """Whether it has the instruction (AVX512_BF16) that `dot_bf16` counts; where it has not, a `dot_bf16` that somebody gives is computed in f32."""
        return self.architecture == "x86_64" and {"+avx512bf16", "+avx512vl"} <= set(self.features.split(","))

    @property
    def multiplies_i16(self) -> str:
        """The instruction that multiplies pairs of i16: "vpdpwssd" (AVX512_VNNI), which adds them to an i32, or "pmaddwd"; "" where none is known."""
        if self.architecture != "x86_64":
            return ""
        return "vpdpwssd" if self.multiplies_i8 else "pmaddwd"

    @property
    def multiplies_i8(self) -> bool:
        """Whether it adds four products of u8 and i8 to an i32 at once (vpdpbusd of AVX512_VNNI)."""
        return self.architecture == "x86_64" and {"+avx512vnni", "+avx512vl"} <= set(self.features.split(","))

    @property
    def dot_i16(self) -> float:
        """How many vector multiply-adds of i32 take as long as one of pairs of i16 (0: it has no such instruction): at most one, since a multiplication of i32 is no less than an instruction, and two on Intel's cores."""
        return 1.0 if self.multiplies_i16 else 0.0

    @property
    def dot_i8(self) -> float:
        """The same of four numbers of 8 bits."""
        return 1.0 if self.multiplies_i8 else 0.0

    @property
    def runs_here(self) -> bool:
        """Whether code for this target can run in this process."""
        if self.name == "host":
            return True
        here = Target.host()
        if self.architecture != here.architecture:
            return False
        have = {part[1:] for part in here.features.split(",") if part.startswith("+")}
        return _REQUIRED.get(self.name, frozenset()) <= have

    def must_run_here(self) -> None:
        """Raises DeviceUnavailableError where code for this target cannot run in this process."""
        if not self.runs_here:
            raise DeviceUnavailableError(
                f"code for the target {self.name} does not run on this machine",
                hint='look at it with lower(...).show("asm")',
            )

    def lanes(self, itemsize: int) -> int:
        """Elements of `itemsize` bytes in one vector register, at least 1."""
        return max(1, self.vector_bytes // itemsize)

    def __str__(self) -> str:
        caches = " ".join(
            f"{label} {_bytes(size)}"
            for label, size in (("L1", self.l1_bytes), ("L2", self.l2_bytes), ("L3", self.l3_bytes))
            if size
        )
        vectors = f"{self.vector_registers} x {8 * self.vector_bytes}-bit vectors"
        return f"{self.name} ({self.cpu}, {vectors}, {caches}, {self.cores} cores)"


Fields = Mapping[str, str | float | bool]


def _row(
    triple: str, cpu: str, features: str, vector_bytes: int, vector_registers: int, *, fma: bool, masked: bool
) -> Fields:
    return {
        "triple": triple, "cpu": cpu, "features": features, "vector_bytes": vector_bytes, "vector_registers": vector_registers,
        "split_vectors": False, "fma": fma, "masked": masked, "adds_apart": False, "window": 512, "division": 20.0, "assists": True, "dot_bf16": 0.0, "l1_bytes": 32 * _KIB, "l2_bytes": 1 * _MIB, "l3_bytes": 16 * _MIB, "line_bytes": 64, "rows_ahead": 16 * _KIB, "asks_near": True, "asks_along": True, "asks_sources": True, "near_l3": True, "fills_l2": True, "streams_apart": False, "cores": 4,
        "block_threads": 0, "block_bytes": 0,
    }  # fmt: skip


def _gpu(cpu: str) -> Fields:
    """`vector_bytes` are those that a warp moves at once, `cpu` is the architecture that code is compiled for where no device says its own. The rows are those of
    A100 and H100 (NVIDIA's whitepapers)."""
    row = _row("nvptx64-nvidia-cuda", cpu, "", 128, 255, fma=True, masked=True)
    l1, l2, cores = (256, 50, 132) if cpu == "sm_90" else (192, 40, 108)
    return {
        **row,
        "l1_bytes": l1 * _KIB,
        "l2_bytes": l2 * _MIB,
        "l3_bytes": 0,
        "line_bytes": 128,
        "cores": cores,
        "block_threads": 1024,
        "block_bytes": 48 * _KIB,
    }


_LINUX_X86 = "x86_64-unknown-linux-gnu"
_NAMED: dict[str, Fields] = {
    "x86-64": _row(_LINUX_X86, "x86-64", "", 16, 16, fma=False, masked=False),
    "x86-64-v2": _row(_LINUX_X86, "x86-64-v2", "", 16, 16, fma=False, masked=False),
    "x86-64-v3": _row(_LINUX_X86, "x86-64-v3", "", 32, 16, fma=True, masked=True),
    "x86-64-v4": _row(_LINUX_X86, "x86-64-v4", "-prefer-256-bit", 64, 32, fma=True, masked=True),
    "aarch64": _row("aarch64-unknown-linux-gnu", "generic", "+neon", 16, 32, fma=True, masked=False),
    "apple-m1": _row("arm64-apple-macosx11.0.0", "apple-m1", "", 16, 32, fma=True, masked=False),
    **{name: _gpu(cpu) for name, cpu in (("cuda", "sm_80"), ("cuda-sm_80", "sm_80"), ("cuda-sm_90", "sm_90"))},
    "riscv64": _row("riscv64-unknown-linux-gnu", "generic-rv64", "+m,+a,+f,+d,+c,+v", 16, 32, fma=True, masked=True),
}
_SPLIT = frozenset({"znver4"})
"""CPUs whose units are half as wide as AVX-512's registers."""
_INTO_L1 = frozenset({"znver1", "znver2", "znver3"})
"""CPUs that bring lines that are asked for into L2 (prefetcht1) into L1 as well: AMD's before Zen 4 (Wang et al., "The Hitchhiker's Guide to Programming and Optimizing CXL-Based Heterogeneous Systems", arXiv 2411.02814). Measured on Zen 3, where both requests take the same time: what is asked for 16 KiB ahead pushes out what is at hand."""
_STREAMS_APART = frozenset({"znver3"})
"""CPUs on which a loop that stores past the caches may ask for coming rows: measured on Zen 3. On Intel's cores and Zen 5 others of a row's loops hide what they wait for better. Of AMD's other cores it is not known."""
_ADDERS = frozenset({"znver3", "znver5"})
"""CPUs that take two additions (differences, minima, maxima) beside two multiply-adds in a cycle: measured. Intel's cores share one of the units; of other ones of AMD's it is not known."""
_WINDOWS = {
    "znver1": 192,
    "znver2": 224,
    "znver3": 256,
    "znver4": 320,
    "znver5": 448,
    **dict.fromkeys(("haswell", "broadwell"), 192),
    **dict.fromkeys(("skylake", "skylake-avx512", "cascadelake", "cooperlake"), 224),
    **dict.fromkeys(("icelake-client", "icelake-server", "rocketlake", "tigerlake"), 352),
}
"""Entries of the reorder buffer (AMD's Software Optimization Guides for families 17h, 19h and 1Ah; Intel 64 and IA-32 Architectures Optimization Reference Manual, on the microarchitectures Haswell, Skylake and Sunny Cove). Others are taken for Intel's Golden Cove (512)."""
_REQUIRED: dict[str, frozenset[str]] = {
    "x86-64-v2": frozenset({"sse4.2", "popcnt"}),
    "x86-64-v3": frozenset({"avx2", "fma", "bmi2", "f16c"}),
    "x86-64-v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    "riscv64": frozenset({"v"}),
}


_LEAST_POWERS = {"vector_bytes": SHORTEST, "line_bytes": 16}
"""A line holds one of the longest elements, c128."""

_LEAST = {"vector_registers": 3, "window": 1, "l1_bytes": 1, "l2_bytes": 1, "cores": 1}
"""Registers: one for a sum, and one for each factor of its terms."""


def _check_field(name: str, value: object, example: object) -> None:
    """Raises PolymlError unless the value is of the kind that the field has, and in its range."""
    if isinstance(example, str | bool):
        wanted = "text" if isinstance(example, str) else "a bool"
        fits = type(value) is type(example)
    elif isinstance(example, float):
        wanted, fits = "a number of at least 0", type(value) in (int, float) and 0 <= value < math.inf  # type: ignore[operator]  # a number
    else:
        least = _LEAST.get(name, 0)
        wanted, fits = f"an integer of at least {least}", type(value) is int and value >= least
        if name in _LEAST_POWERS:
            least = _LEAST_POWERS[name]
            wanted = f"a power of two, at least {least}"
            fits = type(value) is int and value >= least and value & (value - 1) == 0
    if not fits:
        raise PolymlError(f"Target's field {name} = {value!r} is not {wanted}")


def named_targets() -> tuple[str, ...]:
    """The names that `Target(...)` knows, beside "host"."""
    return tuple(_NAMED)


@functools.cache
def _host() -> Target:
    return Target("host")


@functools.cache
def _host_fields() -> Fields:
    import llvmlite.binding as llvm  # heavy, and only needed to ask LLVM about the host

    features = llvm.get_host_cpu_features()
    has = {name for name, present in features.items() if present}
    vector_bytes, registers, fma, masked = _vector_unit(llvm.get_default_triple(), has)
    l1, l2, l3, line = _cache_sizes()
    text = _usable(features.flatten(), vector_bytes == 64 and "avx512f" in has)
    return {
        "triple": llvm.get_process_triple(), "cpu": llvm.get_host_cpu_name(), "features": text, "vector_bytes": vector_bytes,
        "vector_registers": registers, "split_vectors": vector_bytes == 64 and llvm.get_host_cpu_name() in _SPLIT, "fma": fma, "masked": masked,
        "adds_apart": fma and llvm.get_host_cpu_name() in _ADDERS, "window": _WINDOWS.get(llvm.get_host_cpu_name(), 512), "division": _division(llvm.get_host_cpu_name()), "assists": not llvm.get_host_cpu_name().startswith("znver"), "dot_bf16": _dot_bf16(llvm.get_host_cpu_name(), has),
        "l1_bytes": l1, "l2_bytes": l2, "l3_bytes": l3, "line_bytes": line, "rows_ahead": _rows_ahead(llvm.get_host_cpu_name()),
        "asks_near": _asks_near(llvm.get_host_cpu_name(), vector_bytes), "asks_along": _asks_along(llvm.get_host_cpu_name()), "asks_sources": _asks_sources(llvm.get_host_cpu_name()), "near_l3": _near_l3(llvm.get_host_cpu_name()), "fills_l2": llvm.get_host_cpu_name() not in _INTO_L1, "streams_apart": llvm.get_host_cpu_name() in _STREAMS_APART, "cores": available_cores(),
        "block_threads": 0, "block_bytes": 0,
    }  # fmt: skip


def _usable(features: str, whole: bool) -> str:
    """What LLVM may take of a processor's features. whole: its registers of 512 bits, which some CPUs' tuning avoids; polyml's vectors are explicit.

    Not SSE4a, of which LLVM makes shuffles of bytes (insertq, extrq): its instructions have no form that clears a register's upper half, and measured on Zen 3 one of them takes some 100 ns among those that use it.
    """
    text = ",".join("-sse4a" if feature == "+sse4a" else feature for feature in features.split(","))
    return f"{text},-prefer-256-bit" if whole else text


def _vector_unit(triple: str, has: set[str]) -> tuple[int, int, bool, bool]:
    """Vector bytes, vector registers, fused multiply-add, cheap masks."""
    architecture = triple.partition("-")[0]
    if architecture in ("aarch64", "arm64"):
        return 16, 32, True, False
    if architecture.startswith("riscv"):
        return 16, 32, True, "v" in has
    if {"avx512f", "avx512vl", "avx512dq", "avx512bw"} <= has:
        return 64, 32, True, True
    if "avx2" in has:
        return 32, 16, "fma" in has, True
    return 16, 16, "fma" in has, False


def _dot_bf16(cpu: str, has: set[str]) -> float:
    """vdpbf16ps on 512 bits: one on every port for multiply-adds of AMD's cores; measured on Emerald Rapids it takes as long as four multiply-adds (Intel's cores have
    tiles for large products). Not known of other cores: taken for Intel's."""
    if not {"avx512bf16", "avx512vl"} <= has:
        return 0.0
    return 1.0 if cpu.startswith("znver") else 4.0


def _division(cpu: str) -> float:
    """Of vectors of 512 bits: 10 cycles with two units for multiply-adds on Intel's cores (Golden Cove), measured 6.0 multiply-adds on Zen 4 (9.0 in f64). Not known of other cores: taken for Intel's."""
    return 6.0 if cpu.startswith("znver") else 20.0


def _asks_near(cpu: str, vector_bytes: int) -> bool:
    """Zen 5 hides what loads of vectors of 512 bits wait for L2, across lines, too: asking for them takes up to a fifth of the time. Zen 4 gains a fifth by it. Zen 3 has as many slots for loads and requests as for multiply-adds: one and four rows times 768 x 3072 take 0.66 and 0.55 of the time without; of other rows and sizes, convolutions and networks no difference beyond what memory changes by. Ice Lake gains up to a quarter. Not known of others: taken for it."""
    return cpu != "znver3" and (vector_bytes < 64 or cpu != "znver5")


def _asks_along(cpu: str) -> bool:
    """AMD's follow fewer rows than Intel's (codegen/prefetch/along.py). Not known of other cores: taken for Intel's."""
    return cpu.startswith("znver")


def _asks_sources(cpu: str) -> bool:
    """Zen 4 and Zen 5 gain 4 to 14 % where a block is packed from memory. On Ice Lake requests wait for the buffers through which panels come from L2: products of 512 to 1096 without them take 0.77 to 1.03 of the time, contractions of TCCG 0.92 to 0.99. Not known of other cores: taken for Intel's."""
    return cpu.startswith("znver")


def _near_l3(cpu: str) -> bool:
    """AMD's, which some cores share, measured on Zen 3 and Zen 4. Intel's servers have it across a mesh: on Ice Lake products with strips that find no room in L2 take up to twice the time (schedule/blocking/strips.py). Not known of other cores: taken for these."""
    return cpu.startswith("znver")


def _rows_ahead(cpu: str) -> int:
    """What memory delivers within a few times its latency; measured on Zen 4, whose loads wait longer the more lines are on their way into L1, a quarter of that. Not known of other cores: taken for Intel's."""
    return (4 if cpu == "znver4" else 16) * _KIB


def available_cores() -> int:
    """CPUs that this process may use: its affinity, and the quota of its container where there is one; at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity is not None else (os.cpu_count() or 1)
    quota = _read(Path("/sys/fs/cgroup/cpu.max")).split()
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[1]) > 0:
        count = min(count, -(-int(quota[0]) // int(quota[1])))
    return max(1, count)


def _cache_sizes() -> tuple[int, int, int, int]:
    """L1 data, L2, L3 and line size in bytes: from sysfs, else the C library, else macOS's sysctl, else common values."""
    found = _cache_sizes_sysfs(Path("/sys/devices/system/cpu/cpu0/cache"))
    for source in (_cache_sizes_sysconf, _cache_sizes_sysctl):
        if not {"l1", "l2"} <= found.keys():
            found = {**source(), **found}
    l1 = found.get("l1", 32 * _KIB)
    return l1, max(found.get("l2", 1 * _MIB), l1), found.get("l3", 0), found.get("line", 64)


def _cache_sizes_sysfs(root: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for index in sorted(root.glob("index*")) if root.is_dir() else ():
        size, level, kind = (_read(index / name) for name in ("size", "level", "type"))
        if kind == "Instruction" or not size or not level:
            continue
        unit = {"K": _KIB, "M": _MIB, "G": 1024 * _MIB}.get(size[-1], 1)
        digits = size.rstrip("KMG")
        if digits.isdigit() and int(digits) > 0:
            found[f"l{level}"] = int(digits) * unit
        line = _read(index / "coherency_line_size")
        if line.isdigit() and int(line) > 0:
            found["line"] = int(line)
    return found


def _cache_sizes_sysconf() -> dict[str, int]:
    names = {
        "l1": "SC_LEVEL1_DCACHE_SIZE", "l2": "SC_LEVEL2_CACHE_SIZE", "l3": "SC_LEVEL3_CACHE_SIZE", "line": "SC_LEVEL1_DCACHE_LINESIZE",
    }  # fmt: skip
    known = getattr(os, "sysconf_names", {})
    found = {}
    for key, name in names.items():
        try:
            value = os.sysconf(name) if name in known else 0
        except (OSError, ValueError):
            value = 0
        if value > 0:
            found[key] = value
    return found


def _cache_sizes_sysctl() -> dict[str, int]:
    if platform.system() != "Darwin":
        return {}
    import subprocess  # not for every process that computes

    found = {}
    for key, name in (("l1", "hw.l1dcachesize"), ("l2", "hw.l2cachesize"), ("line", "hw.cachelinesize")):
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
        if done.stdout.strip().isdigit():
            found[key] = int(done.stdout)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _bytes(size: int) -> str:
    return f"{size // _MIB} MiB" if size >= _MIB else f"{size // _KIB} KiB"
