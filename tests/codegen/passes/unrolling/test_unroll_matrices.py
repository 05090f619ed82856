"""Nests over matrices of a few elements, one for each lane: written out where elements are read again or kept, each loaded once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyml as pm
from polyml.codegen.loops import Allocate, Assign, For, Function, Node, Variable
from polyml.codegen.passes.unrolling.unroll import unroll
from polyml.codegen.passes.unrolling.unroll_matrices import unroll_matrices
from polyml.codegen.rewrite import walk_nodes, with_body
from polyml.dtypes import f32
from polyml.sets.affine import affine
from tests.codegen.programs import agree, array, at, call, loop, put

INVERSE = """
def inverse(a: {0}["N 3 3"]):
    c: {0}["N 3 3"]
    c[n, i, j] = a[n, (i + 1) % 3, (j + 1) % 3] * a[n, (i + 2) % 3, (j + 2) % 3] - a[n, (i + 1) % 3, (j + 2) % 3] * a[n, (i + 2) % 3, (j + 1) % 3]
    d[n] = sum[j](a[n, 0, j] * c[n, 0, j])
    o[n, i, j] = c[n, j, i] / d[n]
    return o
"""


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("count", [1, 7, 8, 37])
@pytest.mark.few(3)
def test_inverses(kind: str, count: int) -> None:
    a = np.random.default_rng(count).standard_normal((count, 3, 3)) + 3 * np.eye(3)
    x = a.astype(kind.replace("f", "float"))
    made = pm.einsum(INVERSE.format(kind))(x)
    np.testing.assert_allclose(made, np.linalg.inv(a), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(
        pm.einsum(INVERSE.format(kind))(x[:, ::-1, ::-1]), np.linalg.inv(a[:, ::-1, ::-1]), rtol=2e-5, atol=2e-5
    )


def test_whole_vectors_are_loaded() -> None:
    """Nothing is taken lane by lane, and what a lane makes of its matrix is in registers."""
    lowered = pm.einsum(INVERSE.format("f32"), target=pm.Target("x86-64-v4"), threads=1).lower(
        np.zeros((64, 3, 3), np.float32)
    )
    loops, llvm = lowered.text("loops"), lowered.text("llvm")
    assert loops.count("for (") == 1
    assert "local" not in loops
    assert "load float" not in llvm
    assert "gather" not in llvm


def program(rows: int, columns: int, *, kept: bool, again: bool, width: int = 4) -> Function:
    """y[n] is the sum of x[n, i, j], with itself read again, by way of memory of each lane."""
    n, i, j = affine("n"), affine("i"), affine("j")
    value = at("x", n, i, j)
    value = call("mul", value, at("x", n, (i + 1) % rows, j)) if again else value
    scratch = Variable(name="s", dtype=f32, shape=(affine(rows), affine(columns)), scope="local", lanes=width)
    steps: tuple[Node, ...]
    if kept:
        make = loop("i", 0, rows, loop("j", 0, columns, Assign(target=put("s", i, j), value=value)))
        use = loop(
            "i", 0, rows, loop("j", 0, columns, Assign(target=put("y", n), value=at("s", i, j), reduction="sum"))
        )
        steps = (Allocate(variable=scratch, body=(make, use)),)
    else:
        add = Assign(target=put("y", n), value=value, reduction="sum")
        steps = (loop("i", 0, rows, loop("j", 0, columns, add)),)
    lanes = For(
        variable="n", lower=affine(0), upper=affine(8), step=width, kind="vector", width=width, body=steps,
    )  # fmt: skip
    arguments = (array("x", 8, rows, columns), array("y", 8))
    return Function(name="f", arguments=arguments, written=frozenset("y"), sizes=(), body=(lanes,))


def marked(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes with their innermost loops marked for unrolling, as sums are."""

    def visit(node: Node) -> Node:
        innermost = isinstance(node, For) and all(isinstance(inner, Assign) for inner in node.body)
        return replace(node, kind="unroll", factor=8) if innermost else with_body(node, marked)

    return tuple(visit(node) for node in nodes)


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (2, 5), (1, 4)])
@pytest.mark.parametrize(("kept", "again"), [(True, False), (False, True), (True, True)])
def test_written_out(rows: int, columns: int, kept: bool, again: bool) -> None:
    before = program(rows, columns, kept=kept, again=again)
    after = unroll(unroll_matrices(before))
    assert sum(isinstance(node, For) for node in walk_nodes(after.body)) == 1
    agree(before, after, {})


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(program(3, 3, kept=False, again=False), id="each element once"),
        pytest.param(program(10, 10, kept=False, again=True), id="too many"),
        pytest.param(program(1, 9, kept=True, again=True), id="long rows"),
        pytest.param(program(5, 5, kept=True, again=False), id="no room in registers"),
        pytest.param(
            replace(
                program(8, 8, kept=True, again=True),
                body=(*program(8, 8, kept=True, again=True).body, *program(3, 3, kept=False, again=True).body),
            ),
            id="what is left of too many",
        ),
        pytest.param(
            replace(
                program(8, 8, kept=True, again=True),
                body=(*marked(program(8, 8, kept=True, again=True).body), *program(3, 3, kept=False, again=True).body),
            ),
            id="what is left of too many that are copied in part",
        ),
    ],
)
def test_left_alone(before: Function) -> None:
    assert unroll_matrices(before) is before


@pytest.mark.parametrize(("kept", "width", "loops"), [(True, 4, 2), (False, 4, 4), (True, 8, 4)])
def test_nests_in_steps(kept: bool, width: int, loops: int) -> None:
    """Of a long loop: those that use what is to stay in registers, unless that is many elements lane by lane."""
    plain = program(3, 3, kept=kept, again=True, width=width)
    (lanes,) = (node for node in plain.body if isinstance(node, For))
    steps = loop("t", 0, 20, *lanes.body)
    before = replace(plain, body=(replace(lanes, body=(steps,)),))
    after = unroll(unroll_matrices(before))
    assert sum(isinstance(node, For) for node in walk_nodes(after.body)) == loops
    agree(before, after, {})


RECURRENCE = """
def recurrence(a: f64["B T 3 3"], p0: f64["B 3 3"]):
    p[b, i, j] = p0[b, i, j]
    for t in range(T):
        m[b, i, j] = sum[k](a[b, t, i, k] * p[b, k, j])
        p[b, i, j] = m[b, i, j] + m[b, j, i]
        if t >= 1:
            p[b, i, j] -= a[b, t - 1, (i + 1) % 3, j]
    return p
"""


def test_matrices_of_a_recurrence() -> None:
    a, p = np.random.default_rng(0).standard_normal((2, 9, 12, 3, 3)) / 4
    expected = p[:, 0].copy()
    for t in range(12):
        m = a[:, t] @ expected
        expected = m + m.transpose(0, 2, 1) - (np.roll(a[:, t - 1], -1, axis=1) if t else 0)
    np.testing.assert_allclose(pm.einsum(RECURRENCE)(a, p[:, 0]), expected)
