"""The interpreter against NumPy, on programs written by hand: each guards a rule of docs/language.md."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.syntax import Program
from polyml.errors import (
    BoundsError,
    DTypeError,
    EinsumSyntaxError,
    NotAffineError,
    PolymlError,
    ShapeError,
    UnboundedDomainError,
)
from polyml.source import Source
from polyml.testing import assert_close


def program(text: str) -> Program:
    return parse(Source(text))


def run(text: str, *args: object, wide: bool = False) -> object:
    return interpret(program(text), *args, wide=wide)


def one(text: str, *args: object, wide: bool = False) -> np.ndarray:
    result = run(text, *args, wide=wide)
    assert isinstance(result, np.ndarray)
    return result


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


# -- summation ----------------------------------------------------------------------------------------------------------------------


def test_dense_layer_sums_the_product_and_adds_the_bias_once(rng: np.random.Generator) -> None:
    x, w, b = normal(rng, 5, 3), normal(rng, 3, 4), normal(rng, 4)
    y = one(
        'def f(x: f32["N K"], w: f32["K M"], b: f32["M"]):\n    y[n, m] = relu(x[n, k] * w[k, m] + b[m])\n    return y\n',
        x,
        w,
        b,
    )
    assert_close(y, np.maximum(x @ w + b, 0), 3)


@pytest.mark.parametrize(
    ("right", "expected"),
    [
        ("x[n, k]", lambda x, w, b: x.sum(1)),
        ("-2 * x[n, k]", lambda x, w, b: -2 * x.sum(1)),
        ("2 * (x[n, k] * w[k] + b[n])", lambda x, w, b: 2 * (x @ w + b)),
        ("x[n, k] * w[k] + b[n]", lambda x, w, b: x @ w + b),
        ("x[n, k] + b[n]", lambda x, w, b: x.sum(1) + b),
        ("relu(x[n, k]) * w[k]", lambda x, w, b: np.maximum(x, 0) @ w),
        ("x[n, k] * w[k] / b[n]", lambda x, w, b: x @ w / b),
        ("sum[k](x[n, k] * x[n, k]) * w[k]", lambda x, w, b: (x * x).sum(1) * w.sum()),
        ("2 * x[n, k] * (w[k] * b[n])", lambda x, w, b: 2 * (x @ w) * b),
        ("b[n] - (x[n, k] - b[n])", lambda x, w, b: b - (x.sum(1) - b)),
        ("exp(x[n, k] * w[k]) * w[q]", lambda x, w, b: np.exp(x @ w) * w.sum()),
    ],
)
def test_convention(right: str, expected, rng: np.random.Generator) -> None:
    x, w, b = rng.random((4, 3)), rng.random(3), rng.random(4) + 1
    y = one(f'def f(x: f64["N K"], w: f64["K"], b: f64["N"]):\n    y[n] = {right}\n    return y\n', x, w, b)
    assert_close(y, expected(x, w, b), 3)


@pytest.mark.parametrize(
    "right",
    ["exp(-2 * x[n, k])", "2 * (x[n, k] + b[n])", "x[n, k] ** 2", "x[n, m] / x[n, k]", "where(k < n, w[k], 0)", "min(w[k], x[n, k])",
     "i64(x[n, k])", "-(x[n, k] + b[n])"],
)  # fmt: skip
def test_convention_refuses(right: str) -> None:
    text = f'def f(x: f64["N K"], w: f64["K"], b: f64["N"]):\n    y[n] = {right}\n    return y\n'
    with pytest.raises(EinsumSyntaxError, match="not on the left side"):
        run(text, np.ones((4, 3)), np.ones(3), np.ones(4))


# -- ranges -------------------------------------------------------------------------------------------------------------------------


def test_valid_convolution_range_comes_from_the_bounds() -> None:
    x, f = np.arange(7.0), np.array([1.0, 10.0, 100.0])
    y = one('def f(x: f64["N"], f: f64["R"]):\n    y[h] = x[h + r] * f[r]\n    return y\n', x, f)
    assert_close(y, np.correlate(x, f, "valid"), 3)


def test_strided_pool_and_stated_bounds() -> None:
    x = np.random.default_rng(0).standard_normal((7, 9))
    y = one('def f(x: f64["H W"]):\n    y[h, w] = max[r < 3, s < 2](x[2 * h + r, 2 * w + s])\n    return y\n', x)
    expected = [[x[2 * h : 2 * h + 3, 2 * w : 2 * w + 2].max() for w in range(4)] for h in range(3)]
    assert_close(y, np.array(expected))


def test_padded_convolution_in_three_spellings(rng: np.random.Generator) -> None:
    x, f = rng.random((2, 5)), rng.random((3, 2, 3))
    head = 'def f(x: f64["C W"], f: f64["K C 3"]):\n'
    condition = (
        head
        + '    y: f64["K W"]\n    y[k, w] = sum[c, s, 0 <= w + s - 1 < W](x[c, w + s - 1] * f[k, c, s])\n    return y\n'
    )
    padded = head + "    y[k, w] = pad(x, ((0, 0), (1, 1)))[c, w + s] * f[k, c, s]\n    return y\n"
    where = head + (
        '    y: f64["K W"]\n    y[k, w] = sum[c, s](where(0 <= w + s - 1 and w + s - 1 < W, x[c, w + s - 1], 0) * f[k, c, s])\n    return y\n'
    )
    expected = np.array([sum(np.correlate(np.pad(x[c], 1), f[k, c], "valid") for c in range(2)) for k in range(3)])
    for text in (condition, padded, where):
        assert_close(one(text, x, f), expected, 6)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('def f(x: f64["N"], w: f64["M"]):\n    y[n] = x[n] + w[n]\n    return y\n', ShapeError),
        ('def f(x: f64["N"], w: f64["M"]):\n    y: f64["N"]\n    y[n] = x[n + 1]\n    return y\n', BoundsError),
        ('def f(x: f64["N"], w: f64["M"]):\n    y[n] = x[0] * w[n % 4]\n    return y\n', UnboundedDomainError),
        (
            'def f(x: f64["N"], w: f64["M"]):\n    y: f64["N"]\n    y[i] = sum[j](x[i * j])\n    return y\n',
            NotAffineError,
        ),
        (
            'def f(x: f64["N"], w: f64["M"]):\n    y: f64["N"]\n    y[i] = where(x[i] > 9, x[i + 1], 0)\n    return y\n',
            BoundsError,
        ),
    ],
)
def test_ranges_refuse(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        run(text, np.ones(5), np.ones(4))


# -- statements ---------------------------------------------------------------------------------------------------------------------


def test_one_statement_is_simultaneous(rng: np.random.Generator) -> None:
    p = rng.random((5, 5))
    expected = p.copy()
    for k in range(5):
        expected = np.minimum(expected, expected[:, k : k + 1] + expected[k : k + 1])
    run('def f(p: f64["N N"]):\n    for k in range(N):\n        p[i, j] = min(p[i, j], p[i, k] + p[k, j])\n', p)
    assert_close(p, expected)


def test_loops_run_backwards_and_read_what_was_written() -> None:
    x = np.arange(1.0, 6.0)
    text = 'def f(x: f64["T"]):\n    y: f64["T"] = 0\n    for t in range(T - 2, -1, -1):\n        y[t] = y[t + 1] + x[t]\n    return y\n'
    assert_close(one(text, x), np.array([10.0, 9, 7, 4, 0]))


def test_instances_of_an_update_accumulate() -> None:
    x, f = np.array([1.0, 2, 3]), np.array([1.0, 10, 100])
    text = 'def f(x: f64["N"], f: f64["R"]):\n    y: f64["2*N+1"] = 0\n    y[2 * i + r] += x[i] * f[r]\n    return y\n'
    expected = np.zeros(7)
    for i in range(3):
        expected[2 * i : 2 * i + 3] += x[i] * f
    assert_close(one(text, x, f), expected)


def test_an_if_restricts_each_statement_and_sums_of_updates() -> None:
    x = np.arange(12.0).reshape(3, 4)
    text = (
        'def f(x: f64["N K"]):\n    y: f64["N"] = 0\n    z: f64["N K"]\n    if k <= n:\n        y[n] += x[n, k]\n        z[n, k] = 1\n'
        "    else:\n        z[n, k] = 2\n    return y, z\n"
    )
    result = run(text, x)
    assert isinstance(result, tuple)
    assert_close(result[0], np.tril(x).sum(1))
    assert_close(result[1], np.where(np.tri(3, 4) > 0, 1.0, 2.0))


def test_an_if_gives_the_range_of_an_index_that_is_summed_under_it() -> None:
    text = (
        'def f(x: f64["N"], y: f64["N"]):\n    if j < 3:\n        y[i] += x[min(i + j, N - 1)] * x[i]\n    return y\n'
    )
    assert one(text, np.arange(5.0), np.zeros(5)).tolist() == [0, 6, 18, 33, 48]


def test_zero_dimensional_values_and_gathers() -> None:
    x, ids = np.array([3.0, 9, 4]), np.array([2, 0, 2], dtype=np.int32)
    text = 'def f(x: f64["N"], ids: i32["M"]):\n    best = argmax[n](x[n])\n    y[m] = x[ids[m]] / x[best]\n    return y, best\n'
    result = run(text, x, ids)
    assert isinstance(result, tuple)
    assert_close(result[0], x[ids] / 9)
    assert result[1] == 1
    assert result[1].dtype == np.int64


def test_scatter_accumulates_and_checks_before_it_writes() -> None:
    text = 'def f(h: i64["N"], ids: i32["M"]):\n    h[ids[m]] += 1\n    return h\n'
    h = np.zeros(4, np.int64)
    assert run(text, h, np.array([1, 3, 1], np.int32)) is h
    assert h.tolist() == [0, 2, 0, 1]
    for wrong in (-1, 4):
        with pytest.raises(IndexError, match=f"index {wrong} "):
            run(text, h, np.array([1, wrong], np.int32))
    assert h.tolist() == [0, 2, 0, 1]


def test_composition_inlines_and_updates_in_place() -> None:
    inner = program('def inner(a: f64["K"], s: f64):\n    b[k] = a[k] * s\n    a[k] = 0\n    return b\n')
    outer = program('def outer(x: f64["N"]):\n    y = inner(x, 2.5)\n    return y\n')
    x = np.array([1.0, 2.0])
    result = interpret(replace(outer, programs={"inner": inner}), x)
    assert isinstance(result, np.ndarray)
    assert_close(result, np.array([2.5, 5.0]))
    assert x.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ("    y: f64['N']\n    return y", "before it is wholly written"),
        ("    y: f64['N']\n    y[n] += x[n]\n    return y", "before it is written"),
        ("    for t in range(2):\n        y[n] = x[n]\n    return y", "declare y before"),
        ("    y: f64['N']\n    y[n // 2] = x[n]\n    return x", "two instances"),
        ("    y[n] += x[n]\n    return y", "no value"),
        ("    y[n] = x\n    return y", "without subscripts"),
        ("    y[n] = x[n] + z[n]\n    return y", "neither a tensor"),
        ("    for t in range(N):\n        y[t] = x[t]\n    return x", "distinct plain indices"),
    ],
)
def test_statements_refuse(body: str, match: str) -> None:
    with pytest.raises(PolymlError, match=match):
        run(f"def f(x: f64['N']):\n{body}\n", np.ones(4))


NUMBERS = (
    ("y[n] = x[n] * (2 - 3)", "-1 does not fit in u8"),
    ("y[n] = max(x[n], 2 * 100 + 100)", "300 does not fit in u8"),
    ("y[n] = where(x[n] > 0, x[n], -1)", "-1 does not fit in u8"),
    ("y: u8['N'] = 256", "256 does not fit in u8"),
    ("y: u8['N']\n    y[n] = -7 // 2", "-4 does not fit in u8"),
    ("y: u8['N'] = 0\n    y[n] += -1", "-1 does not fit in u8"),
    ("y[n] = x[n] ** -1", "u8 to the power -1 has no integer value"),
    ("y[n] = x[n] + u8(i64(300))", "300 does not fit in u8"),
    ("y[n] = x[n] + u8(1 / 0)", "inf"),
)
"""Numbers beside a narrow type that does not have them, by what is known before anything runs."""


@pytest.mark.parametrize(("body", "match"), NUMBERS)
@pytest.mark.parametrize("size", [0, 3])
def test_numbers_that_do_not_fit_are_refused(body: str, match: str, size: int) -> None:
    """As the compiler does, and NumPy with Python's numbers; whatever is computed wraps."""
    text = f"def f(x: u8['N']):\n    {body}\n    return y\n"
    for evaluate in (run, polyml.einsum(text)):
        given = (text,) if evaluate is run else ()
        with pytest.raises(DTypeError, match=match):
            evaluate(*given, np.zeros(size, np.uint8))


