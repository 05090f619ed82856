"""Rows whose first sweep runs beside the row before: results, whatever the shape and the threads; which programs take it, and which must not."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target

AVX512 = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=1024 * 1024, cores=2)
AVX2 = Target("x86-64-v3", l1_bytes=48 * 1024, l2_bytes=1024 * 1024, cores=2)

runs_here = pytest.mark.skipif(not AVX512.runs_here, reason="another machine's instructions")

LOGSUMEXP = """
def logsumexp(x: {t}["N K"]):
    m[n] = max[k](x[n, k])
    y[n] = log(sum[k](exp(x[n, k] - m[n]))) + m[n]
    return y
"""
MASKED = """
def masked(x: {t}["N K"], g: bool["N K"]):
    t[n, k] = where(g[n, k], x[n, k], -inf)
    m[n] = max[k](t[n, k])
    e[n, k] = exp(t[n, k] - m[n])
    s[n] = e[n, k]
    y[n, k] = e[n, k] / s[n]
    return y
"""
ENTROPY = """
def entropy(x: {t}["N K"], c: {t}["N"]):
    m[n] = max[k](x[n, k])
    d[n] = m[n] * c[n]
    s[n] = sum[k](exp(c[n] * x[n, k] - d[n]))
    q[n] = sum[k](exp(c[n] * x[n, k] - d[n]) * (c[n] * x[n, k] - d[n]))
    y[n] = log(s[n]) - q[n] / s[n]
    return y, m
"""
SUMS_FIRST = """
def sums_first(x: {t}["N K"]):
    m[n] = sum[k](x[n, k]) / K
    y[n] = sum[k](exp(x[n, k] - m[n]))
    return y
"""
OF_TWO = """
def of_two(x: {t}["N K"], z: {t}["N K"]):
    m[n] = max[k](x[n, k] + z[n, k])
    y[n] = log(sum[k](exp(x[n, k] + z[n, k] - m[n]))) + m[n]
    return y
"""
LIGHT = """
def light(x: {t}["N K"]):
    m[n] = max[k](x[n, k])
    y[n, k] = x[n, k] / m[n]
    return y
"""


def is_ahead(program: polyml.Einsum, *arguments: np.ndarray) -> bool:
    """Whether the first sweep runs ahead; nothing fell back."""
    notes = [note for region in program.lower(*arguments).stages.regions for note in region.notes]
    assert not [note for note in notes if note.stage == "fallback"]
    return any("behind the first sweep of the next row" in note.text for note in notes)


def logsumexp(x: np.ndarray) -> np.ndarray:
    m = x.max(axis=1)
    return np.log(np.exp(x - m[:, None]).sum(axis=1)) + m


@runs_here
@pytest.mark.parametrize(("rows", "columns"), [(128, 400), (131, 403), (600, 260)])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
def test_logsumexp(dtype: str, rows: int, columns: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(dtype.replace("f", "float"))
    results = []
    for threads in (1, 2):
        program = polyml.einsum(LOGSUMEXP.format(t=dtype), target=AVX512, threads=threads, verify=True)
        assert is_ahead(program, x)
        results.append(program(x))
        rtol = {"f16": 1e-3, "f32": 1e-6, "f64": 1e-14}[dtype]
        np.testing.assert_allclose(results[-1], logsumexp(x.astype("f8")), rtol=rtol)
    np.testing.assert_array_equal(*results)


@runs_here
def test_what_the_first_sweep_makes_is_kept_for_a_row() -> None:
    generator = np.random.default_rng(3)
    x, g = generator.standard_normal((150, 300), np.float32) * 10, generator.random((150, 300)) < 0.7
    g[7], g[8, 1:] = False, False
    program = polyml.einsum(MASKED.format(t="f32"), target=AVX512, threads=1, verify=True)
    assert is_ahead(program, x, g)
    t = np.where(g, x.astype("f8"), -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(t - t.max(axis=1, keepdims=True))
        np.testing.assert_allclose(program(x, g), e / e.sum(axis=1, keepdims=True), rtol=1e-5)


@runs_here
def test_numbers_of_a_row_between_the_sweeps_and_behind_them() -> None:
    generator = np.random.default_rng(4)
    x, c = generator.standard_normal((129, 260)), generator.random(129)
    program = polyml.einsum(ENTROPY.format(t="f64"), target=AVX512, threads=1, verify=True)
    assert is_ahead(program, x, c)
    found, largest = program(x, c)
    d = c[:, None] * (x - x.max(axis=1, keepdims=True))
    s = np.exp(d).sum(axis=1)
    np.testing.assert_allclose(found, np.log(s) - (np.exp(d) * d).sum(axis=1) / s, rtol=1e-12)
    np.testing.assert_array_equal(largest, x.max(axis=1))


@runs_here
def test_infinities_and_nan_stay_in_their_rows() -> None:
    x = np.random.default_rng(5).standard_normal((160, 200), np.float32)
    x[[3, 9, 10, 159], [0, 199, 64, 63]] = np.nan
    x[[0, 64, 95], 100] = np.inf
    x[100], x[120, 5:] = -np.inf, -np.inf
    program = polyml.einsum(LOGSUMEXP.format(t="f32"), target=AVX512, threads=1)
    assert is_ahead(program, x)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(program(x), logsumexp(x.astype("f8")), rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "shape", "target"),
    [
        (LOGSUMEXP, (512, 400), AVX2),  # exponentials with a branch, maxima of three instructions
        (LOGSUMEXP, (512, 100), AVX512),  # short rows, which run side by side
        (LOGSUMEXP, (100, 400), AVX512),  # few ones
        (LOGSUMEXP, (256, 8192), AVX512),  # two of them do not stay in L1
        (SUMS_FIRST, (512, 400), AVX512),  # the lanes of both sums are put together
        (LIGHT, (512, 400), AVX512),  # nothing computes much
        (OF_TWO, (4096, 1024), AVX512),  # two arrays from memory
        (LOGSUMEXP.replace("x[n, k]", "x[k, n]").replace("N K", "K N"), (400, 512), AVX512),  # columns
    ],
)
def test_what_is_not_worth_it(text: str, shape: tuple[int, int], target: Target) -> None:
    program = polyml.einsum(text.format(t="f32"), target=target, threads=1)
    arrays = [np.zeros(shape, np.float32) for _ in program.program.parameters]
    assert not is_ahead(program, *arrays)


def test_two_arrays_in_cache() -> None:
    x = np.zeros((512, 400), np.float32)
    assert is_ahead(polyml.einsum(OF_TWO.format(t="f32"), target=AVX512, threads=1), x, x)


def test_each_row_is_asked_for_once() -> None:
    """Not the one that was read a row before; and the sweep over a block's last row asks for what the row after it would."""
    text = polyml.einsum(LOGSUMEXP.format(t="f32"), target=AVX512, threads=1).lower(np.zeros((4096, 1024), np.float32))
    asked = [line.strip(" ;") for line in text.text("loops").splitlines() if "prefetch" in line]
    places = [f"k{more}]" for more in ("", " + 16", " + 32", " + 48")]
    inside, last = ([f"prefetch L1 x[32*block + {row}, {k}" for k in places] for row in ("n + 4", "36"))
    assert asked == [*inside, *last]
