"""pycuda's side of the runtime, against a stand-in of the parts of pycuda.driver that it calls (signatures from pycuda's reference)."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import polyml
import polyml.runtime.cuda.pycuda_device as cuda
from polyml.compiler.driver import lower_program
from polyml.compiler.gpu import cuda_kernel
from polyml.errors import CodegenError
from polyml.gpu_core import Limits
from polyml.runtime.cuda.pycuda_device import PycudaDevice


class OutOfMemory(Exception):
    pass


class Driver:
    """Counts contexts and allocations, and records copies and launches."""

    MemoryError = OutOfMemory

    class Context:
        @staticmethod
        def synchronize() -> None: ...

    def __init__(self) -> None:
        self.depth, self.next, self.room = 0, 4096, 1 << 20
        self.live: dict[int, int] = {}
        self.events: list[tuple[object, ...]] = []

    def push(self) -> None:
        self.depth += 1

    def pop(self) -> None:
        self.depth -= 1

    def mem_alloc(self, size: int) -> object:
        assert self.depth == 1, "no context is current"
        if size > self.room:
            raise OutOfMemory
        address, self.next = self.next, self.next + size
        self.live[address] = size

        class Allocation:
            def __int__(inner) -> int:
                return address

            def free(inner) -> None:
                assert self.depth == 1, "no context is current"
                del self.live[address]

        return Allocation()

    def mem_get_info(self) -> tuple[int, int]:
        return self.room, 1 << 20

    def memcpy_htod(self, address: int, array: np.ndarray) -> None:
        assert self.depth == 1
        assert array.nbytes <= self.live[address]
        self.events.append(("in", array.nbytes))

    def memcpy_dtoh(self, array: np.ndarray, address: int) -> None:
        assert self.depth == 1
        assert array.nbytes <= self.live[address]
        self.events.append(("out", array.nbytes))

    def module_from_buffer(self, binary: bytes) -> object:
        assert self.depth == 1
        self.events.append(("load", binary))

        def prepared_async_call(grid: tuple[int, ...], block: tuple[int, ...], stream: object, *arguments: int) -> None:
            assert (self.depth, stream) == (1, None)
            self.events.append(("run", grid, block, len(arguments)))

        def get_function(name: str) -> object:
            return SimpleNamespace(
                prepare=lambda text: self.events.append((name, text)), prepared_async_call=prepared_async_call,
                max_threads_per_block=1024, num_regs=32,
            )  # fmt: skip

        return SimpleNamespace(get_function=get_function)


TEXT = 'def f(x: f32["N M"], n: int):\n    y[i, j] = 2 * x[i, j] + n\n    return y\n'


def test_the_calls_that_pycuda_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setattr(cuda, "compile_cubin", lambda code, architecture: architecture.encode())
    device = PycudaDevice(driver, driver, "sm_90", 1 << 20, Limits())  # type: ignore[arg-type]
    x = np.ones((100, 70), np.float32)
    program = polyml.einsum(TEXT, target="cuda", dynamic=True)
    key = program.key_of(x, 3)
    kernel = cuda_kernel(program.program, lower_program(program.program, key, program.options), device)
    kernel(x, 3)
    kernel(x, 4)
    (name,) = [k.name for k in kernel.cuda.kernels]
    run = ("run", (3, 13, 1), (32, 8, 1), 5)
    assert driver.events == [
        ("load", b"sm_90"), ("in", 28000), (name, "PPqqq"), run, ("out", 28000), ("in", 28000), run, ("out", 28000),
    ]  # fmt: skip
    assert (driver.depth, sorted(driver.live.values())) == (0, [28672, 28672]), "kept for the next call"
    driver.room = 100
    large = np.ones((200, 70), np.float32)
    with pytest.raises(MemoryError, match="the device has no 56000 bytes: 100 of 1048576 bytes are free"):
        kernel(large, 3)
    assert (driver.depth, driver.live) == (0, {}), "what was kept goes back before memory runs out"


def test_a_fault_of_the_compiler_leaves_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()

    def refuse(code: object, architecture: str) -> bytes:
        raise CodegenError("nvcc refuses the generated code")

    monkeypatch.setattr(cuda, "compile_cubin", refuse)
    program = polyml.einsum(TEXT, target="cuda")
    key = program.key_of(np.ones((2, 2), np.float32), 3)
    device = PycudaDevice(driver, driver, "sm_90", 1 << 20, Limits())  # type: ignore[arg-type]
    with pytest.raises(CodegenError):
        cuda_kernel(program.program, lower_program(program.program, key, program.options), device)
    assert driver.depth == 0
