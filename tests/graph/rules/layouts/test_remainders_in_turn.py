"""Elements whose value goes by the remainder of the last index are an equation for each remainder."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.source import Source

ROPE = "x[n, d] * c[n, d//2] + where(d % 2 == 0, -x[n, d + 1], x[n, d - 1]) * s[n, d//2]"
SIGN = "x[n, d] * c[n, d//2] + (2 * (d % 2) - 1) * x[n, d + 1 - 2 * (d % 2)] * s[n, d//2]"
FOUR = "where(d % 4 == 1, c[n, d//4], s[n, d//4] * (d % 4))"
FORMS = {"rope": (ROPE, 2), "by a sign": (SIGN, 2), "four": (FOUR, 4), "seven": (FOUR.replace("4", "7"), 7)}


def program(value: str, kind: str) -> str:
    shape = "".join(f', {name}: {kind}["N {size}"]' for name, size in (("c", "H"), ("s", "H")))
    return f'def f(x: {kind}["N D"]{shape}):\n    y: {kind}["N D"]\n    y[n, d] = {value}\n    return y\n'


def arguments(kind: str, rows: int, columns: int, count: int) -> list[np.ndarray]:
    dtype = polyml.dtypes.DTYPES[kind].numpy
    rng = np.random.default_rng(columns)
    return [rng.integers(-4, 5, (rows, n)).astype(dtype) for n in (columns, columns // count, columns // count)]


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "i32", "c64"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.few(4)
def test_results(form: str, kind: str) -> None:
    value, count = FORMS[form]
    for rows, blocks in ((1, 1), (3, 5), (2, 33)):
        given = arguments(kind, rows, count * blocks, count)
        wanted = interpret(parse(Source(program(value, kind))), *given)
        np.testing.assert_array_equal(polyml.einsum(program(value, kind))(*given), np.asarray(wanted))


def test_each_remainder_has_an_equation() -> None:
    for form, parts in (("rope", 2), ("by a sign", 2), ("four", 4), ("seven", 1)):
        value, count = FORMS[form]
        text = str(polyml.einsum(program(value, "f32")).trace(*arguments("f32", 4, 20 * count, count)))
        assert sum(" = " in line for line in text.splitlines()) == parts, text
        assert ("where" in text or "%" in text) == (parts == 1), text


def test_rows_of_several_lengths_stay() -> None:
    source = 'def f(a: f32["N"]):\n    y: f32["2*N-1"]\n    y[i] = where(i % 2 == 0, a[i//2], 0.5)\n    return y\n'
    a = np.arange(9, dtype=np.float32)
    compiled = polyml.einsum(source)
    wanted = np.full(17, 0.5, np.float32)
    wanted[::2] = a
    assert "where" in compiled.lower(a).text("graph")
    assert np.array_equal(compiled(a), wanted)
