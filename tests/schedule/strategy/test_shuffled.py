"""Copies whose rows are short on both sides go in blocks that are put together by shuffles."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.pairs import pairwise

BATCH = 'def f(x: f32["B 5 3"]):\n    y[b, j, i] = x[b, i, j]\n    return y\n'
MIRROR = 'def f(x: f32["H W C"]):\n    y: f32["H W C"]\n    y[h, w, c] = x[h, W - 1 - w, c]\n    return y\n'
HEADS = 'def f(x: f32["B S 5 3"]):\n    y[b, r, s, c] = x[b, s, r, c]\n    return y\n'
REPEATED = 'def f(x: f32["N"]):\n    y: f32["N 7"]\n    y[i, j] = x[i]\n    return y\n'
NARROW = 'def f(x: f32["N M"]):\n    y[i, j] = x[i, j]\n    return y\n'
WIDE = Target("x86-64-v4")
BYTES = Target("x86-64-v4", features=f"{WIDE.features},+avx512vbmi".strip(","))


def loops(text: str, *arguments: np.ndarray, target: Target = WIDE) -> str:
    program = polyml.einsum(text, threads=1, target=target)
    assert isinstance(program, polyml.Einsum)
    return program.lower(*arguments).text("loops")


@pytest.mark.parametrize(
    ("text", "shape"), [(BATCH, (500, 5, 3)), (MIRROR, (20, 90, 3)), (HEADS, (3, 200, 5, 3)), (REPEATED, (900,))]
)
def test_blocks(text: str, shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, "float32")
    assert "shuffle(" in loops(text, x)
    assert "shuffle(" in loops(text.replace("f32", "u8"), x.astype("uint8"), target=BYTES)
    # Bytes of two registers are put in any order by one instruction, or by many.
    assert "shuffle(" not in loops(text.replace("f32", "u8"), x.astype("uint8"))
    assert "shuffle(" not in loops(text, x, target=Target("aarch64"))


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (NARROW, (300, 300)),
        (MIRROR, (20, 90, 300)),
        ('def f(x: f32["N M"]):\n    y[j, i] = x[i, j]\n    return y\n', (70, 90)),
    ],
)
def test_long_rows_stay_as_they_are(text: str, shape: tuple[int, ...]) -> None:
    assert "shuffle(" not in loops(text, np.zeros(shape, "float32"))


def test_lanes_do_not_reach_for_rows_that_are_written_out() -> None:
    """Blocks of rows are transposed where a loop goes along them; one that is written out leaves an element at a time."""
    text = 'def f(x: u8["S H 8"]):\n    y[h, s, d] = x[s, h, d]\n    return y\n'
    assert "y[h, s, 1]" not in loops(text, np.zeros((800, 16, 8), "uint8"))


TYPES = ["uint8", "int16", "float16", "float32", "float64", "complex64", "complex128", "bool"]
NAMES = dict(zip(TYPES, ["u8", "i16", "f16", "f32", "f64", "c64", "c128", "bool"], strict=True))


@pairwise(
    ("dtype", TYPES),
    ("target", ["host", "x86-64-v3"]),
    ("threads", [1, 2]),
    ("dynamic", [False, True]),
    ("size", [0, 1, 2, 7, 131, 1500]),
)
@pytest.mark.few(2)
def test_results(dtype: str, target: str, threads: int, dynamic: bool, size: int) -> None:
    machine = Target(target)
    if not machine.runs_here:
        pytest.skip(f"needs {target}")
    rng = np.random.default_rng(size)

    def made(text: str) -> polyml.Einsum:
        program = polyml.einsum(text.replace("f32", NAMES[dtype]), threads=threads, dynamic=dynamic, target=machine)
        assert isinstance(program, polyml.Einsum)
        return program

    def numbers(*shape: int) -> np.ndarray:
        return (100 * rng.random(shape)).astype(dtype)

    x = numbers(size, 5, 3)
    np.testing.assert_array_equal(made(BATCH)(x), x.transpose(0, 2, 1))
    x = numbers(3, size, 3)
    np.testing.assert_array_equal(made(MIRROR)(x), x[:, ::-1])
    x = numbers(2, size, 5, 3)
    np.testing.assert_array_equal(made(HEADS)(x), x.transpose(0, 2, 1, 3))
    x = numbers(size)
    np.testing.assert_array_equal(made(REPEATED)(x), np.repeat(x[:, None], 7, 1))
    x = numbers(size, 8)
    for part in (x[:, 1:6], x[:, ::-1], x[::-1, 2:4], x[:, ::3]):
        np.testing.assert_array_equal(made(NARROW)(part), part)


def test_updates_are_no_copies() -> None:
    """The last block of a row begins where it ends with it, and goes over elements again."""
    text = """
def f(x: f64["K P"], w: f64["K C 4"], y: f64["C N"]):
    y[c, p + r + 3] += x[k, p] * w[k, c, r]
    return y
"""
    arguments = np.ones((64, 700)), np.ones((64, 40, 4)), np.ones((40, 720))
    assert "shuffle(" not in loops(text, *arguments)


@pytest.mark.parametrize(("target", "columns"), [(Target("x86-64-v3"), 5), (WIDE, 12)])
def test_copies_in_blocks_of_rows(target: Target, columns: int) -> None:
    """The last block of rows may have fewer of them than a block of the copy."""
    text = """
def f(x: f64["N M"], z: f64["N M"]):
    h: f64["N M"]
    e: f64["N M"] = 0
    h[i, j] = x[i, j]
    for j in range(1, M):
        e[i, j] = max(e[i, j - 1] - 0.25, h[i, j - 1] - 0.5)
        h[i, j] = max(e[i, j] + 0.25, z[i, j])
    return h
"""
    x, z = np.random.default_rng(0).random((2, 3001, columns))
    assert "max(" in loops(text, x, z, target=target)
    expected = np.concatenate((x[:, :1], z[:, 1:]), 1)
    e = np.zeros(3001)
    for j in range(1, columns):
        e = np.maximum(e - 0.25, expected[:, j - 1] - 0.5)
        expected[:, j] = np.maximum(e + 0.25, z[:, j])
    np.testing.assert_array_equal(polyml.einsum(text)(x, z), expected)


@pytest.mark.parametrize("dtype", TYPES)
def test_one_element_fills_a_block(dtype: str) -> None:
    text = f'def f(x: {NAMES[dtype]}["N"]):\n    y: {NAMES[dtype]}["N N N"]\n    y[i, j, k] = x[0]\n    return y\n'
    x = np.array([3, 1, 0]).astype(dtype)
    for target in ("host", "x86-64-v3"):
        if Target(target).runs_here:
            np.testing.assert_array_equal(polyml.einsum(text, target=Target(target))(x), np.full((3, 3, 3), x[0]))
    polyml.einsum(text, target=WIDE).lower(x).text("asm")
