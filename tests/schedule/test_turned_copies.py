"""Elementwise results whose operand is read down its columns: tiles of rows whose lines stay in cache."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import For
from polyml.codegen.rewrite import walk_nodes
from polyml.target import Target

TWO = 'def f(x: f32["I J"]):\n    y[j, i] = 2 * x[i, j] + 1\n    return y\n'
THREE = 'def f(x: f32["I J K"]):\n    y[k, j, i] = x[i, j, k]\n    return y\n'


def order(text: str, *arguments: np.ndarray) -> list[str]:
    """The variables of the first loops, each inside the one before."""
    program = polyml.einsum(text, threads=1)
    assert isinstance(program, polyml.Einsum)
    (function,) = (region.loops for region in program.lower(*arguments).stages.regions)
    return list(dict.fromkeys(node.variable for node in walk_nodes(function.body) if isinstance(node, For)))


def test_a_tile_of_rows_goes_around_the_columns() -> None:
    assert order(TWO, np.zeros((1000, 700), "float32")) == ["i_tile", "j", "i"]


def test_few_rows_need_no_tile() -> None:
    assert order(TWO, np.zeros((100, 700), "float32")) == ["j", "i"]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(300, 41), (129, 260), (1, 500), (500, 1), (400, 300), (0, 7)])
def test_the_result(shape: tuple[int, int], threads: int, dynamic: bool) -> None:
    x = np.random.default_rng(0).random(shape, "float32")
    f = polyml.einsum(TWO, threads=threads, dynamic=dynamic)
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
    text = f.lower(np.zeros((300, 100), "float32")).text("loops")
    assert "if ((min(128, I) - 64 >= 0) and ((J * I) >= 16385))" in text
    assert text.count("/* streaming */") == 3
    here = polyml.einsum(TWO, threads=1, dynamic=True, target=Target("host", l1_bytes=8 << 10, l2_bytes=16 << 10))
    for shape in ((300, 100), (129, 260), (63, 400), (64, 401), (3, 9000), (9000, 3), (143, 97), (0, 4)):
        x = np.random.default_rng(0).random(shape, "float32")
        np.testing.assert_array_equal(here(x), 2 * x.T + 1)  # type: ignore[operator]
    assert len(here.kernels) == 2  # what is empty has one of its own


@pytest.mark.parametrize("dtype", ["i8", "f16", "i16", "f32", "f64", "i64", "bool", "c64"])
@pytest.mark.parametrize(
    "shape", [(15, 3), (14, 333), (16, 64), (17, 65), (33, 130), (129, 81), (143, 16), (145, 95), (257, 130)]
)
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
def test_any_order_of_four_indices(order: str, threads: int, dynamic: bool) -> None:
    x = np.random.default_rng(0).random((21, 18, 20, 5), "float32")
    text = f'def f(x: f32["A B C D"]):\n    y[{", ".join(order)}] = x[i, j, k, l]\n    return y\n'
    f = polyml.einsum(text, threads=threads, dynamic=dynamic)
    np.testing.assert_array_equal(f(x), x.transpose(["ijkl".index(i) for i in order]))  # type: ignore[operator]
