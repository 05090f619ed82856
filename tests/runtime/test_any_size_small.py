"""Products of any size whose operands caches hold: which version runs, what it packs, and the right result on all sides of its limits."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import Allocate, Function, If, Node, Prefetch
from polyml.codegen.rewrite import walk_nodes
from polyml.schedule.large_enough import holds
from polyml.schedule.schedule import Product
from polyml.sets.affine import affine
from polyml.target import Target

SMALL_CACHES = Target("host", l1_bytes=8 << 10, l2_bytes=16 << 10)
"""This machine, with caches that small tests outgrow."""

AVX2 = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)

KINDS = {"nn": ("N K", "K M"), "nt": ("N K", "M K"), "tn": ("K N", "K M"), "tt": ("K N", "M K")}
"""Shapes of both operands of y[n, m], by what is transposed."""


def program(kind: str, dtype: str, target: Target) -> polyml.Function:
    x, w = KINDS[kind]
    reads = f"x[{', '.join(x.lower().split())}] * w[{', '.join(w.lower().split())}]"
    text = f'def f(x: {dtype}["{x}"], w: {dtype}["{w}"]):\n    y[n, m] = {reads}\n    return y\n'
    return polyml.einsum(text, dynamic=("N", "M", "K"), target=target, threads=1)


def arguments(kind: str, dtype: str, **sizes: int) -> list[np.ndarray]:
    rng = np.random.default_rng(prod(sizes.values()))
    return [rng.integers(-4, 5, [sizes[i] for i in shape.split()]).astype(dtype) for shape in KINDS[kind]]


def panels(nodes: tuple[Node, ...]) -> set[str]:
    """Of which operands there are copies."""
    found = {n.variable.name for n in walk_nodes(nodes) if isinstance(n, Allocate) and n.variable.scope == "local"}
    return {name[0] for name in found if "panels" in name}


def last_version(function: Function) -> tuple[Node, ...]:
    """What runs where no version's conditions hold."""
    nodes = function.body
    while len(nodes) == 1 and isinstance(nodes[0], If):
        nodes = nodes[0].otherwise
    return nodes


@pytest.mark.parametrize(("kind", "dtype"), [*product(KINDS, ("f32", "f64"))])
@pytest.mark.few(1)
def test_all_sizes_have_the_right_result(kind: str, dtype: str) -> None:
    made = program(kind, dtype, SMALL_CACHES)
    for n, m, k in ((70, 64, 80), *product((1, 4, 5, 17, 48), (1, 7, 33, 64), (1, 3, 16, 45)), (0, 3, 4), (600, 5, 9)):
        x, w = arguments(kind, {"f32": "float32", "f64": "float64"}[dtype], N=n, M=m, K=k)
        expected = (x.T if kind[0] == "t" else x) @ (w.T if kind[1] == "t" else w)
        np.testing.assert_array_equal(made(x, w), expected)


@pytest.mark.parametrize("kind", ["nn", "tn"])
@pytest.mark.few(1)
def test_what_caches_hold_is_neither_packed_nor_asked_for(kind: str) -> None:
    lowered = program(kind, "f32", AVX2).lower(*arguments(kind, "float32", N=40, M=50, K=60))
    (region,) = lowered.stages.regions
    small = last_version(region.loops)
    assert not panels(small)
    assert not any(isinstance(node, Prefetch) for node in walk_nodes(small))
    assert "w" in panels(region.loops.body)


def test_rows_along_the_sum_are_packed_for_no_call() -> None:
    """How far they lie apart is no number, so that they do not count as pages apart."""
    lowered = program("nt", "f32", AVX2).lower(*arguments("nt", "float32", N=40, M=50, K=60))
    assert panels(lowered.stages.regions[0].loops.body) == {"w"}


def test_sizes_at_hand_that_are_small_have_no_version_of_their_own() -> None:
    notes = program("nn", "f32", AVX2).lower(*arguments("nn", "float32", N=101, M=103, K=99)).explain()
    assert "at hand" not in notes


def test_limits_of_a_product() -> None:
    n, m = affine("N"), affine("M")
    assert holds(Product((n, m), 6, 12, multiple=3), {"N": 3, "M": 4})
    assert not holds(Product((n, m), 6, 11), {"N": 3, "M": 4})
    assert not holds(Product((n,), no_multiple=8), {"N": 16})
    assert holds(Product((n,), no_multiple=8), {"N": 17})
