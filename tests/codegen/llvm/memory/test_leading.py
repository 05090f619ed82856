"""The first lanes of vectors of short elements, read in pieces: right values, and nothing behind the last one."""

import numpy as np
import pytest

import polyml
from polyml.codegen.llvm.ir import Builder, Instructions, Module, Value, type_of
from polyml.codegen.llvm.memory.leading import load_leading
from polyml.target import Target
from tests.einsum_numpy.guard_pages import guarded

ROWS = """
def rows(x: {dtype}["H M"], n: int):
    y: i32["H {length}"]
    if j < {length}:
        y[i, j] = i32(x[i, {stride} * j])
    return y
"""


@pytest.mark.parametrize(("dtype", "stride", "length"), [("i16", 1, 7), ("u8", 1, 27), ("u8", 3, 15), ("u8", 1, None)])
def test_ends_of_rows(dtype: str, stride: int, length: int | None) -> None:
    """Of a length that is known, or of any."""
    program = polyml.einsum(ROWS.format(dtype=dtype, stride=stride, length=length or "n"))
    for n in range(1, 70) if length is None else [length]:
        x = (np.arange(3 * (stride * (n - 1) + 1)) % 128).reshape(3, -1).astype("uint8" if dtype == "u8" else "int16")
        np.testing.assert_array_equal(program(guarded(x, behind=True), n), x[:, ::stride])


def test_no_element_has_a_branch() -> None:
    """AVX2 has no masked loads of elements so short."""
    target = Target("x86-64-v3")
    known = polyml.einsum(ROWS.format(dtype="u8", stride=1, length=3), target=target)
    assert "masked.load" not in known.lower(np.zeros((5, 9), np.uint8), 3).text("llvm")
    any_length = polyml.einsum(ROWS.format(dtype="u8", stride=1, length="n"), target=target)
    assert "@load.first" in any_length.lower(np.zeros((5, 9), np.uint8), 9).text("llvm")


@pytest.mark.parametrize(("count", "loads"), [(1, 1), (3, 2), (4, 1), (7, 2)])
def test_two_pieces_are_enough(count: int, loads: int) -> None:
    builder = Builder(Module(Instructions()), [])
    load_leading(builder, Value(type_of("ptr"), "%p"), type_of("i8", 8), count, 1)
    assert "\n".join(map(str, builder.lines)).count("= load") == loads
