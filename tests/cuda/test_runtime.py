"""What a GPU run says where something is missing, and how the host program runs where all is there."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import polyml
import polyml.runtime.cuda.pycuda_device as cuda
from polyml.__main__ import main
from polyml.codegen.cuda.program import Kernel, grid_of
from polyml.codegen.loops import For, Function
from polyml.errors import DeviceUnavailableError, PolymlError, SubscriptError
from polyml.sets.affine import affine, minimum
from tests.cuda.batch import compile_batch, needs_gxx
from tests.cuda.emulator.device import EmulatedDevice

DOUBLE = 'def double(x: f32["N"]):\n    y[n] = 2 * x[n]\n    return y\n'


@pytest.fixture
def nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise DeviceUnavailableError("pycuda is not installed", hint="pip install 'polyml-compiler[cuda]'")

    monkeypatch.setattr(cuda, "_driver", refuse)
    monkeypatch.setattr(cuda, "find_compiler", lambda: None)
    cuda.the_device.cache_clear()


@pytest.mark.usefixtures("nothing_there")
def test_a_call_says_what_is_missing() -> None:
    with pytest.raises(DeviceUnavailableError, match="pycuda is not installed\nhint: pip install"):
        polyml.einsum(DOUBLE, target="cuda")(np.ones(3, np.float32))
    with pytest.raises(DeviceUnavailableError, match="pycuda is not installed\nhint: pip install"):
        polyml.einsum("i,i", np.ones(3), np.ones(3), target="cuda")


def test_what_is_missing_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """pycuda, the driver, a driver that starts, a device."""

    class Refused(Exception):
        pass

    def refuse() -> None:
        raise Refused("no device driver")

    def said(module: object) -> str:
        monkeypatch.setitem(sys.modules, "pycuda", None if module is None else SimpleNamespace(driver=module))
        monkeypatch.setitem(sys.modules, "pycuda.driver", module)
        with pytest.raises(DeviceUnavailableError) as fault:
            cuda._driver.__wrapped__()
        return str(fault.value)

    assert said(None) == "pycuda is not installed\nhint: pip install 'polyml-compiler[cuda]'"
    stopped = SimpleNamespace(Error=Refused, init=refuse)
    assert said(stopped) == "CUDA's driver does not start: no device driver\nhint: look at nvidia-smi"
    empty = SimpleNamespace(Error=Refused, init=lambda: None, Device=SimpleNamespace(count=lambda: 0))
    assert said(empty) == "there is no CUDA device\nhint: look at nvidia-smi and CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize("driver", [False, True])
def test_a_missing_driver_is_told_before_pycuda_is_built(monkeypatch: pytest.MonkeyPatch, driver: bool) -> None:
    def refuse() -> None:
        raise DeviceUnavailableError("pycuda is not installed") from ModuleNotFoundError()

    monkeypatch.setattr(cuda, "_driver", refuse)
    monkeypatch.setattr(cuda, "find_compiler", lambda: "nvcc")
    monkeypatch.setattr(cuda, "driver_is_there", lambda: driver)
    said = [part for part, _ in cuda.missing_parts()]
    assert said == ["pycuda is not installed", *([] if driver else ["CUDA's driver is not there"])]


@pytest.mark.usefixtures("nothing_there")
def test_the_demo_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--target", "cuda"]) == 1
    said = capsys.readouterr().out
    assert "no CUDA compiler (nvcc or NVRTC)" in said
    assert "pip install 'polyml-compiler[cuda]'" in said


def test_views_belong_to_targets() -> None:
    x = np.ones(3, np.float32)
    assert "__global__" in polyml.einsum(DOUBLE, target="cuda").lower(x).text("cuda")
    with pytest.raises(PolymlError, match='no view "cuda"'):
        polyml.einsum(DOUBLE).lower(x).text("cuda")
    with pytest.raises(PolymlError, match='no view "llvm"'):
        polyml.einsum(DOUBLE, target="cuda").lower(x).text("llvm")


def kernel_with(*loops: For) -> Kernel:
    body: tuple[For, ...] = ()
    for loop in reversed(loops):
        body = (For(**{**{f: getattr(loop, f) for f in loop.__slots__}, "body": body}),)
    function = Function(name="k", arguments=(), written=frozenset(), sizes=("n",), body=body)
    return Kernel(function=function, threads=(1, 1, 1))


def block(variable: str, axis: str, lower: object, upper: object, factor: int = 1) -> For:
    return For(
        variable=variable,
        lower=affine(lower),
        upper=affine(upper),
        step=factor,
        kind="block",
        factor=factor,
        axis=axis,
        body=(),
    )


def test_grids() -> None:
    n = affine("n")
    assert grid_of(kernel_with(block("i", "x", 0, n, 32)), {"n": 33}) == (2, 1, 1)
    assert grid_of(kernel_with(block("i", "x", 0, n, 32)), {"n": 0}) is None
    assert grid_of(kernel_with(block("i", "y", 1, n)), {"n": 9}) == (1, 8, 1)
    assert grid_of(kernel_with(block("i", "y", 0, n)), {"n": 10**6}) == (1, 65535, 1)
    triangle = kernel_with(block("i", "y", 0, n), block("j", "x", 0, minimum([affine("i") + 1, affine(50)])))
    assert grid_of(triangle, {"n": 10}) == (10, 10, 1)
    assert grid_of(triangle, {"n": 100}) == (50, 100, 1)


GATHER = 'def gather(x: f32["N"], ids: i32["M"]):\n    y[m] = x[ids[m]]\n    return y\n'
LAYOUTS = 'def f(x: f32["N M"], y: f32["N M"]):\n    y[i, j] += 2 * x[i, j]\n'


@needs_gxx
def test_checks_layouts_and_memory() -> None:
    x, ids = np.arange(5, dtype=np.float32), np.array([4, 0, 7], np.int32)
    a = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
    b = np.ones((3, 4), np.float32).T
    batch = compile_batch([(GATHER, [x, ids]), (LAYOUTS, [a, b])])
    gather, update = batch.kernels
    with pytest.raises(SubscriptError):
        gather(x, ids)
    assert batch.device.live == {}, "device memory is lost after a fault"
    assert np.array_equal(gather(x, ids % 5), x[ids % 5])
    update(a, b)
    assert np.array_equal(b, 1 + 2 * a)
    assert batch.device.live == {}


@needs_gxx
def test_memory_errors_give_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones(5, np.float32)
    batch = compile_batch([(DOUBLE, [x])])
    allocate, count = EmulatedDevice.allocate, iter(range(10))

    def second_fails(self: EmulatedDevice, size: int) -> int:
        if next(count) == 1:
            raise MemoryError(f"the device has no {size} bytes")
        return allocate(self, size)

    monkeypatch.setattr(EmulatedDevice, "allocate", second_fails)
    with pytest.raises(MemoryError, match="the device has no 20 bytes"):
        batch.kernels[0](x)
    assert batch.device.live == {}
    assert np.array_equal(batch.kernels[0](x), 2 * x)
