"""Operands converted once ahead of a contraction, and large sums of several products split: the graphs, and that nothing changes for small ones."""

from __future__ import annotations

from typing import Any

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
from tests.pairs import pairwise


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
    y = polyml.einsum("ij,kj->ik", x, w.conj(), threads=2)
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


GIVEN = RewriteOptions(vector_bytes=32, l2_bytes=1 << 19)

CENTRED = program('x: f32["N D"], m: f32["D"]', "c[i, j] = sum[n]((x[n, i] - m[i]) * (x[n, j] - m[j]))", "return c")
BOTH_SHIFTED = program(
    'a: f32["I K"], b: f32["K"], c: f32["K J"], d: f32["J"]',
    "y[i, j] = sum[k]((a[i, k] + b[k]) * (c[k, j] - d[j]))", "return y",
)  # fmt: skip
CLIPPED = program('a: f32["I K"], c: f32["K J"]', "y[i, j] = sum[k](max(a[i, k], 0) * c[k, j])", "return y")
ABOVE = program(
    'a: f32["I K"], t: f32["I"], c: f32["K J"]',
    "y[i, j] = sum[k](where(a[i, k] > t[i], a[i, k] - t[i], 0) * c[k, j])", "return y",
)  # fmt: skip
COUNTED = program('a: f32["I K"], t: f32["K"], c: f32["K J"]', "y[i, j] = sum[k](f32(a[i, k] > t[k]) * c[k, j])", "return y")  # fmt: skip
WIDEST = program(
    'a: f32["I K"], b: f32["K"], c: f32["K J"]', "y[i, j] = max[k]((a[i, k] - b[k]) + c[k, j])", "return y"
)
APART = program(
    'a: f32["I K"], s: f32["K"], c: f32["J K"]', "y[i, j] = sum[k](abs(a[i, k] * s[k] - c[j, k] * s[k]))", "return y"
)
BATCHED = program('x: f32["B N D"], m: f32["B D"]', "c[b, i, j] = sum[n]((x[b, n, i] - m[b, i]) * (x[b, n, j] - m[b, j]))", "return c")  # fmt: skip
OUTER = program('t: f32["I"], s: f32["K"], v: f32["K J"]', "y[i, j] = sum[k](exp(-abs(t[i] - s[k])) * v[k, j])", "return y")  # fmt: skip
WINDOWED = program(
    'x: f32["C H"], f: f32["O C R"]', "y[o, h] = sum[c, r](max(x[c, h + r], 0) * f[o, c, r])", "return y"
)


@pytest.mark.parametrize(
    ("made", "shapes", "ahead"),
    [
        (CENTRED, ((40, 24), (24,)), ["= x[i0, i1] - m[i1]"]),
        (BOTH_SHIFTED, ((24, 40), (40,), (40, 33), (33,)), ["= a[i0, i1] + b[i1]", "= c[i0, i1] - d[i1]"]),
        (CLIPPED, ((24, 40), (40, 33)), ["= max(a[i0, i1], 0)"]),
        (ABOVE, ((24, 40), (24,), (40, 33)), ["a[i0, i1] - t[i0]"]),
        (COUNTED, ((24, 40), (40,), (40, 33)), ["a[i0, i1] > t[i1]"]),
        (WIDEST, ((24, 40), (40,), (40, 33)), ["= a[i0, i1] - b[i1]"]),
        (APART, ((24, 40), (40,), (33, 40)), ["= a[i0, i1] * s[i1]", "= c[i0, i1] * s[i1]"]),
        (BATCHED, ((3, 40, 24), (3, 24)), ["= x[i0, i1, i2] - m[i0, i2]"]),
        (OUTER, ((24,), (40,), (40, 33)), ["= exp(-abs(t[i0] - s[i1]))"]),
        (WINDOWED, ((5, 50), (20, 5, 7)), ["= max(x[i0, i1], 0)"]),
    ],
    ids=("centred", "both", "clipped", "above", "counted", "widest", "apart", "batched", "outer", "windowed"),
)
def test_cheap_arithmetic_between_a_sum_and_its_operands_goes_ahead(
    made: Program, shapes: tuple[tuple[int, ...], ...], ahead: list[str]
) -> None:
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    found = rewrite(graph(made, *given), GIVEN)
    verify(found)
    lines = text_of(found)
    for text in ahead:
        assert sum(text in line and "sum" not in line for line in lines) == 1, lines
    for mine, expected in zip(execute(found, given), execute(graph(made, *given), given), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)
    few = [a[tuple(slice(0, 7) for _ in a.shape)] for a in given]
    lines = text_of(rewrite(graph(made, *few), GIVEN))
    assert not any(text in line and "sum" not in line for line in lines for text in ahead), lines


