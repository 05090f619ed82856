"""Arrays with rows of whole lines for as long as a loop sweeps over them: when, what is copied, and results."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

import polyml
from polyml.schedule.layouts.relaid import line_rows
from polyml.sets.affine import affine
from polyml.target import Target
from tests.schedule.stencils import FIELD_STEP

SMALL = Target("x86-64-v4", l1_bytes=24 * 1024, l2_bytes=256 * 1024, cores=3)
"""Caches so small that time tiles appear at test sizes."""

JACOBI = """
def jacobi(T: int, a: f64["N M"], b: f64["N M"]):
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            b[i, j] = 0.2 * (a[i, j] + a[i, j - 1] + a[i, j + 1] + a[i + 1, j] + a[i - 1, j])
            a[i, j] = 0.2 * (b[i, j] + b[i, j - 1] + b[i, j + 1] + b[i + 1, j] + b[i - 1, j])
    return a, b
"""
ADVECTION = """
def advection(T: int, a: f64["N M"], b: f64["N M"], c: f64["N M"]):
    for t in range(2, T - 1):
        if i >= 1 and j >= 2:
            b[i, j] = a[i, j] + c[i, j] * (a[i - 1, j] - a[i, j - 2])
        if i < N - 1 and j < M - 1:
            a[i, j] = 0.5 * (b[i, j] + b[i + 1, j + 1])
    return a, b
"""


def jacobi(steps: int, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
    for _ in range(steps):
        for x, y in ((a, b), (b, a)):
            y[1:-1, 1:-1] = 0.2 * (x[1:-1, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] + x[2:, 1:-1] + x[:-2, 1:-1])
    return a, b


def advection(steps: int, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, ...]:
    for _ in range(2, steps - 1):
        b[1:, 2:] = a[1:, 2:] + c[1:, 2:] * (a[:-1, 2:] - a[1:, :-2])
        a[:-1, :-1] = 0.5 * (b[:-1, :-1] + b[1:, 1:])
    return a, b


def data(count: int, *shape: int, dtype: str = "f64") -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.random(shape).astype({"f64": np.float64, "f32": np.float32}[dtype]) / 4 for _ in range(count)]


def loops(text: str, *arguments: object, **options: object) -> str:
    return polyml.einsum(text, target=SMALL, **options).lower(*arguments).text("loops")


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize(("shape", "threads"), [((67, 149), 1), ((83, 135), 3), ((45, 277), 1)])
@pytest.mark.few(1)
def test_results(shape: tuple[int, int], threads: int, dtype: str) -> None:
    """Either version, by the number of steps; none at all, too."""
    text = JACOBI.replace("f64", dtype)
    function = polyml.einsum(text, target=Target(l1_bytes=24 * 1024, l2_bytes=256 * 1024), threads=threads, verify=True)
    assert "a_rows" in loops(text, 9, *data(2, *shape, dtype=dtype))
    for steps in (0, 1, 31, 32, 45):
        want = jacobi(steps, *data(2, *shape))
        for got, expected in zip(function(steps, *data(2, *shape, dtype=dtype)), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5 if dtype == "f32" else 1e-12)


def test_what_is_read_and_written_at_its_own_places() -> None:
    """Domains that differ between statements, an operand that is read only, steps that do not begin with 0."""
    function = polyml.einsum(ADVECTION, target=Target(l1_bytes=24 * 1024, l2_bytes=256 * 1024), threads=1, verify=True)
    text = loops(ADVECTION, 5, *data(3, 61, 141))
    assert "if (T - 3 >= 32)" in text
    assert "c_rows" not in text
    for steps in (0, 3, 35, 36, 51):
        want = advection(steps, *data(3, 61, 141))
        for got, expected in zip(function(steps, *data(3, 61, 141)), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-11)


def test_known_numbers_of_steps_have_one_version() -> None:
    arguments = data(2, 33, 149)
    many, few = (JACOBI.replace("range(T)", f"range({steps})").replace("T: int, ", "") for steps in (40, 31))
    text = loops(many, *arguments)
    assert "a_rows" in text
    assert "} else {" not in text
    assert "a_rows" not in loops(few, *arguments)


SPACE = """
def heat(a: f64["N M K"], b: f64["N M K"]):
    for t in range(STEPS):
        if 1 <= i < N - 1 and 1 <= j < M - 1 and 1 <= k < K - 1:
            b[i, j, k] = 0.1 * (a[i - 1, j, k] + a[i + 1, j, k] + a[i, j - 1, k] + a[i, j + 1, k] + a[i, j, k - 1] + a[i, j, k + 1]) + 0.4 * a[i, j, k]
            a[i, j, k] = 0.1 * (b[i - 1, j, k] + b[i + 1, j, k] + b[i, j - 1, k] + b[i, j + 1, k] + b[i, j, k - 1] + b[i, j, k + 1]) + 0.4 * b[i, j, k]
    return a, b
