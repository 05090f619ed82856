"""AVX-512 code on a machine without it: a pytest plugin (`-p tests.avx512.emulated`) under which the host is another CPU, whose kernels Bochs runs.

What LLVM makes of a program's regions is run by Bochs' CPU, a Sapphire Rapids, as a Python package has it (bochscpu-python; `bochs.c` says how), instruction for instruction. Everything else stays with
the processor: the host function, the entry point, the threads. AVX512=znver5 takes Zen 5's figures, AVX512=sapphirerapids (which is where nothing is said) those of Sapphire Rapids. BOCHS=file names the package's library. Processes that tests start are not emulated.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import llvmlite.binding as llvm

import polyml.target
from polyml.codegen.llvm import machine
from polyml.codegen.llvm.machine import Loaded, Machine, load_object, machine_of
from polyml.runtime import balance, load, native
from polyml.target import Target

__all__ = ["Counts", "count", "emulate", "text_of"]

_SAPPHIRE_RAPIDS = 30
"""Among the CPUs of Bochs as bochscpu-python 0.4.0 has it."""
_KIB, _MIB = 1024, 1024 * 1024
_CACHES = {
    "znver5": (48 * _KIB, 1 * _MIB, 32 * _MIB, 64),
    "znver4": (32 * _KIB, 1 * _MIB, 32 * _MIB, 64),
    "sapphirerapids": (48 * _KIB, 2 * _MIB, 60 * _MIB, 64),
}
_FEATURES = (
    "cmov mmx popcnt sse sse2 sse3 ssse3 sse4.1 sse4.2 avx avx2 fma f16c bmi bmi2 lzcnt movbe adx cx8 cx16 fxsr sahf 64bit xsave xsaveopt xsavec xsaves aes vaes pclmul vpclmulqdq gfni sha clflushopt clwb invpcid rdpid rdrnd rdseed fsgsbase prfchw"
    " avx512f avx512cd avx512bw avx512dq avx512vl avx512ifma avx512vbmi avx512vbmi2 avx512vnni avx512bitalg avx512vpopcntdq avx512bf16"
).split()
"""Of all three CPUs, as LLVM calls them. AVX512_FP16 is Intel's alone; polyml computes in f32."""


class Counts(ctypes.Structure):
    """What kernels executed: instructions, reads and writes of memory (a lane of a gather is one), those across two lines, and prefetches. missed, requested: lines that L1, L2 and L3 did not hold, when they were accessed or asked for.

    Caches are the CPU's (of L2 and L3 with 16 ways), LRU, and without prefetchers of their own.
    """

    _fields_ = (
        ("instructions", ctypes.c_uint64),
        ("reads", ctypes.c_uint64),
        ("writes", ctypes.c_uint64),
        ("straddling", ctypes.c_uint64),
        ("missed", 3 * ctypes.c_uint64),
        ("requests", ctypes.c_uint64),
        ("requested", 3 * ctypes.c_uint64),
    )


_emulated: dict[str, ctypes.CDLL] = {}
"""What runs the CPU that `emulate` has started, by that CPU's name."""


@functools.cache
def _caches_count() -> ctypes.CDLL:
    """From now on what is executed is counted, caches empty at first."""
    if not _emulated:
        raise RuntimeError("the host is not emulated: python -m tests.avx512 MODULE")
    ((cpu, driver),) = _emulated.items()
    assert driver.count((3 * ctypes.c_uint64)(*_CACHES[cpu][:3])), "no memory for what caches hold"
    return driver


def count(run: Callable[[], object]) -> Counts:
    """What kernels execute in this call, from where the counted one before it left the caches (it takes several times as long).

    Raises:
        RuntimeError: nothing is emulated.
    """
    driver, counts = _caches_count(), Counts()
    driver.counted(ctypes.byref(counts))
    run()
    driver.counted(ctypes.byref(counts))
    return counts


