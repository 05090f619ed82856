"""The GPU of this machine: CUDA C compiled to a cubin by nvcc (kept in the disk cache), loaded and launched through pycuda.

pycuda is an optional extra and is imported when the first kernel is loaded. The first device is used, in its primary context, so that other libraries' arrays
are in the same one.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from polyml.errors import CodegenError, DeviceUnavailableError
from polyml.records import dataclass
from polyml.runtime.arguments import Array
from polyml.runtime.cache import store

if TYPE_CHECKING:
    from polyml.runtime.cuda_program import CudaCode, Module  # brings LLVM with it, which the doctor does not need

__all__ = [
    "PycudaDevice",
    "compile_cubin",
    "compiler_report",
    "device_names",
    "find_nvcc",
    "missing_parts",
    "the_device",
]


def find_nvcc() -> str | None:
    """The compiler: on the path, or in CUDA_HOME."""
    found = shutil.which("nvcc")
    if found is None and "CUDA_HOME" in os.environ:
        found = shutil.which("nvcc", path=str(Path(os.environ["CUDA_HOME"]) / "bin"))
    return found


def compile_cubin(code: CudaCode, architecture: str) -> bytes:
    """The kernels compiled for one architecture ("sm_90"), from polyml's disk cache where they are in it.

    Raises:
        DeviceUnavailableError: there is no compiler. CodegenError: it refuses the text.
    """
    return _compiled(code, architecture)[0]


def compiler_report(code: CudaCode, architecture: str) -> str:
    """What the compiler says of the kernels: registers, spills, shared memory (see cuda_report.py).

    Raises:
        As compile_cubin.
    """
    return _compiled(code, architecture)[1]


def _compiled(code: CudaCode, architecture: str) -> tuple[bytes, str]:
    """The cubin and the report, from the disk cache where both are in it."""
    compiler = find_nvcc()
    if compiler is None:
        raise DeviceUnavailableError(
            "there is no CUDA compiler", hint="install the CUDA toolkit and add its bin folder to PATH (nvcc)"
        )
    options = [f"-arch={architecture}", "-O3", "-Xptxas=-v", *(["-fmad=false"] if code.precise else [])]
    name = hashlib.sha256("\0".join([code.text, _version(compiler), *options]).encode()).hexdigest()
    report = hashlib.sha256(f"{name} report".encode()).hexdigest()
    kept = store()
    found = (None, None) if kept is None else (kept.get(name), kept.get(report))
    if found[0] is not None and found[1] is not None:
        return found[0], found[1].decode()
    cubin, text = _run(compiler, options, code.text)
    if kept is not None:
        kept.put(name, cubin)
        kept.put(report, text.encode())
    return cubin, text


def _run(compiler: str, options: Sequence[str], text: str) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory() as work:
        source, made = Path(work, "kernels.cu"), Path(work, "kernels.cubin")
        source.write_text(text)
        command = [compiler, "--cubin", *options, "-o", str(made), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CodegenError(f"nvcc refuses the generated code:\n{done.stderr.strip()[-2000:]}")
        return made.read_bytes(), done.stderr


@functools.cache
def _version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return done.stdout


def missing_parts() -> tuple[tuple[str, str], ...]:
    """What a GPU run lacks here, each with its remedy; empty when a kernel can run."""
    found: list[tuple[str, str]] = []
    if find_nvcc() is None:
        found.append(("no CUDA compiler (nvcc)", "install the CUDA toolkit and add its bin folder to PATH"))
    try:
        _driver()
    except DeviceUnavailableError as fault:
        found.append((fault.message, fault.hint or ""))
    return tuple(found)


@functools.cache
def _driver() -> ModuleType:
    """pycuda's driver module, initialized, with at least one device."""
    try:
        import pycuda.driver as driver
    except ModuleNotFoundError as fault:
        raise DeviceUnavailableError("pycuda is not installed", hint="pip install 'polyml-compiler[cuda]'") from fault
    except ImportError as fault:
        raise DeviceUnavailableError(
            f"pycuda cannot reach CUDA's driver: {fault}", hint="install NVIDIA's driver on a machine with a GPU"
        ) from fault
    try:
        driver.init()
        count = driver.Device.count()
    except driver.Error as fault:
        raise DeviceUnavailableError(f"CUDA's driver does not start: {fault}", hint="look at nvidia-smi") from fault
    if count == 0:
        raise DeviceUnavailableError("there is no CUDA device", hint="look at nvidia-smi and CUDA_VISIBLE_DEVICES")
    return driver  # type: ignore[no-any-return]