"""


def heat(steps: int, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
    inside = (slice(1, -1),) * 3
    for _ in range(steps):
        for x, y in ((a, b), (b, a)):
            beside = sum(np.roll(x, step, axis)[inside] for axis in range(3) for step in (-1, 1))
            y[inside] = 0.1 * beside + 0.4 * x[inside]
    return a, b


def test_fewer_steps_pay_in_three_dimensions() -> None:
    arguments = data(2, 34, 36, 70)
    target = Target(vector_bytes=32, vector_registers=16, l1_bytes=24 * 1024, l2_bytes=1024 * 1024)
    function = polyml.einsum(SPACE.replace("STEPS", "8"), target=target, threads=1, verify=True)
    assert "a_rows" in function.lower(*arguments).text("loops")
    fewer = polyml.einsum(SPACE.replace("STEPS", "7"), target=target, threads=1)
    assert "a_rows" not in fewer.lower(*arguments).text("loops")
    want = heat(8, *data(2, 34, 36, 70))
    for got, expected in zip(function(*arguments), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


@cache
def compiled(known: str) -> tuple[polyml.Einsum, str]:
    """The program, wherever arrays begin, and its loops."""
    target = Target(l1_bytes=24 * 1024, l2_bytes=256 * 1024)
    return polyml.einsum(known, target=target, threads=1, verify=True), loops(known, *data(2, 33, 152))


@pytest.mark.parametrize("offsets", [(0, 0), (16, 16), (16, 48), (8, 0), (0, 56)])
@pytest.mark.few(1)
def test_rows_of_whole_lines_are_copied_where_arrays_begin_at_different_places(offsets: tuple[int, int]) -> None:
    """Known numbers of steps have two versions then."""
    known = JACOBI.replace("range(T)", "range(40)").replace("T: int, ", "")
    shape = (33, 152)
    function, text = compiled(known)
    assert "a_rows" in text
    asked = next(line for line in text.splitlines() if line.lstrip().startswith("if (") and "_lead" in line)
    assert "!=" in asked
    want = jacobi(40, *data(2, *shape))
    given = [at(offset, array) for offset, array in zip(offsets, data(2, *shape), strict=True)]
    for got, expected in zip(function(*given), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_one_version_where_rows_are_no_whole_lines() -> None:
    known = JACOBI.replace("range(T)", "range(40)").replace("T: int, ", "")
    text = loops(known, *data(2, 33, 149))
    assert "a_rows" in text
    assert "!=" not in text


FIELDS = f"""
def fields(T: int, ex: f64["N M"], ey: f64["N M"], hz: f64["N M"]):
    for t in range(T):
{FIELD_STEP}    return ex, ey, hz
"""


def fields(steps: int, ex: np.ndarray, ey: np.ndarray, hz: np.ndarray) -> tuple[np.ndarray, ...]:
    for _ in range(steps):
        ey[1:] -= 0.5 * (hz[1:] - hz[:-1])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])
    return ex, ey, hz


def at(offset: int, array: np.ndarray) -> np.ndarray:
    """A copy that begins so many bytes behind a line."""
    room = np.empty(array.nbytes + 128, np.uint8)
    begin = -room.ctypes.data % 64 + offset
    made = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


@pytest.mark.parametrize(
    ("text", "reference", "names"),
    [(JACOBI, jacobi, "a b"), pytest.param(FIELDS, fields, "ex ey hz", marks=pytest.mark.slow)],
)
def test_arrays_that_begin_at_different_places_of_a_line(
    text: str, reference: Callable[..., tuple[np.ndarray, ...]], names: str
) -> None:
    """Rows are whole lines: those of one array lie alike, those of two need not. What is written without a look at neighbours goes along."""
    count = len(names.split())
    found = loops(text, 9, *data(count, 67, 152))
    assert all(f"{name}_rows" in found for name in names.split())
    function = polyml.einsum(text, target=Target(l1_bytes=24 * 1024, l2_bytes=256 * 1024), threads=1, verify=True)
    for steps, offsets in ((40, (0, 0, 0)), (40, (16, 48, 8)), (7, (32, 8, 0))):
        want = reference(steps, *data(count, 67, 152))
        given = [at(offset, array) for offset, array in zip(offsets, data(count, 67, 152), strict=False)]
        for got, expected in zip(function(steps, *given), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("text", "reference", "count"), [(JACOBI, jacobi, 2), (FIELDS, fields, 3)])
@pytest.mark.parametrize(("steps_of_calls", "least", "versions"), [((40, 8, 7, 1, 0), 8, 2), ((9, 0, 1, 40), 32, 3)])
@pytest.mark.few(1)
def test_any_size(
    text: str,
    reference: Callable[..., tuple[np.ndarray, ...]],
    count: int,
    steps_of_calls: tuple[int, ...],
    least: int,
    versions: int,
) -> None:
    """One kernel, with padded rows where a call's rows are long and its arrays large: also of whole pages, which get a line more. Where the first call has few steps such have time tiles without copies."""
    target = Target("x86-64-v4", l1_bytes=8 * 1024, l2_bytes=64 * 1024)
    function = polyml.einsum(text, target=target, threads=1, dynamic=True, verify=True)
    found = loops(text, steps_of_calls[0], *data(count, 67, 152), dynamic=True)
    assert f"T >= {least}" in found
    assert len(re.findall(r"_rows\w*\[", found)) > 2 * count
    assert len(re.findall(r"if .*N \* M\) >= ", found)) == versions - 1
    for rows, columns in (
        (67, 152),
        (41, 149),
        (19, 512),
        (2, 900),
        (900, 2),
        (1, 1),
        (0, 7),
        (7, 0),
        (70, 63),
        (70, 64),
    ):
        for steps in steps_of_calls:
            want = reference(steps, *data(count, rows, columns))
            for got, expected in zip(function(steps, *data(count, rows, columns)), want, strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)
    assert len([kernel for kernel in function.kernels if "0" not in str(kernel.signature)]) == 1


