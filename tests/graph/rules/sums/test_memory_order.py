"""Sums over a large operand: its innermost indices stay for a second sum, results and small operands lie in its order; and that the values are the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.graph.ir import Equation
from polyml.graph.reference import execute
from polyml.graph.rewrite import rewrite
from polyml.graph.rules.table import RewriteOptions
from polyml.graph.verify import verify
from tests.graph.built import graph, program, values

CPU = RewriteOptions(l2_bytes=1 << 13, vector_bytes=32, vector_registers=16)
"""Of small caches, so that operands are large."""

X = 'x: f64["A B F D"]'


def made(parameters: str, line: str, *arrays: np.ndarray, options: RewriteOptions = CPU) -> list[Equation]:
    source = program(parameters, line, "return y")
    found = rewrite(graph(source, *arrays), options)
    verify(found)
    np.testing.assert_allclose(
        execute(found, arrays)[0], execute(graph(source, *arrays), arrays)[0], rtol=1e-9, atol=1e-9
    )
    return [op for op in found.ops if isinstance(op, Equation)]


def sums(ops: list[Equation]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Per reduction, the indices of the result and those of the sum."""
    return [(op.left, op.reduced) for op in ops if op.reduce is not None]


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_short_summed_rows_are_left_to_a_second_sum(kind: str) -> None:
    x = values(6, 15, 9, 7, dtype="f8")
    ops = made(X, f"y[f] = {kind}[a, b, d](x[a, b, f, d])", x)
    assert sums(ops) == [(("f", "d"), ("a", "b")), (("f",), ("d",))]
    assert ops[0].apart


def test_what_knows_none_of_the_first_sums_indices_is_multiplied_by_its_result() -> None:
    x, w, v = values(6, 15, 9, 7, dtype="f8"), values(7, dtype="f8"), values(6, 9, dtype="f8")
    ops = made(f'{X}, w: f64["D"], v: f64["A F"]', "y[f] = x[a, b, f, d] * w[d] * v[a, f]", x, w, v)
    assert sums(ops) == [(("f", "d"), ("a", "b")), (("f",), ("d",))]


def test_results_and_small_operands_lie_as_the_large_one_does() -> None:
    x, w = values(3, 30, 19, 7, dtype="f8"), values(7, 3, 19, dtype="f8")
    ops = made(f'{X}, w: f64["D A F"]', "y[d, f] = x[a, b, f, d] * w[d, a, f]", x, w)
    copies = [op for op in ops if op.reduce is None]
    assert sums(ops) == [(("f", "d"), ("a", "b"))]
    assert [tuple(extent.constant for extent in op.result.shape) for op in copies] == [(3, 19, 7), (7, 19)]


def test_several_large_operands_lie_alike() -> None:
    x, g = values(6, 15, 9, 7, dtype="f8"), values(6, 15, 9, 7, dtype="f8")
    ops = made(f'{X}, g: f64["A B F D"]', "y[f] = x[a, b, f, d] * g[a, b, f, d]", x, g)
    assert sums(ops) == [(("f", "d"), ("a", "b")), (("f",), ("d",))]
    ops = made(f'{X}, g: f64["B A F D"]', "y[f] = x[a, b, f, d] * g[b, a, f, d]", x, g.reshape(15, 6, 9, 7))
    assert len(sums(ops)) == 1


@pytest.mark.parametrize(
    ("shape", "line"),
    [
        ((6, 15, 9, 300), "y[f] = sum[a, b, d](x[a, b, f, d])"),  # rows are long enough for lanes along them
        ((60, 50, 9, 2), "y[d] = sum[a, b, f](x[a, b, f, d])"),  # a row of sums stays in registers
        ((2, 2, 5, 7), "y[f] = sum[a, b, d](x[a, b, f, d])"),  # nothing is large
        ((2, 15, 90, 7), "y[a, f] = sum[b, d](x[a, b, f, d])"),  # of few terms
        ((6, 15, 9, 7), "y[f, d] = sum[a, b](x[a, b, f, d])"),  # in order as it is
        ((6, 15, 9, 7), "y[f] = any[a, b, d](x[a, b, f, d] > 2)"),
    ],
)
def test_other_sums_stay(shape: tuple[int, ...], line: str) -> None:
    assert len(sums(made(X, line, values(*shape, dtype="f8")))) == 1


