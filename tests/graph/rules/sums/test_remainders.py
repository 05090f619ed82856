"""Sums whose terms differ by an index's remainder, or by the block it is in: which become a sum for each, and that the values are the same."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.graph.ir import Graph
from polyml.graph.printer import graph_text
from polyml.graph.reference import execute
from polyml.graph.rewrite import rewrite
from polyml.graph.rules.table import RewriteOptions
from polyml.graph.verify import verify
from polyml.sets.affine import affine
from tests.graph.built import graph, program

X, CODES = np.arange(36.0).reshape(2, 18), np.arange(45, 72, dtype=np.uint8).reshape(3, 9)
PARAMETERS = 'x: f64["M K"], q: u8["N H"]'
TWO = "y[m, n] = x[m, k] * f64(where(k % 2 == 0, q[n, k // 2] % 16, q[n, k // 2] // 16))"
SCALED = "y[m, n] = sum[k](x[m, k] * (f64(q[n, k // 2] // 16**(k % 2) % 16) - 8) * x[m, k // 6])"
MORE = "y[m, n] = sum[k < 16](x[m, k] * f64(q[n, k // 4] // 4**(k % 4) % 4))"
HALVES = "y[m, n] = x[m, k] * f64(where(k < K // 2, q[n, k % (K // 2)] % 16, q[n, k % (K // 2)] // 16))"
THIRDS = (
    "y[m, n] = x[m, k] * f64(where(k < 6, q[n, k % 6] % 4, where(k >= 12, q[n, k % 6] // 16, q[n, k % 6] // 4 % 4)))"
)
POWERS = "y[m, n] = x[m, k] * f64(q[n, k % 5] // 4**(k // 5) % 4)"
GROUPS = "y[m, n] = x[m, k] * (f64(where(k < 9, q[n, k % 9] % 16, q[n, k % 9] // 16)) - 8) * x[m, k // 3]"
PART = "y[m, n] = sum[k, 2 <= k < 11](x[m, k] * f64(where(k < 9, q[n, k % 9] % 16, q[n, k % 9] // 16)))"
ODD = "y[m, n] = sum[k, 1 <= k < 16](x[m, k] * f64(where(k % 2 == 0, q[n, k // 2] % 16, q[n, k // 2] // 16)))"


def rewritten(line: str, **options: bool) -> Graph:
    made = graph(program(PARAMETERS, line, "return y"), X, CODES)
    found = rewrite(made, RewriteOptions(vector_bytes=64, **options))  # type: ignore[arg-type]
    verify(found)
    np.testing.assert_array_equal(execute(found, [X, CODES])[0], execute(made, [X, CODES])[0])
    return found


@pytest.mark.parametrize(("line", "parts"), [(TWO, 2), (SCALED, 2), (MORE, 4), (ODD, 2)])
def test_a_sum_for_each_remainder(line: str, parts: int) -> None:
    text = graph_text(rewritten(line))
    assert "where" not in text
    assert "// u8(" not in text
    assert sum(f"y_{r}[" in text for r in range(8)) >= parts
    assert "y_0[" not in graph_text(rewritten(line, precise=True))


@pytest.mark.parametrize(("line", "parts"), [(HALVES, 2), (THIRDS, 3), (POWERS, 4), (PART, 2)])
def test_a_sum_for_each_block(line: str, parts: int) -> None:
    text = graph_text(rewritten(line))
    assert "where" not in text
    assert ")//" not in text  # no quotient among subscripts
    assert sum(f"y_{r}[" in text for r in range(8)) >= parts
    assert "y_0[" not in graph_text(rewritten(line, precise=True))


def test_scales_of_groups_go_by_quotients_within_blocks() -> None:
    text = graph_text(rewritten(GROUPS))
    assert "where" not in text
    assert "(k_2)//3 + 3" in text


@pytest.mark.parametrize(
    "line",
    [
        "y[m, n] = x[m, k] * f64(where(k < 8, q[n, k % 9] % 16, q[n, k % 9] // 16))",  # a case within a block
        "y[m, n] = x[m, k] * f64(q[n, k % 9] // 16) * f64(k)",  # the number is another for each term
        "y[m, n] = x[m, k] * f64(where(k < 2, q[n, k % 2] % 16, q[n, k % 2] // 16))",  # nine blocks
        "y[m, n] = max[k](x[m, k] * f64(where(k < 9, q[n, k % 9] % 16, q[n, k % 9] // 16)))",
    ],
)
def test_other_blocks_stay(line: str) -> None:
    assert "y_0[" not in graph_text(rewritten(line))


@pytest.mark.parametrize(
    "line",
    [
        "y[m, n] = sum[k](where(k % 2 == 0, x[m, k], -x[m, k]) * f64(q[n, 0]))",  # nothing goes by the quotient
        "y[m, n] = sum[k < 16](x[m, k] * f64(where(k % 4 == 0, q[n, k // 2], q[n, k // 2] // 16)))",  # another remainder
        "y[m, n] = sum[k](x[m, k] * f64(where(k < 9, q[n, k // 2], q[n, k // 2] // 16)))",
        "y[m, n] = max[k](x[m, k] * f64(where(k % 2 == 0, q[n, k // 2], q[n, k // 2] // 16)))",
        "y[m, n] = f16(0) + sum[k](f16(x[m, k]) * f16(where(k % 2 == 0, q[n, k // 2], q[n, k // 2] // 16)))",
    ],
)
def test_others_stay(line: str) -> None:
    assert "y_0[" not in graph_text(rewritten(line))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_values_of_halves(dynamic: bool) -> None:
    function = polyml.einsum(
        f"def f({PARAMETERS}):\n    {HALVES}\n    return y\n", dynamic=("M", "N") if dynamic else False
    )
    weights = np.concatenate([CODES % 16, CODES // 16], 1)
    np.testing.assert_array_equal(function(X, CODES), X @ weights.T)


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_compiled_values(dynamic: bool) -> None:
    function = polyml.einsum(f"def f({PARAMETERS}):\n    {TWO}\n    return y\n", dynamic=dynamic)
    weights = np.stack([CODES % 16, CODES // 16], -1).reshape(3, 18)
    np.testing.assert_array_equal(function(X, CODES), X @ weights.T)


def test_a_common_factor_leaves_a_division() -> None:
    k = affine("k")
    assert (2 * k + 1) // 32 == k // 16
    assert (4 * k + 3) // 6 == (2 * k + 1) // 3
    for value in range(-20, 20):
        for factor, constant, divisor in ((2, 1, 4), (6, -5, 9), (-4, 7, 6)):
            made = (factor * k + constant) // divisor
            assert made.evaluate({"k": value}) == (factor * value + constant) // divisor