def device_names() -> tuple[str, ...]:
    """The devices, each with its compute capability.

    Raises:
        DeviceUnavailableError: pycuda, the driver, or a device is missing.
    """
    driver = _driver()
    found = [driver.Device(k) for k in range(driver.Device.count())]
    return tuple("{} (sm_{}{})".format(device.name(), *device.compute_capability()) for device in found)


@functools.cache
def the_device() -> PycudaDevice:
    """The first CUDA device.

    Raises:
        DeviceUnavailableError: pycuda, the driver, or a device is missing; the message says which.
    """
    driver = _driver()
    device = driver.Device(0)
    major, minor = device.compute_capability()
    return PycudaDevice(driver, device.retain_primary_context(), f"sm_{major}{minor}")


@dataclass(frozen=True, slots=True)
class PycudaDevice:
    """A device through pycuda. context: is made current around each use."""

    driver: ModuleType
    context: object
    architecture: str

    def load(self, code: CudaCode) -> Module:
        binary = compile_cubin(code, self.architecture)
        with _Current(self.context):
            return _PycudaModule(self, self.driver.module_from_buffer(binary), {})

    def allocate(self, size: int) -> int:
        with _Current(self.context):
            try:
                allocation = self.driver.mem_alloc(size)
            except self.driver.MemoryError as fault:
                free, total = self.driver.mem_get_info()
                raise MemoryError(f"the device has no {size} bytes: {free} of {total} bytes are free") from fault
            _ALLOCATIONS[int(allocation)] = allocation
            return int(allocation)

    def free(self, address: int) -> None:
        with _Current(self.context):
            _ALLOCATIONS.pop(address).free()  # type: ignore[attr-defined]

    def to_device(self, address: int, array: Array) -> None:
        with _Current(self.context):
            self.driver.memcpy_htod(address, array)

    def on_device(self, target: int, source: int, size: int) -> None:
        with _Current(self.context):
            self.driver.memcpy_dtod(target, source, size)

    def to_host(self, array: Array, address: int) -> None:
        with _Current(self.context):
            self.driver.memcpy_dtoh(array, address)

    def wait_for(self, stream: int) -> None:
        with _Current(self.context):
            status = ctypes.CDLL("libcuda.so.1").cuStreamSynchronize(ctypes.c_void_p(stream))
            if status != 0:
                raise DeviceUnavailableError(f"CUDA's driver cannot wait for stream {stream:#x}: error {status}")

    def finish(self) -> None:
        with _Current(self.context):
            self.driver.Context.synchronize()


_ALLOCATIONS: dict[int, object] = {}
"""pycuda frees an allocation with the last reference to it."""


@dataclass(frozen=True, slots=True)
class _Current:
    """The context is current within the block, and whatever was before is after."""

    context: object

    def __enter__(self) -> None:
        self.context.push()  # type: ignore[attr-defined]

    def __exit__(self, *reason: object) -> None:
        self.context.pop()  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class _PycudaModule:
    device: PycudaDevice
    module: object
    functions: dict[str, object]

    def launch(
        self,
        name: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        pointers: Sequence[int],
        sizes: Sequence[int],
    ) -> None:
        with _Current(self.device.context):
            function = self.functions.get(name)
            if function is None:
                function = self.functions[name] = self.module.get_function(name)  # type: ignore[attr-defined]
                function.prepare("P" * len(pointers) + "q" * len(sizes))
            function.prepared_call(grid, block, *pointers, *sizes)  # type: ignore[attr-defined]
