"""Programs under target="cuda" on the emulator, against the interpreter and against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from polyml.demo.digits import PREDICT, STEP
from polyml.demo.showcase import SHOWCASES
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.source import Source
from polyml.testing import assert_close
from polyml.testing.cases import Case
from polyml.testing.strategies import programs
from polyml.testing.variants import PLAIN
from tests.cuda.batch import compile_batch, needs_gxx, results_of

pytestmark = needs_gxx

RANDOM_PROGRAMS = 14


def random_cases(count: int, *, large: bool = False) -> list[Case]:
    """Programs of polyml's strategies, collected so that one compilation serves all of them."""
    found: list[Case] = []

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(large=large))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


def check_cases(cases: list[Case]) -> None:
    batch = compile_batch([(case.text, case.arguments) for case in cases])
    for case, kernel in zip(cases, batch.kernels, strict=True):
        expected_arguments, arguments = case.fresh_arguments(), case.fresh_arguments()
        expected = results_of(interpret(parse(Source(case.text)), *expected_arguments, wide=True))
        try:
            actual = results_of(kernel(*arguments))
            for a, e in zip((*actual, *arguments), (*expected, *expected_arguments), strict=True):
                assert_close(a, e, case.reduction_length, computed_in=case.computed_in, scale=1 / 64)
        except AssertionError as fault:
            raise AssertionError(f"{case!r}\n{fault}") from fault
    assert batch.device.live == {}, "device memory is lost"


def test_random_programs() -> None:
    check_cases(random_cases(RANDOM_PROGRAMS))


@pytest.mark.slow
def test_random_programs_long() -> None:
    for _ in range(10):
        check_cases(random_cases(100))


def check_large_cases(cases: list[Case]) -> None:
    """Sizes of several blocks, in several orders of warps and blocks, against the CPU's loops as they are written; barriers and blocks are proved to be in order."""
    batch = compile_batch([(case.text, case.arguments) for case in cases], verify=True)
    for case, kernel in zip(cases, batch.kernels, strict=True):
        written = PLAIN.run(case)
        assert written is not None
        for order in range(4):
            kernel.module.orders = itertools.cycle((order,))
            arguments = case.fresh_arguments()
            found = (*results_of(kernel(*arguments)), *arguments)
            for a, e in zip(found, (*results_of(written[0]), *written[1]), strict=True):
                assert_close(np.asarray(a), np.asarray(e), case.reduction_length, computed_in=case.computed_in, scale=1 / 64)  # fmt: skip


def test_random_large_programs() -> None:
    check_large_cases(random_cases(4, large=True))


@pytest.mark.slow
def test_random_large_programs_long() -> None:
    for _ in range(10):
        check_large_cases(random_cases(50, large=True))


SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "softmax": ((9, 70),),
    "layer norm": ((5, 300), (300,), (300,)),
    "padded convolution": ((2, 3, 9, 11), (4, 3, 3, 3)),
    "attention": ((1, 2, 17, 8), (1, 2, 17, 8), (1, 2, 17, 8)),
    "k-means assignment": ((45, 7), (20, 7)),
    "Jacobi sweeps": ((40, 50),),
}


def test_the_demo_programs() -> None:
    rng = np.random.default_rng(3)
    arguments = [[rng.standard_normal(s, dtype=np.float32) for s in SHAPES[case.name]] for case in SHOWCASES]
    batch = compile_batch([(case.text, given) for case, given in zip(SHOWCASES, arguments, strict=True)])
    for case, given_, kernel in zip(SHOWCASES, arguments, batch.kernels, strict=True):
        exact = case.numpy(*(a.astype(np.float64) for a in given_))
        np.testing.assert_allclose(kernel(*given_), exact, rtol=2e-4, atol=2e-5, err_msg=case.name)


def test_a_training_step_updates_in_place() -> None:
    rng = np.random.default_rng(4)
    n, d, h, c = 12, 10, 9, 5
    x, t = rng.standard_normal((n, d), dtype=np.float32), rng.integers(0, c, n)
    weights = [rng.standard_normal(s, dtype=np.float32) for s in ((d, h), (h,), (h, c), (c,))]
    batch = compile_batch([(STEP, [x, t, *weights, 0.1]), (PREDICT, [x, *weights])])
    expected = [w.copy() for w in weights]
    loss = interpret(parse(Source(STEP)), x, t, *expected, 0.1, wide=True)
    actual = [w.copy() for w in weights]
    assert_close(batch.kernels[0](x, t, *actual, 0.1), loss, 100)
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, 200)
    labels = interpret(parse(Source(PREDICT)), x, *weights, wide=True)
    assert np.array_equal(batch.kernels[1](x, *weights), labels)


ROWS = """
def rows(x: f32["N K"]):
    m[n] = max[k](x[n, k])
    best[n] = argmax[k](x[n, k])
    low[n] = argmin[k](x[n, k])
    s[n] = sum[k](x[n, k] - m[n])
    return m, best, low, s
"""


def test_rows_that_a_block_shares() -> None:
    """Reductions across several warps, NaN and ties included."""
    x = np.random.default_rng(5).standard_normal((6, 1000), dtype=np.float32)
    x[1, 700] = np.nan
    x[2, [31, 640]] = 9
    x[3] = 1
    x[4, [5, 999]] = np.nan
    batch = compile_batch([(ROWS, [x])])
    assert "pm_block_argmax_f32" in batch.text, "the rows are not shared by threads of a block"
    m, best, low, s = batch.kernels[0](x)
    assert np.array_equal(best, np.argmax(x, axis=1))
    assert np.array_equal(low, np.argmin(x, axis=1))
    assert np.array_equal(m, np.max(x, axis=1), equal_nan=True)
    np.testing.assert_allclose(s, (x.astype(np.float64) - np.max(x, axis=1, keepdims=True)).sum(1), rtol=1e-4)


