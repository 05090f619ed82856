"""Products whose operands and results are laid out first: which are, in what order, and that the values are the same."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.graph.printer import graph_text
from polyml.graph.reference import execute
from polyml.graph.rewrite import rewrite
from polyml.graph.rules.layouts import laid_out
from polyml.graph.rules.table import RewriteOptions
from polyml.graph.verify import verify
from polyml.target import Target
from tests.codegen.llvm.support import guarded
from tests.graph.built import graph, program, values

SHORT = ("bgfae", "gecfd", "dcagb", {"a": 14, "b": 5, "c": 7, "d": 49, "e": 3, "f": 71, "g": 2})
"""Five lanes, in an operand whose indices are apart."""
AHEAD = ("geafb", "fdecg", "cgdab", {"a": 7, "b": 23, "c": 9, "d": 11, "e": 13, "f": 3, "g": 72})
"""One operand contiguous along the batch."""
IN_ROWS = ("gbac", "gdef", "decfab", {"a": 3, "b": 3, "c": 9, "d": 3, "e": 13, "f": 17, "g": 55})
"""Results whose rows are short."""
LAST = ("adef", "bdecf", "abcf", {"a": 70, "b": 26, "c": 57, "d": 5, "e": 12, "f": 3})
"""Lanes along the batch."""
ALONE = ("bij", "bjk", "ikb", {"b": 10, "i": 50, "j": 28, "k": 72})
"""Lanes along a row, none along the result's last index: each element would be stored alone."""
CASES = {"short": SHORT, "ahead": AHEAD, "in rows": IN_ROWS, "last": LAST, "alone": ALONE}
SMALL = Target("x86-64-v3", l1_bytes=4096, l2_bytes=32 * 1024, cores=2)


def text(left: str, right: str, out: str, dtype: str) -> tuple[str, str]:
    def shape(dims: str) -> str:
        return " ".join(dims.upper())

    line = f"z[{', '.join(out)}] = x[{', '.join(left)}] * y[{', '.join(right)}]"
    return f'x: {dtype}["{shape(left)}"], y: {dtype}["{shape(right)}"]', line


def arguments(left: str, right: str, sizes: dict[str, int], dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    kind = np.float32 if dtype == "f32" else np.float64
    return [rng.integers(-9, 10, [sizes[i] for i in dims]).astype(kind) for dims in (left, right)]


def laid(left: str, right: str, out: str, sizes: dict[str, int], **options: object) -> str:
    shapes = [tuple(sizes[i] for i in dims) for dims in (left, right)]
    parameters, line = text(left, right, out, "f64")
    operands = [values(*shape, dtype="f8") for shape in shapes]
    made = graph(program(parameters, line, "return z"), *operands)
    settings = {"l2_bytes": 1 << 20, "vector_bytes": 64, "vector_registers": 32} | options
    found = rewrite(made, RewriteOptions(**settings))  # type: ignore[arg-type]
    verify(found)
    np.testing.assert_allclose(execute(found, operands)[0], np.einsum(f"{left},{right}->{out}", *operands), atol=1e-9)
    return graph_text(found)


@pytest.mark.parametrize("case", CASES)
def test_indices_of_one_operand_become_neighbours(case: str) -> None:
    found = laid(*CASES[case])
    assert "_laid[" in found
    assert "_laid[" not in laid(*CASES[case], precise=True)


def test_what_lies_well_stays() -> None:
    assert "_laid" not in laid("ibj", "bkj", "ikb", {"b": 2, "i": 50, "j": 34, "k": 45})  # two in a line
    sizes = {"b": 6, "i": 40, "j": 40, "k": 40, "h": 5}
    for left, right, out in (
        ("bik", "bkj", "bij"),
        ("bihk", "bjhk", "bhij"),
        ("bhij", "bjhk", "bihk"),
        ("ki", "jk", "ij"),
    ):
        assert "_laid" not in laid(left, right, out, sizes)


def test_operands_that_would_come_again_from_farther_caches_are_laid_out() -> None:
    """Lanes along the batch, which both operands have last: a tile's rows share one operand only."""
    sizes = {"i": 40, "j": 10, "h": 4, "k": 64, "b": 8}
    assert "_laid" not in laid("ikb", "jkhb", "ijhb", sizes, l2_bytes=1 << 18)
    assert "x_laid[" in laid("ikb", "jkhb", "ijhb", sizes, l2_bytes=1 << 16)


def test_few_rows_and_what_is_no_product_stay() -> None:
    assert "_laid" not in laid("abc", "cd", "dba", {"a": 5, "b": 90, "c": 50, "d": 2})
    x, y = values(5, 90, 50, dtype="f8"), values(50, 30, dtype="f8")
    parameters = 'x: f64["A B C"], y: f64["C D"]'
    for line in ("z[d, b, a] = max[c](x[a, b, c] * y[c, d])", "z[d, b, a] = sum[c](x[a, b, c] * y[c, d] + 1)"):
        made = graph(program(parameters, line, "return z"), x, y)
        assert "_laid" not in graph_text(
            rewrite(made, RewriteOptions(l2_bytes=1 << 20, vector_bytes=32, vector_registers=16))
        )


@pytest.mark.parametrize(
    ("left", "right", "sizes", "exchanged"),
    [
        ("ki", "jk", {"i": 50, "j": 388, "k": 266}, True),
        ("ki", "jk", {"i": 25, "j": 361, "k": 658}, True),
        ("ik", "jk", {"i": 49, "j": 565, "k": 334}, True),
        ("ki", "jk", {"i": 7, "j": 233, "k": 301}, False),  # less than two vectors
        ("ki", "jk", {"i": 9, "j": 397, "k": 301}, True),
        ("ik", "jk", {"i": 24, "j": 100, "k": 50}, False),  # the result is no less than what would be transposed
        ("ik", "jk", {"i": 200, "j": 300, "k": 300}, False),  # many rows use each element that is
        ("ik", "kj", {"i": 49, "j": 565, "k": 334}, False),
    ],
)
def test_few_rows_exchange_their_roles_with_columns(
    left: str, right: str, sizes: dict[str, int], exchanged: bool
) -> None:
    """The large operand is broadcast from where it lies, not transposed: of 16 registers."""
    few = {"l2_bytes": 512 << 10, "vector_bytes": 32, "vector_registers": 16}
    assert ("z_laid" in laid(left, right, "ij", sizes, **few)) == exchanged


def test_of_layouts_that_cost_the_same_the_operand_is_read_from_end_to_end() -> None:
    """The rows of seven, d, b and a of them or d, a and b, cost the same, and so do copies to where they belong."""
    sizes = {"a": 25, "b": 43, "c": 7, "d": 39, "e": 35}
    x, y = arguments("dabe", "ec", sizes, "f32")
    parameters, line = text("dabe", "ec", "dcba", "f32")
    settings = RewriteOptions(l2_bytes=512 << 10, vector_bytes=32, vector_registers=16)
    assert "z_laid[d, a, b, c]" in graph_text(rewrite(graph(program(parameters, line, "return z"), x, y), settings))


def test_what_would_take_much_memory_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laid_out, "MOST_BYTES", 1024)
    assert "_laid" not in laid(*SHORT)


