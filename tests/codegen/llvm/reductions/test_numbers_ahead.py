"""Looks at the operands of minima and maxima ahead of their loops: where they stand, which loops rely on them, and that NaN and infinities come out as in NumPy."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest

import polyml as pm
from polyml.codegen.llvm.reductions.numbers_ahead import look_ahead
from polyml.codegen.loops import Allocate, Assign, For, Function
from polyml.codegen.rewrite import walk_nodes
from tests.codegen.llvm.reductions.test_extrema import AVX512, BEST_PATHS, SPOILERS

SMALL = pm.Target("host", l1_bytes=2048, l2_bytes=16 * 1024, cores=2)
"""This machine with caches so small that there are blocks, panels and tiles at test sizes."""

BLOCKS = pm.Target("host", l1_bytes=8192, l2_bytes=64 * 1024, cores=2)
"""The same for blocks of several steps."""

PATHS = """
def paths(p: f64["N N"]):
    for k in range(N):
        p[i, j] = min(p[i, j], p[i, k] + p[k, j])
    return p
"""

GAPS = """
def gaps(a: f32["N K"], b: f32["K M"]):
    c[i, j] = {op}[k](a[i, k] - b[k, j])
    return c
"""


def looked(text: str, *arguments: np.ndarray, **options: object) -> Function:
    """The only region's function with its looks."""
    (region,) = pm.einsum(text, **{"threads": 1, **options}).lower(*arguments).stages.regions
    return look_ahead(region.loops)


def flags(function: Function) -> Counter[str]:
    """How many flags there are for each array."""
    nodes = [n for n in walk_nodes(function.body) if isinstance(n, Allocate) and n.variable.dtype.name == "bool"]
    return Counter(n.variable.name.split("_numbers")[0] for n in nodes)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.some(2)
def test_products_with_nan_and_infinities(op: str, dynamic: bool) -> None:
    """Both operands are spoiled, at each end, so that a look that missed an element would show."""
    best = {"max": np.maximum, "min": np.minimum}[op]
    sums = pm.einsum(BEST_PATHS.format(op=op, dtype="f64"), target=SMALL, threads=1, dynamic=dynamic)
    gaps = pm.einsum(GAPS.format(op=op), target=SMALL, threads=1, dynamic=dynamic)
    rng = np.random.default_rng(3)
    for n, k, m in ((33, 50, 200), (40, 19, 97), (64, 1, 130))[:: 1 if dynamic else 2]:
        for name, spoil in SPOILERS.items():
            for which in ((0,), (1,), (0, 1)):
                a, b = rng.standard_normal((n, k)), rng.standard_normal((k, m))
                for index in which:
                    spoil((a, b)[index], rng)
                case = f"{name} in {which}: {n} {k} {m}"
                np.testing.assert_array_equal(sums(a, b), best.reduce(a[:, :, None] + b, axis=1), err_msg=case)
                if dynamic:
                    continue  # products of any size are compiled once, of f64
                a32, b32 = a.astype("f4"), b.astype("f4")
                np.testing.assert_array_equal(gaps(a32, b32), best.reduce(a32[:, :, None] - b32, axis=1), err_msg=case)


@cache
def least_paths() -> pm.Einsum:
    return pm.einsum(BEST_PATHS.format(op="min", dtype="f64"), target=SMALL, threads=1)


@pytest.mark.parametrize("place", range(0, 150 * 150, 1871))
@pytest.mark.few(10)
def test_one_spoiled_element_anywhere(place: int) -> None:
    """Of the many: each is looked at, in whole tiles and at the edges."""
    rng = np.random.default_rng(place)
    product = least_paths()
    for value in (np.nan, -np.inf):
        for which in (0, 1):
            pair = rng.standard_normal((2, 150, 150))
            pair[which].flat[place] = value
            pair[1 - which].flat[place % 149 :: 997] = np.inf
            with np.errstate(invalid="ignore"):
                expected = np.minimum.reduce(pair[0][:, :, None] + pair[1], axis=1)
            np.testing.assert_array_equal(product(*pair), expected)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_shortest_paths(threads: int) -> None:
    program = pm.einsum(PATHS, target=BLOCKS, threads=threads)
    rng = np.random.default_rng(7)
    for n in (97, 128):
        for name, spoil in SPOILERS.items():
            p = rng.integers(1, 1000, (n, n)).astype(float)
            spoil(p, rng)
            expected = p.copy()
            for k in range(n):
                expected = np.minimum(expected, expected[:, k, None] + expected[k])
            np.testing.assert_array_equal(program(p.copy()), expected, err_msg=f"{name}: {n}")


def test_arguments_are_looked_at_once_and_panels_when_they_are_made() -> None:
    function = looked(BEST_PATHS.format(op="min", dtype="f32"), *np.ones((2, 500, 500), np.float32), target=AVX512)
    found = flags(function)
    assert set(found) == {"a", "b_panels"}
    outermost = [n.variable.name for n in function.body if isinstance(n, Allocate)]
    assert any(name.startswith("a_numbers") for name in outermost), "nobody writes a"
    loops = [n for n in walk_nodes(function.body) if isinstance(n, For) and n.if_numbers]
    assert loops
    assert all({flag.split("_numbers")[0] for flag in loop.if_numbers} == {"a", "b_panels"} for loop in loops)
    # Single elements of a row of `a` have lanes along them.
    looks = [n for n in walk_nodes(function.body) if isinstance(n, For) and n.kind == "vector"]
    assert any(isinstance(n, Assign) and n.target.variable.startswith("a_numbers") for loop in looks for n in loop.body)


def test_what_is_written_there_is_not_looked_at_ahead() -> None:
    """Of shortest paths the rows and columns that were set aside are; the matrix itself changes as they are used."""
    for n in (97, 128):
        found = flags(looked(PATHS, np.ones((n, n)), target=BLOCKS))
        assert len(found) == 2
        assert "p" not in found


def test_rows_that_are_no_whole_tiles_are_looked_at_ahead() -> None:
    """A loop over the whole tiles of a strip of rows may have no iteration, and its end moves: the panel's elements are there all the same."""
    target = pm.Target("x86-64-v3", l1_bytes=8192, l2_bytes=64 * 1024, cores=2)
    function = looked(PATHS, np.ones((92, 92)), target=target)
    tiles = [n for n in walk_nodes(function.body) if isinstance(n, For) and n.kind == "sequential" and len(n.body) == 8]
    tiles = [n for n in tiles if all(isinstance(step, Assign) and step.reduction is None for step in n.body)]
    assert tiles
    assert all(n.if_numbers for n in tiles)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ('def f(a: f64["N K"]):\n    r[i] = max[k](a[i, k])\n    return r\n', [(500, 500)]),
        (
            'def f(a: f64["N K"], b: f64["K M"]):\n    c[i, j] = max[k](a[i, k] * b[k, j])\n    return c\n',
            [(300, 300)] * 2,
        ),
        (BEST_PATHS.format(op="min", dtype="i64"), [(300, 300)] * 2),
        (BEST_PATHS.format(op="min", dtype="f64"), [(300, 300), (300, 8)]),
    ],
    ids=["rows", "products", "integers", "few columns"],
)
def test_nothing_to_look_at(text: str, shapes: list[tuple[int, int]]) -> None:
    """Elements that are used once, candidates that may be NaN all the same (0 * inf), and what has no NaN."""
    dtype = np.int64 if "i64" in text else np.float64
    (region,) = pm.einsum(text, target=AVX512, threads=1).lower(*(np.ones(s, dtype) for s in shapes)).stages.regions
    assert look_ahead(region.loops) is region.loops
