"""Channels get a statement each where only their number is known: in kernels for any number of pixels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import polyml
from polyml.graph.ir import Equation, Graph
from polyml.target import Target
from polyml.testing import verify
from tests.graph.built import Argument
from tests.pairs import pairwise

WIDE = Target("x86-64-v4")
PIXELS = ("H", "W")
BLEND = """
def f(x: f32["H W 3"], y: f32["H W 3"], a: f32["H W"]):
    z[h, w, c] = x[h, w, c] * a[h, w] + y[h, w, c] * (1 - a[h, w])
    return z
"""
PLANES = """
def f(x: f32["3 H W"], s: f32["H W"]):
    y: f32["H W 3"]
    y[h, w, c] = x[c, h, w] * s[h, w]
    return y
"""
POINTS = """
def f(x: f32["W 3"], r: f32["3 3"]):
    y[n, e] = x[n, d] * r[d, e]
    return y
"""
COLOURS = """
def f(x: f32["H W 3"], r: f32["3 3"]):
    y[h, w, e] = x[h, w, d] * r[e, d]
    return y
"""
DOTS = """
def f(x: f32["W 4"], z: f32["W 4"]):
    y[i] = x[i, c] * z[i, c]
    return y
"""
SHORTER = """
def f(x: f32["H W 2"]):
    y: f32["H//2 W//2 2"]
    y[h, w, c] = x[2*h, 2*w, c] + x[2*h + 1, 2*w, c] - x[2*h, 2*w + 1, c] - x[2*h + 1, 2*w + 1, c]
    return y
"""
SHAPES: dict[str, Callable[[int, int], tuple[tuple[int, ...], ...]]] = {
    BLEND: lambda h, w: ((h, w, 3), (h, w, 3), (h, w)),
    PLANES: lambda h, w: ((3, h, w), (h, w)),
    POINTS: lambda h, w: ((h * w, 3), (3, 3)),
    COLOURS: lambda h, w: ((h, w, 3), (3, 3)),
    DOTS: lambda h, w: ((h * w, 4), (h * w, 4)),
    SHORTER: lambda h, w: ((h, w, 2),),
}
RESULTS: dict[str, Callable[..., np.ndarray]] = {
    BLEND: lambda x, y, a: x * a[..., None] + y * (1 - a[..., None]),
    PLANES: lambda x, s: np.moveaxis(x * s, 0, -1),
    POINTS: lambda x, r: x @ r,
    COLOURS: lambda x, r: x @ r.T,
    DOTS: lambda x, z: (x * z).sum(axis=-1),
    SHORTER: lambda x: _halved(x[:, ::2], x[:, 1::2]),
}
PARTS = {BLEND: 3, PLANES: 3, POINTS: 3, COLOURS: 3, DOTS: 1, SHORTER: 2}


def _halved(even: np.ndarray, odd: np.ndarray) -> np.ndarray:
    rows = (even[:, : odd.shape[1]] - odd)[: len(even) // 2 * 2]
    summed: np.ndarray = rows[::2] + rows[1::2]
    return summed


def whole(source: str, h: int, w: int, dtype: str = "f4") -> list[Argument]:
    rng = np.random.default_rng(h + w)
    return [rng.integers(0, 10, shape).astype(dtype) for shape in SHAPES[source](h, w)]


def names(source: str) -> tuple[str, ...]:
    return tuple(name for name in PIXELS if name in source)


def rewritten(source: str, h: int, w: int, dynamic: bool | tuple[str, ...]) -> Graph:
    """The graph as it is compiled for machines with vectors of 64 bytes."""
    graph: Graph = polyml.einsum(source, dynamic=dynamic, target=WIDE).trace(*whole(source, h, w))
    return graph


def equations(graph: Graph) -> list[Equation]:
    return [op for op in graph.ops if isinstance(op, Equation)]


@pytest.mark.parametrize("source", SHAPES)
@pytest.mark.parametrize("shape", [(60, 80), (3, 5)])
def test_any_number_of_pixels(source: str, shape: tuple[int, int]) -> None:
    """Few in the first call say nothing of later ones."""
    found = equations(rewritten(source, *shape, names(source)))
    assert len(found) == PARTS[source]
    assert not any(op.reduced for op in found)


@pytest.mark.parametrize(
    "source",
    [
        BLEND.replace("H W 3", "H W 5"),  # many channels
        BLEND.replace("a[h, w]", "a[h, 0]"),  # everything lies alike
        BLEND.replace("y[h, w, c]", "y[w, h, c]").replace('y: f32["H W 3"]', 'y: f32["W H 3"]'),  # gathered
    ],
)
def test_whole(source: str) -> None:
    channels = 5 if " 5" in source else 3
    x, y, a = np.ones((60, 60, channels), "f4"), np.ones((60, 60, channels), "f4"), np.ones((60, 60), "f4")
    assert len(equations(polyml.einsum(source, dynamic=PIXELS, target=WIDE).trace(x, y, a))) == 1


def test_rows_that_are_short_in_a_large_call() -> None:
    assert len(equations(rewritten(PLANES, 4000, 5, PIXELS))) == 1


def checks(source: str, dtype: str, threads: int) -> None:
    """One kernel for all sizes but those of empty calls."""
    name = {"f32": "f4", "f64": "f8", "i32": "i4", "u8": "u1", "i16": "i2"}[dtype]
    program = polyml.einsum(source.replace("f32", dtype), dynamic=names(source), threads=threads)
    for h, w in ((40, 70), (1, 1), (2, 17), (1, 3), (3, 64), (7, 131), (300, 48)):
        values = whole(source, h, w, name)
        found = program(*values)
        np.testing.assert_array_equal(found, RESULTS[source](*values).astype(name), err_msg=f"{h} x {w}")
    assert len(program.kernels) == 1
    views = [np.repeat(np.asarray(value), 2, axis=0)[::2] for value in whole(source, 9, 50, name)]
    np.testing.assert_array_equal(program(*views), RESULTS[source](*views).astype(name))
    for h, w in ((0, 5), (5, 0)):
        values = whole(source, h, w, name)
        assert program(*values).shape == RESULTS[source](*values).shape


@pairwise(("source", list(SHAPES)), ("dtype", ["f32", "f64", "i32"]), ("threads", [1, 2]))
@pytest.mark.few(5)
def test_results(source: str, dtype: str, threads: int) -> None:
    checks(source, dtype, threads)


@pairwise(("source", [BLEND, PLANES, SHORTER]), ("dtype", ["u8", "i16"]), ("threads", [1, 2]))
@pytest.mark.few(2)
def test_results_of_narrow_numbers(source: str, dtype: str, threads: int) -> None:
    checks(source, dtype, threads)


@pytest.mark.parametrize("source", [COLOURS, SHORTER])
def test_against_the_interpreter(source: str) -> None:
    assert verify(source, *whole(source, 20, 37), dynamic=names(source))