def test_operands_without_contiguous_rows_stay() -> None:
    assert "_laid" not in laid(*SHORT, strided=frozenset("x"))


# Elements are small integers: every sum is exact, in any order.
@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        (SMALL, "f32"),
        (Target("host"), "f64"),
        pytest.param(SMALL, "f64", marks=pytest.mark.slow),
        pytest.param(Target("host"), "f32", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.few(2)
def test_compiled_values(case: str, target: Target, dtype: str) -> None:
    left, right, out, sizes = CASES[case]
    parameters, line = text(left, right, out, dtype)
    x, y = arguments(left, right, sizes, dtype)
    threads = 2 if target is SMALL else 1
    function = polyml.einsum(f"def f({parameters}):\n    {line}\n    return z\n", target=target, threads=threads)
    assert target is not SMALL or dtype == "f64" or "_laid" in str(function.explain(x, y))
    expected = np.einsum(f"{left},{right}->{out}", x.astype(float), y.astype(float))
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), expected)


def test_what_follows_is_applied_to_the_result() -> None:
    left, right, out, sizes = SHORT
    parameters, line = text(left, right, out, "f32")
    x, y = arguments(left, right, sizes, "f32")
    source = f'def f({parameters}, w: f32["B"]):\n    {line}\n    r[{", ".join(out)}] = relu(z[{", ".join(out)}] - w[b])\n    return r\n'
    w = np.arange(5, dtype=np.float32)
    function = polyml.einsum(source, threads=1)
    expected = np.einsum(f"{left},{right}->{out}", x.astype(float), y.astype(float))
    np.testing.assert_array_equal(function(x, y, w), np.maximum(expected - w, 0))


FLAT = ("cde", "ecdab", "ba", {"a": 33, "b": 13, "c": 5, "d": 17, "e": 9})
"""A vector times a matrix, with indices in other orders."""
DOTS = ("dbc", "acdb", "a", {"a": 30, "b": 15, "c": 13, "d": 31})
FEW_ROWS = ("afde", "cedfb", "abc", {"a": 3, "b": 4, "c": 33, "d": 14, "e": 12, "f": 7})
STRIDED = ("adbc", "bcd", "ad", {"a": 24, "b": 31, "c": 22, "d": 9})
"""Dot products with columns of the small operand."""
ORDERED = {"flat": FLAT, "dots": DOTS, "few rows": FEW_ROWS, "strided": STRIDED}


