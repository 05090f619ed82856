"""Products that what reads them lays out in another order: the programs are what one statement would be, and the values are the same."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import polyml
from polyml.graph.printer import graph_text
from polyml.graph.reference import execute
from polyml.graph.rewrite import rewrite
from polyml.graph.rules.table import RewriteOptions
from polyml.graph.verify import verify
from polyml.target import Target
from tests.codegen.llvm.support import guarded
from tests.graph.built import graph, program, values
from tests.pairs import pairwise

PARAMETERS = 'x: f64["A D B"], w: f64["C D"], v: f64["C"]'
SMALL = Target("x86-64-v3", l1_bytes=4096, l2_bytes=32 * 1024, cores=2)
SIZES = {"a": 7, "b": 9, "c": 5, "d": 6}
PRODUCT = "t[a, c, b] = x[a, d, b] * w[c, d]"


def rewritten(*lines: str, **options: object) -> str:
    a, b, c, d = (SIZES[i] for i in "abcd")
    operands = [values(a, d, b, dtype="f8"), values(c, d, dtype="f8"), values(c, dtype="f8")]
    made = graph(program(PARAMETERS, *lines), *operands)
    settings: dict[str, Any] = {"l2_bytes": 1 << 20, "vector_bytes": 64, "vector_registers": 32} | options
    found = rewrite(made, RewriteOptions(**settings))
    verify(found)
    for one, other in zip(execute(found, operands), execute(made, operands), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)
    return graph_text(found)


@pytest.mark.parametrize("reader", ["t[a, c, b]", "relu(t[a, c, b] + v[c])", "t[a, c, b] * t[a, c, b]"])
def test_two_statements_become_what_one_would_be(reader: str) -> None:
    two = rewritten(PRODUCT, f"z[c, b, a] = {reader}", "return z")
    one = rewritten(
        "t[c, b, a] = x[a, d, b] * w[c, d]", f"z[c, b, a] = {reader.replace('a, c, b', 'c, b, a')}", "return z"
    )
    assert two == one
    # The indices are in the order of the result, too.
    assert re.search(r"\w\[c, b, a\] = sum_d .* for 0 <= c < 5 and 0 <= b < 9 and 0 <= a < 7", two)


@pytest.mark.parametrize(
    "lines",
    [
        (PRODUCT, "z[c, b, a] = relu(t[a, c, b])", "return z, t"),
        (PRODUCT, "z[c, b, a] = relu(t[a, c, b])", "y[a, b] = max[c](t[a, c, b])", "return z, y"),
        (PRODUCT, "z[c, b, a, d] = relu(t[a, c, b]) - x[a, d, b]", "return z"),
        (PRODUCT, "z[b, c, a] = relu(t[A - 1 - a, c, b])", "return z"),
        (PRODUCT, "z[c, b, a] = relu(t[a, c, b]) - t[A - 1 - a, c, b]", "return z"),
    ],
)
def test_what_else_reads_it_or_in_two_orders_leaves_it(lines: tuple[str, ...]) -> None:
    assert "t[a, c, b] = sum_d" in rewritten(*lines)


def test_precise_programs_keep_their_order() -> None:
    assert "t[a, c, b] = sum_d" in rewritten(PRODUCT, "z[c, b, a] = relu(t[a, c, b])", "return z", precise=True)


# Elements are small integers: every sum is exact, in any order.
@pairwise(
    ("sizes", [(33, 50, 17, 40), (50, 33, 25, 96)]),
    ("reader", ["t[a, c, b]", "relu(t[a, c, b] + v[c])"]),
    ("target", [Target("host"), SMALL]),
    ("dynamic", [False, True]),
)
@pytest.mark.few(1)
def test_compiled_values(reader: str, target: Target, sizes: tuple[int, ...], dynamic: bool) -> None:
    a, b, c, d = sizes
    rng = np.random.default_rng(1)
    x, w, v = (rng.integers(-9, 10, shape).astype(np.float32) for shape in ((a, d, b), (c, d), (c,)))
    head = f"def f({PARAMETERS.replace('f64', 'f32')}):"
    source = f"{head}\n    {PRODUCT}\n    z[c, b, a] = {reader}\n    return z\n"
    function = polyml.einsum(source, target=target, threads=1, dynamic=dynamic)
    expected = np.einsum("adb,cd->cba", x.astype(float), w.astype(float))
    if "relu" in reader:
        expected = np.maximum(expected + v[:, None, None], 0)
    np.testing.assert_array_equal(function(guarded(x), guarded(w), v), expected)
