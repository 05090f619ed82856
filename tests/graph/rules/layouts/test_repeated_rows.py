"""Numbers per channel as rows: the same results, and where nothing is repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyml
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.source import Source

HEAD = 'def f(x: {0}["H W C"], m: {0}["C"], s: {0}["C 2"], z: {0}["H W"]):\n'
BODIES = {
    "scaled": "y[h, w, c] = (x[h, w, c] - m[c]) * s[c, 1]",
    "compared": "y[h, w, c] = max(x[h, w, c] * s[c, 0], m[c]) + s[c, 1]",
    "shifted": "y[h, w, c] = pad(x, ((0, 1), (0, 0), (0, 0)))[h + 1, w, c] - m[c]",
    "repeated alone": "y[h, w, c] = m[c] + z[0, 0]",
}
STAYS = {
    "per pixel": "y[h, w, c] = x[h, w, c] - m[c] * z[h, w]",
    "a number": "y[h, w, c] = x[h, w, c] - m[c] * w",
    "another order": "y[c, h, w] = x[h, w, c] - m[c]",
    "a sum": "y[h, c] = sum[w](x[h, w, c] * m[c])",
}


def program(body: str, dtype: str) -> str:
    declared = f'    y: {dtype}["H W C"]\n' if "pad" in body or "z[0" in body else ""
    return f"{HEAD.format(dtype)}{declared}    {body}\n    return y\n"


def arguments(shape: tuple[int, ...], dtype: str) -> list[Any]:
    rng, kind = np.random.default_rng(0), polyml.dtypes.DTYPES[dtype].numpy
    shapes = (shape, shape[-1:], (shape[-1], 2), shape[:2])
    return [rng.integers(-9, 9, s).astype(kind) for s in shapes]


def is_repeated(text: str, given: list[Any]) -> bool:
    return "m_rows" in str(polyml.einsum(text).trace(*given))


@pytest.mark.parametrize("dtype", ["f32", "i8", "c64"])
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.few(3)
def test_numbers_per_channel(name: str, dtype: str) -> None:
    if dtype == "c64" and name == "compared":
        return
    text = program(BODIES[name], dtype)
    shapes = ((33, 331, 3), (8, 1025, 4), (7, 500, 3), (5, 7, 3), (0, 300, 3))
    for k, shape in enumerate(shapes if dtype == "f32" else shapes[:1]):
        given = arguments(shape, dtype)
        expected = interpret(parse(Source(text)), *(x.copy() for x in given))
        np.testing.assert_array_equal(polyml.einsum(text, threads=1 + k % 2, verify=True)(*given), expected)
        assert is_repeated(text, given) == (k < 2), shape


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name: str) -> None:
    text, given = program(STAYS[name], "f32"), arguments((80, 150, 3), "f32")
    assert not is_repeated(text, given)
    expected = interpret(parse(Source(text)), *(x.copy() for x in given))
    np.testing.assert_allclose(polyml.einsum(text)(*given), expected, rtol=1e-5, atol=1e-4)


def test_indices_become_one() -> None:
    text, given = program(BODIES["scaled"], "f32"), arguments((80, 150, 3), "f32")
    assert "w_c" in str(polyml.einsum(text).explain(*given))
    wide = np.zeros((80, 160, 3), np.float32)[:, 4:154]
    wide[...] = given[0]
    np.testing.assert_array_equal(polyml.einsum(text)(wide, *given[1:]), polyml.einsum(text)(*given))


@pytest.mark.parametrize(
    ("shape", "line", "repeated"),
    [
        ((40, 33, 3, 17), "y[d, a, b, c] = x[a, b, c, d] + v[b]", True),
        ((40, 33, 4, 17), "y[d, a, b, c] = x[a, b, c, d] * v[b] + x[a, b, c, 0]", True),
        ((40, 33, 5, 17), "y[d, a, b, c] = x[a, b, c, d] + v[b]", False),  # rows that are lanes by themselves
        ((17, 40, 33, 3), "y[a, b, c, d] = x[a, b, c, d] + u[c]", False),  # few channels innermost
        ((17, 40, 33, 4), "y[a, b, c, d] = x[a, b, c, d] + u[c]", True),
        ((40, 33, 3, 17), "y[d, a, b, c] = x[a, b, c, d] + v[b] * w[a, b]", False),
    ],
)
def test_numbers_per_pixel(shape: tuple[int, ...], line: str, repeated: bool) -> None:
    text = f'def f(x: f32["A B C D"], v: f32["B"], u: f32["C"], w: f32["A B"]):\n    {line}\n    return y\n'
    rng = np.random.default_rng(0)
    given = [rng.integers(-9, 9, s).astype(np.float32) for s in (shape, shape[1:2], shape[2:3], shape[:2])]
    expected = interpret(parse(Source(text)), *given)
    np.testing.assert_array_equal(polyml.einsum(text, verify=True)(*given), expected)
    traced = str(polyml.einsum(text).trace(*given))
    assert ("v_rows" in traced or "u_rows" in traced) == repeated
