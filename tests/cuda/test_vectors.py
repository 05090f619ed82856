"""Neighbouring elements at 16 bytes: pointwise programs and rows, whole and odd sizes, and types of every width."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from polyml.target import Target
from tests.cuda.batch import compile_batch, needs_gxx, results_of

SCALE = 'def f(x: {0}["N M"], b: {0}["M"]):\n    y[i, j] = x[i, j] * 2 + b[j]\n    return y\n'
SHIFT = 'def f(z: f32["N"], x: f32["N+1"]):\n    y[i] = x[i + 1] - z[i]\n    return y\n'
CHOICE = 'def f(x: f32["N M"]):\n    y[i, j] = where(j >= 4, x[i, j - 4], x[i, j])\n    return y\n'
SOFTMAX = (
    'def f(x: f32["N M"]):\n    m[i] = max[j](x[i, j])\n    e[i, j] = exp(x[i, j] - m[i])\n'
    "    s[i] = e[i, j]\n    y[i, j] = e[i, j] / s[i]\n    return y\n"
)
IN_PLACE = 'def f(x: f32["N M"]):\n    x[i, j] = x[i, j] + 1\n'
SUMS = 'def f(x: {0}["N M"], b: {0}["M"]):\n    s[i] = x[i, j] * b[j]\n    t[i] = max[j](x[i, j] - b[j])\n    return s, t\n'
TINY = Target("cuda", cores=1)
RNG = np.random.default_rng(0)


def values(dtype: str, *shape: int) -> np.ndarray:
    return RNG.integers(-8, 8, shape).astype(dtype)


@needs_gxx
def test_results_in_every_order() -> None:
    cases = []
    types = (("f32", "f4"), ("f64", "f8"), ("i16", "i2"), ("f16", "f2"), ("i64", "i8"), ("c64", "c8"))
    for k, (name, dtype) in enumerate(types):  # each with two shapes of three
        for shape in ((40, 128), (33, 132), (40, 129), (40, 128))[k % 3 :][:2]:
            cases.append((SCALE.format(name), [values(dtype, *shape), values(dtype, shape[1])], lambda x, b: x * 2 + b))
    row = values("f4", 3, 2000)
    cases.append((SHIFT, [values("f4", 5000), values("f4", 5001)], lambda z, x: x[1:] - z))
    cases.append((CHOICE, [values("f4", 40, 128)], lambda x: np.concatenate([x[:, :4], x[:, :-4]], 1)))
    cases.append((SOFTMAX, [row], lambda x: np.exp(x - x.max(1, keepdims=True)) / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)))  # fmt: skip
    cases.append((IN_PLACE, [values("f4", 40, 128)], lambda x: x + 1))
    types = (("f32", "f4"), ("f64", "f8"), ("i32", "i4"), ("f16", "f2"), ("i64", "i8"), ("u32", "u4"))
    for k, (name, dtype) in enumerate(types):
        for columns in (1028, 2048, 1030, 1028)[k % 3 :][:2]:
            given = [np.abs(values(dtype, n, columns)) // 2 for n in (2, 1)]
            cases.append(
                (
                    SUMS.format(name),
                    [given[0], given[1][0]],
                    lambda x, b: ((x * b).sum(1, dtype=x.dtype), (x - b).max(1)),
                )
            )
    batch = compile_batch([(text, given) for text, given, _ in cases], target=TINY)
    for (text, given, exact), kernel in zip(cases, batch.kernels, strict=True):
        for order in range(3):
            kernel.module.orders = itertools.cycle((order,))
            mine = [a.copy() for a in given]
            results, wanted = results_of(kernel(*mine)) or mine, exact(*given)
            for found, right in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
                np.testing.assert_allclose(found, right, rtol=1e-5, err_msg=text)


@pytest.mark.parametrize(
    ("text", "shapes", "vectors"),
    [
        (SCALE.format("f32"), ((64, 128), (128,)), True),
        (SCALE.format("f32"), ((64, 130), (130,)), False),
        (SHIFT, ((8192,), (8193,)), False),
        (SOFTMAX, ((4, 2048),), True),
        (IN_PLACE, ((64, 128),), True),
        (SUMS.format("f32"), ((4, 2048), (2048,)), True),
        (SUMS.format("f32"), ((4, 2050), (2050,)), False),
    ],
)
def test_where_there_are_vectors(text: str, shapes: tuple[tuple[int, ...], ...], vectors: bool) -> None:
    given = [np.ones(shape, np.float32) for shape in shapes]
    written = compile_batch([(text, given)], build=False, target=TINY).text
    assert ("float4*)&" in written) == vectors


def test_parts_of_a_sum_are_read_in_vectors() -> None:
    """They are cut so that all are the same where that is possible; and one bound, not two, lets the compiler unroll what is not."""
    total = 'def f(x: f32["N"]):\n    s = x[i]\n    return s\n'
    even, odd = (np.ones(size, np.float32) for size in (1 << 22, (1 << 22) + 3))
    written = compile_batch([(total, [even])], build=False).text
    assert "for (int i_in_tile = (int)(threadIdx.x); i_in_tile < 4096; i_in_tile += 256)" in written
    assert "const float4 x_v0" in written
    for options in ({}, {"dynamic": True}):
        written = compile_batch([(total, [odd])], build=False, **options).text
        assert re.search(r"i_in < \(.* < .* \? .* : .*\); i_in \+= 256\) {\n +own_s\w+ \+= x\[", written), written
