"""Products that are made in the order of a large operand and then laid out: which become so, and their values around blocks and tiles."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.codegen.llvm.support import guarded

SMALL = Target("host", l1_bytes=2048, l2_bytes=16 * 1024, cores=2)
"""Caches so small that every loop over blocks appears at test sizes."""
THREE = ("A D B", "C D", "C B A")
FOUR = ("A E B D", "C E", "D C B A")
ROWS = ("A E B", "C E D", "D C B A")


def program(left: str, right: str, out: str, dtype: str, last: str = "") -> str:
    def subscripts(dims: str) -> str:
        return ", ".join(dims.lower().split())

    return (
        f'def f(x: {dtype}["{left}"], y: {dtype}["{right}"], bias: {dtype}["A"]):\n'
        f"    z[{subscripts(out)}] = x[{subscripts(left)}] * y[{subscripts(right)}]\n    {last or 'return z'}\n"
    )


def arguments(left: str, right: str, sizes: dict[str, int], dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    kind = np.float32 if dtype == "f32" else np.float64
    return [rng.integers(-9, 10, [sizes[i] for i in dims.split()]).astype(kind) for dims in (left, right, "A")]


def exact(left: str, right: str, out: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.einsum(f"{left},{right}->{out}".replace(" ", "").lower(), x.astype(float), y.astype(float), optimize=True)


CASES = [
    (THREE, "f32", {"A": 33, "B": 97, "C": 17, "D": 70}),
    (THREE, "f64", {"A": 40, "B": 24, "C": 24, "D": 96}),
    (THREE, "f32", {"A": 5, "B": 97, "C": 25, "D": 129}),
    (FOUR, "f32", {"A": 18, "B": 3, "C": 16, "D": 49, "E": 65}),
    (FOUR, "f64", {"A": 31, "B": 5, "C": 17, "D": 8, "E": 81}),
    (ROWS, "f32", {"A": 35, "B": 50, "C": 4, "D": 5, "E": 90}),
    # A few rows, down to two, of an operand that takes more than four times what L2 holds.
    (THREE, "f32", {"A": 33, "B": 97, "C": 7, "D": 70}),
    (THREE, "f64", {"A": 35, "B": 45, "C": 2, "D": 30}),
]


@pytest.mark.parametrize(("dims", "dtype", "sizes"), CASES)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(1)
def test_values_around_the_blocks(dims: tuple[str, str, str], dtype: str, sizes: dict[str, int], threads: int) -> None:
    x, y, b = arguments(*dims[:2], sizes, dtype)
    function = polyml.einsum(program(*dims, dtype), target=SMALL, threads=threads)
    text = str(function.explain(x, y, b))
    # Two rows in vectors of eight f64 are laid out by another rule (z_laid).
    if sizes["C"] > 2 or SMALL.vector_bytes < 64:
        assert "z_turned" in text
        assert "blocking" in text
    assert ("parallel" in function.lower(x, y, b).text("loops")) == (threads > 1)
    # Elements are small integers: every sum is exact, in any order.
    np.testing.assert_array_equal(function(guarded(x), guarded(y), b), exact(*dims, x, y))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("dims", "dtype", "sizes"),
    [
        (THREE, "f32", {"A": 33, "B": 97, "C": 17, "D": 70}),
        (THREE, "f64", {"A": 17, "B": 96, "C": 16, "D": 100}),
        (FOUR, "f32", {"A": 50, "B": 7, "C": 24, "D": 48, "E": 48}),
        (FOUR, "f32", {"A": 15, "B": 9, "C": 25, "D": 96, "E": 33}),
    ],
)
@pytest.mark.few(1)
def test_strips_of_the_operand(dims: tuple[str, str, str], dtype: str, sizes: dict[str, int], threads: int) -> None:
    """Where L2 holds what waits to be laid out."""
    x, y, b = arguments(*dims[:2], sizes, dtype)
    target = Target("x86-64-v4", l1_bytes=32 << 10, l2_bytes=256 << 10, cores=2)
    text = str(polyml.einsum(program(*dims, dtype), target=target, threads=threads).explain(x, y, b))
    assert "z_turned" in text
    assert "in strips of" in text
    target = Target("host", l1_bytes=32 << 10, l2_bytes=256 << 10, cores=2)
    function = polyml.einsum(program(*dims, dtype), target=target, threads=threads, verify=True)
    np.testing.assert_array_equal(function(guarded(x), guarded(y), b), exact(*dims, x, y))


@pytest.mark.parametrize(
    ("cpu", "dtype", "b", "d", "how"),
    [
        ("x86-64-v3", "f32", 9, 96, "x read where it lies, in strips of 16; blocks of d by 48, b by 1, a by 1"),
        ("x86-64-v3", "f64", 64, 64, "x packed in panels of 8; blocks of b by 1, a by 1"),
        ("x86-64-v4", "f32", 9, 96, "x read where it lies, in strips of 48; blocks of d by 48, b by 1, a by 1"),
    ],
)
@pytest.mark.few(1)
def test_strips_of_a_line_lie_beside_each_other(cpu: str, dtype: str, b: int, d: int, how: str) -> None:
    """Memory delivers pairs of lines. Rows 32 KiB apart, which meet in a few sets of L2, come from the next cache once, packed, not for each tile."""
    x, y, bias = arguments(*FOUR[:2], {"A": 48, "B": b, "C": 24, "D": d, "E": 48}, dtype)
    text, caches = program(*FOUR, dtype), {"l1_bytes": 32 << 10, "l2_bytes": 512 << 10, "cores": 1}
    assert how in str(polyml.einsum(text, target=Target(cpu, **caches), threads=1).explain(x, y, bias))
    function = polyml.einsum(text, target=Target("host", **caches), threads=1)
    np.testing.assert_array_equal(function(guarded(x), guarded(y), bias), exact(*FOUR, x, y))


def test_lanes_of_another_width() -> None:
    target = Target("x86-64-v3", l1_bytes=2048, l2_bytes=16 * 1024, cores=1)
    x, y, b = arguments(*THREE[:2], CASES[0][2], "f32")
    function = polyml.einsum(program(*THREE, "f32"), target=target, threads=1)
    assert "contracted to 17x8x" in str(function.explain(x, y, b))
    np.testing.assert_array_equal(function(x, y, b), exact(*THREE, x, y))


def test_what_follows_is_applied_where_the_result_is_laid_out() -> None:
    x, y, b = arguments(*THREE[:2], CASES[0][2], "f32")
    function = polyml.einsum(
        program(*THREE, "f32", "r[c, b, a] = max(z[c, b, a] + bias[a], 0)\n    return r"), target=SMALL, threads=1
    )
    np.testing.assert_array_equal(function(x, y, b), np.maximum(exact(*THREE, x, y) + b, 0))


@pytest.mark.parametrize(
    ("dims", "sizes"),
    [
        (("A D B", "C D", "C A B"), {"A": 33, "B": 97, "C": 17, "D": 70}),  # contiguous along the result's lanes
        (("A B D", "C D", "C B A"), {"A": 33, "B": 97, "C": 17, "D": 70}),  # along the sum
        (THREE, {"A": 33, "B": 97, "C": 80, "D": 70}),  # the result is larger
        (THREE, {"A": 33, "B": 3, "C": 4, "D": 20}),  # all in cache, a few uses
        (THREE, {"A": 17, "B": 16, "C": 7, "D": 40}),  # a few uses, and little more than L2 holds
        (THREE, {"A": 64, "B": 5, "C": 17, "D": 400}),  # rows of the operand leave lanes idle
    ],
)
@pytest.mark.few(2)
def test_others_keep_their_order(dims: tuple[str, str, str], sizes: dict[str, int]) -> None:
    x, y, b = arguments(*dims[:2], sizes, "f32")
    function = polyml.einsum(program(*dims, "f32"), target=SMALL, threads=1)
    assert "z_turned" not in str(function.explain(x, y, b))
    np.testing.assert_array_equal(function(x, y, b), exact(*dims, x, y))


def test_a_written_order_stays() -> None:
    x, y, b = arguments(*THREE[:2], CASES[0][2], "f32")
    function = polyml.einsum(program(*THREE, "f32"), target=SMALL, threads=1, precise=True)
    assert "z_turned" not in str(function.explain(x, y, b))


@pytest.mark.parametrize(
    ("dims", "dtype", "sizes"),
    [pytest.param(*case, marks=[pytest.mark.slow] if k % 2 else []) for k, case in enumerate(CASES[:-2])],
)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("last", ["r[{out}] = max(z[{out}] + bias[a], 0)\n    return r", ""])
@pytest.mark.few(1)
def test_any_size_turns_results_that_the_first_call_has_so(
    dims: tuple[str, str, str], dtype: str, sizes: dict[str, int], threads: int, last: str
) -> None:
    text = program(*dims, dtype, last.format(out=", ".join(dims[2].lower().split())))
    named = tuple(sorted({*dims[0].split(), *dims[1].split()}))  # all, short rows too
    function = polyml.einsum(text, target=SMALL, threads=threads, dynamic=named, verify=threads == 1)
    given = arguments(*dims[:2], sizes, dtype)
    loops = function.lower(*given).text("loops")
    assert re.search(r"local \w+ z_turned\w*\[[^;]*\bC\b", loops), "the block that is laid out before the next"
    others = [{i: max(0, n + d) for i, n in sizes.items()} for d in (0, 1, -1, 2 - min(sizes.values()))]
    others += [{**sizes, index: n} for index in sizes for n in (0, 1, 2 * sizes[index])]
    for numbers in others:
        x, y, b = arguments(*dims[:2], numbers, dtype)
        expected = exact(*dims, x, y)
        expected = np.maximum(expected + b, 0) if last else expected
        np.testing.assert_array_equal(function(guarded(x), guarded(y), b), expected, err_msg=str(numbers))
