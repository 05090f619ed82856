"""Arrays that are on the device already, with a stand-in class: nothing is copied, and results are of its kind."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import polyml
import polyml.runtime.cuda.pycuda_device as cuda
from polyml.errors import ArgumentError
from polyml.runtime.foreign.device_arrays import MAKERS
from polyml.runtime.foreign.dlpack_device import _Tensor, _Versioned
from tests.cuda.batch import needs_gxx
from tests.cuda.emulator.device import EmulatedDevice

pytestmark = needs_gxx


class OnDevice:
    """An array in the emulated device's memory, as another library would have it. strides: to claim, in bytes."""

    device: EmulatedDevice

    def __init__(self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None) -> None:
        self.shape, self.dtype, self.strides = shape, np.dtype(dtype), strides
        self.stream: int | None = None
        self.read_only = False
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
            "data": (self.address, self.read_only),
            "strides": self.strides,
            "version": 3,
            "stream": self.stream,
        }


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedDevice]:
    made = EmulatedDevice()
    monkeypatch.setattr(cuda, "the_device", lambda: made)
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


@pytest.mark.parametrize(
    "subscripts", ["ij,jk->ik", "ij,jk", "ij,kj->", "ii->i", "ii", "i...->...i", "ij,ij,jk->k", "ij,j->ij"]
)
@pytest.mark.few(2)
def test_numpys_form(device: EmulatedDevice, subscripts: str) -> None:
    rng = np.random.default_rng(3)
    letters = [len(piece.replace("...", "xy")) for piece in subscripts.partition("->")[0].split(",")]
    operands = [rng.standard_normal((6,) * rank, dtype=np.float32) for rank in letters]
    expected = np.einsum(subscripts, *operands)
    there = polyml.einsum(subscripts, *map(OnDevice.of, operands), target="cuda")
    assert isinstance(there, OnDevice)
    for found in (there.host, polyml.einsum(subscripts, *operands, target="cuda")):
        assert np.shape(found) == expected.shape
        assert np.allclose(found, expected, atol=1e-5)


def test_semirings_and_masks_on_the_device(device: EmulatedDevice) -> None:
    x, mask = np.random.default_rng(3).standard_normal((5, 7), dtype=np.float32), np.tri(5, dtype=bool)
    given = OnDevice.of(x)
    nearest = polyml.einsum("id,jd->ij", given, given, semiring=("max", "abs(a - b)"), target="cuda")
    assert np.array_equal(nearest.host, np.abs(x[:, None] - x).max(2))
    lower = polyml.einsum("id,jd->ij", given, given, where=OnDevice.of(mask), target="cuda")
    assert np.allclose(lower.host, np.tril(x @ x.T), atol=1e-5)
    with pytest.raises(ArgumentError, match="dtype= does not go with"):
        polyml.einsum("id,jd->ij", given, given, dtype="f8", target="cuda")


DENSE = """
def dense(x: f32["N K"], w: f32["K M"], s: f32):
    y[n, m] = s * x[n, k] * w[k, m]
    return y
"""


@pytest.mark.usefixtures("unreported")
def test_constants_stay_on_the_device(device: EmulatedDevice) -> None:
    w = np.arange(20, dtype=np.float32).reshape(4, 5)
    layer = polyml.einsum(DENSE, target="cuda").bind(w=w, s=2.0)
    expected = 2 * X @ w
    w[:] = 0  # changes nothing
    for _ in range(3):
        assert np.allclose(layer(X), expected)
        assert np.allclose(layer(OnDevice.of(X)).host, expected)
    into = np.empty_like(expected)
    assert layer(X, out=into) is into
    assert np.allclose(into, expected)
    assert "mapping" in layer.explain(X)
    assert list(device.live.values()).count(w.nbytes) == 1
    del layer
    gc.collect()
    assert list(device.live.values()).count(w.nbytes) == 0


def test_more_can_be_bound(device: EmulatedDevice) -> None:
    w = np.arange(20, dtype=np.float32).reshape(4, 5)
    layer = polyml.einsum(DENSE, target="cuda").bind(s=2.0).bind(w=w)
    assert np.allclose(layer(X), 2 * X @ w)
    assert str(layer.compile(X)).startswith("<polyml.Kernel dense")
    with pytest.raises(ArgumentError, match="dense has w bound already"):
        layer.bind(w=w)


