"""Convolutions of repeated elements as contractions into windows: the same numbers for any factor, window, direction and layout, with padding and without it."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.pairs import pairwise

PADDED = """
def f(x: {t}["K P Q"], w: {t}["C K R S"]):
    u: {t}["K {d}*P {d}*Q"]
    y: {t}["C {d}*P+{a}+{b}-R+1 {d}*Q+{a}+{b}-S+1"]
    u[k, h, v] = x[k, h // {d}, v // {d}]
    y[c, h, v] = pad(u, ((0, 0), ({a}, {b}), ({a}, {b})))[k, h + r, v + s] * w[c, k, r, s]
    return y
"""
BACKWARDS = """
def f(x: f64["K P"], w: f64["R K C"]):
    y: f64["2*P-R+1 C"]
    y[h, c] = x[k, (h + R - 1 - r) // 2] * w[r, k, c]
    return y
"""
ONE_OF_TWO = """
def f(x: f64["N K P Q"], w: f64["C K 3 3"]):
    y: f64["N C 2*P Q"]
    y[n, c, h, v] = pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))[n, k, (h + r + 1) // 2, v + s] * w[c, k, r, s]
    return y
"""
DEPTHWISE = """
def f(x: f64["K P"], w: f64["R"]):
    y: f64["K 2*P-R+1"]
    y[k, h] = x[k, (h + r) // 2] * w[r]
    return y
"""

Array = np.ndarray


def numbers(*shape: int, dtype: str = "f8") -> Array:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)


def convolved(u: Array, w: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(u, w.shape[2:], axis=(1, 2))
    return np.einsum("khvrs,ckrs->chv", windows, w)


def is_spread(source: str, *args: Array, **options: object) -> bool:
    options = {"target": Target("x86-64-v3"), **options}
    return "_added" in str(polyml.einsum(source, **options).trace(*args))  # type: ignore[arg-type]


@pairwise(
    ("d", [2, 3, 4]),
    ("size", [(3, 3), (2, 5)]),
    ("around", [(1, 1), (0, 0), (2, 0)]),
    ("shape", [(5, 7, 3, 6), (33, 9, 20, 17), (2, 1, 1, 3)]),
    ("dynamic", [False, True]),
)
@pytest.mark.few(1)
def test_padded(d: int, size: tuple[int, int], around: tuple[int, int], shape: tuple[int, ...], dynamic: bool) -> None:
    k, p, c, q = shape
    a, b = around
    if min(d * p, d * q) + a + b < max(size):
        p = q = 5
    x, w = numbers(k, p, q), numbers(c, k, *size)
    source = PADDED.format(t="f64", d=d, a=a, b=b)
    assert is_spread(source, x, w) or 1 in x.shape, "one element is no index"
    u = np.pad(x.repeat(d, 1).repeat(d, 2), ((0, 0), (a, b), (a, b)))
    expected = convolved(u, w)
    program = polyml.einsum(source, dynamic=dynamic, verify=not dynamic)
    np.testing.assert_array_equal(program(x, w), expected)
    if not dynamic:
        np.testing.assert_array_equal(program.bind(w=w)(x), expected)


def test_strides_of_callers() -> None:
    x, w = numbers(16, 20, 22)[::2, ::-1, 1::2], numbers(9, 8, 3, 3).transpose(0, 1, 3, 2)
    u = np.pad(x.repeat(2, 1).repeat(2, 2), ((0, 0), (1, 1), (1, 1)))
    np.testing.assert_array_equal(polyml.einsum(PADDED.format(t="f64", d=2, a=1, b=1))(x, w), convolved(u, w))


@pytest.mark.parametrize("r", [2, 3, 4])
@pytest.mark.few(1)
def test_windows_that_run_backwards(r: int) -> None:
    x, w = numbers(6, 21), numbers(r, 6, 10)
    assert is_spread(BACKWARDS, x, w)
    windows = np.lib.stride_tricks.sliding_window_view(x.repeat(2, 1), r, axis=1)[..., ::-1]
    np.testing.assert_array_equal(polyml.einsum(BACKWARDS, verify=True)(x, w), np.einsum("khr,rkc->hc", windows, w))


def test_one_dimension_of_two() -> None:
    x, w = numbers(2, 4, 7, 11), numbers(5, 4, 3, 3)
    assert is_spread(ONE_OF_TWO, x, w)
    u = np.pad(x.repeat(2, 2), ((0, 0), (0, 0), (1, 1), (1, 1)))
    expected = np.stack([convolved(each, w) for each in u])
    np.testing.assert_array_equal(polyml.einsum(ONE_OF_TWO, verify=True)(x, w), expected)


@pytest.mark.parametrize("shape", [(3, 50), (1, 2), (40, 700)])
@pytest.mark.few(2)
def test_filters_without_channels(shape: tuple[int, int]) -> None:
    x, w = numbers(*shape), numbers(3)
    assert is_spread(DEPTHWISE, x, w)
    windows = np.lib.stride_tricks.sliding_window_view(x.repeat(2, 1), 3, axis=1)
    np.testing.assert_array_equal(polyml.einsum(DEPTHWISE, verify=True)(x, w), windows @ w)


@pytest.mark.parametrize("t", ["f32", "f16", "i32", "c64"])
@pytest.mark.few(2)
def test_types(t: str) -> None:
    x, w = (numbers(*shape).astype(polyml.dtypes.DTYPES[t].numpy) for shape in ((12, 6, 7), (9, 12, 3, 3)))
    source = PADDED.format(t=t, d=2, a=1, b=1)
    assert is_spread(source, x, w) == (t == "f32"), "filters of half precision would be rounded once more"
    u = np.pad(x.repeat(2, 1).repeat(2, 2), ((0, 0), (1, 1), (1, 1)))
    np.testing.assert_allclose(polyml.einsum(source)(x, w), convolved(u, w), rtol=2e-3 if t == "f16" else 1e-6)


@pytest.mark.parametrize("bad", [pytest.param(np.nan, marks=pytest.mark.slow), np.inf])
def test_numbers_that_are_not_finite_stay_where_they_belong(bad: float) -> None:
    """What is infinite meets the elements that its windows have, in the factor that is repeated and in the filters."""
    source = PADDED.format(t="f64", d=2, a=0, b=0)
    x, w = np.abs(numbers(40, 9, 10)) + 1, np.abs(numbers(20, 40, 3, 3)) + 1
    x[3, 4, 5] = w[7, 2, 0, 1] = bad
    expected = convolved(x.repeat(2, 1).repeat(2, 2), w)
    assert np.isfinite(expected).any()
    for found in (polyml.einsum(source)(x, w), polyml.einsum(source).bind(w=w)(x)):
        np.testing.assert_array_equal(found, expected)


def test_what_stays() -> None:
    x, w = numbers(4, 6, 7), numbers(5, 4, 3, 3)
    source = PADDED.format(t="f64", d=2, a=1, b=1)
    assert is_spread(source, x, w) or 1 in x.shape, "one element is no index"
    assert not is_spread(source, x, w, precise=True), "filters are added up first"
    assert not is_spread(source, x, w[..., :1, :1]), "there is nothing to add up"
    assert not is_spread(PADDED.format(t="f64", d=1, a=1, b=1), x, w), "nothing is repeated"
    assert not is_spread(
        'def f(x: f64["K P"], w: f64["K R"]):\n    y: f64["8"]\n    y[h] = x[k, (h + r) // 2] * w[k, h // 8 + r]\n    return y',
        x[:, 0],
        w[0, :, 0],
    ), "filters that the place decides"


@pytest.mark.parametrize(("t", "d", "precise"), [("f16", 2, False), ("i32", 3, False), ("f64", 4, True)])
@pytest.mark.few(2)
def test_others_are_stored(t: str, d: int, precise: bool) -> None:
    """Elements that are read often and are not summed so are stored as often as they are repeated, without the padding around them, which is a factor of the sum with precise=True."""
    x, w = (numbers(*shape).astype(polyml.dtypes.DTYPES[t].numpy) for shape in ((6, 9, 8), (20, 6, 3, 3)))
    source = PADDED.format(t=t, d=d, a=1, b=1)
    program = polyml.einsum(source, precise=precise, verify=True)
    lines = program.lower(x, w).text("graph").splitlines()
    stored = next(line for line in lines if line.strip().startswith("x_with_border["))
    assert (f"0 <= i0 < {9 * d + 2} and 0 <= i1" if precise else f"0 <= i1 < {9 * d} and 0 <= i2") in stored
    u = np.pad(x.repeat(d, 1).repeat(d, 2), ((0, 0), (1, 1), (1, 1)))
    np.testing.assert_allclose(program(x, w), convolved(u, w), rtol=2e-3 if t == "f16" else 1e-12)
