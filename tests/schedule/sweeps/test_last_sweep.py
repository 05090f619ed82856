"""Rows whose last sweep runs beside the next row's: results, whatever the shape and the threads; which programs take it, and which must not."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target

SMALL = Target("host", l1_bytes=8 * 1024, l2_bytes=64 * 1024, l3_bytes=0, cores=2)
"""This machine with caches so small that results bypass them at test sizes."""

SOFTMAX = """
def softmax(x: {t}["N K"]):
    m[n] = max[k](x[n, k])
    e[n, k] = exp(x[n, k] - m[n])
    s[n] = e[n, k]
    y[n, k] = e[n, k] / s[n]
    return y
"""
LOG_SOFTMAX = """
def log_softmax(x: {t}["N K"]):
    m[n] = max[k](x[n, k])
    s[n] = log(sum[k](exp(x[n, k] - m[n]))) + m[n]
    y[n, k] = x[n, k] - s[n]
    return y
"""
TWO_FACTORS = """
def weighted(x: {t}["N K"], w: {t}["K"]):
    m[n] = max[k](x[n, k])
    e[n, k] = exp(x[n, k] - m[n])
    s[n] = e[n, k]
    q[n] = sum[k](e[n, k] * w[k])
    y[n, k] = e[n, k] * q[n] / s[n] - m[n]
    return y
"""
NORM = """
def norm(x: {t}["N K"]):
    m[n] = sum[k](x[n, k]) / K
    v[n] = sum[k]((x[n, k] - m[n])**2) / K
    y[n, k] = (x[n, k] - m[n]) * rsqrt(v[n] + 1e-5)
    return y
"""


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def log_softmax(x: np.ndarray) -> np.ndarray:
    m = x.max(axis=1, keepdims=True)
    return x - (np.log(np.exp(x - m).sum(axis=1, keepdims=True)) + m)


def weighted(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    m = x.max(axis=1, keepdims=True)
    e = np.exp(x - m)
    return e * (e * w).sum(axis=1, keepdims=True) / e.sum(axis=1, keepdims=True) - m


def is_late(program: polyml.Einsum, *arguments: np.ndarray) -> bool:
    """Whether the last sweep waits; nothing fell back."""
    notes = [note for region in program.lower(*arguments).stages.regions for note in region.notes]
    assert not [note for note in notes if note.stage == "fallback"]
    return any("one row behind" in note.text for note in notes)


@pytest.mark.parametrize(
    ("dtype", "columns", "rows"),
    [("f32", 256, rows) for rows in (128, 143, 512, 519, 1000)]
    + [("f32", 272, 143), ("f32", 272, 1000), ("f64", 136, 128), ("f64", 136, 519), ("f64", 200, 512), ("f64", 200, 143), ("f16", 512, 143), ("f16", 512, 512)],
)  # fmt: skip
@pytest.mark.few(1)
def test_softmax(dtype: str, columns: int, rows: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(dtype.replace("f", "float"))
    results = []
    for threads in (1, 2):
        program = polyml.einsum(SOFTMAX.format(t=dtype), target=SMALL, threads=threads, verify=True)
        assert is_late(program, x)
        results.append(program(x))
        rtol = {"f16": 2e-3, "f32": 2e-6, "f64": 2e-14}[dtype]
        np.testing.assert_allclose(results[-1], softmax(x.astype("f8")), rtol=rtol, atol=1e-7 if dtype == "f16" else 0)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("rows", [pytest.param(512, marks=pytest.mark.slow), 517])
def test_what_the_last_sweep_needs_of_the_row_before(rows: int) -> None:
    generator = np.random.default_rng(3)
    x = generator.standard_normal((rows, 256), np.float32) * 10
    w = generator.standard_normal(256, np.float32)
    program = polyml.einsum(LOG_SOFTMAX.format(t="f32"), target=SMALL, verify=True)
    assert is_late(program, x)
    np.testing.assert_allclose(program(x), log_softmax(x.astype("f8")), rtol=1e-5, atol=1e-5)
    program = polyml.einsum(TWO_FACTORS.format(t="f32"), target=SMALL, verify=True)
    assert is_late(program, x, w)
    np.testing.assert_allclose(program(x, w), weighted(x.astype("f8"), w.astype("f8")), rtol=1e-4, atol=1e-4)


def test_infinities_and_nan_stay_in_their_rows() -> None:
    x = np.random.default_rng(4).standard_normal((512, 256), np.float32)
    x[[3, 31, 32, 511], 7] = np.nan
    x[[0, 64, 95], 100] = np.inf
    x[100], x[200, 5:] = -np.inf, -np.inf
    program = polyml.einsum(SOFTMAX.format(t="f32"), target=SMALL)
    assert is_late(program, x)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(program(x), softmax(x.astype("f8")), rtol=2e-6)


def test_arrays_may_lie_anywhere() -> None:
    room = np.random.default_rng(5).standard_normal(512 * 256 + 64).astype(np.float32)
    program = polyml.einsum(SOFTMAX.format(t="f32"), target=SMALL)
    for start in (0, 1, 5, 16, 33):
        x, y = room[start : start + 512 * 256].reshape(512, 256), np.empty(512 * 256 + 64, np.float32)
        for other in (0, 3, 15):
            out = y[other : other + 512 * 256].reshape(512, 256)
            program(x, out=out)
            np.testing.assert_allclose(out, softmax(x.astype("f8")), rtol=2e-6)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (SOFTMAX, (512, 250)),  # rows end inside of lines
        (SOFTMAX, (4096, 64)),  # short ones
        (SOFTMAX, (100, 2048)),  # few ones
        (SOFTMAX, (200, 8192)),  # two of each do not stay in L2
        (NORM, (512, 256)),  # nothing computes much
    ],
)
def test_what_is_not_worth_it(text: str, shape: tuple[int, int]) -> None:
    program = polyml.einsum(text.format(t="f32"), target=SMALL)
    assert not is_late(program, np.zeros(shape, np.float32))


def test_results_that_stay_in_cache() -> None:
    roomy = Target("host", l1_bytes=8 * 1024, l2_bytes=64 * 1024, l3_bytes=64 << 20, cores=2)
    program = polyml.einsum(SOFTMAX.format(t="f32"), target=roomy)
    assert not is_late(program, np.zeros((128, 256), np.float32))
    assert is_late(program, np.zeros((512, 256), np.float32))


def test_rows_on_the_stack_lie_half_a_page_from_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    program = polyml.einsum(SOFTMAX.format(t="f32"), target=Target("x86-64-v4"), threads=1)
    program.lower(np.zeros((4096, 1024), np.float32)).show("llvm")
    lines = capsys.readouterr().out.splitlines()
    (room,) = (line.split()[0] for line in lines if f"alloca [{2 * 4096 + 4096} x i8]" in line)
    assert any(f"ptrtoint ptr {room} " in line for line in lines)
    assert any(line.endswith(", 2048") and "= add i64" in line for line in lines)
