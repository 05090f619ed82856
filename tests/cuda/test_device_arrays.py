"""Arrays that are on the device already, with a stand-in class: nothing is copied, and results are of its kind."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import polyml
import polyml.runtime.cuda as cuda
from polyml.errors import ArgumentError
from polyml.runtime.device_arrays import MAKERS
from tests.cuda.batch import needs_gxx
from tests.cuda.emulator.device import EmulatedDevice, EmulatedModule

pytestmark = needs_gxx


class OnDevice:
    """An array in the emulated device's memory, as another library would have it. strides: to claim, in bytes."""

    device: EmulatedDevice

    def __init__(self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None) -> None:
        self.shape, self.dtype, self.strides = shape, np.dtype(dtype), strides
        self.stream: int | None = None
        self.address = self.device.allocate(max(1, self.dtype.itemsize * int(np.prod(shape))))

    @staticmethod
    def of(array: np.ndarray) -> OnDevice:
        made = OnDevice(array.shape, array.dtype)
        OnDevice.device.to_device(made.address, np.ascontiguousarray(array))
        return made

    @property
    def host(self) -> np.ndarray:
        array = np.empty(self.shape, self.dtype)
        self.device.to_host(array, self.address)
        return array

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": self.strides,
            "version": 3,
            "stream": self.stream,
        }


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedDevice]:
    made = EmulatedDevice()
    monkeypatch.setattr(cuda, "the_device", lambda: made)
    monkeypatch.setattr("polyml.compiler_cuda.the_device", lambda: made)
    monkeypatch.setitem(MAKERS, "tests", lambda like, shape, dtype: OnDevice(shape, dtype))
    OnDevice.device = made
    polyml.einsum('def first(x: f32["N"]):\n    y[n] = x[n]\n    return y\n', target="cuda")(np.ones(1, np.float32))
    yield made
    for address in list(
        made.live
    ):  # with their guards they take so much room that compiled code would not lie together
        made.free(address)


TEXT = """
def f(x: f32["N K"], b: f32["K"], s: f32):
    y[n, k] = s * x[n, k] + b[k]
    b[k] = 2 * b[k]
    return y
"""
X, B = np.arange(12, dtype=np.float32).reshape(3, 4), np.arange(4, dtype=np.float32)


def test_device_arrays_are_used_where_they_are(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    f = polyml.einsum(TEXT, target="cuda")
    x, b = OnDevice.of(X), OnDevice.of(B)
    copied: list[int] = []
    copy = EmulatedDevice.to_device
    monkeypatch.setattr(
        EmulatedDevice,
        "to_device",
        lambda self, address, array: (copied.append(array.nbytes), copy(self, address, array)),
    )
    before = len(device.live)
    y = f(x, b, 3.0)
    assert isinstance(y, OnDevice)
    assert np.array_equal(y.host, 3 * X + B)
    assert np.array_equal(b.host, 2 * B)
    assert copied == [4], "only the scalar is copied"
    assert len(device.live) == before + 1, "the result is all that is new"
    out = OnDevice(X.shape, X.dtype)
    assert f(x, b=b, s=1.0, out=out) is out
    assert np.array_equal(out.host, X + 2 * B)


def test_what_is_refused(device: EmulatedDevice) -> None:
    f = polyml.einsum(TEXT, target="cuda")
    x, b = OnDevice.of(X), OnDevice.of(B)
    with pytest.raises(ArgumentError, match="on the device and some are not"):
        f(x, B, 1.0)
    with pytest.raises(ArgumentError, match="not contiguous"):
        f(OnDevice((3, 4), np.float32, (4, 12)), b, 1.0)
    both = polyml.einsum('def g(a: f32["N"], b: f32["N"]):\n    a[n] += b[n]\n', target="cuda")
    twin = OnDevice.of(B)
    other = OnDevice.of(B)
    other.address = twin.address
    with pytest.raises(ArgumentError, match="shares memory"):
        both(twin, other)
    MAKERS.pop("tests")
    with pytest.raises(ArgumentError, match="out="):
        f(x, b, 1.0)


def test_host_arrays_still_come_and_go(device: EmulatedDevice) -> None:
    f = polyml.einsum(TEXT, target="cuda")
    b = B.copy()
    assert np.array_equal(f(X, b, 2.0), 2 * X + B)
    assert np.array_equal(b, 2 * B)
    assert device.live == {}


def test_arrays_at_odd_addresses_are_copied_on_the_device(device: EmulatedDevice) -> None:
    """Vectors need addresses that are multiples of 16; a slice of another library's array may have another one."""
    f = polyml.einsum(TEXT, target="cuda")
    x, b, out = OnDevice.of(np.resize(X, 13)), OnDevice.of(np.resize(B, 5)), OnDevice((13,), np.float32)
    for array, shape in ((x, (3, 4)), (b, (4,)), (out, (3, 4))):
        array.address, array.shape = array.address + 4, shape
    before = len(device.live)
    exact = 3 * x_host(x) + x_host(b)
    twice = 2 * x_host(b)
    assert f(x, b, 3.0, out=out) is out
    assert np.array_equal(x_host(out), exact)
    assert np.array_equal(x_host(b), twice)
    assert len(device.live) == before


def x_host(array: OnDevice) -> np.ndarray:
    found = np.empty(array.shape, np.float32)
    ctypes.memmove(found.ctypes.data, array.address, found.nbytes)
    return found


def test_other_streams_are_waited_for(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the caller's stream has begun is done before the kernels run, and these are done when the call returns; the default stream is in order anyway."""
    f = polyml.einsum(TEXT, target="cuda")
    x, b, out = OnDevice.of(X), OnDevice.of(B), OnDevice(X.shape, X.dtype)
    x.stream = b.stream = 1
    f(x, b, 1.0, out=out)
    assert device.events == []
    launch = EmulatedModule.launch
    monkeypatch.setattr(
        EmulatedModule, "launch", lambda self, *given: (device.events.append("launch"), launch(self, *given))[1]
    )
    x.stream = out.stream = 77
    f(x, b, 1.0, out=out)
    assert (device.events[0], device.events[-1]) == ("wait for 77", "finish")
    assert set(device.events[1:-1]) == {"launch"}
