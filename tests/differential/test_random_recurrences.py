"""Random recurrences down columns, under every option that compiles them in another way, on caches so small that most of them go row by row: orders, directions, batches, states, and what follows."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.source import Source
from polyml.target import Target
from tests.pairs import pairwise

Array = npt.NDArray[Any]

SMALL = Target("host", l1_bytes=1024, l2_bytes=4096)

OPTIONS: tuple[dict[str, object], ...] = (
    {},
    {"threads": 1},
    {"threads": 2},
    {"dynamic": True},
    {"precise": True},
    {"vectorize": False},
    {"threads": 2, "dynamic": True},
)


@dataclass(frozen=True)
class Recurrence:
    """A program on x and a of one shape and on g, a number for each column; dtype: of all."""

    text: str
    shape: tuple[int, ...]
    dtype: str

    def arguments(self, seed: int) -> list[Array]:
        """Small integers, so that no order of exact operations rounds."""
        rng, dtype = np.random.default_rng(seed), polyml.dtypes.DTYPES[self.dtype].numpy
        shapes = (self.shape, self.shape, self.shape[-1:])
        return [rng.integers(-1, 2, shape).astype(dtype) for shape in shapes]


def draw(seed: int) -> Recurrence:
    rng = random.Random(seed)
    batch, dtype = rng.choice(("", "", "b, ")), rng.choice(("f64", "f64", "f32", "i64", "c128"))
    extents = (rng.choice((1, 2, 3)), rng.choice((1, 2, 4, 9, 21)), rng.choice((1, 3, 64, 65, 80, 130, 257)))
    shape = "B N K" if batch else "N K"
    factor = rng.choice(("2 * ", f"a[{batch}n, k] * ", "g[k] * ", ""))
    term = rng.choice((f"x[{batch}n, k]", f"x[{batch}n, k] * a[{batch}n, k]"))
    backwards = rng.random() < 0.3
    if rng.random() < 0.3:
        lines, results = _state(batch, shape, dtype, factor, term, backwards=backwards), ["y"]
        results += ["h"] * rng.randint(0, 1)
    else:
        lines, results = _rows(rng, batch, shape, dtype, factor, term, backwards=backwards), ["h"]
        if rng.random() < 0.5:
            lines.append(f"y[{batch}n, k] = 2 * h[{batch}n, k] + x[{batch}{rng.choice(('n', 'n', 'N - 1 - n'))}, k]")
            results = rng.choice((["y"], ["y", "h"]))
        if rng.random() < 0.2:
            lines.append(f"m[{batch}k] = sum[n](h[{batch}n, k])")
            results.append("m")
    head = f'def f(x: {dtype}["{shape}"], a: {dtype}["{shape}"], g: {dtype}["K"]):'
    text = "\n    ".join([head, *lines, f"return {', '.join(results)}"]) + "\n"
    return Recurrence(text, extents if batch else extents[1:], dtype)


def _state(batch: str, shape: str, dtype: str, factor: str, term: str, *, backwards: bool) -> list[str]:
    """A row that each step overwrites."""
    steps = "range(N - 1, -1, -1)" if backwards else "range(N)"
    return [
        f'h: {dtype}["{shape.replace("N ", "")}"] = 1',
        f'y: {dtype}["{shape}"]',
        f"for n in {steps}:",
        f"    h[{batch}k] = {factor}h[{batch}k] + {term}",
        f"    y[{batch}n, k] = 3 * h[{batch}k] - x[{batch}n, k]",
    ]


def _rows(
    rng: random.Random, batch: str, shape: str, dtype: str, factor: str, term: str, *, backwards: bool
) -> list[str]:
    """Rows that look back one to three of their own, all filled first."""
    order = rng.choice((1, 1, 1, 2, 3))
    sign = "+" if backwards else "-"
    value = f"{factor}h[{batch}n {sign} {order}, k] + {term}" + f" - h[{batch}n {sign} 1, k]" * (order > 1)
    steps = f"range(N - {order + 1}, -1, -1)" if backwards else f"range({order}, N)"
    step = [f"    h[{batch}n, k] = {value}"]
    if rng.random() < 0.2:
        step = ["    if k >= 2:", f"    {step[0]}"]
    return [f'h: {dtype}["{shape}"] = 1', f"for n in {steps}:", *step]


def check(first: int, count: int) -> int:
    """How many of them go row by row."""
    found = 0
    for seed in range(first, first + count):
        case, options = draw(seed), OPTIONS[seed % len(OPTIONS)]
        given = case.arguments(seed)
        expected = interpret(parse(Source(case.text)), *(x.copy() for x in given), wide=True)
        program = polyml.einsum(case.text, target=SMALL, **options)  # type: ignore[arg-type]
        found += "row by row" in str(program.explain(*given))  # the call compiles what this has lowered
        results = program(*given)
        for got, right in zip(*((r if isinstance(r, tuple) else (r,)) for r in (results, expected)), strict=True):
            note = f"seed {seed}, {options}\n{case.text}"
            np.testing.assert_allclose(got, right, rtol=1e-5 if case.dtype == "f32" else 1e-11, err_msg=note)
    return found


def test_random_recurrences() -> None:
    assert check(0, 18) >= 4


@pytest.mark.slow
@pytest.mark.parametrize(("first", "count"), [(28, 14), *((first, 250) for first in range(1000, 2000, 250))])
def test_random_recurrences_long(first: int, count: int) -> None:
    assert check(first, count) >= count // 5


ALONG = """
def f(x: {0}["N M"], a: {0}["N M"]):
    y: {0}["N M"]
    y[i, 0] = x[i, 0]
    for j in range(1, M):
        y[i, j] = a[i, j] * y[i, j - 1] + x[i, j]
    return y
"""


@pairwise(
    ("dtype", ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"]),
    ("rows", [1, 20]),
    ("options", [{}, {"dynamic": True}, {"precise": True}]),
)
@pytest.mark.few(2)
def test_whole_numbers_wrap_around(dtype: str, rows: int, options: dict[str, Any]) -> None:
    """A single row is a scan, whose factors are multiplied in all lanes; of several each has a lane."""
    rng, kind = np.random.default_rng(0), polyml.dtypes.DTYPES[dtype].numpy
    x, a = (rng.integers(0, 100, (rows, 77)).astype(kind) for _ in range(2))
    expected = x.copy()
    with np.errstate(over="ignore"):
        for j in range(1, 77):
            expected[:, j] += a[:, j] * expected[:, j - 1]
    np.testing.assert_array_equal(polyml.einsum(ALONG.format(dtype), **options)(x, a), expected)
