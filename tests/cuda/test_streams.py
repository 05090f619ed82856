"""Order between other libraries' streams and ours, on a driver that does all work as late as it may: each wait that is missing shows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

import polyml
import polyml.runtime.cuda.pycuda_device as cuda
from tests.cuda.batch import needs_gxx
from tests.cuda.late import LateDriver, late_device

pytestmark = needs_gxx

TWO_REGIONS = """
def regions(x: f32["N M"], w: f32["M K"]):
    s = sum[n, m](x[n, m] * x[n, m])
    y[n, k] = x[n, m] * w[m, k] / s
    return y
"""
RNG = np.random.default_rng(0)
X, W = RNG.standard_normal((12, 10), dtype=np.float32), RNG.standard_normal((10, 12), dtype=np.float32)


def exact(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    found: np.ndarray = x @ w / (x * x).sum()
    return found


class Theirs:
    """Another library's array, used on its stream."""

    def __init__(self, driver: LateDriver, array: np.ndarray, stream: int) -> None:
        self.address, self.shape, self.stream = driver.memory.allocate(array.nbytes), array.shape, stream

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {
            "shape": self.shape,
            "typestr": "<f4",
            "data": (self.address, False),
            "version": 3,
            "stream": self.stream,
        }


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> LateDriver:
    device = late_device()
    made = device.driver
    assert isinstance(made, LateDriver)
    monkeypatch.setattr(cuda, "the_device", lambda: device)
    monkeypatch.setattr(cuda, "compile_cubin", lambda code, architecture: code.text.encode())
    monkeypatch.setattr(cuda, "behind", made.behind)
    polyml.einsum(TWO_REGIONS, target="cuda")(X, W)  # from now on there is memory
    return made


def rounds(driver: LateDriver, streams: tuple[int, int]) -> bool:
    """Arguments are written on the first stream, results read on the second. *Returns* whether all results are right, however late or early the other streams' work is done."""
    right = True
    for driver.others_first in (False, True):
        right &= some_rounds(driver, streams)
    return right


def some_rounds(driver: LateDriver, streams: tuple[int, int], count: int = 4) -> bool:
    f = polyml.einsum(TWO_REGIONS, target="cuda")
    x, w, y = Theirs(driver, X, streams[0]), Theirs(driver, W, streams[0]), Theirs(driver, X @ W, streams[1])
    into = [np.zeros((12, 12), np.float32) for _ in range(count)]
    arguments = [(X + np.float32(k), W - np.float32(k)) for k in range(count)]
    right = True
    for (a, b), found in zip(arguments, into, strict=True):
        driver.submit(streams[0], lambda a=a: ctypes.memmove(x.address, a.ctypes.data, a.nbytes))  # type: ignore[misc]
        driver.submit(streams[0], lambda b=b: ctypes.memmove(w.address, b.ctypes.data, b.nbytes))  # type: ignore[misc]
        f(x, w, out=y)
        driver.submit(streams[1], lambda to=found: ctypes.memmove(to.ctypes.data, y.address, to.nbytes))  # type: ignore[misc]
        driver.synchronize(streams[1])
        right &= np.allclose(found, exact(a, b), rtol=1e-3, atol=1e-5)
    return right


@pytest.mark.parametrize("streams", [(0, 0), (77, 77), (77, 88), (0, 77), (77, 0)])
@pytest.mark.few(3)
def test_calls_stand_between_what_is_ahead_and_what_comes(driver: LateDriver, streams: tuple[int, int]) -> None:
    """The call returns before anything is done: only the last synchronization does it."""
    assert rounds(driver, streams)
    done: list[int] = []
    module = next(iter(driver.modules.values()))
    before = module.launches
    f = polyml.einsum(TWO_REGIONS, target="cuda")
    x, w, y = (Theirs(driver, a, streams[0]) for a in (X, W, X @ W))
    driver.submit(streams[0], lambda: done.append(1))
    f(x, w, out=y)
    assert (module.launches, done) == (before, [])
    driver.wait_for_all()
    assert (module.launches, done) == (before + 2, [1])


@pytest.mark.parametrize("side", ["ahead", "behind"])
@pytest.mark.parametrize("streams", [(77, 77), (77, 88)])
def test_a_missing_wait_is_caught(
    driver: LateDriver, monkeypatch: pytest.MonkeyPatch, side: str, streams: tuple[int, int]
) -> None:
    def half(later: int, earlier: int) -> None:
        if (later in driver.ours) != (side == "ahead"):
            driver.behind(later, earlier)

    monkeypatch.setattr(cuda, "behind", half)
    assert not rounds(driver, streams)


def test_kernels_that_leave_their_stream_are_caught(driver: LateDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two regions on a stream of its own, which waits for nothing."""
    launch: Callable[..., None] = cuda.PycudaQueue.launch
    calls: list[int] = []

    def astray(self: cuda.PycudaQueue, *given: object) -> None:
        calls.append(1)
        elsewhere = self.stream if len(calls) % 2 else SimpleNamespace(handle=99)
        launch(cuda.PycudaQueue(self.device, self.number, elsewhere, ()), *given)

    monkeypatch.setattr(cuda.PycudaQueue, "launch", astray)
    assert not rounds(driver, (77, 77))


def test_memory_is_not_used_again_while_it_is_in_use(driver: LateDriver) -> None:
    """Calls on two streams at once, each with memory of its own between its kernels."""
    f = polyml.einsum(TWO_REGIONS, target="cuda")
    made = []
    for k, stream in enumerate((77, 88, 77, 88)):
        x, w, y = (Theirs(driver, a, stream) for a in (X, W, X @ W))
        for array, value in ((x, X * (k + 1)), (w, W)):
            data = value.astype(np.float32).tobytes()
            driver.submit(stream, lambda to=array.address, data=data: ctypes.memmove(to, data, len(data)))  # type: ignore[misc]
        f(x, w, out=y)
        made.append((k, y))
    driver.wait_for_all()
    for k, y in made:
        found = np.zeros((12, 12), np.float32)
        ctypes.memmove(found.ctypes.data, y.address, found.nbytes)
        np.testing.assert_allclose(found, exact(X * (k + 1), W), rtol=1e-3, atol=1e-5)


def test_memory_errors_tell_the_sizes(driver: LateDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> object:
        raise driver.MemoryError

    monkeypatch.setattr(driver, "mem_alloc", refuse)
    monkeypatch.setattr(driver, "mem_get_info", lambda: (1000, 5000), raising=False)
    large = np.ones((300, 10), np.float32)
    with pytest.raises(MemoryError, match="the device has no 12000 bytes: 1000 of 5000 bytes are free"):
        polyml.einsum(TWO_REGIONS, target="cuda")(large, W)