@pytest.mark.parametrize("fill", ["3.5", "1j", "1 / 2"])
def test_fills_are_not_truncated(fill: str) -> None:
    text = f"def f(x: u8['N']):\n    y: u8['N'] = {fill}\n    y[n] += x[n]\n    return y\n"
    for evaluate in (functools.partial(run, text), polyml.einsum(text)):
        with pytest.raises(DTypeError):
            evaluate(np.zeros(3, np.uint8))
    assert run(text.replace(fill, "3.0"), np.zeros(3, np.uint8)).tolist() == [3, 3, 3]


def test_index_values_and_sizes_wrap() -> None:
    text = "def f(x: u8['N']):\n    s = 300\n    y[n] = x[n] - n - N + s\n    z[n] = x[n] * 2**-1\n    return y, z\n"
    for evaluate in (functools.partial(run, text), polyml.einsum(text)):
        y, z = evaluate(np.arange(3, dtype=np.uint8))
        assert (y.tolist(), y.dtype) == ([41, 41, 41], np.uint8)
        assert z.tolist() == [0, 0.5, 1]


def test_reducers_bind_their_own_indices(rng: np.random.Generator) -> None:
    x = rng.random((3, 4))
    text = 'def f(x: f64["N K"]):\n    y[k] = sum[n](x[n, k] / sum[k](x[n, k]))\n    return y\n'
    assert_close(one(text, x), (x / x.sum(1, keepdims=True)).sum(0), 7)


