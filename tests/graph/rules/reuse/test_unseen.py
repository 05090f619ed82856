"""Elements that nobody sees: fills that are overwritten in pieces go, sums over half a matrix start in that half, and nothing that is seen is lost."""

from __future__ import annotations

import dataclasses

import islpy as isl
import numpy as np
import pytest

import polyml
from polyml.dtypes import boolean, f64
from polyml.expressions import Const
from polyml.graph.builder.parts import fill
from polyml.graph.ir import Equation, Graph, Input, Tensor
from polyml.graph.rules.reuse.unseen import leave_unseen
from polyml.sets.affine import affine

MIRRORED = """
def f(x: f64["N M"]):
    c: f64["M M"] = 0
    if i <= j:
        c[i, j] = 2.0 * x[0, i] * x[0, j]
    if i > j:
        c[i, j] = c[j, i]
    return c
"""
SUMS = MIRRORED.replace("2.0 * x[0, i] * x[0, j]", "sum[k](x[k, i] * x[k, j]) / N")


def graph_of(source: str) -> str:
    return str(polyml.einsum(source).trace(np.ones((7, 20))))


def test_a_fill_without_an_element_left_is_gone() -> None:
    for source in (MIRRORED, SUMS):
        assert "] = 0 " not in graph_of(source)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("i > j", "i > j + 1"),  # a diagonal of zeros is left
        ("c[j, i]", "c[j, i] + c[i, j]"),  # zeros are read
        ("    if i > j:\n        c[i, j] = c[j, i]\n", ""),
    ],
)
def test_a_fill_that_is_seen_stays(old: str, new: str) -> None:
    assert "] = 0 " in graph_of(MIRRORED.replace(old, new))


def test_sums_start_where_they_are_read() -> None:
    target = polyml.Target("x86-64-v4")  # whose vectors are as long as lines
    text = polyml.einsum(SUMS, fusion=False, target=target).lower(np.ones((7, 20))).text("loops")
    assert "for (j = i;" in text.split("] = 0;")[0]


@pytest.mark.parametrize("source", [MIRRORED, SUMS])
@pytest.mark.parametrize("m", [1, 8, 37])
@pytest.mark.few(4)
def test_results(source: str, m: int) -> None:
    x = np.random.default_rng(0).random((5, m))
    whole = 2 * np.outer(x[0], x[0]) if source is MIRRORED else x.T @ x / 5
    np.testing.assert_allclose(polyml.einsum(source, threads=1)(x), whole, rtol=1e-12)


def test_what_is_left_of_a_fill() -> None:
    source = MIRRORED.replace("= 0", "= 7").replace("i > j", "i > j + 3")
    x = np.random.default_rng(0).random((5, 20))
    i, j = np.indices((20, 20))
    expected = np.where((i <= j) | (i > j + 3), 2 * np.outer(x[0], x[0]), 7)
    np.testing.assert_allclose(polyml.einsum(source, threads=1)(x), expected, rtol=1e-12)


def test_a_flag_is_seen() -> None:
    """What an equation is computed for at all is known where there is nothing to look at, too."""
    x, y = (Tensor(name, f64, (affine(3),), name) for name in "xy")
    flag = Tensor("flag", boolean, (), "flag")
    some = Equation(
        result=flag, indices=("k",), domain=isl.Set("{ flag[k] : 1 = 0 }"), target=(), body=Const(True, boolean),
        reduce="any", reduced=("k",), span=None,
    )  # fmt: skip
    changed = dataclasses.replace(fill(y, Const(1.0, f64), None), base=x, only_if=flag)
    graph = Graph(
        name="f", sizes=(), context=isl.Set("{ : }"), requires=(), examples={}, inputs=(Input(tensor=x, written=False, final=None),),
        ops=(some, changed), outputs=(y,), warnings=(),
    )  # fmt: skip
    assert leave_unseen(graph) is graph
