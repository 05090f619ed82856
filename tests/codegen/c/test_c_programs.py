"""Whole programs as C: readable, without warnings, and with the results of the compiled ones."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import polyml
from benchmarks.polybench import KERNELS
from benchmarks.polybench.kernel import worst_error
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.source import Source
from polyml.testing import assert_close
from polyml.testing.c_program import WARNINGS, CProgram, build_shared, compiler_path
from polyml.testing.cases import Case
from polyml.testing.strategies import programs

pytestmark = pytest.mark.skipif(compiler_path() is None, reason="gcc is not installed")
STRICT = ("-O1", "-fopenmp", *WARNINGS)


def through_c(text: str, *args: object, flags: tuple[str, ...] = STRICT, **options: object) -> tuple[np.ndarray, ...]:
    program = polyml.einsum(text, **options)
    return CProgram(program.lower(*args), flags=flags)(*args)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.few(8)
def test_polybench_as_written(name: str) -> None:
    check_kernel(name, scheduler="written")


@pytest.mark.parametrize("name", ["correlation", "gemm", "trmm", "cholesky", "gramschmidt", "deriche", "jacobi-2d"])
@pytest.mark.few(2)
def test_polybench_as_scheduled(name: str) -> None:
    check_kernel(name)


@pytest.mark.skipif(compiler_path("clang") is None, reason="clang is not installed")
@pytest.mark.parametrize("name", ["correlation", "durbin", "nussinov", "gemm"])
def test_clang_has_no_warnings_either(name: str) -> None:
    kernel = KERNELS[name]
    clang = compiler_path("clang")
    assert clang is not None
    for scheduler in ("ilp", "written"):
        text = kernel.program(scheduler=scheduler).lower(*kernel.arguments("MINI")).text("c")
        build_shared(text, clang, ("-O1", *WARNINGS))


def check_kernel(name: str, **options: object) -> None:
    kernel = KERNELS[name]
    arguments = kernel.arguments("MINI")
    expected = kernel.reference(*copy.deepcopy(arguments))
    assert worst_error(through_c(kernel.text, *arguments, **options), expected) < 1e-11


def test_operands_that_nobody_uses() -> None:
    """Compilers warn of them, whatever other words of the text their names are in: `a` of `malloc`."""
    text = 'def f(a: f64["N"], t: i64["N"], x: f64["N"]):\n    u[i] = a[t[i]]\n    y[i] = 2 * x[i]\n    return y\n'
    for dynamic in (False, True):
        (y,) = through_c(text, np.ones(3), np.zeros(3, int), np.arange(3.0), dynamic=dynamic)
        np.testing.assert_array_equal(y, [0, 2, 4])


def test_arrays_without_elements_whose_rows_have_some() -> None:
    """What is allocated is as much as compilers see functions touch."""
    text = """
def f(x: f32["K L"], w: f32["L"]):
    s[k] = x[k, l] * w[l]
    y: f32["0 K"] = 1
    if i < 3:
        y[i, k] += y[i, k] + s[k]
    z[i, k] = y[i, k] / 2
    return z
"""
    (z,) = through_c(text, np.ones((3, 3), np.float32), np.ones(3, np.float32), flags=STRICT)
    assert z.shape == (0, 3)


@given(programs())
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_programs(case: Case) -> None:
    expected_arguments, arguments = case.fresh_arguments(), case.fresh_arguments()
    expected = interpret(parse(Source(case.text)), *expected_arguments, wide=True)
    found = through_c(case.text, *arguments, flags=(*STRICT, "-fwrapv"))
    for a, e in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert_close(a, e, case.reduction_length, computed_in=case.computed_in)  # type: ignore[arg-type]


def test_names_that_c_has() -> None:
    text = """
def double(register: f64["N"], rint: f64["N"], auto: f64["N"]):
    int8_t[i] = exp(register[i]) * rint[i] + auto[i]
    for static in range(N):
        int8_t[static] += 1
    free[i] = int8_t[i] * int8_t[i]
    return free
"""
    a, b, c = np.random.default_rng(0).random((3, 7))
    (found,) = through_c(text, a, b, c)
    np.testing.assert_allclose(found, (np.exp(a) * b + c + 1) ** 2)


def test_sizes_that_c_has() -> None:
    text = """
def f(x: f64["N"], status: int, default: int, default_: int):
    t: f64["default"]
    if i < default:
        t[i] = x[i + default_] * status
    y[j] = t[j] + sum[i](t[i])
    return y
"""
    x = np.arange(7.0)
    np.testing.assert_allclose(through_c(text, x, 2, 3, 4)[0], 2 * x[4:7] + 30)


def test_indices_like_arrays() -> None:
    text = """
def f(x: f64["N"]):
    y[i] = 2 * x[i]
    i[j] = y[j] + 1
    z[k] = i[k] * y[k]
    return z
