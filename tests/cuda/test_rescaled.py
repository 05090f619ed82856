"""Sums weighted by exponentials whose scores stay in the block: results in every order of threads, what is not finite, what is left alone, and registers."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import polyml
from polyml.compiler.driver import Stages, lower_program
from polyml.dtypes import DTYPES
from polyml.runtime.cuda.compile import find_nvcc
from polyml.target import Target
from tests.cuda.batch import compile_batch, needs_gxx, results_of
from tests.cuda.test_nvcc import architectures

SMALL = Target("cuda", cores=1, l2_bytes=1 << 16)
"""A device so small that these sizes are worth tiles, and scores too many for its cache."""

PLAIN = """def f(q: f32["B S D"], k: f32["B T D"], v: f32["B T E"]):
    a[b, i, j] = q[b, i, d] * k[b, j, d]
    m[b, i] = max[j](a[b, i, j])
    e[b, i, j] = exp((a[b, i, j] - m[b, i]) / sqrt(D))
    s[b, i] = e[b, i, j]
    y[b, i, c] = sum[j](e[b, i, j] * v[b, j, c]) / s[b, i]
    return y
"""
MASKED = """def f(q: f32["B S D"], k: f32["B T D"], v: f32["B T E"]):
    a[b, i, j] = where(COND, sum[d](q[b, i, d] * k[b, j, d]) / sqrt(D), -inf)
    m[b, i] = max[j](a[b, i, j])
    e[b, i, j] = exp(a[b, i, j] - m[b, i])
    s[b, i] = e[b, i, j]
    y[b, i, c] = sum[j](e[b, i, j] * v[b, j, c]) / s[b, i]
    return y
"""
CAUSAL, LATE, SOME = (MASKED.replace("COND", text) for text in ("j <= i", "i <= j", "i + j < 150"))
BIAS = """def f(q: f32["B S D"], k: f32["B T D"], v: f32["B T E"], bias: f32["S T"]):
    c[b, i, j] = sum[d](q[b, i, d] * k[b, j, d]) / sqrt(D) + bias[i, j]
    p[b, i, j] = exp(c[b, i, j] - max[j](c[b, i, j])) / sum[j](exp(c[b, i, j] - max[j](c[b, i, j])))
    y[b, i, e] = p[b, i, j] * v[b, j, e]
    return y
"""
SHARED_KEYS = """def f(q: f32["B H S D"], k: f32["B D T"], v: f32["B E T"]):
    a[b, h, i, j] = q[b, h, i, d] * k[b, d, j]
    m[b, h, i] = max[j](a[b, h, i, j])
    e[b, h, i, j] = exp(0.3 * a[b, h, i, j] - 0.3 * m[b, h, i])
    s[b, h, i] = e[b, h, i, j]
    y[b, h, i, c] = sum[j](e[b, h, i, j] * v[b, c, j]) / s[b, h, i]
    return y
"""
SCORES = """def f(a: f32["N M"], v: f32["M E"]):
    m[i] = max[j](a[i, j])
    e[i, j] = exp(a[i, j] - m[i])
    s[i] = e[i, j]
    l[i] = log(s[i]) + m[i]
    y[i, d] = sum[j](e[i, j] * v[j, d]) / s[i]
    return y, l, m
