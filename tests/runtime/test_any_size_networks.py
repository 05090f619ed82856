"""Kernels for any sizes of what networks are made of: the right result around the sizes of tiles, panels and caches, and the same decisions as for numbers."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np
import pytest

import polyml
from benchmarks.model_cases import SWIGLU
from polyml.codegen.loops import Allocate, Assign, For, Function, If
from polyml.codegen.ranges import outside
from polyml.codegen.rewrite import walk_nodes
from polyml.sets.affine import affine, minimum
from polyml.target import Target
from polyml.testing import verify

SMALL_CACHES = Target("host", l1_bytes=2 << 10, l2_bytes=8 << 10)
"""This machine, with caches that small tests outgrow."""

DENSE = """
def dense(x: f32["N K"], w: f32["K M"], b: f32["M"]):
    y[n, m] = gelu(x[n, k] * w[k, m] + b[m])
    return y
"""

RUNNING = """
def running(x: f32["N K"]):
    y: f32["N K"]
    y[n, 0] = x[n, 0]
    for k in range(1, K):
        y[n, k] = y[n, k - 1] + x[n, k]
    return y
"""

RESIDUAL = """
def residual(x: f32["N K"], r: f32["N K"]):
    h[n, k] = x[n, k] + r[n, k]
    m[n] = sum[k](h[n, k]) / K
    v[n] = sum[k]((h[n, k] - m[n])**2) / K
    y[n, k] = (h[n, k] - m[n]) * rsqrt(v[n] + 1e-5)
    return y