TILED = """
def tiled(x: f32["N K"], w: f32["K M"], b: f32["M"]):
    y[n, m] = relu(x[n, k] * w[k, m] + b[m])
    return y
"""


def test_register_tiles() -> None:
    """Several elements per thread: whole tiles, tiles cut in both directions, and a triangle."""
    rng = np.random.default_rng(6)
    shapes = [(256, 3, 256), (241, 2, 250), (1030, 3, 70)]  # reductions too short for tiles in shared memory
    arguments = [[rng.standard_normal(s, dtype=np.float32) for s in ((n, k), (k, m), (m,))] for n, k, m in shapes]
    triangle = 'def t(x: f32["N K"]):\n    y: f32["N N"] = 0\n    if j <= i:\n        y[i, j] = sum[k](x[i, k] * x[j, k])\n    return y\n'
    x = rng.standard_normal((270, 6), dtype=np.float32)
    batch = compile_batch([*((TILED, given_) for given_ in arguments), (triangle, [x])])
    for (x_, w, b), kernel in zip(arguments, batch.kernels, strict=False):
        exact = np.maximum(x_.astype(np.float64) @ w + b, 0)
        np.testing.assert_allclose(kernel(x_, w, b), exact, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batch.kernels[-1](x), np.tril(x.astype(np.float64) @ x.T), rtol=1e-4, atol=1e-5)
    assert batch.text.count("y_sum_2") > 10, "no register tiles"
    onward = 'def f(c: f32["N M"], x: f32["N K"], w: f32["K M"]):\n    c[n, m] += x[n, k] * w[k, m]\n    return c\n'
    c, w = rng.standard_normal((256, 256), dtype=np.float32), rng.standard_normal((3, 256), dtype=np.float32)
    (kernel,) = compile_batch([(onward, [c, x[:256, :3].copy(), w])]).kernels
    np.testing.assert_allclose(kernel(c.copy(), x[:256, :3].copy(), w), c + x[:256, :3] @ w, rtol=1e-4, atol=1e-5)


def test_any_size() -> None:
    """One kernel for all sizes: extents and grids are known when it is launched."""
    rng = np.random.default_rng(7)
    x, w, b = (rng.standard_normal(s, dtype=np.float32) for s in ((30, 8), (8, 70), (70,)))
    softmax = SHOWCASES[0]
    batch = compile_batch([(TILED, [x, w, b]), (softmax.text, [x])], dynamic=True)
    for n, k, m in ((30, 8, 70), (1, 1, 1), (9, 300, 65)):
        x, w, b = (rng.standard_normal(s, dtype=np.float32) for s in ((n, k), (k, m), (m,)))
        exact = np.maximum(x.astype(np.float64) @ w + b, 0)
        np.testing.assert_allclose(batch.kernels[0](x, w, b), exact, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(batch.kernels[1](x), softmax.numpy(x.astype(np.float64)), rtol=1e-4)


INT_PROGRAMS: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (  # text, shape, values of t for one kernel
    ('def row(x: f32["T N"], t: int):\n    y[i] = x[t, i] * 2\n    return y\n', (7, 5), (0, 6, 3)),
    (
        'def rows(x: f32["N M"], t: int):\n    y: f32["M"] = 0\n    for s in range(t):\n'
        "        y[m] = y[m] / 2 + x[s, m]\n    return y\n",
        (7, 5),
        (0, 7, -2, 5),
    ),
    (
        'def table(x: f32["N"], t: int, T: int):\n    y: f32["T N"]\n    y[i, j] = x[j] * (i + t)\n'
        "    z[j] = sum[i](y[i, j] * x[j])\n    return y, z\n",
        (9,),
        (0, 5, 40),
    ),
    ('def windows(x: f32["N"], t: int):\n    y[i] = max[k, k < t](x[i + k])\n    return y\n', (9,), (1, 9, 4)),
    ('def shift(x: f32["N"], t: int):\n    if i >= t:\n        x[i] = x[i - t] + 1\n    return x\n', (9,), (1, 9, 0)),
)


def test_one_kernel_for_all_values_of_an_int() -> None:
    def call(text: str, x: np.ndarray, t: int) -> tuple[object, ...]:
        return (x.copy(), t, t) if "T: int" in text else (x.copy(), t)

    rng = np.random.default_rng(5)
    arrays = [rng.random(shape, dtype=np.float32) for _, shape, _ in INT_PROGRAMS]
    batch = compile_batch([(p[0], call(p[0], x, 2)) for p, x in zip(INT_PROGRAMS, arrays, strict=True)])
    for (text, _, values), x, kernel in zip(INT_PROGRAMS, arrays, batch.kernels, strict=True):
        for t in values:
            expected = results_of(interpret(parse(Source(text)), *call(text, x, t), wide=True))
            for a, e in zip(results_of(kernel(*call(text, x, t))), expected, strict=True):
                assert a.shape == e.shape
                assert_close(a, e, 64)
    assert batch.device.live == {}, "device memory is lost"