def test_conditions_of_reducers(rng: np.random.Generator) -> None:
    x = rng.random(5)
    text = 'def f(x: f64["N"]):\n    y: f64["N"]\n    y[n] = sum[k, k <= n](x[k])\n    z[p] = sum[i, j, i + j == p](x[i] * x[j])\n    return y\n'
    with pytest.raises(UnboundedDomainError):
        run(text, x)
    fixed = text.replace("    z[p]", '    z: f64["2*N-1"]\n    z[p]').replace("return y", "return y, z")
    result = run(fixed, x)
    assert isinstance(result, tuple)
    assert_close(result[0], np.cumsum(x), 5)
    assert_close(result[1], np.convolve(x, x), 5)


# -- types --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "dtype"),
    [
        ("x[n] / 3", np.float32), ("x[n] * i[n]", np.float64), ("i[n] + 1", np.int32), ("i[n] / 2", np.float64), ("i[n] * 0.5", np.float64),
        ("x[n] > 0", np.bool_), ("n", np.int64), ("n / 2", np.float64), ("x[n] / sqrt(N)", np.float32), ("where(n > 1, x[n], 0.1)", np.float32),
        ("where(b[n], 1, 0)", np.int64), ("f64(x[n])", np.float64), ("s[n] + s[n]", np.int8), ("exp(s[n])", np.float32), ("exp(i[n])", np.float64),
        ("b[n] * 2", np.int64), ("u[n] + i[n]", np.int64), ("max(x[n], 0)", np.float32), ("sum[k < 3](b[n])", np.int64), ("x[n] * a", np.float32),
        ("argmin[k](x[k])", np.int64), ("any[k](x[k] > n)", np.bool_),
    ],
)  # fmt: skip
def test_result_types(expression: str, dtype: type) -> None:
    head = 'def f(x: f32["N"], i: i32["N"], s: i8["N"], u: u32["N"], b: bool["N"], a: f32):\n'
    arrays = [np.arange(4).astype(t) for t in (np.float32, np.int32, np.int8, np.uint32, np.bool_)]
    # a plain access in a condition gives n its range without a say in the type
    text = f"{head}    y[n] = where(x[n] == x[n], {expression}, {expression})\n    return y\n"
    assert one(text, *arrays, 1.5).dtype == dtype


