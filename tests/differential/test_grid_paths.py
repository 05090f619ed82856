"""Best paths over a grid: alignments, edit distances, time warping, distance transforms. Rows that carry a maximum or a minimum of sums are scans in lanes, of the same values as in order."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.source import Source
from tests.codegen.llvm.support import guarded
from tests.pairs import pairwise

Array = npt.NDArray[Any]

HEAD = 'def f(x: {0}["N M"], c: {0}["N M"], g: {0}):\n    d: {0}["N M"]\n    d[i, j] = x[i, j]\n'
FORWARDS = "    for i in range(1, N):\n        for j in range(1, M):\n            d[i, j] = {1}\n"
BACKWARDS = "    for i in range(N - 2, -1, -1):\n        for j in range(M - 2, -1, -1):\n            d[i, j] = {1}\n"
TAIL = "    return d\n"

PROGRAMS = {
    "alignment": (FORWARDS, "max(x[0, 0], d[i - 1, j] - g, d[i, j - 1] - g, d[i - 1, j - 1] + where(c[i, j] > 0, 3, -2))"),
    "edit distance": (FORWARDS, "min(d[i - 1, j] + 1, d[i, j - 1] + 1, d[i - 1, j - 1] + where(c[i, j] == 1, 0, 1))"),
    "time warping": (FORWARDS, "c[i, j] + min(d[i - 1, j], d[i, j - 1], d[i - 1, j - 1])"),
    "two ways along": (FORWARDS, "max(d[i, j - 1] - g, d[i - 1, j], c[i, j] + d[i, j - 1])"),
    "fading maximum": (FORWARDS, "max(x[i, j], d[i, j - 1] - c[i, j])"),
    "common subsequence": (FORWARDS, "where(c[i, j] == 1, d[i - 1, j - 1] + 1, max(d[i - 1, j], d[i, j - 1]))"),
    "last value": (FORWARDS, "where(c[i, j] == 1, x[i, j], d[i, j - 1])"),
    "length of a run": (FORWARDS, "where(c[i, j] < 2, d[i, j - 1] + 1, 0)"),
    "sums of pieces": (FORWARDS, "where(c[i, j] == 0, x[i, j], 2 * d[i, j - 1] - x[i, j])"),
    "dear steps": (FORWARDS, "where(c[i, j] == 0 or x[i, j] > 4, d[i - 1, j], max(d[i, j - 1] - g, d[i - 1, j - 1]))"),
    "distance transform": (
        FORWARDS + BACKWARDS.replace("{1}", "min(d[i, j], d[i + 1, j] + 2, d[i, j + 1] + 2, d[i + 1, j + 1] + 3)"),
        "min(d[i, j], d[i - 1, j] + 2, d[i, j - 1] + 2, d[i - 1, j - 1] + 3)",
    ),
}  # fmt: skip
"""The steps of a path; of numbers that are no more than a few thousand, so that sums of any order are exact."""

MOVED = ("time warping", "two ways along")
"""Programs of which a scan moves extrema past sums: where these wrap around, that is something else."""

SHAPES = ((2, 300), (9, 33), (5, 32), (12, 47), (3, 15), (1, 40), (30, 1))


def program_of(name: str, dtype: str) -> str:
    loops, step = PROGRAMS[name]
    return (HEAD + loops + TAIL).replace("{0}", dtype).replace("{1}", step)


@cache
def compiled(text: str, **options: Any) -> Any:
    """One for all values of a shape, which do not decide about it."""
    return polyml.einsum(text, **options)


def check(text: str, given: list[Any], **options: Any) -> None:
    expected = interpret(parse(Source(text)), *(np.copy(x) for x in given))
    found = compiled(text, **options)(*(guarded(x) if x.ndim and x.size else x for x in map(np.asarray, given)))
    np.testing.assert_array_equal(found, expected, err_msg=f"{text}{options}")


def numbers(shape: tuple[int, ...], dtype: str) -> list[Any]:
    rng, kind = np.random.default_rng(sum(shape)), polyml.dtypes.DTYPES[dtype].numpy
    return [rng.integers(0, 6, shape).astype(kind), rng.integers(0, 3, shape).astype(kind), kind.type(1)]


OPTIONS: list[dict[str, Any]] = [{}, {"threads": 2}, {"dynamic": True}, {"precise": True}]
DTYPES = ["f32", "f64", "i8", "u16", "i32", "u32", "i64"]


@pairwise(
    ("name", PROGRAMS), ("dtype", DTYPES), ("shape, options", [(s, OPTIONS[k % 4]) for k, s in enumerate(SHAPES)])
)
@pytest.mark.few(2)
def test_values(name: str, dtype: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    check(program_of(name, dtype), numbers(shape, dtype), **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.few(8)
def test_rows_are_scans(name: str, dtype: str) -> None:
    if dtype in ("f32", "f64") or name not in MOVED:
        function = compiled(program_of(name, dtype), target=polyml.Target("x86-64-v3"))
        assert "scan: j" in function.explain(*numbers((2, 300), dtype))


@pairwise(("name", PROGRAMS), ("dtype", ["i8", "u16", "i32", "u64"]), ("shape", [(3, 100), (2, 67)]))
@pytest.mark.few(2)
def test_whole_numbers_wrap_around(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    """The greatest of wrapped sums depends on where each of them wraps."""
    rng, kind = np.random.default_rng(2), polyml.dtypes.DTYPES[dtype].numpy
    limits = np.iinfo(kind)
    given = [rng.integers(limits.min, limits.max, shape, kind, endpoint=True) for _ in range(2)]
    check(program_of(name, dtype), [*given, kind.type(limits.max // 3)])


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.few(2)
def test_what_is_no_number(name: str, bad: float) -> None:
    rng, text = np.random.default_rng(3), program_of(name, "f32")
    given = [rng.integers(0, 6, (4, 40)).astype(np.float32), rng.integers(0, 3, (4, 40)).astype(np.float32)]
    check(text, [*given, np.float32(bad)])
    for at in ((0, 16), (5, 39))[[*PROGRAMS].index(name) % 2]:
        for k in range(2):
            changed = [x.copy() for x in given]
            changed[k][1:3, at] = bad
            check(text, [*changed, np.float32(2)])


def test_precise_steps_are_taken_in_order() -> None:
    """Sums of one step after another round; composed ones round otherwise."""
    rng, text = np.random.default_rng(4), program_of("time warping", "f32")
    given = [rng.random((20, 90), np.float32), rng.random((20, 90), np.float32), np.float32(0)]
    check(text, given, precise=True)
    assert "scan: j" not in compiled(text, precise=True).explain(*given)
    np.testing.assert_allclose(polyml.einsum(text)(*given), polyml.einsum(text, precise=True)(*given), rtol=1e-5)
