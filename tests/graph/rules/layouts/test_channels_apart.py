"""Results that end in a few channels get a statement for each, where what they read lies in another way, and only there."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.resolve import resolve
from polyml.graph.ir import Equation
from polyml.graph.reference import execute
from polyml.graph.rules.layouts.channels_apart import part_channels
from polyml.graph.verify import verify
from polyml.source import Source
from tests.graph.built import Argument, graph
from tests.pairs import pairwise

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
        (HALVED, (normal(90, 100, 3),), 3),
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
        (TURNED.replace("i, 3 - c", "N - 1 - i, c"), (normal(2000, 4),)),  # against the direction of memory
        (REPEATED.replace("= x[h, w]", "= x[h, 0]"), (normal(40, 50),)),  # one number for a row
    ],
)
def test_whole(source: str, values: tuple[Argument, ...]) -> None:
    assert parts(source, *values) == 1


@pairwise(
    ("source", [PLANES, HALVED, REPEATED, TURNED]),
    ("dtype", ["f32", "f64", "u8", "i16"]),
    ("width", [64, 86, 131]),
)
@pytest.mark.few(4)
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


DOTS = """
def f(x: f32["N 3"], z: f32["N 3"]):
    y[i] = x[i, c] * z[i, c]
    return y
"""
MIXED = """
def f(x: f32["H W 3"], m: f32["R 3"]):
    y[h, w, r] = m[r, c] * x[h, w, c]
    return y
"""
LARGEST = """
def f(x: f32["H W 4"]):
    y[h, w] = max[c](x[h, w, c])
    return y
"""


def sums(source: str, *values: Argument, vector_bytes: int = 64) -> int:
    """How many sums are left of those over channels; results are the same but for rounding."""
    plain = graph(resolve(parse(Source(source)), {}), *values)
    made = part_channels(plain, vector_bytes=vector_bytes)
    verify(made)
    for one, other in zip(execute(made, list(values)), execute(plain, list(values)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    return sum(isinstance(op, Equation) and bool(op.reduced) for op in made.ops)


@pytest.mark.parametrize(
    ("source", "values"),
    [
        (DOTS, (normal(3000, 3), normal(3000, 3))),
        (MIXED, (normal(50, 60, 3), normal(3, 3))),
        (MIXED.replace("x[h", "(x[h").replace(", c]\n", ", c] - 1)\n"), (normal(50, 60, 3), normal(4, 3))),
        (LARGEST, (normal(50, 60, 4),)),
    ],
)
def test_sums_over_channels(source: str, values: tuple[Argument, ...]) -> None:
    assert sums(source, *values) == 0


@pytest.mark.parametrize(
    ("source", "values", "vector_bytes"),
    [
        (MIXED, (normal(50, 60, 3), normal(9, 3)), 64),  # a contraction
        (
            MIXED.replace(' 3"', ' 4"'),
            (normal(50, 60, 4), normal(4, 4)),
            32,
        ),  # by halves, which take two instructions each
        (
            DOTS.replace("x[i, c]", "x[c, i]").replace('x: f32["N 3', 'x: f32["3 N'),
            (normal(3, 3000), normal(3000, 3)),
            64,
        ),
        (DOTS.replace("y[i] = x[i, c]", "y[i, j] = x[j, c]"), (normal(100, 3), normal(100, 3)), 64),  # used often
        (DOTS, (normal(300, 3), normal(300, 3)), 64),
    ],
)
def test_sums_that_stay(source: str, values: tuple[Argument, ...], vector_bytes: int) -> None:
    assert sums(source, *values, vector_bytes=vector_bytes) == 1


def test_what_follows_a_contraction() -> None:
    """Is left where its sums are."""
    source = MIXED.replace("m[r, c] * x[h, w, c]", "sum[c](m[r, c] * x[h, w, c]) + m[r, 0]")
    values = (normal(50, 60, 3), normal(4, 3))
    plain = graph(resolve(parse(Source(source)), {}), *values)
    assert part_channels(plain, vector_bytes=16) is plain
    assert len(part_channels(plain, vector_bytes=64).ops) == 8


def test_lanes_along_the_pixels() -> None:
    """Whole vectors go to memory."""
    for source, values in (
        (PLANES, (normal(3, 64, 64), normal(64, 64))),
        (HALVED.replace(' 3"', ' 2"'), (normal(64, 128, 2),)),
    ):
        text = polyml.einsum(source, threads=1).lower(*values).text("llvm")
        assert "masked.scatter" not in text
        assert "masked.gather" not in text
