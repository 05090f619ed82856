"""Factors that go with one operand's indices: multiplied into it ahead of the sum, where elements are used often; and that the values are the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.expressions import factors_of
from polyml.graph.ir import Equation
from polyml.graph.reference import execute
from polyml.graph.rewrite import rewrite
from polyml.graph.rules.sums.factors_ahead import multiply_ahead
from polyml.graph.rules.table import RewriteOptions
from polyml.graph.verify import verify
from tests.graph.built import graph, program, values

CPU = RewriteOptions(l2_bytes=1 << 20, vector_bytes=64, vector_registers=32)


def made(line: str, parameters: str, *arrays: np.ndarray, options: RewriteOptions = CPU) -> list[Equation]:
    source = program(parameters, line, "return y")
    found = rewrite(graph(source, *arrays), options)
    verify(found)
    np.testing.assert_allclose(
        execute(found, arrays)[0], execute(graph(source, *arrays), arrays)[0], rtol=1e-9, atol=1e-9
    )
    return [op for op in found.ops if isinstance(op, Equation)]


def sums(ops: list[Equation]) -> list[int]:
    """How many factors each sum has."""
    return [len(factors_of(op.body)) for op in ops if op.reduce is not None]


ROWS = 'x: f64["N K"], r: f64["N"], g: f64["K"], w: f64["K M"]'


@pytest.mark.parametrize(
    "line",
    [
        "y[n, m] = sum[k](x[n, k] * r[n] * g[k] * w[k, m])",
        "y[n, m] = sum[k](w[k, m] * g[k] * x[n, k] * r[n])",
        "y[n, m] = sum[k](r[n] * (g[k] * w[k, m]) * x[n, k])",
    ],
)
def test_rows_that_are_scaled_are_so_once(line: str) -> None:
    arrays = [values(*shape, dtype="f8") for shape in ((20, 30), (20,), (30,), (30, 40))]
    ops = made(line, ROWS, *arrays)
    assert sums(ops) == [2]
    assert sums(made(line, ROWS, *arrays, options=replace(CPU, precise=True))) == [4]


def test_elements_that_are_used_a_few_times_are_multiplied_there() -> None:
    arrays = [values(*shape, dtype="f8") for shape in ((20, 30), (30,), (30, 5))]
    ops = made("y[n, m] = x[n, k] * g[k] * w[k, m]", 'x: f64["N K"], g: f64["K"], w: f64["K M"]', *arrays)
    assert sums(ops) == [2]  # into w, whose elements are used twenty times
    ops = made("y[n, m] = x[n, k] * g[n, k] * w[k, m]", 'x: f64["N K"], g: f64["N K"], w: f64["K M"]', values(20, 30, dtype="f8"), values(20, 30, dtype="f8"), arrays[2])  # fmt: skip
    assert sums(ops) == [3]


def test_a_vector_times_a_matrix_waits_for_memory() -> None:
    arrays = [values(*shape, dtype="f8") for shape in ((1, 300), (300,), (300, 200))]
    assert sums(made("y[n, m] = x[n, k] * g[k] * w[k, m]", 'x: f64["N K"], g: f64["K"], w: f64["K M"]', *arrays)) == [3]


def test_what_windows_read_is_scaled_as_a_whole_tensor() -> None:
    arrays = [values(*shape, dtype="f8") for shape in ((2, 3, 9, 9), (20, 3, 3, 3), (2, 3))]
    line = "y[n, k, p, q] = x[n, c, p + r, q + s] * w[k, c, r, s] * g[n, c]"
    ops = made(line, 'x: f64["N C H W"], w: f64["K C 3 3"], g: f64["N C"]', *arrays)
    scaled = next(op for op in ops if op.reduce is None and len(factors_of(op.body)) == 2)
    assert sorted(extent.constant for extent in scaled.result.shape) == [2, 3, 9, 9]


def test_a_mask_of_filters_is_no_reason_for_sums_within_sums() -> None:
    arrays = [values(*shape, dtype="f8") for shape in ((2, 30, 9, 9), (20, 30, 3, 3), (3, 3))]
    line = "y[n, k, p, q] = x[n, c, p + r, q + s] * w[k, c, r, s] * g[r, s]"
    ops = made(line, 'x: f64["N C H W"], w: f64["K C 3 3"], g: f64["3 3"]', *arrays)
    assert 3 not in sums(ops)
    assert not any("inner" in op.result.name for op in ops)


def test_a_longer_operand_is_not_read_beyond_the_others() -> None:
    """x has columns that no k reaches: g has no elements for them."""
    source = """def f(x: f64["N 40"], g: f64["K"], w: f64["K M"]):
    y[n, m] = sum[k, k < K](x[n, k] * g[k] * w[k, m])
    return y
"""
    arrays = [values(*shape, dtype="f8") for shape in ((50, 40), (30,), (30, 50))]
    np.testing.assert_allclose(
        polyml.einsum(source)(*arrays), arrays[0][:, :30] * arrays[1] @ arrays[2], rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("rows", [8, 40])
def test_scales_of_blocks_in_any_order_of_the_factors(rows: int) -> None:
    source = """def f(x: f32["N K"], w: i8["M K"], s: f32["M B"]):
    y[n, m] = x[n, k] * f32(w[m, k]) * s[m, k // 32]
    return y
"""
    rng = np.random.default_rng(1)
    x, s = rng.standard_normal((rows, 96), np.float32), rng.standard_normal((24, 3), np.float32)
    w = rng.integers(-128, 128, (24, 96)).astype(np.int8)
    expected = x.astype(np.float64) @ (w * np.repeat(s.astype(np.float64), 32, 1)).T
    np.testing.assert_allclose(polyml.einsum(source)(x, w, s), expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("factor", ["exp(-0.01 * r[n] * n * (n - m))", "(r[n] + n)", "cos(r[n] * m)"])
def test_values_of_indices_are_no_elements_of_an_operand(factor: str) -> None:
    """exp(..) * r[n] went to r's own elements, which know nothing of n and m."""
    arrays = [values(*shape, dtype="f8") for shape in ((20, 30), (20,), (30,), (30, 40))]
    line = f"y[n, m] = sum[k](x[n, k] * {factor} * r[n] * w[k, m])"
    source = program(ROWS, line, "return y")
    found = multiply_ahead(graph(source, *arrays), 1 << 20)
    verify(found)
    np.testing.assert_allclose(execute(found, arrays)[0], execute(graph(source, *arrays), arrays)[0], rtol=1e-9)
    made(line, ROWS, *arrays)
