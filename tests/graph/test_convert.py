"""Operands converted once ahead of a contraction, and large sums of several products split: the graphs, and that nothing changes for small ones."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.einsum_frontend.syntax import Program
from polyml.graph.printer import graph_text
from polyml.graph.reference import execute
from polyml.graph.rewrite import rewrite
from polyml.graph.verify import verify
from tests.graph.built import graph, program


def text_of(made: object) -> list[str]:
    return [line.strip() for line in graph_text(made).splitlines()]  # type: ignore[arg-type]


def product(dtype: str) -> Program:
    return program(f'x: {dtype}["N K"], w: {dtype}["K M"]', "y[n, m] = x[n, k] * w[k, m]", "return y")


@pytest.mark.parametrize(
    ("dtype", "size", "ahead"), [("f16", 32, True), ("f16", 8, False), ("c64", 32, True), ("c64", 8, False)]
)
def test_operands_that_are_used_often_are_converted_once(dtype: str, size: int, ahead: bool) -> None:
    kind = np.dtype({"f16": "f2", "c64": "c8"}[dtype])
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, (size, size)).astype(kind) for _ in range(2))
    found = rewrite(graph(product(dtype), x, w))
    verify(found)
    names = {"f16": ("x_f32", "w_f32"), "c64": ("x_real", "x_imag", "w_real", "w_imag")}[dtype]
    assert all(any(line.startswith(f"{name}[") for line in text_of(found)) == ahead for name in names)
    np.testing.assert_array_equal(execute(found, [x, w])[0], x @ w)


def test_sums_of_products_are_split_when_no_cache_holds_them() -> None:
    x = np.arange(24 * 40).reshape(24, 40) % 7 - 3j
    x, w = x.astype("c8"), x.T.astype("c8")
    made = graph(product("c64"), x, w)
    assert not any("+=" in line for line in text_of(rewrite(made, cache=1 << 20)))
    split = rewrite(made, cache=1000)
    verify(split)
    assert sum("+=" in line for line in text_of(split)) == 2
    assert text_of(rewrite(made, cache=1000, precise=True)) == text_of(rewrite(made, precise=True))
    np.testing.assert_array_equal(execute(split, [x, w])[0], x @ w)


def test_a_large_complex_product() -> None:
    rng = np.random.default_rng(0)
    x, w = ((rng.standard_normal((150, 210)) + 1j * rng.standard_normal((150, 210))).astype("c16") for _ in range(2))
    for threads in (1, 2):
        y = polyml.einsum("ij,kj->ik", x, w.conj(), threads=threads)
        np.testing.assert_allclose(y, x @ w.conj().T, rtol=1e-12, atol=1e-10)
