"""Results that end in a few channels get a statement for each, where what they read lies in another way, and only there."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.resolve import resolve
from polyml.graph.reference import execute
from polyml.graph.rules.channels_apart import part_channels
from polyml.graph.verify import verify
from polyml.source import Source
from tests.graph.built import Argument, graph

PLANES = """
def f(x: f32["C H W"], s: f32["H W"]):
    y: f32["H W C"]
    y[h, w, c] = x[c, h, w] * s[h, w]
    return y
"""
HALVED = """
def f(x: f32["H W 3"]):
    y: f32["H//2 W//2 3"]
    y[h, w, c] = (x[2*h, 2*w, c] + x[2*h+1, 2*w, c] + x[2*h, 2*w+1, c] + x[2*h+1, 2*w+1, c]) / 4
    return y
"""
REPEATED = """
def f(x: f32["H W"]):
    y: f32["H W 3"]
    y[h, w, c] = x[h, w]
    return y
"""
TURNED = """
def f(x: f32["N 4"]):
    y[i, c] = x[i, 3 - c] * (c + 1)
    return y
"""


def normal(*shape: int) -> Argument:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def parts(source: str, *values: Argument) -> int:
    """How many equations the graph's one becomes, which together give the same."""
    plain = graph(resolve(parse(Source(source)), {}), *values)
    made = part_channels(plain, vector_bytes=64)
    verify(made)
    np.testing.assert_array_equal(execute(made, list(values))[0], execute(plain, list(values))[0])
    return len(made.ops)


@pytest.mark.parametrize(
    ("source", "values", "count"),
    [
        (PLANES, (normal(3, 40, 50), normal(40, 50)), 3),
        (PLANES, (normal(2, 40, 60), normal(40, 60)), 2),
        (HALVED.replace(' 3"', ' 2"'), (normal(90, 100, 2),), 2),
        (REPEATED, (normal(40, 50),), 3),
        (TURNED, (normal(2000, 4),), 4),
        (TURNED.replace("3 - c", "c"), (normal(2000, 4),), 4),
        (TURNED.replace("3 - c] * (c + 1)", "c] * x[3, c]"), (normal(2000, 4),), 4),
    ],
)
def test_parts(source: str, values: tuple[Argument, ...], count: int) -> None:
    assert parts(source, *values) == count


@pytest.mark.parametrize(
    ("source", "values"),
    [
        (PLANES, (normal(5, 40, 50), normal(40, 50))),  # many channels
        (PLANES, (normal(3, 20, 20), normal(20, 20))),  # little work
        (PLANES, (normal(3, 400, 5), normal(400, 5))),  # short rows
        (PLANES.replace(" * s[h, w]", ""), (normal(3, 40, 50), normal(40, 50))),  # a transposition
        (PLANES.replace("s[h, w]", "s[h, 0]").replace("x[c", "3 * x[c"), (normal(1, 40, 50), normal(40, 50))),
        (TURNED.replace("3 - c] * (c + 1)", "c] * 5"), (normal(2000, 4),)),  # one row
        (HALVED, (normal(90, 100, 3),)),  # sixty shuffles for sixteen pixels
        (TURNED.replace("i, 3 - c", "N - 1 - i, c"), (normal(2000, 4),)),  # against the direction of memory
        (REPEATED.replace("= x[h, w]", "= x[h, 0]"), (normal(40, 50),)),  # one number for a row
    ],
)
def test_whole(source: str, values: tuple[Argument, ...]) -> None:
    assert parts(source, *values) == 1


@pytest.mark.parametrize("source", [PLANES, HALVED, REPEATED, TURNED])
@pytest.mark.parametrize("dtype", ["f32", "f64", "u8", "i16"])
@pytest.mark.parametrize("width", [64, 86, 131])
def test_results(source: str, dtype: str, width: int) -> None:
    shapes = {
        PLANES: ((3, 30, width), (30, width)),
        HALVED: ((50, width, 3),),
        REPEATED: ((41, width),),
        TURNED: ((20 * width, 4),),
    }[source]
    name = {"f32": "f4", "f64": "f8", "u8": "u1", "i16": "i2"}[dtype]
    rng = np.random.default_rng(width)
    values = [rng.integers(0, 50, shape).astype(name) for shape in shapes]
    if dtype in ("u8", "i16"):
        source = source.replace(" / 4", " // 4").replace("(c + 1)", "3")
    found = polyml.einsum(source.replace("f32", dtype))(*values)
    expected = polyml.einsum(source.replace("f32", dtype), precise=True)(*values)
    np.testing.assert_array_equal(found, expected)


def test_lanes_along_the_pixels() -> None:
    """Whole vectors go to memory."""
    for source, values in (
        (PLANES, (normal(3, 64, 64), normal(64, 64))),
        (HALVED.replace(' 3"', ' 2"'), (normal(64, 128, 2),)),
    ):
        text = polyml.einsum(source, threads=1).lower(*values).text("llvm")
        assert "masked.scatter" not in text
        assert "masked.gather" not in text