"""
    x = np.arange(5.0)
    np.testing.assert_allclose(through_c(text, x, fusion=False)[0], (2 * x + 1) * 2 * x)


def test_strides_checks_and_winners() -> None:
    text = """
def f(x: f32["N M"], at: i32["K"]):
    best[n] = argmax[m](x[n, m])
    y[k] = x[at[k], 1] + f32(best[at[k]])
    return y, best
"""
    x = np.asfortranarray(np.random.default_rng(0).random((5, 9), np.float32))[::2]
    at = np.array([2, 0, 1], np.int32)
    y, best = through_c(text, x, at)
    np.testing.assert_array_equal(best, x.argmax(axis=1))
    np.testing.assert_allclose(y, x[at, 1] + x.argmax(axis=1)[at])
    with pytest.raises(IndexError):
        through_c(text, x, np.array([2, 3, 1], np.int32))


def test_one_thread_without_openmp() -> None:
    x = np.random.default_rng(0).random((300, 200))
    text = 'def f(x: f64["N M"]):\n    s[n] = x[n, m]\n    y[n, m] = exp(x[n, m]) / s[n]\n    return y\n'
    (found,) = through_c(text, x, flags=("-O1", *WARNINGS))
    np.testing.assert_allclose(found, np.exp(x) / x.sum(axis=1, keepdims=True))


def test_loops_for_vectors_are_plain_and_marked() -> None:
    lowered = polyml.einsum('def f(x: f64["N"]):\n    s = sum[i](x[i])\n    return s\n').lower(np.ones(1000))
    text = lowered.text("c")
    assert "#pragma omp simd reduction(+:" in text
    assert CProgram(lowered, flags=STRICT)(np.ones(1000))[0] == 1000


def test_written_order_reads_like_the_program() -> None:
    text = KERNELS["jacobi-1d"].program(scheduler="written").lower(3, np.ones(9), np.ones(9)).text("c")
    lines = [line.strip() for line in text.splitlines()]
    assert "for (int64_t t = 0; t < T; t++) {" in lines
    assert "B[i] = 0.33333 * (A[i - 1] + A[i] + A[i + 1]);" in lines


def test_arrays_without_elements_beside_a_flag() -> None:
    text = """
def f(x: f32["N N"], at: i32["N"], M: int):
    t: f32["1 N"] = 2
    t[i + 1, j] = x[i, j]
    y: f32["M"] = 0
    y[at[i]] += t[0, i]
    return y
"""
    (found,) = through_c(text, np.zeros((0, 0), np.float32), np.zeros(0, np.int32), 3, flags=(*STRICT, "-fwrapv"))
    np.testing.assert_array_equal(found, np.zeros(3))


def test_symbolic_sizes() -> None:
    kernel = KERNELS["jacobi-1d"]
    arguments = kernel.arguments("MINI")
    program = CProgram(kernel.program(scheduler="written").lower(*arguments), flags=STRICT)
    for steps in (0, 1, 7):
        again = (steps, *copy.deepcopy(arguments[1:]))
        expected = kernel.reference(*copy.deepcopy(again))
        assert worst_error(program(*again), expected) < 1e-14


def test_sizes_that_are_products() -> None:
    text = 'def f(u: f32["A B C"], v: f32["D C"]):\n    y[a, b, d] = u[a, b, c] * v[d, c]\n    return y\n'
    rng = np.random.default_rng(0)
    u, v = rng.standard_normal((5, 7, 20)).astype(np.float32), rng.standard_normal((33, 20)).astype(np.float32)
    assert "f_0(C, D, A * B, " in polyml.einsum(text, dynamic=True).lower(u, v).text("c")
    (found,) = through_c(text, u, v, dynamic=True)
    np.testing.assert_allclose(found, np.einsum("abc,dc->abd", u, v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, *(pytest.param(x, marks=pytest.mark.slow) for x in (0.5, np.inf))])
def test_regions_that_run_if_a_flag_is_set(bad: float) -> None:
    """A convolution whose edges leave terms out, with a weight that is finite and ones that are not."""
    text = """
def f(x: f32["C N"], w: f32["F C 3"]):
    y: f32["F N"]
    y[f, n] = sum[c, r, 0 <= n + r - 1 < N](x[c, n + r - 1] * w[f, c, r])
    return y
"""
    rng = np.random.default_rng(0)
    x, w = rng.random((40, 300), np.float32) + 1, rng.random((40, 40, 3), np.float32)
    w[3, 4, 0] = bad
    (found,) = through_c(text, x, w)
    np.testing.assert_allclose(found, polyml.einsum(text, precise=True)(x, w), rtol=1e-5)
    assert np.isfinite(found[3, 0])
    assert np.isfinite(found).all() == np.isfinite(bad)
    assert "if (*(const bool *)w_is_not_finite)" in polyml.einsum(text).lower(x, w).text("c")