"""
DOUBLE, HALF = (PLAIN.replace("f32", dtype) for dtype in ("f64", "f16"))

RNG = np.random.default_rng(0)


def arrays(*shapes: tuple[int, ...], dtype: type = np.float32) -> list[np.ndarray]:
    return [RNG.standard_normal(shape).astype(dtype) for shape in shapes]


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, bias: object = 0.0, scale: float | None = None
) -> tuple[np.ndarray, ...]:
    scores = np.einsum("...id,...jd->...ij", q, k) * (scale or q.shape[-1] ** -0.5) + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (np.einsum("...ij,...jc->...ic", weights / weights.sum(-1, keepdims=True), v),)


def weighted(a: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, ...]:
    m = a.max(1)
    e = np.exp(a - m[:, None])
    return e @ v / e.sum(1, keepdims=True), np.log(e.sum(1)) + m, m


def masked(text: str) -> Callable[..., tuple[np.ndarray, ...]]:
    def run(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, ...]:
        i, j = np.indices((q.shape[1], k.shape[1]))
        return attention(q, k, v, np.where({CAUSAL: j <= i, LATE: i <= j, SOME: i + j < 150}[text], 0, -np.inf))

    return run


def shared_keys(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, ...]:
    return attention(q, np.swapaxes(k, 1, 2)[:, None], np.swapaxes(v, 1, 2)[:, None], scale=0.3)


def infinite(count: int) -> list[np.ndarray]:
    a, v = arrays((128, count), (count, 16))
    a[3], a[5, 70], a[7, 1], a[9, 100] = -np.inf, np.inf, np.nan, 1e30
    return [a, v]


Case = tuple[str, list[np.ndarray], Callable[..., tuple[np.ndarray, ...]]]

CASES: list[Case] = [
    (PLAIN, arrays((2, 128, 32), (2, 128, 32), (2, 128, 32)), attention),
    (PLAIN, arrays((2, 75, 20), (2, 131, 20), (2, 131, 28)), attention),
    (PLAIN, arrays((1, 67, 7), (1, 97, 7), (1, 97, 5)), attention),
    (CAUSAL, arrays((2, 128, 16), (2, 128, 16), (2, 128, 16)), masked(CAUSAL)),
    (LATE, arrays((2, 128, 16), (2, 128, 16), (2, 128, 16)), masked(LATE)),
    (SOME, arrays((1, 160, 16), (1, 130, 16), (1, 130, 16)), masked(SOME)),
    (BIAS, arrays((2, 75, 16), (2, 131, 16), (2, 131, 16), (75, 131)), attention),
    (SHARED_KEYS, arrays((2, 3, 64, 8), (2, 8, 100), (2, 12, 100)), shared_keys),
    (SCORES, infinite(192), weighted),
    (DOUBLE, arrays((2, 100, 16), (2, 140, 16), (2, 140, 20), dtype=np.float64), attention),
    (HALF, arrays((2, 128, 32), (2, 128, 32), (2, 128, 32), dtype=np.float16), attention),
]


def stages_of(text: str, given: Sequence[np.ndarray], **options: object) -> Stages:
    program = polyml.einsum(text, target=SMALL, **options)
    return lower_program(program.program, program.key_of(*given), program.options)


def tiles_of(stages: Stages) -> list[str]:
    """What was decided."""
    notes = [note for region in stages.regions for note in region.schedule.notes]
    assert not [note for note in notes if note.stage == "fallback"]
    return [note.text for note in notes if "rescaled" in note.text]


@needs_gxx
@pytest.mark.parametrize(
    ("number", "proved"),
    [
        (5, True),
        *(pytest.param(k, True, marks=pytest.mark.slow) for k in range(len(CASES)) if k != 5),
    ],
)
def test_results_in_every_order(number: int, proved: bool) -> None:
    """Storage, barriers and blocks are proved by `verify`."""
    text, given, exact = CASES[number]
    batch = compile_batch([(text, given)], target=SMALL, verify=proved)
    assert tiles_of(batch.stages[0])
    (kernel,) = batch.kernels
    with np.errstate(all="ignore"):
        expected = exact(*(a.astype(np.float64) for a in given))
    for order in range(4):
        kernel.module.orders = itertools.cycle((order,))
        for found, right in zip(results_of(kernel(*(a.copy() for a in given))), expected, strict=True):
            bound = 4e-3 if found.dtype == np.float16 else 2e-6
            np.testing.assert_allclose(found, right, rtol=bound, atol=bound)


@needs_gxx
@pytest.mark.slow
def test_any_size() -> None:
    sizes = [((2, 70, 16), (2, 131, 16), (2, 131, 16)), ((1, 1, 16), (1, 3, 16), (1, 3, 16))]
    text = PLAIN.replace(' D"', ' 16"').replace(' E"', ' 16"').replace("sqrt(D)", "4.0")
    target = Target("cuda", cores=1, l2_bytes=1 << 20)
    batch = compile_batch([(text, arrays(*sizes[0]))], target=target, dynamic=True, verify=True)
    assert tiles_of(batch.stages[0])
    for shapes in sizes:
        given = arrays(*shapes)
        (found,) = results_of(batch.kernels[0](*given))
        (right,) = attention(*(a.astype(np.float64) for a in given))
        np.testing.assert_allclose(found, right, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max[j](a[b, i, j])", "max[j](2.0 * a[b, i, j])"),  # exponentials above 1 until the last maximum is known
        ("exp((a[b, i, j] - m[b, i])", "exp((m[b, i] - a[b, i, j])"),
        ("/ sqrt(D))", "+ m[b, i])"),
        ("s[b, i] = e[b, i, j]", "s[b, i] = e[b, i, j] * e[b, i, j]"),
        ("s[b, i] = e[b, i, j]", "s[b, i] = sum[j](e[b, i, j] + 1.0)"),
        ("max[j](", "min[j]("),
    ],
)
@pytest.mark.few(1)
def test_other_structures_are_left_alone(old: str, new: str) -> None:
    text, given, _ = CASES[0]
    assert old in text
    assert not tiles_of(stages_of(text.replace(old, new), given))


def test_not_where_the_order_is_asked_for() -> None:
    text, given, _ = CASES[0]
    assert not tiles_of(stages_of(text, given, precise=True))


@pytest.mark.skipif(find_nvcc() is None, reason="nvcc is not installed")
@pytest.mark.parametrize(
    ("chosen", "kinds"), [(slice(1, 2), slice(1, 2)), pytest.param(slice(None), slice(None), marks=pytest.mark.slow)]
)
def test_no_spills(tmp_path: Path, chosen: slice, kinds: slice) -> None:
    heads = (("f32", (4, 16, 1000, 40)), ("f32", (2, 16, 2048, 128)), ("f64", (4, 16, 1024, 64)))
    text = PLAIN.replace('"B ', '"B H ').replace("[b, ", "[b, h, ")
    programs = [(text.replace("f32", kind), [np.empty(shape, DTYPES[kind].numpy)] * 3) for kind, shape in heads[kinds]]
    source = tmp_path / "kernels.cu"
    source.write_text(compile_batch(programs, build=False, target="cuda").text)
    code = [f"-gencode=arch=compute_{version},code=sm_{version}" for version in architectures()[chosen]]
    command = [find_nvcc(), "--fatbin", *code, "-Xptxas", "-v", "-o", tmp_path / "kernels.fatbin", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    assert done.stderr.count("Compiling entry function") == len(code) * len(programs)
    assert set(re.findall(r"(\d+) bytes spill stores", done.stderr)) == {"0"}
    assert set(re.findall(r"(\d+) bytes stack frame", done.stderr)) == {"0"}