@pytest.mark.parametrize(
    ("made", "shapes"),
    [
        # A matrix that is read once comes from memory meanwhile.
        (program('a: f32["I K"], x: f32["K"], m: f32["K"]', "y[i] = sum[k](a[i, k] * (x[k] - m[k]))", "return y"), ((40, 40), (40,), (40,))),
        # Which factors are multiplied first is for others to say.
        (program('a: f32["I K"], b: f32["K L"], c: f32["L J"]', "y[i, j] = sum[k, l](a[i, k] * b[k, l] * c[l, j])", "return y"), ((20, 20), (20, 20), (20, 20))),
        # All indices are in it.
        (program('a: f32["I K"], c: f32["K J"]', "y[i, j] = sum[k](abs(a[i, k] - c[k, j]))", "return y"), ((40, 40), (40, 40))),
        # Three forms of an element, of which each would be an operand.
        (program('a: f32["I K"], c: f32["J K"]', "y[i, j] = sum[k](max(a[i, k], 0) * c[j, k] + abs(a[i, k]) * c[j, k] - a[i, k])", "return y"), ((40, 40), (40, 40))),
        # Nothing but another form of the number.
        (program('a: i32["I K"], c: f32["K J"]', "y[i, j] = sum[k](f32(a[i, k]) * c[k, j])", "return y"), ((40, 40), (40, 40))),
        # By indices: there is no operand that it belongs to.
        (program('a: f32["I K"], c: f32["K J"]', "y[i, j] = sum[k](where(k < i, a[i, k], 0) * c[k, j])", "return y"), ((40, 40), (40, 40))),
    ],
    ids=("streamed", "chain", "all", "forms", "cast", "indices"),
)  # fmt: skip
def test_other_cheap_arithmetic_stays(made: Program, shapes: tuple[tuple[int, ...], ...]) -> None:
    rng = np.random.default_rng(0)
    given = [
        rng.integers(0, 9, shape).astype("i4" if "i32" in str(item) else "f4")
        for shape, item in zip(shapes, made.parameters, strict=True)
    ]
    assert not any("[i0" in line for line in text_of(rewrite(graph(made, *given), GIVEN)))


def test_what_is_cheap_is_read_by_nobody_else() -> None:
    """An elementwise result that has the same arithmetic keeps its own: it would read one tensor more."""
    made = program(
        'x: f32["N D"], m: f32["D"]', "c[i, j] = sum[n]((x[n, i] - m[i]) * (x[n, j] - m[j]))", "y[n, i] = x[n, i] - m[i]", "return c, y"
    )  # fmt: skip
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((40, 24), dtype=np.float32), rng.standard_normal(24, dtype=np.float32)]
    found = rewrite(graph(made, *given), GIVEN)
    verify(found)
    for mine, expected in zip(execute(found, given), execute(graph(made, *given), given), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)


