"""Counts of what is below a number, by bisection of rows that ascend: the graphs, and all numbers that rows may have."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.graph.printer import graph_text
from polyml.graph.reference import execute
from polyml.graph.rewrite import rewrite
from polyml.graph.rules.table import RewriteOptions
from polyml.graph.verify import verify
from tests.graph.built import Array, graph, program

OPTIONS = RewriteOptions(vector_bytes=32)
COMPARISONS = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}


def is_bisected(head: str, count: str, *arrays: Array, result: str = "i[n]") -> bool:
    made = rewrite(graph(program(head, f"{result} = {count}", f"return {result[0]}"), *arrays), OPTIONS)
    verify(made)
    return "ascends" in graph_text(made)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 255, 257])
@pytest.mark.parametrize("order", ["<", ">="])
def test_every_count_is_found(monkeypatch: pytest.MonkeyPatch, length: int, order: str) -> None:
    monkeypatch.setattr("polyml.graph.rules.sums.sorted.STEP", 0)
    row = np.arange(length, dtype=np.int64)
    places = np.arange(-1, length + 17, dtype=np.int64)
    text = program('c: i64["K"], u: i64["N"]', f"i[n] = sum[k](where(c[k] {order} u[n], 1, 0))", "return i")
    made = rewrite(graph(text, row, places), OPTIONS)
    verify(made)
    assert ("ascends" in graph_text(made)) == (length > 1)
    expected = COMPARISONS[order](row, places[:, None]).sum(axis=1)
    np.testing.assert_array_equal(execute(made, [row, places])[0], expected)


@pytest.mark.parametrize(
    ("head", "count", "bisected"),
    [
        ('c: f64["K"], u: f64["N"]', "sum[k](where(c[k] < u[n], 1, 0))", True),
        ('c: f64["K"], u: f64["N"]', "sum[k](i32(u[n] >= c[k]))", True),
        ('c: f64["K"], u: f64["N"]', "sum[k](where(c[k] * 2 < u[n] + 1, 1.0, 0.0))", True),
        ('c: f64["K"], u: f64["N"]', "sum[k](where(c[k] == u[n], 1, 0))", False),
        ('c: f64["K"], u: f64["N"]', "sum[k](where(c[k] < u[n], 2, 0))", False),
        ('c: f64["K"], u: f64["N"]', "sum[k](where(c[k] < u[n] * k, 1, 0))", False),
        ('c: f64["K"], u: f64["N"]', "sum[k, k > 0](where(c[k] < u[n], 1, 0))", False),
    ],
)
def test_counts_in_rows_are_bisected(head: str, count: str, bisected: bool) -> None:
    assert is_bisected(head, count, np.zeros(1000), np.zeros(100)) == bisected


def test_short_rows_and_few_uses_are_counted() -> None:
    head, count = 'c: f64["K"], u: f64["N"]', "sum[k](where(c[k] < u[n], 1, 0))"
    assert not is_bisected(head, count, np.zeros(100), np.zeros(1000))
    assert not is_bisected(head, count, np.zeros(1000), np.zeros(3))


def rows(kind: str, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    values = rng.integers(-300, 300, 2000).astype(dtype)
    match kind:
        case "ascending":
            return np.sort(values)
        case "descending":
            return np.sort(values)[::-1].copy()
        case "infinite":
            found = np.sort(values)
            found[:3], found[-3:] = -np.inf, np.inf
            return found
        case "nan":
            found = np.sort(values)
            found[700] = np.nan
            return found
        case _:
            return values


@pytest.mark.parametrize("dtype", ["f4", pytest.param("i4", marks=pytest.mark.slow)])
def test_kernels_count_as_numpy_does(dtype: str) -> None:
    name = {"f4": "f32", "i4": "i32"}[dtype]
    lines = "".join(
        f"    {result}[n] = sum[k](where({comparison}, 1, 0))\n"
        for result, comparison in zip("ab", ("r[k] < u[n]", "u[n] <= r[k]"), strict=True)
    )
    f = polyml.einsum(f'def f(r: {name}["K"], u: {name}["N"]):\n{lines}    return a, b\n')
    u = rows("any", dtype)[:333]
    if dtype != "i4":
        u[:4] = np.nan, np.inf, -np.inf, -0.0
    assert "ascends" in f.lower(rows("any", dtype), u).text("plan")
    for kind in ("ascending", "descending", "any", *(("infinite", "nan") if dtype != "i4" else ())):
        row = rows(kind, dtype)
        r, t = row[None, :], u[:, None]
        expected = [(r < t).sum(1), (r >= t).sum(1)]
        for mine, numpys in zip(f(row, u), expected, strict=True):
            np.testing.assert_array_equal(mine, numpys, kind)


def test_rows_of_a_batch_and_strides() -> None:
    f = polyml.einsum("""
def f(c: f64["B K"], u: f64["B N"]):
    i: f64["B N"]
    i[b, n] = sum[k](where(c[b, k] <= u[b, n], 1.0, 0.0))
    return i
""")
    rng = np.random.default_rng(1)
    c, u = np.sort(rng.random((3, 2002)), axis=1)[:, ::2], rng.random((3, 77))
    assert "ascends" in f.lower(c, u).text("plan")
    expected = (c[:, None, :] <= u[:, :, None]).sum(2)
    np.testing.assert_array_equal(f(c, u), expected)
    c = c.copy()
    c[1, 5] = 2  # one of the rows does not ascend
    np.testing.assert_array_equal(f(c, u), (c[:, None, :] <= u[:, :, None]).sum(2))


@pytest.mark.parametrize(("row", "result"), [("i64", "i32"), ("f64", "f64"), ("f32", "i16")])
def test_counts_that_are_converted(row: str, result: str) -> None:
    """The sum is a tensor of its own then."""
    text = f'def f(c: {row}["K"], u: {row}["N"]):\n    y: {result}["N"]\n    y[n] = sum[k](where(c[k] <= u[n], 1, 0))\n    return y'
    c, u = np.arange(1200).astype(row.replace("f", "float").replace("i", "int")), np.arange(-3, 1220, 8)
    y = polyml.einsum(text)(c, u.astype(c.dtype))
    assert y.dtype == result.replace("f", "float").replace("i", "int")
    np.testing.assert_array_equal(y, np.clip(u + 1, 0, 1200))
