"""Elementwise results whose operand is read down its columns: tiles of rows whose lines stay in cache."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import For
from polyml.codegen.rewrite import walk_nodes
from polyml.target import Target
from tests.pairs import pairwise

TWO = 'def f(x: i16["I J"]):\n    y[j, i] = 2 * x[i, j] + 1\n    return y\n'
THREE = 'def f(x: f32["I J K"]):\n    y[k, j, i] = x[i, j, k]\n    return y\n'


def order(text: str, *arguments: np.ndarray) -> list[str]:
    """The variables of the first loops, each inside the one before."""
    program = polyml.einsum(text, threads=1, target="x86-64-v4")
    assert isinstance(program, polyml.Einsum)
    (function,) = (region.loops for region in program.lower(*arguments).stages.regions)
    return list(dict.fromkeys(node.variable for node in walk_nodes(function.body) if isinstance(node, For)))


def test_a_tile_of_rows_goes_around_the_columns() -> None:
    """Where vectors have more lanes than blocks have rows."""
    assert order(TWO, np.zeros((1000, 700), "int16")) == ["i_tile", "j", "i"]


def test_few_rows_need_no_tile() -> None:
    assert order(TWO, np.zeros((96, 700), "int16")) == ["j", "i"]


@pairwise(
    ("shape", [(300, 41), (129, 260), (1, 500), (500, 1), (400, 300), (0, 7)]),
    ("threads", [1, 2]),
    ("dynamic", [False, True]),
    ("dtype", ["float32", "int16"]),
)
@pytest.mark.few(3)
def test_the_result(shape: tuple[int, int], threads: int, dynamic: bool, dtype: str) -> None:
    x = (100 * np.random.default_rng(0).random(shape, "float32")).astype(dtype)
    f = polyml.einsum(TWO.replace("i16", "i16" if dtype == "int16" else "f32"), threads=threads, dynamic=dynamic)
    np.testing.assert_array_equal(f(x), 2 * x.T + 1)  # type: ignore[operator]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(150, 3, 40), (260, 40, 17), (3, 40, 200)])
def test_three_indices(shape: tuple[int, int, int], threads: int) -> None:
    x = np.random.default_rng(0).random(shape, "float32")
    np.testing.assert_array_equal(polyml.einsum(THREE, threads=threads)(x), x.transpose(2, 1, 0))  # type: ignore[operator]


def test_rows_of_any_length_go_past_the_caches() -> None:
    """In strips of 128, each from its first line on; for rows of a few vectors, and results that L2 holds, they do not."""
    machine = Target("x86-64-v4", l1_bytes=8 << 10, l2_bytes=16 << 10)
    f = polyml.einsum(TWO, threads=1, dynamic=True, target=machine)
    text = f.lower(np.zeros((300, 100), "int16")).text("loops")
    assert "if ((min(128, I) - 128 >= 0) and ((J * I) >= 32769))" in text
    assert text.count("/* streaming */") == 3
    here = polyml.einsum(TWO, threads=1, dynamic=True, target=Target("host", l1_bytes=8 << 10, l2_bytes=16 << 10))
    for shape in ((300, 100), (129, 260), (63, 400), (64, 401), (3, 9000), (9000, 3), (143, 97), (0, 4)):
        x = np.random.default_rng(0).integers(0, 99, shape, "int16")
        np.testing.assert_array_equal(here(x), 2 * x.T + 1)  # type: ignore[operator]
    assert len(here.kernels) == 2  # what is empty has one of its own


@pytest.mark.parametrize("dtype", ["i8", "f16", "i16", "f32", "f64", "i64", "bool", "c64"])
@pytest.mark.parametrize(
    "shape", [(15, 3), (14, 333), (16, 64), (17, 65), (33, 130), (129, 81), (143, 16), (145, 95), (257, 130)]
)
@pytest.mark.few(8)
def test_copies_in_blocks_of_any_type(dtype: str, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, shape)
    kind = {"c64": np.complex64, "bool": np.bool_}.get(dtype) or np.dtype(
        {"i": "int", "f": "float"}[dtype[0]] + dtype[1:]
    )
    given = x.astype(kind)
    f = polyml.einsum(f'def f(x: {dtype}["I J"]):\n    y[j, i] = x[i, j]\n    return y\n', threads=1)
    np.testing.assert_array_equal(f(given), given.T)  # type: ignore[operator]


def test_copies_are_transposed_in_registers() -> None:
    text = 'def f(x: i8["I J"]):\n    y[j, i] = x[i, j]\n    return y\n'
    for shape in ((14, 2024), (533, 1944), (130, 33)):
        (region,) = polyml.einsum(text, threads=1).lower(np.zeros(shape, "int8")).stages.regions
        kinds = [node.kind for node in walk_nodes(region.loops.body) if isinstance(node, For)]
        assert kinds[-1] == "transpose", shape
        assert not any(node.masked for node in walk_nodes(region.loops.body) if isinstance(node, For) and shape[0] > 16)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("order", ["jikl", "klij", "ljki", "kilj", "ijlk"])
@pytest.mark.few(6)
def test_any_order_of_four_indices(order: str, threads: int, dynamic: bool) -> None:
    x = np.random.default_rng(0).random((21, 18, 20, 5), "float32")
    text = f'def f(x: f32["A B C D"]):\n    y[{", ".join(order)}] = x[i, j, k, l]\n    return y\n'
    f = polyml.einsum(text, threads=threads, dynamic=dynamic)
    np.testing.assert_array_equal(f(x), x.transpose(["ijkl".index(i) for i in order]))  # type: ignore[operator]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [3, 16, 17, 63, 100, 129, 145, 270])
@pytest.mark.few(3)
def test_a_matrix_and_its_transpose(size: int, threads: int) -> None:
    for dtype in ("f32", "f64"):
        x = np.random.default_rng(0).random((size, size), "float32" if dtype == "f32" else "float64")
        text = f'def f(x: {dtype}["I I"]):\n    y[i, j] = x[i, j] + x[j, i]\n    return y\n'
        np.testing.assert_array_equal(polyml.einsum(text, threads=threads)(x), x + x.T)  # type: ignore[operator]


def test_rows_of_operands_are_transposed_in_registers() -> None:
    text = 'def f(x: f32["P C"], b: f32["C"]):\n    y[c, p] = relu(x[p, c] + b[c])\n    return y\n'
    x, b = np.random.default_rng(0).standard_normal((230, 70)).astype("float32"), np.ones(70, "float32")
    f = polyml.einsum(text, threads=1)
    assert isinstance(f, polyml.Einsum)
    (region,) = f.lower(x, b).stages.regions
    assert any(isinstance(n, For) and n.kind == "transpose" for n in walk_nodes(region.loops.body))
    np.testing.assert_array_equal(f(x, b), np.maximum(x.T + b[:, None], 0))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("place", [0, 1, 5, 15])
@pytest.mark.few(3)
def test_columns_that_are_lines_go_past_the_caches(place: int, dtype: str) -> None:
    """Wherever the result begins."""
    here = Target("host", l1_bytes=8 << 10, l2_bytes=16 << 10, l3_bytes=0)
    f = polyml.einsum(f'def f(x: {dtype}["I J"], y: {dtype}["J I"]):\n    y[j, i] = x[i, j]\n', threads=1, target=here)
    kind = np.float32 if dtype == "f32" else np.float64
    x = np.random.default_rng(0).random((160, 100)).astype(kind)
    memory = np.full(x.size + 64, -1, kind)
    start = -memory.ctypes.data % 64 // memory.itemsize + place
    y = memory[start : start + x.size].reshape(100, 160)
    f(x, y)  # type: ignore[operator]
    np.testing.assert_array_equal(y, x.T)
    assert np.all(memory[:start] == -1)
    assert np.all(memory[start + x.size :] == -1)
    assert isinstance(f, polyml.Einsum)
    assert ("nontemporal" in f.lower(x, y).text("llvm")) == (Target.host().vector_bytes == 64)


ROTATED = 'def f(x: f32["H W"]):\n    y: f32["W H"]\n    y[i, j] = x[j, W - 1 - i]\n    return y\n'


def test_rows_that_run_backwards_are_blocks_too() -> None:
    for text in (ROTATED, ROTATED.replace("- 1 - i]", "- 1 - i] + 1")):
        program = polyml.einsum(text, threads=1, target="x86-64-v4")
        assert isinstance(program, polyml.Einsum)
        assert "transpose for" in program.lower(np.zeros((130, 70), "float32")).text("loops")


@pairwise(
    ("shape", [(33, 40), (16, 16), (130, 70), (3, 50), (257, 5)]),
    ("dtype", ["float32", "int16"]),
    ("dynamic", [False, True]),
    ("value", ["x[j, W - 1 - i]", "2 * x[j, W - 1 - i] + x[j, i]"]),
)
@pytest.mark.few(3)
def test_rotated(shape: tuple[int, int], dtype: str, dynamic: bool, value: str) -> None:
    x = np.random.default_rng(0).integers(0, 99, shape).astype(dtype)
    text = ROTATED.replace("x[j, W - 1 - i]", value).replace("f32", "i16" if dtype == "int16" else "f32")
    turned = np.rot90(x)
    expected = turned if value.startswith("x") else 2 * turned + x.T
    np.testing.assert_array_equal(polyml.einsum(text, dynamic=dynamic)(x), expected)  # type: ignore[operator]


def test_columns_of_any_length_are_transposed_two_lines_at_a_time() -> None:
    """With vectors of less than a line: what a row's blocks begin with, addresses and bounds, is for both lines."""
    copy = 'def f(x: f32["I J"]):\n    y[j, i] = x[i, j]\n    return y\n'
    for level, columns in (("x86-64-v3", 32), ("x86-64-v4", 16)):
        f = polyml.einsum(copy, threads=1, dynamic=True, target=Target(level))
        assert f"j_tile += {columns})" in f.lower(np.zeros((300, 200), "float32")).text("loops")
    f = polyml.einsum(copy, threads=1, target=Target("x86-64-v3"))
    assert "j_tile += 16)" in f.lower(np.zeros((736, 608), "float32")).text("loops")