CASES = {
    "covariance": (
        'def f(x: {0}["N D"]):\n    m[d] = sum[n](x[n, d]) / N\n    c[i, j] = sum[n]((x[n, i] - m[i]) * (x[n, j] - m[j]))\n    return c\n',
        lambda x: (x - x.mean(0)).T @ (x - x.mean(0)),
        ("ND",),
    ),
    "correlation": (
        'def f(x: {0}["N D"], m: {0}["D"], s: {0}["D"]):\n    c[i, j] = sum[n](((x[n, i] - m[i]) / s[i]) * ((x[n, j] - m[j]) / s[j]))\n    return c\n',
        lambda x, m, s: ((x - m) / s).T @ ((x - m) / s),
        ("ND", "D", "D"),
    ),
    "weighted": (
        'def f(x: {0}["N D"], w: {0}["N"], m: {0}["D"]):\n    c[i, j] = sum[n](w[n] * (x[n, i] - m[i]) * (x[n, j] - m[j]))\n    return c\n',
        lambda x, w, m: ((x - m) * w[:, None]).T @ (x - m),
        ("ND", "N", "D"),
    ),
    "shifted": (
        'def f(a: {0}["N D"], b: {0}["D"], c: {0}["D E"], d: {0}["E"]):\n    y[i, j] = sum[k]((a[i, k] + b[k]) * (c[k, j] - d[j]))\n    return y\n',
        lambda a, b, c, d: (a + b) @ (c - d),
        ("ND", "D", "DE", "E"),
    ),
    "widest": (
        'def f(a: {0}["N D"], b: {0}["D"], c: {0}["D E"]):\n    y[i, j] = max[k]((a[i, k] - b[k]) + c[k, j])\n    return y\n',
        lambda a, b, c: ((a - b)[:, :, None] + c).max(1),
        ("ND", "D", "DE"),
    ),
    "batched": (
        'def f(x: {0}["B N D"], m: {0}["B D"]):\n    c[b, i, j] = sum[n]((x[b, n, i] - m[b, i]) * (x[b, n, j] - m[b, j]))\n    return c\n',
        lambda x, m: (x - m[:, None]).transpose(0, 2, 1) @ (x - m[:, None]),
        ("BND", "BD"),
    ),
    "kernel": (
        'def f(t: {0}["N"], s: {0}["D"], v: {0}["D E"]):\n    y[i, j] = sum[k](exp(-(t[i] - s[k]) ** 2) * v[k, j])\n    return y\n',
        lambda t, s, v: np.exp(-((t[:, None] - s) ** 2)) @ v,
        ("N", "D", "DE"),
    ),
}  # fmt: skip


@pairwise(
    ("name", CASES),
    ("dtype", ["f32", "f64"]),
    ("sizes", [{"B": 3, "N": 130, "D": 71, "E": 37}, {"B": 1, "N": 600, "D": 20, "E": 64}, {"B": 2, "N": 33, "D": 1, "E": 1}, {"B": 2, "N": 0, "D": 40, "E": 3}]),
    ("options", [{"threads": 1}, {"threads": 2}, {"threads": 1, "dynamic": True}, {"threads": 1, "precise": True}]),
    ("strided", [False, True]),
)  # fmt: skip
@pytest.mark.few(4)
def test_compiled(name: str, dtype: str, sizes: dict[str, int], options: dict[str, Any], strided: bool) -> None:
    text, reference, shapes = CASES[name]
    if not sizes["N"] and name in ("covariance", "widest"):
        sizes = {**sizes, "N": 5}
    rng = np.random.default_rng(7)
    kind = "f4" if dtype == "f32" else "f8"
    given = []
    for shape in shapes:
        extents = [sizes[c] for c in shape]
        a = rng.standard_normal([2 * e for e in extents] if strided else extents).astype(kind) + 2
        given.append(a[tuple(slice(None, None, 2) for _ in extents)] if strided else a)
    found = polyml.einsum(text.format(dtype), **options)(*given)
    expected = reference(*(a.astype("f8") for a in given))
    scale = max(float(np.abs(expected).max(initial=0)), 1.0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=scale * (1e-5 if dtype == "f32" else 1e-13))
