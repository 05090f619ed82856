"""Sums over windows as products of tensors: where they become that, where they stay, and that results are the same."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.graph.ir import Graph

CONVOLUTION = """
def convolution(x: f32["C H W"], w: f32["O C {k} {k}"]):
    y[o, p, q] = {source}[c, {at}p + r, {at}q + s] * w[o, c, r, s]
    return y
"""


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def text(kernel: int, stride: int, padding: int) -> str:
    source = f"pad(x, ((0, 0), ({padding}, {padding}), ({padding}, {padding})))" if padding else "x"
    return CONVOLUTION.format(k=kernel, source=source, at=f"{stride}*" if stride > 1 else "")


def expected(x: np.ndarray, w: np.ndarray, stride: int, padding: int) -> np.ndarray:
    padded = np.pad(x.astype(np.float64), ((0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (1, 2))[:, ::stride, ::stride]
    return np.tensordot(w.astype(np.float64), windows, ([1, 2, 3], [0, 3, 4]))


def graph_of(program: str, *args: np.ndarray, **options: object) -> Graph:
    return polyml.einsum(program, **options).trace(*args)


def unfolded(graph: Graph) -> bool:
    return any(tensor.name.endswith("_windows") for op in graph.ops if hasattr(op, "result") for tensor in [op.result])


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (5, 2, 2), (1, 2, 0), (3, 1, 0)])
@pytest.mark.parametrize("size", [14, 15])
def test_windows_are_unfolded_and_right(kernel: int, stride: int, padding: int, size: int) -> None:
    x, w = numbers(24, size, size), numbers(128, 24, kernel, kernel, seed=1)
    program = text(kernel, stride, padding)
    if kernel == 1:
        w = numbers(1024, 24, 1, 1, seed=1)
    function = polyml.einsum(program, verify=True)
    assert unfolded(graph_of(program, x, w))
    stages = function.lower(x, w).stages
    assert len(stages.regions) == 2, "the second reads its operand from memory"
    np.testing.assert_array_equal(function(x, w), expected(x, w, stride, padding))


def test_values_beside_padding_count_once() -> None:
    """Padding is zero: infinities of the input stay where their windows are."""
    x, w = numbers(24, 14, 14), np.ones((128, 24, 3, 3), np.float32)
    x[3, 0, 0] = np.inf
    y = polyml.einsum(text(3, 1, 1))(x, w)
    assert np.isinf(y[:, :2, :2]).all()
    assert np.isfinite(y[:, 2:]).all()


def test_what_stays() -> None:
    x, w = numbers(24, 14, 14), numbers(128, 24, 3, 3, seed=1)
    assert unfolded(graph_of(text(3, 1, 1), x, w))
    assert not unfolded(graph_of(text(3, 1, 1), x, w[:64])), "each window is used 64 times"
    assert unfolded(graph_of(text(3, 2, 1), x, w[:100])), "rows with gaps cost more where they are"
    assert not unfolded(graph_of(text(3, 1, 1), x[:, :4, :4], w)), "little work"
    for options in ({"precise": True}, {"scheduler": "written"}, {"tile_sizes": (8, 8)}, {"target": "cuda"}):
        assert not unfolded(graph_of(text(3, 1, 1), x, w, **options)), options


def test_terms_that_a_condition_leaves_out_stay_out() -> None:
    """Unlike padding: an infinite weight meets no zero there."""
    program = """
def same_size(x: f32["C N"], w: f32["O C 3"]):
    y: f32["O N"]
    y[o, n] = sum[c, r, 0 <= n + r - 1 < N](x[c, n + r - 1] * w[o, c, r])
    return y
"""
    x, w = numbers(24, 1000), numbers(128, 24, 3, seed=1)
    w[:, :, 0] = np.inf
    assert not unfolded(graph_of(program, np.ones_like(x), w))
    first = polyml.einsum(program)(np.ones_like(x), w)[:, 0]
    np.testing.assert_array_equal(first, w[:, :, 1:].sum((1, 2)))


def test_constant_weights_are_packed_or_read_where_they_are() -> None:
    x, w = numbers(24, 14, 14), numbers(128, 24, 3, 3, seed=1)
    np.testing.assert_array_equal(polyml.einsum(text(3, 1, 1)).bind(w=w)(x), expected(x, w, 1, 1))
