"""Flags of arrays whose writers look at what they write: which loops have them, and that NaN and infinities come out as in NumPy, wherever and whenever they come along."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import polyml as pm
from benchmarks.polybench import KERNELS
from polyml.codegen.llvm.reductions.numbers_ahead import look_ahead
from polyml.codegen.llvm.reductions.numbers_kept import keep_numbers
from polyml.codegen.loops import Allocate, Assign, For, Function, If
from polyml.codegen.rewrite import walk_nodes
from tests.codegen.llvm.reductions.test_extrema import BEST_PATHS
from tests.codegen.llvm.reductions.test_numbers_ahead import PATHS

SMALL = pm.Target("host", l1_bytes=1024, l2_bytes=4096, cores=2)
"""This machine with caches so small that there are tiles at test sizes."""

SPLITS = """
def splits(c: {dtype}["N N"], w: {dtype}["N"]):
    for i in range(N - 1, -1, -1):
        for j in range(i + 1, N):
            if i < j - 1:
                c[i, j] = w[j] + {op}[k, i < k < j](c[i, k] + c[k, j])
            else:
                c[i, j] = w[j]
    return c
"""


def kept(text: str, *arguments: object, **options: object) -> tuple[Function, Function]:
    """The only region's function, and the same with its flags."""
    (region,) = pm.einsum(text, **{"threads": 1, **options}).lower(*arguments).stages.regions
    ahead = look_ahead(region.loops)
    return ahead, keep_numbers(ahead)


def folded(bases: np.ndarray, table: np.ndarray) -> np.ndarray:
    """What PolyBench's foldings make of a table with NaN and infinities."""
    table, n = table.copy(), len(table)
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            pair = float(i < j - 1 and bases[i] + bases[j] == 3)
            below, corner = (table[i + 1, j], table[i + 1, j - 1]) if i + 1 < n else (-np.inf, -np.inf)
            best = np.maximum.reduce([table[i, j], table[i, j - 1], below, corner + pair])
            table[i, j] = np.maximum.reduce(table[i, i + 1 : j] + table[i + 2 : j + 1, j], initial=best)
    return table


def of_splits(c: np.ndarray, w: np.ndarray, best: np.ufunc) -> np.ndarray:
    c = c.copy()
    for i in range(len(c) - 1, -1, -1):
        for j in range(i + 1, len(c)):
            c[i, j] = w[j]
            if i < j - 1:
                c[i, j] += best.reduce(c[i, i + 1 : j] + c[i + 1 : j, j])
    return c


@pytest.mark.parametrize(
    "target", [pm.Target(name, l1_bytes=1024, l2_bytes=4096) for name in ("x86-64-v3", "x86-64-v4")]
)
@pytest.mark.few(1)
def test_who_writes_an_element_looks_at_it(target: pm.Target) -> None:
    function = keep_numbers(
        KERNELS["nussinov"]
        .program(target=target, threads=1)
        .lower(np.zeros(83), np.zeros((83, 83)))
        .stages.regions[0]
        .loops
    )
    nodes = list(walk_nodes(function.body))
    flags = [n.variable.name for n in nodes if isinstance(n, Allocate) and n.variable.dtype.name == "bool"]
    assert len(flags) == 1
    assert flags[0].startswith("table")
    loops = [n for n in nodes if isinstance(n, For) and n.if_numbers]
    assert loops
    assert all(loop.hopes and loop.if_numbers == (flags[0],) for loop in loops)
    clears = [
        n
        for n in nodes
        if isinstance(n, If) and any(isinstance(m, Assign) and m.target.variable == flags[0] for m in n.then)
    ]
    assert len(clears) >= 3, "both ways to finish an element, and what comes before them"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (BEST_PATHS.format(op="min", dtype="f64"), (np.ones((300, 300)), np.ones((300, 8)))),
        (PATHS, (np.ones((97, 97)),)),
        (SPLITS.format(op="max", dtype="i64"), (np.ones((83, 83), np.int64), np.ones(83, np.int64))),
        (SPLITS.format(op="sum", dtype="f64"), (np.ones((83, 83)), np.ones(83))),
    ],
    ids=["nobody writes", "vectors are written", "integers", "sums"],
)
@pytest.mark.few(3)
def test_nothing_to_keep(text: str, arguments: tuple[np.ndarray, ...]) -> None:
    ahead, found = kept(text, *arguments, target=SMALL)
    assert found is ahead


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("op", "dtype"), [("max", "f64"), ("min", "f64"), ("max", "f32")])
@pytest.mark.few(1)
def test_nan_and_infinities(op: str, dtype: str, threads: int) -> None:
    """They are there from the beginning, where they are read or not, or come along in the middle."""
    best = {"max": np.maximum, "min": np.minimum}[op]
    program = pm.einsum(SPLITS.format(op=op, dtype=dtype), target=SMALL, threads=threads)
    rng = np.random.default_rng(2)
    n = 83
    one_finite = np.linspace(0, 1, n)
    spoilers: dict[str, Callable[[np.ndarray, np.ndarray], None]] = {
        "nothing": lambda c, w: None,
        "the other half": lambda c, w: c.__setitem__(np.tril_indices(n), np.nan),
        "a row comes to be NaN": lambda c, w: w.__setitem__(n // 2, np.nan),
        "late": lambda c, w: w.__setitem__(-1, np.nan),
        "infinities": lambda c, w: w.__setitem__([5, 40, 70], [np.inf, -np.inf, np.inf]),
        "infinities of both signs meet": lambda c, w: w.__setitem__(slice(None), np.where(one_finite > 0.4, np.inf, -np.inf)),
    }  # fmt: skip
    for name, spoil in spoilers.items():
        c, w = (
            np.zeros((n, n), dtype="f8" if dtype == "f64" else "f4"),
            rng.integers(-9, 9, n).astype("f8" if dtype == "f64" else "f4"),
        )
        spoil(c, w)
        expected = of_splits(c, w, best)
        np.testing.assert_array_equal(program(c.copy(), w), expected, err_msg=name)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_foldings_of_spoiled_tables(threads: int) -> None:
    """A NaN of the table that is given wins wherever the element is taken; infinities make NaN where they meet."""
    kernel = KERNELS["nussinov"]
    program = kernel.program(target=SMALL, threads=threads)
    rng = np.random.default_rng(4)
    n = 67
    for value in (np.nan, np.inf, -np.inf):
        for at in ((0, 66), (30, 31), (33, 60), (60, 33), (66, 66)):
            bases, table = kernel.data({"N": n}, rng)
            table[at] = value
            table[20, 40] = -np.inf
            expected = folded(bases, table)
            np.testing.assert_array_equal(program(bases, table.copy()), expected, err_msg=f"{value} at {at}")
