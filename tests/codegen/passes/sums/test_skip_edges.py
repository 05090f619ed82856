"""Terms of zeros at the ends of padded rows are left out of the sums of the points there."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import Assign, For, Function, If
from polyml.codegen.rewrite import walk_nodes
from polyml.compiler.constants import lower_bound
from polyml.target import Target
from tests.codegen.passes.sums.test_skip_zeros import PADDED, expected


def functions_of(text: str, side: int, filters: int = 32) -> tuple[Function, ...]:
    values = [np.zeros((64, side, side), np.float32), np.zeros((filters, 64, 3, 3), np.float32)]
    target = Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024, cores=1)
    program = polyml.einsum(text, target=target, threads=1)
    return lower_bound(program.program, program.key_of(*values), program.options, {"w"}).calls[2]


def products(function: Function) -> set[tuple[str, str, int]]:
    """Of the loops along rows of windows the ends, and for how many sums they are."""
    return {
        (str(node.lower), str(node.upper), len(node.body))
        for node in walk_nodes(function.body)
        if isinstance(node, For) and node.variable == "s" and all(isinstance(inner, Assign) for inner in node.body)
    }


def test_the_first_tile_of_a_row() -> None:
    function = functions_of(PADDED.format(1, 1, 1, 1), 28)[-1]
    (choice,) = (node for node in walk_nodes(function.body) if isinstance(node, If) and "q" in str(node.condition))
    (whole,), (first,) = choice.then, choice.otherwise
    assert isinstance(whole, For)
    assert isinstance(first, For)
    points = len({str(node.value) for node in whole.body if isinstance(node, Assign)})
    assert points - len({str(node.value) for node in first.body if isinstance(node, Assign)}) == 2
    assert str(choice.condition) == "(q >= 6)"
    assert products(function) == {("0", "1", 10), ("0", "1", 12), ("1", "3", 12), ("0", "2", 8), ("2", "3", 6)}


def test_tiles_at_known_places() -> None:
    assert products(functions_of(PADDED.format(1, 1, 1, 1), 7, 96)[-1]) == {
        ("0", "1", 9), ("1", "3", 12), ("0", "2", 9), ("2", "3", 6),
    }  # fmt: skip


def test_no_part_where_there_are_no_zeros() -> None:
    plain = PADDED.replace("pad(x, ((0, 0), ({0}, {1}), ({0}, {1})))", "x").format(0, 0, 2, 1)
    assert {loop[:2] for loop in products(functions_of(plain, 29)[-1])} == {("0", "3")}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize(
    ("side", "size", "numbers"),
    [
        (28, 3, (1, 1, 1, 1)),
        (17, 5, (2, 2, 1, 1)),  # two points of the first tile
        (14, 7, (3, 3, 1, 1)),
        (14, 3, (4, 4, 1, 4)),
        (27, 3, (1, 1, 2, 1)),
        (12, 3, (0, 2, 1, 1)),
        (12, 3, (2, 0, 1, 1)),
        (6, 3, (7, 7, 1, 1)),  # points without any value
    ],
)
@pytest.mark.few(4)
def test_results(side: int, size: int, numbers: tuple[int, int, int, int], dtype: str) -> None:
    rng = np.random.default_rng(side)
    x, w = rng.integers(-9, 9, (40, side, side)), rng.integers(-9, 9, (33, 40, size, size))
    text = PADDED.format(*numbers).replace("f32", {"float32": "f32", "float64": "f64", "int32": "i32"}[dtype])
    layer = polyml.einsum(text).bind(w=w.astype(dtype))
    # Whole numbers: no sum is rounded.
    np.testing.assert_array_equal(layer(x.astype(dtype)), expected(x.astype(float), w.astype(float), *numbers))
