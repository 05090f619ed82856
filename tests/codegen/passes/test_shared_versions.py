"""Versions of a function that differ in few nodes become one, which asks where they differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.codegen.interpret import interpret
from polyml.codegen.loops import Allocate, Assign, Function, If, Node, Prefetch, Variable
from polyml.codegen.passes.shared_versions import shared
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import f64
from polyml.target import Target
from tests.codegen.llvm.support import apply, const, loop, read, store, variable
from tests.codegen.programs import call, index, put

LARGE = call("ge", index("N"), const(5, index("N").dtype))


def function(*body: Node) -> Function:
    arguments = (variable("x", f64, "N"), variable("y", f64, "N"))
    return Function(name="f", arguments=arguments, written=frozenset("y"), sizes=("N",), body=body)


def sums() -> list[Node]:
    return [store("y", ["i"], apply("mul", read("x", f64, "i"), const(k, f64)), reduction="sum") for k in range(9)]


def nest(*ends: Node) -> Node:
    return loop("i", 0, "N", store("y", ["i"], const(0, f64)), *sums(), *ends)


TWICE = store("y", ["i"], read("y", f64, "i"), reduction="sum")
HALF = store("y", ["i"], apply("mul", read("y", f64, "i"), const(0.5, f64)))
POSITIVE = call("gt", read("y", f64, "i"), const(0, f64))


def ends(text: str) -> list[Node]:
    table: dict[str, list[Node]] = {
        "twice": [TWICE],
        "half": [HALF],
        "none": [],
        "twice if positive": [If(condition=POSITIVE, then=(TWICE,), otherwise=(HALF,))],
        "half and ask": [HALF, Prefetch(put("x", "i"), 1)],
    }
    return table[text]


@pytest.mark.parametrize("one", ["twice", "none", "twice if positive", "half and ask"])
@pytest.mark.parametrize("other", ["twice", "half", "none"])
@pytest.mark.parametrize("n", [4, 5])
def test_each_version_where_its_condition_holds(one: str, other: str, n: int) -> None:
    first, second = nest(*ends(one)), nest(*ends(other))
    made = shared(LARGE, [first], [second])
    assert made is not None
    assert sum(isinstance(node, Assign) and node.reduction == "sum" for node in walk_nodes(made)) < 18
    x = np.random.default_rng(n).standard_normal(n)
    got, expected = np.zeros(n), np.zeros(n)
    interpret(function(*made), {"x": x, "y": got}, {"N": n})
    interpret(function(first if n >= 5 else second), {"x": x, "y": expected}, {"N": n})
    np.testing.assert_array_equal(got, expected)


def test_one_test_where_a_version_does_what_the_other_does_in_other_cases() -> None:
    made = shared(LARGE, [nest(*ends("twice if positive"))], [nest(HALF)])
    assert made is not None
    (asked,) = (node for node in walk_nodes(made) if isinstance(node, If))
    assert (asked.then, asked.otherwise) == ((TWICE,), (HALF,))


def test_equal_versions_ask_nothing() -> None:
    assert shared(LARGE, [nest(HALF)], [nest(HALF)]) == (nest(HALF),)


def test_versions_with_little_in_common_stay_two() -> None:
    assert shared(LARGE, [nest()], [loop("i", 0, "N", TWICE, HALF)]) is None


def test_local_storage_stays_with_its_version() -> None:
    held = Variable(name="t", dtype=f64, shape=(), scope="register")
    inner = Allocate(variable=held, body=(store("t", [], const(2, f64)), store("y", ["i"], read("t", f64))))
    assert shared(LARGE, [nest(inner)], [nest(HALF)]) is None
    assert shared(LARGE, [replace(inner, body=(nest(TWICE),))], [replace(inner, body=(nest(HALF),))]) is not None


DENSE = """
def dense(x: f32["N K"], w: f32["K M"], b: f32["M"]):
    y[n, m] = relu(x[n, k] * w[k, m] + b[m])
    return y
"""


def test_results_past_the_caches_are_no_second_product() -> None:
    """What is stored past the caches is stored at the end of a register tile that exists once, and asks."""
    wide = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=1 << 20, cores=1)
    x, w, b = np.zeros((500, 300), "float32"), np.zeros((300, 500), "float32"), np.zeros(500, "float32")
    (region,) = polyml.einsum(DENSE, target=wide, dynamic=True).lower(x, w, b).stages.regions
    tests = (node for node in walk_nodes(region.loops.body) if isinstance(node, If))
    streams = [node for node in tests if any(isinstance(n, Assign) and n.streaming for n in node.then)]
    assert streams
    size = streams[0].condition.args[0]  # type: ignore[union-attr]
    assert all(node.condition.args[0] == size for node in streams)  # type: ignore[union-attr]
    assert str(size).startswith("((N * M) >= ")
