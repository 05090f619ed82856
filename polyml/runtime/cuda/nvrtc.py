"""NVRTC: CUDA's compiler as a library in this process, through ctypes. It needs neither a toolkit nor a GPU; pip has it as nvidia-cuda-nvrtc.

Source: NVIDIA, NVRTC documentation; PTX ISA, "cp.async".
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from polyml.errors import CodegenError
from polyml.records import dataclass

__all__ = ["Nvrtc", "find_nvrtc"]

PIPELINE_HEADER = """
#pragma once
__device__ __forceinline__ void __pipeline_memcpy_async(void* to, const void* from, unsigned long long bytes) {
#if __CUDA_ARCH__ >= 800
  const unsigned at = (unsigned)__cvta_generic_to_shared(to);
  if (bytes == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
  if (bytes == 8) asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(at), "l"(from) : "memory");
  if (bytes == 4) asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
#else
  if (bytes == 16) *(uint4*)to = *(const uint4*)from;
  if (bytes == 8) *(uint2*)to = *(const uint2*)from;
  if (bytes == 4) *(unsigned*)to = *(const unsigned*)from;
#endif
}
__device__ __forceinline__ void __pipeline_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
__device__ __forceinline__ void __pipeline_wait_prior(int) {  // all of them: what the kernels ask for
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
"""
"""What kernels use of the toolkit's header of this name, which NVRTC comes without."""

_HEADERS = {b"cuda_pipeline_primitives.h": PIPELINE_HEADER.encode()}


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """The loaded library. version: such as "13.0". architectures: what it compiles for, such as "sm_90"."""

    library: ctypes.CDLL
    version: str
    architectures: frozenset[str]

    def compiles_for(self, architecture: str) -> bool:
        """Whether it knows that architecture; "sm_90a" is sm_90 and some instructions that the list does not tell of."""
        return architecture.rstrip("af") in self.architectures

    def compile(self, text: str, options: Sequence[str]) -> tuple[bytes, str]:
        """The cubin, and what the compiler says.

        Raises:
            CodegenError: it refuses the text.
        """
        program, count = ctypes.c_void_p(), len(_HEADERS)
        contents = (ctypes.c_char_p * count)(*_HEADERS.values())
        names = (ctypes.c_char_p * count)(*_HEADERS)
        self._do("nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"kernels.cu", count, contents, names)
        try:
            given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self.library.nvrtcCompileProgram(program, len(options), given)
            log = self._bytes(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").rstrip(b"\0").decode()
            if status != 0:
                raise CodegenError(f"NVRTC refuses the generated code:\n{log.strip()[-2000:] or self._name(status)}")
            return self._bytes(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN"), log
        finally:
            self._do("nvrtcDestroyProgram", ctypes.byref(program))

    def _bytes(self, program: ctypes.c_void_p, size: str, get: str) -> bytes:
        length = ctypes.c_size_t()
        self._do(size, program, ctypes.byref(length))
        found = ctypes.create_string_buffer(length.value)
        self._do(get, program, found)
        return found.raw

    def _do(self, name: str, *arguments: object) -> None:
        status = self.library[name](*arguments)
        if status != 0:
            raise CodegenError(f"NVRTC {self.version} fails: {name} says {self._name(status)}")

    def _name(self, status: int) -> str:
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return str(self.library.nvrtcGetErrorString(status).decode())


def find_nvrtc(architecture: str | None = None) -> Nvrtc | None:
    """The library: pip's, the toolkit's (CUDA_HOME, or beside nvcc), or where the system looks for libraries; where an architecture ("sm_90") is named, the first that compiles for it:
    12 knows GPUs from sm_50 on, 13 from sm_75 on.
    """
    found = (library for place in _places() if (library := _loaded(place)) is not None)
    return next((library for library in found if architecture is None or library.compiles_for(architecture)), None)


@functools.cache
def _loaded(place: str) -> Nvrtc | None:
    """The library there; None where there is none, or one from before CUDA 11.2."""
    try:
        library = ctypes.CDLL(place)
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        bad = library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        bad = bad or library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        known = (ctypes.c_int * count.value)()
        if bad or library.nvrtcGetSupportedArchs(known) or not hasattr(library, "nvrtcGetCUBIN"):
            return None
    except (OSError, AttributeError):
        return None
    return Nvrtc(library, f"{major.value}.{minor.value}", frozenset(f"sm_{number}" for number in known))


def _places() -> Iterator[str]:
    package = importlib.util.find_spec("nvidia")
    folders = [Path(f) for f in (package.submodule_search_locations or ())] if package is not None else []
    for folder in folders:
        yield from _libraries(folder, "*/lib/libnvrtc.so.*")
    compiler = shutil.which("nvcc")
    homes = [os.environ.get("CUDA_HOME"), None if compiler is None else str(Path(compiler).resolve().parent.parent)]
    for home in filter(None, [*homes, "/usr/local/cuda"]):
        yield from _libraries(Path(home), "lib*/libnvrtc.so*")
    yield from ("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12")


def _libraries(folder: Path, pattern: str) -> list[str]:
    """The latest first."""
    return sorted((str(p) for p in folder.glob(pattern) if "builtins" not in p.name), reverse=True)
