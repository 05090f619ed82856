"""Functions of index values that become tables: when they do, and that results are the same."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.expressions import Const
from polyml.graph.ir import Equation
from polyml.graph.printer import graph_text
from polyml.graph.traverse import read_names
from polyml.testing import verify

FOURIER = """
def fourier(x: f64["B N"]):
    y: c128["B N"]
    y[b, f] = sum[n](x[b, n] * exp(-2j * pi * f * n / N))
    return y
"""
COSINE = """
def cosine(x: f32["B N"]):
    y: f32["B N"]
    y[b, f] = sum[n, 0 <= n < N](x[b, n] * cos(pi * (n + 0.5) * f / N))
    return y
"""
SHIFTED = """
def shifted(x: f32["B N"]):
    y: f32["B N"] = 0
    if 3 <= f < N - 2:
        y[b, f] = exp(f * -0.1) * x[b, f - 3] + log(f32(f))
    return y
"""
DIVIDED = """
def divided(x: f32["B N"]):
    y[b, n] = where(n > 0, sqrt(f32(100 // max(n, 1))), 2.0) * x[b, n]
    return y
"""
POSITIONS = """
def positions(x: f32["B S D"]):
    y[b, s, d] = x[b, s, d] + sin(0.01 * s * d)
    return y
"""
DECAY = """
def decay(q: f32["H N D"], k: f32["H N D"], g: f32["H"]):
    s[h, i, j] = where(j <= i, (q[h, i, d] * k[h, j, d]) * g[h] ** (i - j), 0)
    return s
"""
DIFFERENCES = """
def differences(x: f32["N M"], a: f32):
    y[i, j] = x[i, j] * exp(-a * (2 * i - 2 * j + 3)) + sin(0.1 * (3 * j - i)) * cos(a * (j - 2 * i))
    return y
"""
BEYOND = """
def beyond(x: f32["N M"]):
    y: f32["N M"] = 0
    if 2 <= i < N - 1 and j < i:
        y[i, j] = x[i, j] * log(f32(i - j))
    return y
"""
BINOMIAL = """
def binomial(s: f64["B"], u: f64["B"], T: int):
    v: f64["B T+1"]
    v[b, j] = max(1 - s[b] * u[b] ** (2*j - T), 0)
    for t in range(T - 1, -1, -1):
        if j <= t:
            v[b, j] = max(0.5 * (v[b, j + 1] + v[b, j]), 1 - s[b] * u[b] ** (2*j - t))
    y[b] = v[b, 0]
    return y
"""
WAVES = """
def waves(x: f64["N"], a: f64, T: int):
    y: f64["N"]
    y[i] = x[i]
    for s in range(3):
        for t in range(1, 40, 2):
            if 1 <= i < N - 1:
                y[i] = 0.5 * y[i - 1] + 0.4 * y[i + 1] + exp(-a * (i - t + s)) + cos(0.1 * y[0] * (i + t))
    for t in range(T):
        y[i] = 0.9 * y[i] + sin(a * (t - i))
    return y
"""
BOTH = """
def both(x: f32["N N"]):
    y[i, j] = x[i, j] * exp(0.01 * i * (i - j)) + exp(0.1 * ((i - j) % 5))
    return y
"""
LOOKED_UP = """
def looked_up(x: f32["N N"], a: f32["V"], ids: i64["N"]):
    y[i, j] = x[i, j] * exp(a[ids[i]] * (i - j))
    return y
"""
SOME = """
def some(x: f32["N 3"], L: int):
    y: f32["N 3 2 L"]
    y[n, c, 0, l] = sin(2.0**l * x[n, c])
    y[n, c, 1, l] = cos(2.0**l * x[n, c] / L)
    return y
"""

CUT = """
def cut(u: f64["C"], w: f64["B N"]):
    y: f64["B N"] = 0
    for t in range(60):
        if b < 7:
            y[b, j] = 0.5 * y[b, j] + w[b, j] * u[b] ** (2*j - t)
    return y
"""


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def tables(source: str, *args: np.ndarray) -> list[tuple[int, ...]]:
    """The extents of tensors that are made of nothing but their indices."""
    ops = (op for op in polyml.einsum(source).trace(*args).ops if isinstance(op, Equation))
    made = [op.result.shape for op in ops if not read_names(op) and not isinstance(op.body, Const)]
    return sorted(tuple(extent.constant for extent in shape) for shape in made)


def test_a_transform_of_a_batch_is_a_product() -> None:
    assert tables(FOURIER, numbers(20, 30)) == [(30, 30)] * 2
    assert tables(COSINE, numbers(20, 30).astype("f4")) == [(30, 30)]


def test_what_is_used_a_few_times_stays() -> None:
    assert tables(FOURIER, numbers(2, 30)) == []
    assert tables(POSITIONS, numbers(3, 20, 8).astype("f4")) == []
    assert tables(POSITIONS, numbers(16, 20, 8).astype("f4")) == [(20, 8)]


def test_few_uses_of_many_costly_values_get_a_table() -> None:
    for uses in (2, 5):
        x = numbers(uses, 100, 129).astype("f4")
        assert tables(POSITIONS, x) == [(100, 129)]
        whole = x + np.sin(0.01 * np.outer(np.arange(100), np.arange(129)))
        np.testing.assert_allclose(polyml.einsum(POSITIONS, verify=True)(x), whole, atol=1e-5)
    assert tables(POSITIONS, numbers(1, 100, 129).astype("f4")) == []
    roots = POSITIONS.replace("sin(0.01 * s * d)", "sqrt(0.01 * s)")
    assert tables(roots, numbers(2, 100, 129).astype("f4")) == [(100,)]  # used 258 times
    roots = POSITIONS.replace("sin(0.01 * s * d)", "sqrt(f32(s + d))")
    assert tables(roots, numbers(2, 1, 4000).astype("f4")) == []


def test_integer_divisions_stay_where_they_are() -> None:
    assert tables(DIVIDED, numbers(40, 9).astype("f4")) == []


@pytest.mark.parametrize("n", [1, 2, 16, 37])
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.few(3)
def test_fourier(n: int, precise: bool) -> None:
    x = numbers(20, n)
    np.testing.assert_allclose(polyml.einsum(FOURIER, precise=precise)(x), np.fft.fft(x), atol=1e-11)


@pytest.mark.parametrize("n", [1, 17, 40])
def test_cosine(n: int) -> None:
    x, k = numbers(33, n), np.arange(n)
    whole = x @ np.cos(np.pi * np.outer(k + 0.5, k) / n)
    np.testing.assert_allclose(polyml.einsum(COSINE, verify=True)(x.astype("f4")), whole, atol=1e-4)


def test_a_table_of_indices_that_do_not_begin_at_zero() -> None:
    x = numbers(40, 12).astype("f4")
    made = polyml.einsum(SHIFTED, verify=True)
    f = np.arange(3, 10)
    whole = np.zeros((40, 12))
    whole[:, 3:10] = np.exp(-0.1 * f) * x[:, :7] + np.log(f)
    np.testing.assert_allclose(made(x), whole, rtol=1e-5, atol=1e-6)
    assert (7,) in tables(SHIFTED, x)


def test_positions() -> None:
    x = numbers(18, 21, 8).astype("f4")
    angle = 0.01 * np.outer(np.arange(21), np.arange(8))
    np.testing.assert_allclose(polyml.einsum(POSITIONS, verify=True)(x), x + np.sin(angle), atol=1e-5)


def test_a_function_of_a_difference_has_a_value_for_each() -> None:
    q, k, g = (numbers(2, 37, 3).astype("f4"), numbers(2, 37, 3).astype("f4"), np.array([0.9, 0.5], "f4"))
    ops = [op for op in polyml.einsum(DECAY).trace(q, k, g).ops if isinstance(op, Equation)]
    powers = [op.result.shape for op in ops if "pow" in op.result.name]
    assert [tuple(e.constant for e in shape) for shape in powers] == [(2, 73)]
    # The factor went out of the sum, of which a half is made.
    (product,) = (op for op in ops if op.reduce == "sum")
    assert len(read_names(product)) == 2
    assert verify(polyml.einsum(DECAY), q, k, g)


@pytest.mark.parametrize("sizes", [(20, 19), (1, 40), (17, 0)])
def test_differences(sizes: tuple[int, int]) -> None:
    x = numbers(*sizes).astype("f4")
    assert verify(polyml.einsum(DIFFERENCES), x, 0.01)
    if sizes == (20, 19):
        assert verify(polyml.einsum(DIFFERENCES, dynamic=True), x[:17, :9], 0.01)  # without tables
        assert verify(polyml.einsum(DIFFERENCES), x[::-1, ::-1], 0.01)


def test_which_differences_get_tables() -> None:
    x = numbers(60, 80).astype("f4")
    ops = (op for op in polyml.einsum(DIFFERENCES).trace(x, 0.01).ops if isinstance(op, Equation))
    assert sorted(op.result.shape[0].constant for op in ops if op.result.name != "y") == [139, 198, 297]
    assert tables(BEYOND, numbers(60, 70).astype("f4")) == [(114,)]
    assert tables(BOTH, numbers(60, 60).astype("f4")) == []


def test_values_of_a_table_that_nobody_reads_are_nobody_s_business() -> None:
    x = numbers(40, 50).astype("f4")
    assert verify(polyml.einsum(BEYOND), x)
    assert verify(polyml.einsum(BOTH), numbers(30, 30).astype("f4"))
    assert verify(
        polyml.einsum(LOOKED_UP), numbers(30, 30).astype("f4"), numbers(9).astype("f4") * 0.01, np.arange(30) % 9
    )


def test_a_table_of_as_many_values_as_an_int_says() -> None:
    x = numbers(40, 3).astype("f4")
    made = polyml.einsum(SOME)
    assert [op.result.name for op in made.trace(x, 5).ops if isinstance(op, Equation) and not read_names(op)]
    for n in (5, 33, 1, 0):
        angles = 2.0 ** (np.arange(n) - n) * x[:, :, None]
        whole = np.stack([np.sin(angles), np.cos(angles / max(n, 1))], axis=2)
        np.testing.assert_allclose(made(x * np.float32(2.0**-n), n), whole, atol=1e-5)
    assert len(made.kernels) <= 2


def test_symbolic_sizes_of_sums_have_no_tables() -> None:
    made = polyml.einsum(COSINE, dynamic=True)
    for n in (3, 20):
        x, k = numbers(33, n), np.arange(n)
        np.testing.assert_allclose(made(x.astype("f4")), x @ np.cos(np.pi * np.outer(k + 0.5, k) / n), atol=1e-4)


def test_a_function_of_a_loop_s_variable_and_an_index_has_a_value_for_each_sum() -> None:
    s, u = 0.9 + 0.2 * np.random.default_rng(5).random((2, 5))
    made = polyml.einsum(BINOMIAL)
    ops = made.trace(s, u, 60).ops
    assert sum(isinstance(op, Equation) and len(op.result.shape) == 2 for op in ops) == 2  # the prices, and the table
    for T in (60, 1, 0, 7):
        v = np.maximum(1 - s[:, None] * u[:, None] ** (2 * np.arange(T + 1) - T), 0)
        for t in range(T - 1, -1, -1):
            now = 1 - s[:, None] * u[:, None] ** (2 * np.arange(t + 1) - t)
            v = np.maximum(0.5 * (v[:, 1:] + v[:, :-1]), now)
        np.testing.assert_allclose(made(s, u, T), v[:, 0], rtol=1e-12)
    assert len(made.kernels) <= 2


def test_tables_of_nested_loops() -> None:
    """Only of what stays the same in all of them, and never longer than what the sizes of the result say."""
    made, x = polyml.einsum(WAVES), numbers(33)
    names = [op.result.name for op in made.trace(x, 0.01, 90).ops if isinstance(op, Equation)]
    assert [name for name in names if "exp" in name]
    assert not [name for name in names if "cos" in name or "sin" in name]
    for n, T in ((33, 90), (5, 3), (3, 0)):
        y = x[:n].copy()
        i = np.arange(1, n - 1)
        for s in range(3):
            for t in range(1, 40, 2):
                near = 0.5 * y[:-2] + 0.4 * y[2:]
                y[1:-1] = near + np.exp(-0.01 * (i - t + s)) + np.cos(0.1 * y[0] * (i + t))
        for t in range(T):
            y = 0.9 * y + np.sin(0.01 * (t - np.arange(n)))
        np.testing.assert_allclose(made(x[:n], 0.01, T), y, rtol=1e-11)


def test_elements_that_a_table_would_read_beyond_are_left_to_the_loop() -> None:
    """u has as many rows as the condition says, fewer than y."""

    def names(rows: int) -> list[str]:
        graph = polyml.einsum(CUT).trace(np.ones(rows), np.ones((9, 40)))
        return [op.result.name for op in graph.ops if isinstance(op, Equation)]

    assert not [name for name in names(7) if "pow" in name]
    assert [name for name in names(9) if "pow" in name]


def test_differences_of_any_size() -> None:
    made = polyml.einsum(DIFFERENCES, dynamic=True)
    for sizes in ((40, 50), (1, 1), (3, 70)):
        x, i, j = numbers(*sizes).astype("f4"), *np.ogrid[: sizes[0], : sizes[1]]
        want = x * np.exp(-0.01 * (2 * i - 2 * j + 3)) + np.sin(0.1 * (3 * j - i)) * np.cos(0.01 * (j - 2 * i))
        np.testing.assert_allclose(made(x, np.float32(0.01)), want, rtol=1e-4, atol=1e-4)


def test_a_table_of_unknown_length_has_short_rows_of_a_sum() -> None:
    text = """
    def f(x: f64["N"], w: f64["W"], T: int, F: int):
        y: f64["T F"]
        y[t, f] = sum[n](w[n] * x[3*t + n] * cos(0.1 * f * n))
        return y
    """
    x, w, t, f = np.arange(100.0) / 100, np.arange(40.0) / 40, 20, 17
    function = polyml.einsum(text)
    assert "y_cos[i0, i1] =" in graph_text(function.lower(x, w, t, f).stages.graph)
    rows = np.lib.stride_tricks.sliding_window_view(x, 40)[::3][:t] * w
    np.testing.assert_allclose(function(x, w, t, f), rows @ np.cos(0.1 * np.outer(np.arange(40), np.arange(f))))
