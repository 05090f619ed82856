"""Arithmetic on bytes that fits into 16 bits is done there, and only that."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.resolve import resolve
from polyml.graph.printer import graph_text
from polyml.graph.reference import execute
from polyml.graph.rules.numbers.short_numbers import shorten_numbers
from polyml.graph.verify import verify
from polyml.source import Source
from tests.graph.built import graph

Bytes = npt.NDArray[np.generic]

MEANS = 'def f(x: u8["N"], z: u8["N"]):\n    y[i] = u8((i32(x[i]) + i32(z[i]) + 1) // 2)\n    return y\n'
BLUR = 'def f(x: u8["H W"]):\n    y[h, w] = u8(sum[r < 3, s < 3](i32(x[h + r, w + s])) // 9)\n    return y\n'
GRAY = (
    'def f(x: u8["N 3"]):\n'
    "    y[i] = u8((77 * i32(x[i, 0]) + 150 * i32(x[i, 1]) + 29 * i32(x[i, 2])) // 256)\n    return y\n"
)
SIGNED = (
    'def f(x: i8["N"], z: u8["N"]):\n'
    "    y[i] = i16(where(x[i] < 0, i32(x[i]) * 3 - i32(z[i]), max(min(i32(z[i]), 9), -i32(x[i]))))\n    return y\n"
)


def inputs(source: str, n: int = 200) -> list[Bytes]:
    rng = np.random.default_rng(n)
    if source.startswith('def f(x: u8["H'):
        return [rng.integers(0, 256, (n // 4, n)).astype(np.uint8)]
    if "N 3" in source:
        return [rng.integers(0, 256, (n, 3)).astype(np.uint8)]
    first = rng.integers(-128, 128, n).astype(np.int8) if "i8[" in source.replace("u8[", "") else None
    return [
        rng.integers(0, 256, n).astype(np.uint8) if first is None else first,
        rng.integers(0, 256, n).astype(np.uint8),
    ]


def shortened(source: str) -> str:
    """The rewritten graph, which gives the same."""
    values = inputs(source)
    plain = graph(resolve(parse(Source(source)), {}), *values)
    made = shorten_numbers(plain)
    verify(made)
    np.testing.assert_array_equal(execute(made, values)[0], execute(plain, values)[0])
    return "" if made is plain else graph_text(made)


@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        (MEANS, "i16"),
        (MEANS.replace("i32(", "i64("), "i16"),
        (MEANS.replace("+ 1", "* 128 // 2"), "i16"),
        (BLUR, "i16"),
        (BLUR.replace("r < 3, s < 3", "r < 11, s < 11").replace("// 9", "// 121"), "i16"),
        (BLUR.replace("r < 3, s < 3", "r < 15, s < 17").replace("// 9", "// 255"), "u16"),
        (GRAY, "u16"),
        (SIGNED, "i16"),
        (SIGNED.replace("i32(x[i]) * 3 - i32(z[i])", "abs(i32(x[i]) * 3 + i32(z[i]))"), "i16"),
    ],
)
def test_shorter(source: str, dtype: str) -> None:
    text = shortened(source)
    assert dtype + "(" in text
    assert "i32(" not in text
    assert "i64(" not in text


@pytest.mark.parametrize(
    "source",
    [
        MEANS.replace("+ 1)", "* 300)"),
        MEANS.replace("+ 1)", "+ 40000)").replace("i32(z", "-i32(z"),  # neither
        MEANS.replace("u8((", "i32(("),  # a number of 32 bits is asked for
        MEANS.replace("u8(", "f32("),
        MEANS.replace("u8[", "i16["),
        BLUR.replace("r < 3, s < 3", "r < 17, s < 17").replace("// 9", "// 289"),
        GRAY.replace("150", "180"),
        MEANS.replace("// 2", "// (i32(z[i]) + 1)"),
        MEANS.replace("i32(", "u32(").replace("+ u32(z[i]) + 1", "- u32(z[i])"),  # wraps to what halves differ of
        SIGNED.replace("i32(", "u32("),
    ],
)
def test_longer(source: str) -> None:
    if "i16[" in source:
        values = [value.astype(np.int16) for value in inputs(MEANS)]
        plain = graph(resolve(parse(Source(source)), {}), *values)
        assert shorten_numbers(plain) is plain
        return
    assert shortened(source) == ""


def test_images_of_any_size() -> None:
    """How many terms a sum has is a number; a sum of as many as the image has rows may be anything."""
    program = polyml.einsum(BLUR, dynamic=("H", "W"))
    image = inputs(BLUR)[0]
    assert "i16(" in graph_text(program.lower(image).stages.graph)
    for h, w in ((50, 200), (3, 3), (4, 77), (200, 131)):
        x = np.random.default_rng(h).integers(250, 256, (h, w)).astype(np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3)).astype(int)
        np.testing.assert_array_equal(program(x), windows.sum(axis=(2, 3)) // 9)
    columns = 'def f(x: u8["H W"]):\n    y[w] = u8(sum[h](i32(x[h, w])) // H)\n    return y\n'
    assert "i16(" not in graph_text(polyml.einsum(columns, dynamic=("H", "W")).trace(image))


def test_sums_that_are_seen() -> None:
    source = BLUR.replace("u8(sum", "sum").replace(")) // 9)", "))")
    assert shortened(source) == ""


@pytest.mark.parametrize("source", [MEANS, BLUR, GRAY, SIGNED])
@pytest.mark.parametrize("size", [20, 100, 333])
@pytest.mark.few(2)
def test_results(source: str, size: int) -> None:
    values = inputs(source, size)
    np.testing.assert_array_equal(polyml.einsum(source)(*values), polyml.einsum(source, precise=True)(*values))