@pytest.mark.parametrize("case", ORDERED)
@pytest.mark.few(2)
def test_a_large_operand_is_read_in_order(case: str) -> None:
    left, right, out, sizes = ORDERED[case]
    assert (
        f"_laid[{ {'flat': 'e, c, d', 'dots': 'c, d, b', 'few rows': 'a, e, d, f', 'strided': 'd, b, c'}[case] }]"
        in laid(*ORDERED[case])
    )
    for threads in (1, 2):
        parameters, line = text(left, right, out, "f32")
        x, y = arguments(left, right, sizes, "f32")
        function = polyml.einsum(f"def f({parameters}):\n    {line}\n    return z\n", target=SMALL, threads=threads)
        assert "joined" in str(function.explain(x, y))
        expected = np.einsum(f"{left},{right}->{out}", x.astype(float), y.astype(float))
        np.testing.assert_array_equal(function(guarded(x), guarded(y)), expected)


@pytest.mark.parametrize(("inner", "made"), [(5, "z_laid"), (12, "z_turned")])
def test_few_rows_are_turned_from_rows_of_whole_vectors(inner: int, made: str) -> None:
    """Shorter ones are parts of the operand's whole order."""
    sizes = {"a": 11, "b": 29, "c": 58, "d": 5, "e": inner, "f": 16}
    parameters, line = text("afbce", "df", "edcba", "f32")
    target = Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024, cores=1)
    function = polyml.einsum(f"def f({parameters}):\n    {line}\n    return z\n", target=target, threads=1)
    assert f"{made}[" in str(function.trace(*arguments("afbce", "df", sizes, "f32")))


def test_orders_in_which_nothing_is_joined_stay() -> None:
    assert "_laid" not in laid("cdaeb", "de", "cab", {"a": 8, "b": 66, "c": 12, "d": 15, "e": 5})


def test_results_are_turned_only_where_a_cache_holds_what_each_block_meets() -> None:
    sizes = {"a": 40, "b": 24, "c": 18, "d": 20}
    assert "_turned[" in laid("adb", "cd", "cba", sizes, l2_bytes=16 * 1024)
    assert "_turned[" not in laid("adb", "cd", "cba", {**sizes, "c": 450}, l2_bytes=16 * 1024)


@pytest.mark.parametrize(
    ("y", "x", "w"),
    [("j, b, i", "k, i, b", "j, k, b"), ("i, j, b", "i, k, b", "j, k"), ("j, i, b", "i, k", "k, b, j")],
)
def test_a_sum_over_what_no_operand_has_adds_the_same_again(y: str, x: str, w: str) -> None:
    """(Such an index was dropped with the layout.)"""
    extents = {"i": 54, "j": 34, "k": 72, "b": 4}
    rng = np.random.default_rng(0)
    given = [rng.integers(-3, 4, [extents[i] for i in names.split(", ")]).astype(np.float32) for names in (x, w)]
    kinds = [f'f32["{names.replace(",", "").upper()}"]' for names in (x, w)]
    text = (
        f"def f(x: {kinds[0]}, w: {kinds[1]}):\n    y[{y}] = sum[t, 0 <= t, t < 3, k](x[{x}] * w[{w}])\n    return y\n"
    )
    subscripts = f"{x},{w}->{y}".replace(", ", "").replace(" ", "")
    np.testing.assert_array_equal(polyml.einsum(text, threads=1)(*given), 3 * np.einsum(subscripts, *given))


@pytest.mark.parametrize(
    "right", ["debac", "debca"]
)  # the last index of the result is far from the end of the operand's order
def test_a_result_that_would_cross_a_large_operand_is_laid_out_alone(right: str) -> None:
    sizes = {"a": 9, "b": 11, "c": 14, "d": 2, "e": 13}
    near = {"l2_bytes": 32 * 1024, "vector_bytes": 32, "vector_registers": 16}
    assert f"z_laid[{', '.join(right[1:])}]" in laid("de", right, "cabe", sizes, **near)
    assert "_laid" not in laid("de", right, "cabe", sizes, **{**near, "l2_bytes": 1 << 20})  # L2 holds the operand
    assert "_laid" not in laid("de", right, "cabe", {**sizes, "d": 1, "c": 28}, **near)  # a result as large as it
    parameters, line = text("de", right, "cabe", "f32")
    x, y = arguments("de", right, sizes, "f32")
    function = polyml.einsum(f"def f({parameters}):\n    {line}\n    return z\n", target=SMALL, threads=2)
    expected = np.einsum(f"de,{right}->cabe", x.astype(float), y.astype(float))
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), expected)
