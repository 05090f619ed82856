"""Operands converted once ahead of a contraction, and large sums of several products split: the graphs, and that nothing changes for small ones."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.dtypes import DTYPES
from polyml.einsum_frontend.syntax import Program
from polyml.graph.printer import graph_text
from polyml.graph.reference import execute
from polyml.graph.rewrite import rewrite
from polyml.graph.rules.table import RewriteOptions
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


@pytest.mark.parametrize(
    ("dtype", "weight", "ahead"),
    [
        ("u8", "f32(w[m, k])", "w_f32[i0, i1] = f32(w[i0, i1])"),
        ("bool", "f32(w[m, k])", "w_f32[i0, i1] = f32(w[i0, i1])"),
        ("i16", "(f32(w[m, k]) - z[m])", "= f32(w[i0, i1]) - z[i0]"),
        ("i8", "((f32(w[m, k]) - z[m]) * s[m])", "= f32(w[i0, i1]) - z[i0]"),
        ("i32", "f32(w[m, k])", ""),
    ],
)
def test_short_numbers_that_are_used_often_are_converted_once(dtype: str, weight: str, ahead: str) -> None:
    """Along the sum from 16 uses on, across it from 64 on: whole vectors of them are converted well as they are packed or used."""
    head = f'x: f32["N K"], w: {dtype}["M K"], z: f32["M"], s: f32["M"]'
    along = program(head, f"y[n, m] = x[n, k] * {weight}", "return y")
    across = program(
        head.replace("M K", "K M"), f"y[n, m] = x[n, k] * {weight.replace('[m, k]', '[k, m]')}", "return y"
    )
    rng = np.random.default_rng(0)
    for made, uses in ((along, 16), (across, 64)):
        for rows in (uses - 1, uses):
            shape = (20, 40) if made is along else (40, 20)
            w = rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(DTYPES[dtype].numpy)
            given = [rng.integers(-3, 4, s).astype("f4") for s in ((rows, 40), (20,), (20,))]
            given.insert(1, w)
            found = rewrite(graph(made, *given))
            verify(found)
            found_ahead = [line for line in text_of(found) if "f32(w[" in line and "x[" not in line]
            assert bool(found_ahead) == (bool(ahead) and rows == uses), text_of(found)
            if made is along:
                assert all(ahead in line for line in found_ahead)
            np.testing.assert_allclose(execute(found, given)[0], execute(graph(made, *given), given)[0], rtol=1e-5)


def test_sums_of_products_are_split_when_no_cache_holds_them() -> None:
    x = np.arange(24 * 40).reshape(24, 40) % 7 - 3j
    x, w = x.astype("c8"), x.T.astype("c8")
    made = graph(product("c64"), x, w)
    assert not any("+=" in line for line in text_of(rewrite(made, RewriteOptions(l2_bytes=1 << 20))))
    split = rewrite(made, RewriteOptions(l2_bytes=1000))
    verify(split)
    assert sum("+=" in line for line in text_of(split)) == 2
    assert text_of(rewrite(made, RewriteOptions(l2_bytes=1000, precise=True))) == text_of(
        rewrite(made, RewriteOptions(precise=True))
    )
    np.testing.assert_array_equal(execute(split, [x, w])[0], x @ w)


def test_a_large_complex_product() -> None:
    rng = np.random.default_rng(0)
    x, w = ((rng.standard_normal((150, 210)) + 1j * rng.standard_normal((150, 210))).astype("c16") for _ in range(2))
    for threads in (1, 2):
        y = polyml.einsum("ij,kj->ik", x, w.conj(), threads=threads)
        np.testing.assert_allclose(y, x @ w.conj().T, rtol=1e-12, atol=1e-10)


WEIGHTED = program(
    'k: f32["S D"], v: f32["S E"]', "m[d, e] = exp(k[s, d]) * v[s, e]", "z[d] = sum[s](exp(k[s, d]))", "return m, z"
)
SHIFTED = program(
    'k: f32["S D"], c: f32["D"], v: f32["S E"]', "m[d, e] = sum[s](v[s, e] / (1 + exp(c[d] - k[s, d])))", "return m"
)  # fmt: skip
WINDOWS = program('x: f32["H"], f: f32["O R"]', "y[o, h] = sum[r](tanh(x[h + r]) * f[o, r])", "return y")


@pytest.mark.parametrize(
    ("made", "shapes", "ahead"),
    [
        (WEIGHTED, ((40, 24), (40, 33)), "k_exp[i0, i1] = exp(k[i0, i1])"),
        (SHIFTED, ((40, 24), (24,), (40, 33)), "= 1 + exp(c[i1] - k[i0, i1])"),
        (WINDOWS, ((50,), (20, 7)), "x_tanh[i0] = tanh(x[i0])"),
    ],
    ids=("weighted", "shifted", "windows"),
)
def test_functions_of_operands_that_are_used_often_are_computed_once(
    made: Program, shapes: tuple[tuple[int, ...], ...], ahead: str
) -> None:
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    found = rewrite(graph(made, *given))
    verify(found)
    lines = text_of(found)
    assert sum(ahead in line for line in lines) == 1, lines
    assert sum(f"{function}(" in line for line in lines for function in ("exp", "tanh")) == 1, lines
    for mine, expected in zip(execute(found, given), execute(graph(made, *given), given), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)
    few = [a[tuple(slice(0, 7) for _ in a.shape)] for a in given]
    assert not any(ahead in line for line in text_of(rewrite(graph(made, *few))))


def test_what_is_not_computed_for_each_element_stays() -> None:
    """Rows that are gathered: not all of them, and some of them often."""
    gathered = program(
        'k: f32["S D"], i: i32["S"], v: f32["S E"]', "m[d, e] = sum[s](exp(k[i[s], d]) * v[s, e])", "return m"
    )
    rng = np.random.default_rng(0)
    k, v = (rng.standard_normal((40, n), dtype=np.float32) for n in (24, 33))
    index = rng.integers(0, 40, 40).astype("i4")
    assert not any("k_exp" in line for line in text_of(rewrite(graph(gathered, k, index, v))))


def test_a_contraction_is_not_tied_to_the_slices_of_what_it_reads() -> None:
    """Exponentials of 8 x 512 KB by batches would stay in L2, but the product by them wants blocks of its own."""
    function = polyml.einsum(
        'def f(k: f32["B S D"], v: f32["B S E"]):\n    m[b, d, e] = exp(k[b, s, d]) * v[b, s, e]\n    return m\n',
        target=polyml.Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=2 << 20, cores=2),
    )
    k = np.zeros((8, 2048, 64), np.float32)
    assert "blocking: S_m" in str(function.explain(k, k))


GATES = program(
    'g: f64["T I"], v: f64["T J"]',
    's: f64["I J"] = 0',
    "for t in range(T):",
    "    s[i, j] = sigmoid(g[t, i]) * s[i, j] + v[t, j]",
    "return s",
)
NESTED = program(
    'g: f64["A T I"], v: f64["J"]',
    's: f64["I J"] = 0',
    "for a in range(A):",
    "    for t in range(T):",
    "        s[i, j] = exp(g[a, t, i]) * s[i, j] + v[j]",
    "return s",
)
OWN = program(
    'g: f64["T I"], v: f64["T J"]',
    's: f64["I J"] = 0',
    'r: f64["I"] = 1',
    "for t in range(T):",
    "    r[i] = 0.5 * r[i] + g[t, i]",
    "    s[i, j] = sigmoid(r[i]) * s[i, j] + v[t, j]",
    "return s",
)
CORNER = program(
    'g: f64["T I"], v: f64["T J"]',
    's: f64["I J"] = 0',
    "for t in range(3):",
    "    s[i, j] = sigmoid(g[t, i]) * s[i, j] + v[t, j]",
    "return s",
)


@pytest.mark.parametrize(
    ("made", "shapes", "ahead"),
    [
        (GATES, ((12, 7), (12, 20)), "g_sigmoid[i0, i1] = sigmoid(g[i0, i1])"),
        (GATES, ((12, 7), (12, 5)), ""),
        (NESTED, ((3, 12, 7), (20,)), "g_exp[i0, i1, i2] = exp(g[i0, i1, i2])"),
        (OWN, ((12, 7), (12, 20)), ""),
        (CORNER, ((12, 7), (12, 20)), ""),
    ],
    ids=("gates", "used rarely", "nested", "made in the loop", "three of twelve steps"),
)
def test_functions_of_what_a_loop_comes_to_are_computed_for_all_steps(
    made: Program, shapes: tuple[tuple[int, ...], ...], ahead: str
) -> None:
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(shape) for shape in shapes]
    found = rewrite(graph(made, *given))
    verify(found)
    text = graph_text(found)
    loop = text.index("    for ", text.index("\n    for "))
    assert ("_sigmoid" in text or "_exp" in text) == bool(ahead), text
    assert ahead in text[:loop]
    assert ("sigmoid(" in text[loop:] or " exp(" in text[loop:]) != bool(ahead)
    np.testing.assert_array_equal(execute(found, given)[0], execute(graph(made, *given), given)[0])