"""


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def gelu(z: Any) -> Any:
    return z / 2 * (1 + np.vectorize(erf)(z / np.sqrt(2)))


def dense(x: Any, w: Any, b: Any) -> Any:
    return gelu(x.astype("f8") @ w + b)


def gated(x: Any, w: Any, u: Any, v: Any) -> Any:
    a = x.astype("f8") @ w
    return (a / (1 + np.exp(-a)) * (x.astype("f8") @ u)) @ v


def residual(x: Any, r: Any) -> Any:
    h = x.astype("f8") + r
    centred = h - h.mean(1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)


CASES: list[tuple[str, Callable[..., Any], str, list[tuple[int, ...]]]] = [
    (
        DENSE, dense, "NK KM M",
        [(1, 1, 1), (15, 16, 400), (16, 15, 500), (16, 16, 385), (17, 33, 47), (23, 40, 95), (24, 40, 96), (25, 41, 97), (31, 520, 110), (20, 1025, 49), (29, 31, 144)],
    ),
    (SWIGLU, gated, "ND DH DH HD", [(1, 1, 1), (16, 16, 48), (17, 40, 97), (33, 47, 95), (40, 100, 130)]),
    (RUNNING, lambda x: np.cumsum(x, 1, dtype="f8"), "NK", [(1, 1), (5, 1), (5, 2), (40, 256), (40, 257), (33, 271), (33, 272), (8, 289), (9, 1000)]),
    (RESIDUAL, residual, "NK NK", [(1, 1), (3, 15), (20, 255), (33, 256), (33, 257), (9, 1000)]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "meaning", "shapes", "sizes"), CASES)
@pytest.mark.few(2)
def test_around_the_sizes_of_tiles(
    text: str, meaning: Callable[..., Any], shapes: str, sizes: list[tuple[int, ...]]
) -> None:
    f = polyml.einsum(text, dynamic=True, target=SMALL_CACHES, verify=True)
    names = dict.fromkeys(shapes.replace(" ", ""))
    for values in sizes:
        known = dict(zip(names, values, strict=True))
        arguments = [normal(*(known[name] for name in shape)) / 4 for shape in shapes.split()]
        wanted = meaning(*arguments)
        np.testing.assert_allclose(f(*arguments), wanted, rtol=1e-4, atol=1e-4, err_msg=str(values))
    assert len(f.kernels) == 1
    empty = [np.zeros([0 if name == next(iter(names)) else 3 for name in shape], "f4") for shape in shapes.split()]
    assert f(*empty).size == 0


def functions(text: str, *shapes: tuple[int, ...], target: Target = SMALL_CACHES) -> tuple[Function, ...]:
    return polyml.einsum(text, dynamic=True, target=target).lower(*(normal(*s) for s in shapes)).stages.functions


def test_a_sum_that_is_finished_in_registers_has_panels_over_all_of_it() -> None:
    (function,) = functions(DENSE, (4, 5), (5, 6), (6,), target=Target("x86-64-v4"))
    panels = {n.variable for n in walk_nodes(function.body) if isinstance(n, Allocate) and "panels" in n.variable.name}
    assert {tuple(map(str, panel.shape[1:])) for panel in panels} == {("K", "32")}


def test_products_of_long_sums_have_regions_of_their_own() -> None:
    shapes = ((4, 5), (5, 6), (5, 6), (6, 5))
    assert len(functions(SWIGLU, *shapes)) == 3


def test_a_row_begins_in_the_loop_that_continues_it() -> None:
    lowered = polyml.einsum(RUNNING, dynamic=True, target=SMALL_CACHES).lower(normal(3, 4))
    (function,) = lowered.stages.functions
    loops = [n for n in walk_nodes(function.body) if isinstance(n, For) and n.variable == "n"]
    assert len(loops) == 2  # one for results that go past the caches, one for others
    assert "!nontemporal" in lowered.text("llvm")


def test_several_rows_share_the_bytes_that_are_fetched_ahead() -> None:
    f = polyml.einsum(RESIDUAL, dynamic=True, target=Target("x86-64-v4"))
    told = str(f.explain(normal(3, 4), normal(3, 4)))
    assert "the row of x 8192 bytes ahead" in told
    assert "the row of r 8192 bytes ahead" in told


def test_without_panels_there_is_one_version() -> None:
    (function,) = functions(DENSE, (4, 5), (5, 6), (6,), target=Target("x86-64-v4"))
    (choice,) = function.body
    assert isinstance(choice, If)
    assert not any(isinstance(node, Assign) and node.streaming for node in walk_nodes(choice.otherwise))
    rests = {n.step for n in walk_nodes(choice.then) if isinstance(n, For) and n.kind == "vector" and not n.masked}
    assert rests == {16, 32}


def test_least_sizes_and_leads_bound_indices() -> None:
    (function,) = functions(RUNNING, (3, 4))
    (lead,) = function.leads
    ranges = outside(function)
    first = minimum([affine("K"), affine(lead.name) + 1])
    assert ranges.lowest(first) == 1
    assert ranges.highest(affine(lead.name)) == lead.bytes // 4 - 1
    assert ranges.highest(affine("K")) is None


@pytest.mark.parametrize("dtype", [pytest.param("f16", marks=pytest.mark.slow), "f32"])
def test_a_causal_mask(dtype: str) -> None:
    """Weights of half precision that are widened ahead of their product, which a copy in rows takes the place of."""
    f = polyml.einsum(CAUSAL.replace("f32", dtype), dynamic=True, threads=1)
    rng = np.random.default_rng(0)
    for queries, keys, width in ((10, 26, 3), (34, 9, 17)):
        q, k, v = (
            rng.standard_normal(s).astype({"f16": np.float16, "f32": np.float32}[dtype])
            for s in ((queries, width), (keys, width), (keys, width))
        )
        assert verify(CAUSAL.replace("f32", dtype), q, k, v, computed_by=f)


CAUSAL = """
def attention(q: f32["Q D"], k: f32["K D"], v: f32["K D"]):
    s[i, j] = q[i, d] * k[j, d]
    t[i, j] = where(j <= i, s[i, j], -inf)
    m[i] = max[j](t[i, j])
    e[i, j] = exp(t[i, j] - m[i])
    z[i] = e[i, j]
    y[i, d] = sum[j](e[i, j] * v[j, d]) / z[i]
    return y
"""
