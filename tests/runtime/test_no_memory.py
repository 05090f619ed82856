"""Kernels that find no memory raise MemoryError, wherever they look for it: in the host function, in a region, in a thread's part of a loop."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import polyml
from polyml.runtime import native
from polyml.runtime.support.module import Support, support
from polyml.target import Target

Allocator = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)
Free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

CACHES = Target(
    "host", vector_bytes=32, vector_registers=16, l1_bytes=48 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20, cores=2
)
"""This machine with vectors of AVX2 and caches for which operands are packed into more memory than a stack has."""
PRODUCT = 'def f(x: f32["N K"], w: f32["K M"]):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n'
GATHER = """
def f(x: f32["N K"], w: f32["K M"], z: f32["M"]):
    y[n, m] = x[n, k] * w[k, m]
    best[n] = argmax[m](y[n, m])
    r[n] = z[best[n]]
    return r
"""


class Failing:
    """An allocator of which the calls with these numbers find nothing. open: what was given and not given back."""

    def __init__(self) -> None:
        real = support().symbols
        self.get, self.back = Allocator(real["polyml_scratch"]), Free(real["polyml_scratch_free"])
        self.failing: frozenset[int] = frozenset()
        self.calls, self.open, self.lock = 0, set[int](), threading.Lock()
        self.callbacks = Allocator(self.scratch), Free(self.free)

    def scratch(self, size: int) -> int | None:
        with self.lock:
            self.calls += 1
            if self.calls in self.failing:
                return None
            found: int = self.get(size)
            self.open.add(found)
        return found

    def free(self, address: int | None) -> None:
        if address is not None:
            with self.lock:
                self.open.remove(address)
            self.back(address)

    def start(self, *failing: int) -> None:
        self.calls, self.failing = 0, frozenset(failing)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Failing]:
    """The allocator of the kernels that are loaded in the test."""
    real, failing = support(), Failing()
    scratch, free = (ctypes.cast(c, ctypes.c_void_p).value or 0 for c in failing.callbacks)
    symbols = {**real.symbols, "polyml_scratch": scratch, "polyml_scratch_free": free}
    patched = Support(real.loaded, symbols, real.header, real.openmp)
    monkeypatch.setattr(native, "support", lambda: patched)
    yield failing
    assert not failing.open


def operands() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((300, 401), np.float32), rng.standard_normal((401, 1500), np.float32)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("text", "dynamic"), [(PRODUCT, False), (PRODUCT, True), (GATHER, False)], ids=["product", "any size", "gather"]
)
@pytest.mark.few(3)
def test_every_allocation_may_fail(memory: Failing, text: str, dynamic: bool, threads: int) -> None:
    x, w = operands()
    more = [np.arange(1500, dtype=np.float32)] if text is GATHER else []
    made = polyml.einsum(text, target=CACHES, threads=threads, dynamic=dynamic)
    memory.start()
    want = made(x, w, *more)
    count = memory.calls
    assert count >= 1
    for number in range(1, count + 1):
        memory.start(number)
        with pytest.raises(MemoryError, match="no memory"):
            made(x, w, *more)
        assert not memory.open
    memory.start()
    np.testing.assert_array_equal(made(x, w, *more), want)


def test_threads_of_one_process(memory: Failing) -> None:
    """Only the calls that found no memory raise."""
    x, w = operands()
    made = polyml.einsum(PRODUCT, target=CACHES, threads=2)
    memory.start()
    want = made(x, w)
    memory.start(*range(3, 200, 7))
    outcomes: list[object] = []

    def work() -> None:
        for _ in range(10):
            try:
                outcomes.append(bool((made(x, w) == want).all()))
            except MemoryError:
                outcomes.append(None)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 40
    assert False not in outcomes
    assert True in outcomes
    assert None in outcomes


@pytest.mark.parametrize("extent", [10**7, 2**31, 2**32, 6_074_001_000])
def test_results_that_no_memory_holds(extent: int) -> None:
    """Also where the number of bytes leaves 64 bits, at the first call and later."""
    f = polyml.einsum('def f(x: f32["N"], n: int):\n    y: f32["n n"] = 1\n    y[0, 0] = x[0]\n    return y\n')
    x = np.zeros(3, np.float32)
    for _ in range(2):
        with pytest.raises(MemoryError, match=rf"no memory for a result of float32 \({extent}, {extent}\)"):
            f(x, extent)
        assert f(x, 2).tolist() == [[0, 1], [1, 1]]