@pytest.mark.parametrize("itemsize", [4, 8])
def test_rows_of_lines(itemsize: int) -> None:
    """Whole lines, not whole pages, as few as that takes; the same number for a symbolic length."""
    symbolic = line_rows(affine("n"), itemsize, 64)
    for length in (0, 1, 7, 8, 9, 504, 505, 512, 513, 1017, 1024, 1025, 4096):
        number = line_rows(affine(length), itemsize, 64)
        assert number.is_constant
        assert symbolic.evaluate({"n": length}) == number.constant
        made = number.constant * itemsize
        assert made % 64 == 0
        assert made % 4096 != 0
        assert length * itemsize <= made < length * itemsize + 128


def test_what_needs_no_padding() -> None:
    alone = """
def seidel(T: int, a: f64["N M"]):
    for t in range(T):
        for i in range(1, N - 1):
            for j in range(1, M - 1):
                a[i, j] = (a[i - 1, j] + a[i, j - 1] + a[i, j] + a[i, j + 1] + a[i + 1, j]) / 5
    return a
"""
    assert "a_rows" in loops(alone, 9, *data(1, 33, 301))
    assert "a_rows" not in loops(alone, 9, *data(1, 33, 304)), "rows are whole lines"
    assert "a_rows" not in loops(JACOBI, 9, *data(2, 9, 19)), "all of it stays in L1"
    assert "a_rows" not in loops(JACOBI, 9, *data(2, 149, 33)), "rows are short"
    assert "a_rows" not in loops(JACOBI, 9, *data(2, 33, 149), tile_sizes=(4, 8)), "sizes that the caller asks for"
    views = [a[:, ::2] for a in data(2, 33, 298)]
    assert "a_rows" not in loops(JACOBI, 9, *views), "rows are strided"
    assert "a_rows" in loops(JACOBI, 9, *[a[:, :149] for a in data(2, 33, 150)])