def test_views_have_the_order_of_their_memory() -> None:
    x, w = values(9, 6, 15, 7, dtype="f8"), values(9, 6, dtype="f8")
    line, parameters = "y[a] = x[a, b, f, d] * w[a, b]", f'{X}, w: f64["A B"]'
    assert sums(made(parameters, line, x, w)) == [(("a",), ("b", "f", "d"))]
    lies = replace(CPU, orders=(("x", (1, 2, 0, 3)),))
    assert sums(made(parameters, line, x, w, options=lies)) == [(("a", "d"), ("b", "f")), (("a",), ("d",))]
    nowhere = replace(CPU, orders=(("x", ()),))
    assert sums(made(parameters, line, x, w, options=nowhere)) == [(("a",), ("b", "f", "d"))]


def test_summed_indices_follow_memory_where_the_operand_comes_from_there() -> None:
    line = "y[b] = sum[d, a, f](x[a, b, f, d])"
    assert sums(made(X, line, values(3, 5, 10, 60, dtype="f8"))) == [(("b",), ("d", "a", "f"))]
    assert sums(made(X, line, values(9, 5, 20, 300, dtype="f8"))) == [(("b",), ("a", "f", "d"))]
    assert sums(made(X, "y = sum[d, b, a, f](x[a, b, f, d])", values(9, 5, 20, 300, dtype="f8"))) == [
        ((), tuple("abfd"))
    ]


def test_sums_that_keep_their_order_stay() -> None:
    x = values(6, 15, 9, 7, dtype="f8")
    assert len(sums(made(X, "y[f] = sum[a, b, d](x[a, b, f, d])", x, options=replace(CPU, precise=True)))) == 1


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64", "u8"])
@pytest.mark.parametrize("threads", [1, 2])
def test_values(dtype: str, threads: int) -> None:
    rng = np.random.default_rng(3)
    kind = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64, "u8": np.uint8}[dtype]
    x = rng.integers(0, 9, (37, 3, 17, 13, 5)).astype(kind)
    w = rng.integers(0, 9, (17, 37, 5)).astype(kind)
    text = f"""
def f(x: {dtype}["A B F E D"], w: {dtype}["F A D"]):
    y[e, f] = sum[a, b, d](i64(x[a, b, f, e, d]) * w[f, a, d])
    z[f] = max[a, b, d, e](x[a, b, f, e, d])
    return y, z
"""
    target = polyml.Target("x86-64-v3", l1_bytes=1 << 12, l2_bytes=1 << 13)
    y, z = polyml.einsum(text, target=target, threads=threads)(x, w)
    np.testing.assert_array_equal(y, np.einsum("abfed,fad->ef", x.astype(np.int64), w.astype(np.int64)))
    np.testing.assert_array_equal(z, x.max((0, 1, 3, 4)))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 2, 0, 3), (3, 1, 0, 2), (2, 3, 1, 0)])
@pytest.mark.parametrize("step", [1, 2, -1])
def test_values_of_views(order: tuple[int, ...], step: int) -> None:
    rng = np.random.default_rng(4)
    shape = (13, 19, 11, 7)
    memory = rng.integers(0, 9, [shape[d] * abs(step) for d in order]).astype(np.float32)
    x = memory[tuple(slice(None, None, step) for _ in order)].transpose(np.argsort(order))
    w = rng.integers(0, 9, (13, 7)).astype(np.float32)
    text = 'def f(x: f32["A B F D"], w: f32["A D"]):\n    y[d, f] = x[a, b, f, d] * w[a, d]\n    z[a] = sum[b, f, d](x[a, b, f, d])\n    return y, z\n'
    target = polyml.Target("x86-64-v3", l1_bytes=1 << 11, l2_bytes=1 << 12)
    y, z = polyml.einsum(text, target=target, threads=1, verify=True)(x, w)
    np.testing.assert_array_equal(y, np.einsum("abfd,ad->df", x, w))
    np.testing.assert_array_equal(z, x.sum((1, 2, 3)))
