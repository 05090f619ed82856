"""Neighbouring elements at 16 bytes: pointwise programs and rows, whole and odd sizes, and types of every width."""

from __future__ import annotations

import itertools

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
TINY = Target("cuda", cores=1)
RNG = np.random.default_rng(0)


def values(dtype: str, *shape: int) -> np.ndarray:
    return RNG.integers(-8, 8, shape).astype(dtype)


@needs_gxx
def test_results_in_every_order() -> None:
    cases = []
    for name, dtype in (("f32", "f4"), ("f64", "f8"), ("i16", "i2"), ("f16", "f2"), ("i64", "i8"), ("c64", "c8")):
        for shape in ((40, 128), (33, 132), (40, 129)):
            cases.append((SCALE.format(name), [values(dtype, *shape), values(dtype, shape[1])], lambda x, b: x * 2 + b))
    row = values("f4", 3, 2000)
    cases.append((SHIFT, [values("f4", 5000), values("f4", 5001)], lambda z, x: x[1:] - z))
    cases.append((CHOICE, [values("f4", 40, 128)], lambda x: np.concatenate([x[:, :4], x[:, :-4]], 1)))
    cases.append((SOFTMAX, [row], lambda x: np.exp(x - x.max(1, keepdims=True)) / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)))  # fmt: skip
    cases.append((IN_PLACE, [values("f4", 40, 128)], lambda x: x + 1))
    batch = compile_batch([(text, given) for text, given, _ in cases], target=TINY)
    for (text, given, exact), kernel in zip(cases, batch.kernels, strict=True):
        for order in range(3):
            kernel.module.orders = itertools.cycle((order,))
            mine = [a.copy() for a in given]
            (found,) = results_of(kernel(*mine)) or mine
            np.testing.assert_allclose(found, exact(*given), rtol=1e-5, err_msg=text)


@pytest.mark.parametrize(
    ("text", "shapes", "vectors"),
    [
        (SCALE.format("f32"), ((64, 128), (128,)), True),
        (SCALE.format("f32"), ((64, 130), (130,)), False),
        (SHIFT, ((8192,), (8193,)), False),
        (SOFTMAX, ((4, 2048),), True),
        (IN_PLACE, ((64, 128),), True),
    ],
)
def test_where_there_are_vectors(text: str, shapes: tuple[tuple[int, ...], ...], vectors: bool) -> None:
    given = [np.ones(shape, np.float32) for shape in shapes]
    written = compile_batch([(text, given)], build=False, target=TINY).text
    assert ("*(float4*)&" in written) == vectors
