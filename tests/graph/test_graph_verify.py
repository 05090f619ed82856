"""The verifier: it accepts what the other tests build, and names each kind of broken graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import islpy as isl
import pytest

from polyml.dtypes import f32, f64, i64
from polyml.expressions import Apply, Const, Read
from polyml.graph.ir import Carried, Equation, Graph, Loop
from polyml.graph.verify import verify
from polyml.sets.affine import affine
from tests.graph.graph_text import graph

GOOD = """
    x: f32[4, 6]
    s[i] = sum[k](x[i, k])
    y[i] = s[i] * 2.0
    return y
"""
LOOP = """
    h0: f32[4]
    for t in range(0, 3):
        carry(h0, h, h2, h3)
        h2[i] = h[i] * 0.5
    return h3
"""


def op(g: Graph, position: int) -> Equation:
    found = g.ops[position]
    assert isinstance(found, Equation)
    return found


def with_op(position: int, change: Callable[[Equation], Equation]) -> Callable[[Graph], Graph]:
    return lambda g: replace(g, ops=(*g.ops[:position], change(op(g, position)), *g.ops[position + 1 :]))


def with_loop(change: Callable[[Loop], Loop]) -> Graph:
    g = graph(LOOP)
    (loop,) = g.ops
    assert isinstance(loop, Loop)
    return replace(g, ops=(change(loop),))


def test_good_graphs_pass() -> None:
    verify(graph(GOOD))
    verify(graph(LOOP))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: replace(g, ops=(g.ops[0], g.ops[0], g.ops[1])), "s is made twice"),
        (lambda g: replace(g, ops=g.ops[::-1]), "y reads s, which does not exist there"),
        (lambda g: replace(g, ops=g.ops[:1]), "y is used where it does not exist"),
        (with_op(0, lambda e: replace(e, reduced=())), "several instances of s hit one element"),
        (with_op(0, lambda e: replace(e, indices=("k", "i"))), "reduced indices of s do not come last"),
        (with_op(0, lambda e: replace(e, reduce=None)), "has reduced indices but no reduction"),
        (with_op(0, lambda e: replace(e, reduce="mean")), "is reduced by mean"),
        (with_op(0, lambda e: replace(e, accumulate=True)), "accumulates from nothing"),
        (with_op(0, lambda e: replace(e, domain=e.domain.set_tuple_name("q"))), "the domain of s is named q"),
        (with_op(1, lambda e: replace(e, domain=isl.Set("{ y[i, j] : 0 <= i < 4 and 0 <= j < 2 }"))), "wrong rank"),
        (with_op(1, lambda e: replace(e, domain=isl.Set("[N] -> { y[i] : 0 <= i < N and N <= 4 }"))), "over unknown"),
        (with_op(1, lambda e: replace(e, domain=isl.Set("{ y[i] : 0 <= i < 5 }"))), "accesses y at i out of bounds"),
        (with_op(1, lambda e: replace(e, target=())), "left side of y has the wrong rank"),
        (with_op(1, lambda e: replace(e, result=replace(e.result, dtype=f64))), "y is f64, its value f32"),
        (with_op(1, lambda e: replace(e, body=Read("s", (), f32))), "accesses s with a wrong rank"),
        (with_op(1, lambda e: replace(e, body=Apply("cast", (Read("s", (affine("i"),), f64),), f32))), "reads f32 as f64"),
        (with_op(1, lambda e: replace(e, body=Read("s", (affine("j"),), f32))), "uses unknown names in j"),
        (with_op(1, lambda e: replace(e, body=Read("s", (affine("i") + 1,), f32))), "accesses s at i \\+ 1 out of bounds"),
        (with_op(1, lambda e: replace(e, body=Read("s", (Const(1.0, f32),), f32))), "gathers by f32"),
        (with_op(1, lambda e: replace(e, body=Apply("add", (Const(1.0, f32), Const(1, i64)), f32))), "applies add to f32, i64"),
        (with_op(1, lambda e: replace(e, body=Apply("lt", (Const(1.0, f32), Const(1.0, f32)), f32))), "takes lt to be f32"),
        (with_op(1, lambda e: replace(e, indices=("min",))), "'min' is no name for isl"),
        (lambda g: replace(g, inputs=(replace(g.inputs[0], written=True),)), "x is written without a final value"),
    ],
)  # fmt: skip
def test_broken_graphs_are_named(change: Callable[[Graph], Graph], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        verify(change(graph(GOOD)))


def test_broken_loops_are_named() -> None:
    def carry(**parts: object) -> Callable[[Loop], Loop]:
        return lambda loop: replace(loop, carried=(replace(loop.carried[0], **parts),))

    g = graph(LOOP)
    loop = g.ops[0]
    assert isinstance(loop, Loop)
    other = replace(loop.carried[0].next, name="other")
    with pytest.raises(AssertionError, match="other is used where it does not exist"):
        verify(with_loop(carry(next=other)))
    with pytest.raises(AssertionError, match="differ in dtype or shape"):
        verify(with_loop(carry(inner=replace(loop.carried[0].inner, shape=(affine(5),)))))
    with pytest.raises(AssertionError, match="h is made twice"):
        verify(with_loop(lambda old: replace(old, carried=(*old.carried, Carried(*_four(old, "h", "h4"))))))
    with pytest.raises(AssertionError, match="step 0"):
        verify(with_loop(lambda old: replace(old, step=0)))
    inside = replace(g, outputs=(loop.carried[0].next,))
    with pytest.raises(AssertionError, match="h2 is used where it does not exist"):
        verify(inside)


def _four(loop: Loop, inner: str, result: str) -> tuple[object, ...]:
    c = loop.carried[0]
    return c.initial, replace(c.inner, name=inner), c.next, replace(c.result, name=result)


def test_reads_on_a_select_path_need_to_be_in_bounds_on_that_path_only() -> None:
    text = """
        x: f32[4]
        tensor(y, f32[8])
        y[i] = where(i >= 2 and i - 2 < LIMIT, x[i - 2], where(not (i < 4), x[7 - i], x[0]))
        return y
    """
    verify(graph(text.replace("LIMIT", "4")))
    with pytest.raises(AssertionError, match=r"out of bounds: .*i = 6"):
        verify(graph(text.replace("LIMIT", "5")))


def test_loop_bounds_and_steps_are_known_in_the_body() -> None:
    text = """
        x: f32[9]
        h0: f32[3]
        for t in range(8, -1, -4):
            carry(h0, h, h2, h3)
            h2[i] = h[i] + x[t] + x[t // 4 * 4] + x[8 - t]
        return h3
    """
    verify(graph(text))
    with pytest.raises(AssertionError, match="out of bounds"):
        verify(graph(text.replace("-1, -4", "-5, -4")))
