"""Vectors of several registers, and real and imaginary parts, under masks on CPUs with AVX and without AVX-512: right values, nothing read outside, and no load that LLVM cannot select."""

import numpy as np
import pytest

import polyml
from polyml.codegen.llvm.ir import Builder, Instructions, Module, Value, type_of
from polyml.codegen.llvm.memory.masked import masked_load, zeros
from polyml.target import Target
from tests.einsum_numpy.guard_pages import guarded

HALVES = """
def halves(x: f32["K"], m: bool["N W"]):
    y: f32["N W"]
    y[i, j] = where(m[i, j] and {first} <= j < {last}, x[j - {first}], 9)
    return y
"""
BACKWARD = """
def backward(x: {dtype}["K"], m: bool["N W"]):
    y: {dtype}["N W"]
    y[i, j] = where(m[i, j] and {first} <= j < {last}, x[{width} - j], {other})
    return y
"""


@pytest.mark.parametrize("vector_bytes", [16, 32, 64, 128])
@pytest.mark.parametrize("width", [8, 9, 13, 33])
@pytest.mark.few(3)
def test_registers_without_lanes_that_act(width: int, vector_bytes: int) -> None:
    """LLVM took a mask of ones, whose signs are zeros, for one of all lanes."""
    for first, last in ((1, 5), (0, 2), (1, width - 1)):
        x = guarded(np.arange(max(last, 4), dtype=np.float32), behind=True)
        m = np.arange(7 * width).reshape(7, width) % 3 > 0
        j = np.arange(width)
        expected = np.where(m & (j >= first) & (j < last), x[np.clip(j - first, 0, len(x) - 1)], 9)
        halves = polyml.einsum(HALVES.format(first=first, last=last), target=Target("host", vector_bytes=vector_bytes))
        np.testing.assert_array_equal(halves(x, m), expected)


@pytest.mark.parametrize("dtype", ["c64", "c128"])
@pytest.mark.parametrize(("first", "last", "other"), [(0, 1, "9"), (4, 6, "0"), (2, 8, "2j")])
def test_parts_of_complex_numbers(dtype: str, first: int, last: int, other: str) -> None:
    """LLVM ended the process: it found no instruction for a load whose other lanes are nobody's."""
    width = 8
    x = (np.arange(2 * width) * (1 + 2j)).astype("complex64" if dtype == "c64" else "complex128")
    m = np.arange(2 * width).reshape(2, width) % 3 > 0
    j = np.arange(width)
    expected = np.where(m & (j >= first) & (j < last), x[width - j], complex(other))
    text = BACKWARD.format(dtype=dtype, first=first, last=last, width=width, other=other)
    np.testing.assert_array_equal(polyml.einsum(text)(x, m), expected.astype(x.dtype))


@pytest.mark.parametrize("lanes", [3, 4, 6, 8, 12, 16, 24])
def test_a_register_at_a_time(lanes: int) -> None:
    """As many loads as there are registers; a mask that is a number stays LLVM's to look at, and so does what one register holds."""
    builder = Builder(Module(Instructions(masks_by_sign=True)), [])
    mask = Value(type_of("i1", lanes), "%mask")
    masked_load(builder, Value(type_of("ptr"), "%p"), 8, mask, zeros(type_of("double", lanes)))
    text = "\n".join(map(str, builder.lines))
    assert text.count("llvm.x86.avx.maskload.pd.256") == (-(-lanes // 4) if lanes > 4 else 0)
    known = Builder(Module(Instructions(masks_by_sign=True)), [])
    masked_load(known, Value(type_of("ptr"), "%p"), 8, zeros(mask.type), zeros(type_of("double", lanes)))
    assert "maskload" not in "\n".join(map(str, known.lines))