def test_updated_parameters_are_no_constants(device: EmulatedDevice) -> None:
    with pytest.raises(ArgumentError, match=r"updates b in place(.|\n)*leave b out"):
        polyml.einsum(TEXT, target="cuda").bind(b=B)(X, 1.0)


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


def test_kernels_come_behind_the_arrays_streams(device: EmulatedDevice) -> None:
    """The default stream is in order anyway, by either name; the call waits for nothing."""
    f = polyml.einsum(TEXT, target="cuda")
    x, b, out = OnDevice.of(X), OnDevice.of(B), OnDevice(X.shape, X.dtype)
    x.stream = b.stream = 1
    f(x, b, 1.0, out=out)
    assert device.events == []
    x.stream = out.stream = 77
    b.stream = 2
    f(x, b, 1.0, out=out)
    assert device.events == ["behind 2", "behind 77"]


@pytest.mark.parametrize("package", ["jax", "jaxlib"])
def test_libraries_without_streams_get_finished_results(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """JAX's arrays: its classes come from either package."""
    monkeypatch.setattr("polyml.runtime.foreign.device_arrays._package", lambda owner: package)
    monkeypatch.setitem(MAKERS, package, MAKERS["tests"])
    f = polyml.einsum(TEXT, target="cuda")
    y = f(OnDevice.of(X), OnDevice.of(B), 3.0)
    assert isinstance(y, OnDevice)
    assert np.array_equal(y.host, 3 * X + B)
    assert device.events == ["finish"]


def test_read_only_arrays_are_not_updated(device: EmulatedDevice) -> None:
    f = polyml.einsum(TEXT, target="cuda")
    x, b = OnDevice.of(X), OnDevice.of(B)
    b.read_only = True
    with pytest.raises(ArgumentError, match="read-only"):
        f(x, b, 3.0)


class ByDlpack:
    """An array in the emulated device's memory that speaks DLPack alone; of bf16 elements, as torch has them, when told so."""

    def __init__(self, array: np.ndarray, *, bf16: bool = False, versioned: bool = True) -> None:
        self.memory = OnDevice.of(array)
        self.versioned = versioned
        self.asked: list[object] = []
        rank = array.ndim
        self.shape = (ctypes.c_int64 * max(rank, 1))(*array.shape)
        code = (4, 16) if bf16 else (2, 8 * array.itemsize)
        self.tensor = _Tensor(self.memory.address, 2, 0, rank, *code, 1, self.shape, None, 0)
        self.whole = _Versioned(1, 0, None, None, 0, self.tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **keywords: object) -> object:
        if not self.versioned and "max_version" in keywords:
            raise TypeError("unexpected keyword")
        self.asked.append(keywords["stream"])
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        if self.versioned:
            return make(ctypes.addressof(self.whole), b"dltensor_versioned", None)
        return make(ctypes.addressof(self.tensor), b"dltensor", None)


@pytest.mark.parametrize("versioned", [True, False])
def test_arrays_that_speak_dlpack(device: EmulatedDevice, versioned: bool) -> None:
    f = polyml.einsum(TEXT, target="cuda")
    x, b, out = ByDlpack(X, versioned=versioned), ByDlpack(B, versioned=versioned), OnDevice(X.shape, X.dtype)
    assert f(x, b, 3.0, out=out) is out
    assert np.array_equal(out.host, 3 * X + B)
    assert np.array_equal(b.memory.host, 2 * B)
    assert x.asked == [1], "its library makes the default stream wait"


def test_dlpack_brings_bf16(device: EmulatedDevice) -> None:
    f = polyml.einsum('def f(x: bf16["N"]):\n    y[n] = f32(2 * x[n])\n    return y\n', target="cuda")
    bits = np.array([0x3F80, 0x4000, 0xC040], np.uint16)  # 1, 2, -3
    out = OnDevice((3,), np.float32)
    f(ByDlpack(bits, bf16=True), out=out)
    assert out.host.tolist() == [2, 4, -6]


def test_no_memory_is_lost(device: EmulatedDevice) -> None:
    f = polyml.einsum(TEXT, target="cuda")
    x, b, out = ByDlpack(X), OnDevice.of(B), OnDevice(X.shape, X.dtype)
    f(x, b, 0.0, out=out)
    before, references = dict(device.live), sys.getrefcount(x)
    for _ in range(300):
        f(x, b, 0.0, out=out)
    assert device.live == before
    assert sys.getrefcount(x) == references
