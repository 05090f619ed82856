"""Rows of windows that lie beside a padded operand's values are left out of its sums."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.codegen.loops import Assign, For
from polyml.codegen.rewrite import walk_nodes
from polyml.compiler.constants import lower_bound
from polyml.target import Target

PADDED = """def f(x: f32["C H W"], w: f32["O C R S"]):
    y[o, p, q] = pad(x, ((0, 0), ({0}, {1}), ({0}, {1})))[c, {2}*p + {3}*r, {2}*q + {3}*s] * w[o, c, r, s]
    return y
"""


def rows_of_windows(text: str) -> set[tuple[str, str]]:
    """Beginning and end of the loops over rows of windows, around those along them."""
    shapes = {"x": (64, 14, 14), "w": (32, 64, 3, 3)}
    values = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    target = Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024, cores=1)
    program = polyml.einsum(text, target=target, threads=1)
    code = lower_bound(program.program, program.key_of(*values.values()), program.options, {"w"})
    return {
        (str(node.lower), str(node.upper))
        for function in code.calls[2]
        for node in walk_nodes(function.body)
        if isinstance(node, For) and node.variable == "r"
        if any(isinstance(inner, Assign) and inner.reduction for inner in walk_nodes(node.body))
    }


def test_rows_end_with_the_values() -> None:
    assert rows_of_windows(PADDED.format(1, 1, 1, 1)) == {("max(-p + 1, 0)", "min(-p + 15, 3)")}
    assert rows_of_windows(PADDED.format(4, 4, 1, 4)) == {("max((-p + 3)//4 + 1, 0)", "min((-p + 1)//4 + 5, 3)")}
    assert rows_of_windows(PADDED.format(1, 1, 2, 1)) == {("max(-2*p + 1, 0)", "min(-2*p + 15, 3)")}


def test_all_terms_where_there_are_no_zeros() -> None:
    plain = PADDED.replace("pad(x, ((0, 0), ({0}, {1}), ({0}, {1})))", "x").format(0, 0, 2, 1)
    assert rows_of_windows(plain) == {("0", "3")}


def expected(x: npt.NDArray[np.float64], w: npt.NDArray[np.float64], *numbers: int) -> npt.NDArray[np.float64]:
    before, after, stride, dilation = numbers
    reach = dilation * (w.shape[2] - 1) + 1
    padded = np.pad(x, ((0, 0), (before, after), (before, after)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (reach, reach), (1, 2))
    windows = windows[:, ::stride, ::stride, ::dilation, ::dilation]
    return np.tensordot(w, windows, ([1, 2, 3], [0, 3, 4]))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize(
    ("side", "size", "numbers"),
    [
        (7, 3, (1, 1, 1, 1)),
        (9, 3, (4, 4, 1, 4)),
        (9, 3, (1, 2, 2, 1)),  # other zeros at the end
        (13, 5, (2, 2, 1, 1)),
        (8, 3, (0, 3, 1, 2)),
        (4, 3, (6, 6, 1, 1)),  # points without any value
        (1, 3, (1, 1, 1, 1)),
        (10, 2, (1, 0, 1, 1)),
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


def test_no_number_goes_where_its_windows_are() -> None:
    x, w = np.zeros((40, 9, 9), np.float32), np.ones((32, 40, 3, 3), np.float32)
    x[3, 0, 4], x[5, 8, 8] = np.nan, np.inf
    found = polyml.einsum(PADDED.format(1, 1, 1, 1)).bind(w=w)(x)
    nan, inf = np.zeros((9, 9), bool), np.zeros((9, 9), bool)
    nan[:2, 3:6] = inf[7:, 7:] = True
    assert (np.isnan(found) == nan).all()
    assert (np.isinf(found) == inf).all()


def test_zeros_that_a_tensor_of_the_program_holds_are_factors_with_precise() -> None:
    text = """
def f(x: f32["C H W"], w: f32["O C 3 3"]):
    z[c, i, j] = pad(x, ((0, 0), (1, 1), (0, 0)))[c, i, j]
    y[o, p, q] = z[c, p + r, q + s] * w[o, c, r, s]
    return y
"""
    x, w = np.ones((16, 14, 14), np.float32), np.ones((32, 16, 3, 3), np.float32)
    w[:, :, 0] = np.inf
    found = polyml.einsum(text, precise=True, threads=1)(x, w)
    assert np.isnan(found[:, 0]).all()
    assert (found[:, 1:] == np.inf).all()


def test_layers_that_differ_in_zeros_are_other_regions() -> None:
    """Two sums over copies of one shape, which are padded in other places."""
    text = """def f(x: f32["C H W"], z: f32["C H W"], w: f32["O C 3 3"]):
        a[o, p, q] = pad(x, ((0, 0), (2, 0), (1, 1)))[c, p + r, q + s] * w[o, c, r, s]
        b[o, p, q] = pad(z, ((0, 0), (0, 2), (1, 1)))[c, p + r, q + s] * w[o, c, r, s]
        return a, b
    """
    rng = np.random.default_rng(0)
    x, z = rng.integers(-9, 9, (2, 40, 9, 9)).astype(np.float32)
    w = rng.integers(-9, 9, (32, 40, 3, 3)).astype(np.float32)
    for found, tensor, rows in zip(polyml.einsum(text).bind(w=w)(x, z), (x, z), ((2, 0), (0, 2)), strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(tensor, ((0, 0), rows, (1, 1))), (3, 3), (1, 2))
        np.testing.assert_array_equal(found, np.tensordot(w, windows, ([1, 2, 3], [0, 3, 4])))
