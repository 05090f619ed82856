"""CUDA C -> cubin: by NVRTC in this process where one is installed that knows the GPU (a tenth of the time), else by nvcc; kept in the disk cache.

POLYML_CUDA_COMPILER=nvcc or nvrtc says which.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from polyml.errors import CodegenError, DeviceUnavailableError, PolymlError
from polyml.records import dataclass
from polyml.runtime.cache.files import store
from polyml.runtime.cuda.device import CudaCode
from polyml.runtime.cuda.nvrtc import find_nvrtc

__all__ = ["NO_COMPILER", "Compiler", "compile_cubin", "compiler_report", "find_compiler", "find_nvcc"]

VARIABLE = "POLYML_CUDA_COMPILER"
NO_COMPILER = (
    "there is no CUDA compiler (nvcc or NVRTC)",
    "pip install nvidia-cuda-nvrtc, or install the CUDA toolkit and add its bin folder to PATH",
)
"""What is said where none is found, and the remedy."""

LEAST_OF_13 = 75
"""CUDA 13 knows GPUs of this compute capability and later."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """name: "nvcc" or "nvrtc"; version: tells apart what would compile differently. run: (text, options) -> the cubin and what the compiler says; it raises CodegenError."""

    name: str
    version: str
    run: Callable[[str, Sequence[str]], tuple[bytes, str]]

    def options(self, architecture: str, *, precise: bool) -> list[str]:
        """For one architecture ("sm_90"), with the report of registers. precise: without fused multiply-add."""
        fused = ["--fmad=false"] if precise else []
        level = ["-O3"] if self.name == "nvcc" else []
        return [f"--gpu-architecture={architecture}", *level, "--ptxas-options=-v", *fused]


def find_nvcc() -> str | None:
    """nvcc: on the path, or in CUDA_HOME."""
    found = shutil.which("nvcc")
    if found is None and "CUDA_HOME" in os.environ:
        found = shutil.which("nvcc", path=str(Path(os.environ["CUDA_HOME"]) / "bin"))
    return found


def find_compiler(architecture: str | None = None) -> Compiler | None:
    """The compiler in use, for that architecture ("sm_90") where one is named (nvcc is asked when it compiles); None where there is none.

    Raises:
        PolymlError: POLYML_CUDA_COMPILER names no compiler.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "nvcc", "nvrtc"):
        raise PolymlError(f'{VARIABLE} is "{wanted}"', hint="nvcc, nvrtc, or nothing: NVRTC where it is installed")
    library = find_nvrtc(architecture) if wanted != "nvcc" else None
    if library is not None:
        return Compiler("nvrtc", library.version, library.compile)
    path = find_nvcc() if wanted != "nvrtc" else None
    return None if path is None else Compiler("nvcc", _version(path), functools.partial(_run, path))


def compile_cubin(code: CudaCode, architecture: str) -> bytes:
    """The kernels compiled for one architecture ("sm_90"), from polyml's disk cache where they are in it.

    Raises:
        DeviceUnavailableError: there is no compiler that knows the architecture. CodegenError: it refuses the text.
    """
    return _compiled(code, architecture)[0]


def compiler_report(code: CudaCode, architecture: str) -> str:
    """What the compiler says of the kernels: registers, spills, shared memory (see cuda/report.py).

    Raises:
        As compile_cubin.
    """
    return _compiled(code, architecture)[1]


def _compiled(code: CudaCode, architecture: str) -> tuple[bytes, str]:
    """The cubin and the report, from the disk cache where both are in it."""
    compiler = find_compiler(architecture)
    if compiler is None:
        raise _unknown(architecture) if find_compiler() else DeviceUnavailableError(NO_COMPILER[0], hint=NO_COMPILER[1])
    options = compiler.options(architecture, precise=code.precise)
    name = hashlib.sha256("\0".join([code.text, compiler.name, compiler.version, *options]).encode()).hexdigest()
    report = hashlib.sha256(f"{name} report".encode()).hexdigest()
    kept = store()
    found = (None, None) if kept is None else (kept.get(name), kept.get(report))
    if found[0] is not None and found[1] is not None:
        return found[0], found[1].decode()
    try:
        cubin, text = compiler.run(code.text, options)
    except CodegenError as refusal:
        if "Unsupported gpu architecture" in refusal.message:
            raise _unknown(architecture) from refusal
        raise
    if kept is not None:
        kept.put(name, cubin)
        kept.put(report, text.encode())
    return cubin, text


def _unknown(architecture: str) -> DeviceUnavailableError:
    """What is said where compilers are there, and none of them knows the architecture."""
    new = int(re.sub(r"\D", "", architecture) or 0) >= LEAST_OF_13
    remedy = (
        "pip install -U nvidia-cuda-nvrtc"
        if new
        else "pip install nvidia-cuda-nvrtc-cu12 (CUDA 13 compiles from sm_75 on)"
    )
    return DeviceUnavailableError(f"no CUDA compiler here compiles for {architecture}", hint=remedy)


def _run(compiler: str, text: str, options: Sequence[str]) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory() as work:
        source, made = Path(work, "kernels.cu"), Path(work, "kernels.cubin")
        source.write_text(text)
        command = [compiler, "--cubin", *options, "-o", str(made), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CodegenError(f"nvcc refuses the generated code:\n{done.stderr.strip()[-2000:]}")
        return made.read_bytes(), done.stderr


def _version(compiler: str) -> str:
    """The file itself: to ask it takes longer than to load a kernel from the cache."""
    file = Path(compiler).resolve()
    status = file.stat()
    return f"{file} {status.st_size} {status.st_mtime_ns}"