def test_integers_wrap_and_divide_as_in_numpy() -> None:
    a, b = np.array([100, -128, 7], np.int8), np.array([100, -1, 0], np.int8)
    text = 'def f(a: i8["N"], b: i8["N"]):\n    y[n] = a[n] + b[n]\n    q[n] = a[n] // b[n]\n    r[n] = a[n] % b[n]\n    m[n] = -a[n]\n    return y, q, r, m\n'
    result = run(text, a, b)
    assert isinstance(result, tuple)
    with np.errstate(all="ignore"):
        for got, expected in zip(result, (a + b, a // b, a % b, -a), strict=True):
            assert_close(got, expected)


def test_sums_of_narrow_integers_and_silent_truncation_are_refused() -> None:
    with pytest.raises(DTypeError, match="wrap"):
        run('def f(x: i8["N"]):\n    s = x[n]\n    return s\n', np.ones(3, np.int8))
    with pytest.raises(DTypeError, match="i32"):
        run('def f(x: f32["N"], y: i32["N"]):\n    y[n] = x[n]\n', np.ones(3, np.float32), np.ones(3, np.int32))


def test_a_weak_zero_dimensional_tensor_takes_its_first_strong_type() -> None:
    text = 'def f(x: f32["N"]):\n    s = 0\n    c = 1 / 3\n    for t in range(N):\n        s = s + x[t] * c\n    y[n] = x[n] * c\n    return s, y, c\n'
    result = run(text, np.ones(3, np.float32))
    assert isinstance(result, tuple)
    assert [r.dtype for r in result] == [np.float32, np.float32, np.float64]
    empty = run(text, np.ones(0, np.float32))
    assert isinstance(empty, tuple)
    assert [r.dtype for r in empty] == [np.float32, np.float32, np.float64]


def test_nan_wins_and_the_first_extremum_wins() -> None:
    x = np.array([[1.0, np.nan, 5.0], [2.0, 7.0, 7.0]])
    text = 'def f(x: f64["N K"]):\n    a[n] = argmax[k](x[n, k])\n    m[n] = max[k](x[n, k])\n    z[n] = relu(x[n, 1])\n    return a, m, z\n'
    result = run(text, x)
    assert isinstance(result, tuple)
    assert result[0].tolist() == [1, 1]
    assert_close(result[1], np.array([np.nan, 7]))
    assert_close(result[2], np.array([np.nan, 7]))


def test_wide_keeps_digits_that_f32_loses() -> None:
    x = np.full(3, 1e8, np.float32)
    x[1:] = (1, -1e8)
    text = 'def f(x: f32["N"]):\n    s = x[n]\n    return s\n'
    assert one(text, x) == 0
    assert one(text, x, wide=True) == 1


def test_arguments_are_checked() -> None:
    text = 'def f(x: f32["N N"], y: f32["N"]):\n    y[n] = x[n, n]\n'
    x, y = np.ones((3, 3), np.float32), np.ones(3, np.float32)
    for arguments, error in (
        ((x,), ShapeError),
        ((x[:2], y), ShapeError),
        ((x.astype(np.float64), y), DTypeError),
        ((x[0], y), ShapeError),
        ((x, x[0]), PolymlError),
    ):
        with pytest.raises(error):
            run(text, *arguments)
    y.flags.writeable = False
    with pytest.raises(PolymlError, match="read-only"):
        run(text, x, y)