def _driver() -> ctypes.CDLL:
    """bochs.c, with Bochs started."""
    library = os.environ.get("BOCHS")
    if not library:
        import bochscpu

        library = str(next(Path(bochscpu.__file__).parent.glob("_bochscpu*.so")))
    folder = Path(tempfile.mkdtemp(prefix="bochs"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    compiled = folder / "bochs.so"
    source = Path(__file__).with_name("bochs.c")
    subprocess.run(
        ["gcc", "-O2", "-fPIC", "-shared", "-o", str(compiled), str(source), "-ldl", "-lpthread"], check=True
    )
    driver = ctypes.CDLL(str(compiled), ctypes.RTLD_GLOBAL)
    driver.start.argtypes, driver.start.restype = [ctypes.c_char_p, ctypes.c_uint32], ctypes.c_char_p
    driver.emulate.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    driver.counted.argtypes = [ctypes.c_void_p]
    driver.counted.restype = None
    missing = driver.start(library.encode(), _SAPPHIRE_RAPIDS)
    assert missing is None, missing.decode()
    return driver


def text_of(code: bytes) -> tuple[str, int, int]:
    """Of an object file in ELF: a global function, where it begins among the sections of code (cold functions have one of their own), one behind the other, and the bytes of these."""
    (table,) = struct.unpack_from("<Q", code, 40)
    size, count, _ = struct.unpack_from("<HHH", code, 58)
    # name, type, flags, address, offset, size, link, info, alignment, entry size
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, table + size * k) for k in range(count)]
    begins, size_of_code = {}, 0
    for k, section in enumerate(sections):
        if section[2] & 4:  # executed
            begins[k] = -(-size_of_code // section[8]) * section[8]
            size_of_code = begins[k] + section[5]
    for section in sections:
        if section[1] != 2:  # of symbols
            continue
        names = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, info, _, where, value, _ = struct.unpack_from("<IBBHQQ", code, at)
            if info == 0x12 and where in begins:
                end = code.index(b"\0", names + name)
                return code[names + name : end].decode(), begins[where] + value, size_of_code
    return "", 0, 0


def emulate(cpu: str) -> Machine:
    """Makes the host the CPU of this name (znver5, znver4 or sapphirerapids) for the rest of the process. Returns what it is.

    What else in the process loads kernels does so by `native.load_object` then, as tests do (pytest_collection_finish).
    """
    real = machine_of(Target("host"))
    driver = _driver()
    _emulated[cpu] = driver
    known = llvm.get_host_cpu_features()

    class Features(type(known)):  # type: ignore[misc]  # llvmlite has no types
        pass

    features = Features(dict.fromkeys(known, False) | dict.fromkeys(_FEATURES, True))
    llvm.get_host_cpu_features = lambda: features
    llvm.get_host_cpu_name = lambda: cpu
    polyml.target._cache_sizes = lambda: _CACHES[cpu]
    for cached in (polyml.target._host_fields, polyml.target._host, machine.host):
        cached.cache_clear()
    load.host = lambda: real  # type: ignore[attr-defined]

    def loaded(
        code: bytes | Sequence[bytes], exports: tuple[str, ...], imports: Mapping[str, int] | None = None
    ) -> Loaded:
        """The first object is that of the regions."""
        name, offset, size = text_of(code if isinstance(code, bytes) else code[0])
        result = load_object(code, (*exports, name) if name else exports, imports)
        if name:
            piece = driver.emulate(result.addresses[name] - offset, size)
            assert piece >= 0, "too many kernels"
            weakref.finalize(result.tracker, driver.forget, piece).atexit = False
        return result

    native.load_object = loaded  # type: ignore[attr-defined]
    balance.load_object = loaded  # type: ignore[attr-defined]
    return machine_of(Target.host())


def pytest_configure() -> None:
    emulate(os.environ.get("AVX512", "sapphirerapids"))


def pytest_collection_finish() -> None:
    """Tests that compile for the host themselves. Those of tests/runtime compile for any x86-64."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tests.codegen.llvm.") and vars(module).get("load_object") is load_object:
            module.load_object = native.load_object  # type: ignore[attr-defined]
