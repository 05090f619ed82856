"""Half precision: conversions against NumPy and ml_dtypes over all 16-bit values, by the hardware and by integer arithmetic, on every target without a library call."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

from polyml.codegen.c.emit import assemble, function_text
from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.llvm.ir import Instructions
from polyml.codegen.llvm.machine import assembly, compile_object, host, load_object, machine_of
from polyml.codegen.loops import Function
from polyml.dtypes import DType, bf16, f16, f32, f64, i32
from polyml.target import Target, named_targets
from polyml.testing.c_program import WARNINGS, build_shared, compiler_path
from tests.codegen.llvm.support import apply, loop, read, store, variable, vector

HALVES = (f16, bf16)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def conversion(source: DType, target: DType, size: int, width: int) -> Function:
    body = store("y", "i", apply("cast", read("x", source, "i"), dtype=target))
    return Function(
        name="kernel",
        arguments=(variable("y", target, size), variable("x", source, size)),
        written=frozenset("y"),
        sizes=(),
        body=(vector("i", size, width, body) if width > 1 else loop("i", 0, size, body),),
    )


def converted(x: np.ndarray, source: DType, target: DType, width: int, *, half: bool) -> np.ndarray:
    function = conversion(source, target, x.size, width)
    loaded = load_object(compile_object(emit_module([function], Instructions(half=half)), host()), ("kernel",))
    y = np.zeros(x.size, target.numpy)
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(loaded.addresses["kernel"])
    kernel(y.ctypes.data, x.ctypes.data)
    return y


def all_values(dtype: DType) -> np.ndarray:
    return np.arange(2**16, dtype=np.uint16).view(dtype.numpy)


def around_halves(dtype: DType, wide: DType) -> np.ndarray:
    """Numbers of the wider type at, between and next to those of half precision, and some anywhere."""
    exact = all_values(dtype).astype(wide.numpy)
    with np.errstate(all="ignore"):
        middle = (exact + np.nextafter(all_values(dtype).astype(np.float32), np.float32(np.inf)).astype(wide.numpy)) / 2
        grid = np.sort(exact[np.isfinite(exact)])
        ties = (grid[1:] + grid[:-1]) / 2
        near = [np.nextafter(ties, sign) for sign in (np.inf, -np.inf)]
    bits = np.random.default_rng(0).integers(0, 2**32, 50_001, np.uint64).astype(np.uint32)
    anywhere = bits.view(np.float32).astype(wide.numpy)
    return np.concatenate([exact, middle, ties, *near, anywhere]).astype(wide.numpy)


def same(actual: np.ndarray, expected: np.ndarray) -> None:
    """Bit by bit, NaN apart."""
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(a), np.isnan(e))
    keep = ~np.isnan(e)
    np.testing.assert_array_equal(a[keep], e[keep])
    np.testing.assert_array_equal(np.signbit(a[keep]), np.signbit(e[keep]))


def rounded_once(x: np.ndarray, dtype: DType) -> np.ndarray:
    """f64 -> bf16 with one rounding (ml_dtypes rounds to f32 first), by the f16-like grid of neighbours."""
    if dtype == f16:
        return x.astype(np.float16)
    down = (x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    low = np.where(np.abs(down.astype(np.float64)) > np.abs(x), _step(down, -1), down)
    high = _step(low, 1)
    exact_low, exact_high = low.astype(np.float64), high.astype(np.float64)
    exact_high = np.where(np.isinf(exact_high), np.copysign(2.0**128, exact_low), exact_high)
    middle = exact_low / 2 + exact_high / 2
    odd = (low.view(np.uint32) >> 16) & 1 == 1
    up = (np.abs(x) > np.abs(middle)) | ((x == middle) & odd)
    chosen = np.where(up & (exact_low != x), high, low)
    return np.where(np.isfinite(x), chosen, x.astype(np.float32)).astype(dtype.numpy)


def _step(x: np.ndarray, by: int) -> np.ndarray:
    """The neighbour in bf16 whose magnitude is the next larger (1) or smaller (-1)."""
    return (x.view(np.uint32) + np.uint32(by * 65536 % 2**32)).view(np.float32)


@pytest.mark.parametrize("hardware", [True, False])
@pytest.mark.parametrize("width", [1, 16])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.few(2)
def test_conversions_are_exact_or_rounded_once(dtype: DType, width: int, hardware: bool) -> None:
    if hardware and dtype == f16 and not Target.host().converts_half:
        pytest.skip("this machine has no conversions")
    values = all_values(dtype)
    for wide in (f32, f64):
        same(converted(values, dtype, wide, width, half=hardware), values.astype(wide.numpy))
        x = around_halves(dtype, wide)
        with np.errstate(all="ignore"):
            same(converted(x, wide, dtype, width, half=hardware), rounded_once(x.astype(np.float64), dtype))
    numbers = np.random.default_rng(1).integers(-70_000, 70_000, 4001).astype(np.int32)
    with np.errstate(over="ignore"):
        same(converted(numbers, i32, dtype, width, half=hardware), numbers.astype(np.float32).astype(dtype.numpy))


@pytest.mark.skipif(compiler_path() is None, reason="gcc is not installed")
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_conversions_in_c(dtype: DType) -> None:
    pairs = [(source, target) for wide in (f32, f64) for source, target in ((dtype, wide), (wide, dtype))]
    for source, target in pairs:
        x = all_values(dtype) if source == dtype else around_halves(dtype, source)
        text = assemble([function_text(conversion(source, target, x.size, 1), linkage="")])
        y = np.zeros(x.size, target.numpy)
        build_shared(text, "gcc", ["-O1", *WARNINGS]).kernel(*(ctypes.c_void_p(a.ctypes.data) for a in (y, x)))
        with np.errstate(all="ignore"):
            same(y, x.astype(target.numpy) if source == dtype else rounded_once(x.astype(np.float64), dtype))


@pytest.mark.parametrize("name", [n for n in named_targets() if "cuda" not in n])
def test_no_target_calls_a_library(name: str) -> None:
    target = Target(name)
    for width in (1, target.lanes(4)):
        for dtype in HALVES:
            for source, goal in ((dtype, f32), (f32, dtype), (f64, dtype), (dtype, f64)):
                text = emit_module([conversion(source, goal, 100, width)], Instructions(half=target.converts_half))
                found = re.findall(r"\b_*(?:extend|trunc)\w*f\d\b|__gnu_\w+", assembly(text, machine_of(target)))
                assert not found, f"{source} to {goal}"
    if name in ("x86-64-v3", "x86-64-v4"):
        code = assembly(emit_module([conversion(f16, f32, 100, 8)]), machine_of(target))
        assert "vcvtph2ps" in code


def test_a_masked_store_of_one_lane_writes_no_more_than_that() -> None:
    """65 columns: the last is a vector of one lane, whose store truncates (LLVM 22 writes the untruncated number)."""
    import polyml

    program = polyml.einsum("""
def f(x: f32["N M"]):
    y[n, m] = bf16(x[n, m])
    return y
""")
    x = np.random.default_rng(0).standard_normal((33, 65), dtype=np.float32)
    np.testing.assert_array_equal(program(x), x.astype(bf16.numpy))
