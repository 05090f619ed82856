"""The lanes of several registers combined at once: as many results as there are registers, each in its place."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml as pm
from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.loops import Allocate, Node
from polyml.dtypes import from_numpy
from polyml.ops import REDUCTIONS
from tests.codegen.llvm.support import const, function_of, loop, read, run_each, store, variable, vector

TERMS = 11
"""No whole number of vectors."""

DTYPES = [np.float32, np.float64, np.int32, np.int64, np.int16]
REDUCED = {"sum": np.sum, "max": np.max, "prod": np.prod}


def rows_in_lanes(count: int, width: int, dtype: type, reduction: str, start: float) -> Node:
    """y[r] = start, combined with what lanes along k find of row r of x: the sums are finished one after the other, and stored from the last one to the first."""
    element = from_numpy(np.dtype(dtype))
    identity = REDUCTIONS[reduction].identity(element)
    assert identity is not None
    names = range(count)
    begin = [store(f"s{r}", (), const(start, element)) for r in names]
    begin += [store(f"p{r}", (), const(identity, element)) for r in names]
    step = [store(f"p{r}", (), read("x", element, r, "k"), reduction=reduction) for r in names]
    end = [store(f"s{r}", (), read(f"p{r}", element), reduction=reduction, across=True) for r in names]
    end += [store("y", (r,), read(f"s{r}", element)) for r in reversed(names)]
    body: tuple[Node, ...] = (*begin, vector("k", TERMS, width, *step), *end)
    for r in names:
        parts = variable(f"p{r}", element, scope="register", lanes=width)
        body = (
            Allocate(
                variable=variable(f"s{r}", element, scope="register"), body=(Allocate(variable=parts, body=body),)
            ),
        )
    return loop("once", 0, 1, *body)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", REDUCED)
@pytest.mark.few(4)
def test_each_register_gives_its_own_result(dtype: type, reduction: str) -> None:
    x = np.random.default_rng(0).integers(1, 4, (9, TERMS)).astype(dtype)
    shapes = [(count, width) for count in (1, 2, 3, 4, 5, 6, 7, 9) for width in (2, 4, 8, 16)]
    bodies = [[rows_in_lanes(count, width, dtype, reduction, 2)] for count, width in shapes]
    made = run_each(bodies, {"x": x, "y": np.zeros(9, dtype)})
    with np.errstate(over="ignore"):
        rows = np.concatenate([x, np.full((9, 1), 2, dtype)], axis=1)
        want = REDUCED[reduction](rows, axis=1).astype(dtype)
    for (count, width), out in zip(shapes, made, strict=True):
        np.testing.assert_array_equal(out["y"][:count], want[:count], err_msg=f"{count} registers of {width} lanes")
        assert not out["y"][count:].any()


def test_not_a_number_stays_in_its_row() -> None:
    x = np.ones((6, TERMS), np.float32)
    x[2, 3], x[4, 10] = np.nan, np.inf
    for reduction, want in (("sum", [13, 13, np.nan, 13, np.inf, 13]), ("max", [2, 2, np.nan, 2, np.inf, 2])):
        (out,) = run_each([[rows_in_lanes(6, 16, np.float32, reduction, 2)]], {"x": x, "y": np.zeros(6, np.float32)})
        np.testing.assert_array_equal(out["y"], np.array(want, np.float32))


def test_four_registers_share_their_last_steps() -> None:
    arrays = {"x": np.zeros((4, TERMS), np.float32), "y": np.zeros(4, np.float32)}
    text = emit_module([function_of([rows_in_lanes(4, 16, np.float32, "sum", 0)], arrays)])
    # Halves twice for each register, then two shuffles for each pair, and two for both: one register after the other would take 28 and four numbers' own.
    assert len(re.findall(r"= shufflevector", text)) <= 4 * 4 + 3 * 2 + 2


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(
    "sizes", [(3, 4, 48, 7), (2, 5, 11, 3), (2, 9, 4, 63), (1, 13, 12, 68), (2, 8, 7, 17), (3, 3, 3, 15)]
)
@pytest.mark.few(5)
def test_short_sums_of_few_rows(dtype: str, sizes: tuple[int, int, int, int]) -> None:
    batch, rows, columns, terms = sizes
    random = np.random.default_rng(0)
    x, y = random.standard_normal((batch, rows, terms)), random.standard_normal((batch, columns, terms))
    program = pm.einsum(
        f'def f(x: {dtype}["A B C"], y: {dtype}["A D C"]):\n    z[b, i, j] = x[b, i, k] * y[b, j, k]\n    return z\n'
    )
    kind = np.float32 if dtype == "f32" else np.float64
    x, y = x.astype(kind), y.astype(kind)
    want = x.astype(np.float64) @ y.astype(np.float64).swapaxes(1, 2)
    np.testing.assert_allclose(program(x, y), want, rtol=0, atol=(1e-4 if dtype == "f32" else 1e-12))
