"""Rewriting: each rule on a small graph, what it must not do, and equal results on random graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyml
from polyml.expressions import Apply, Read, walk
from polyml.graph import rewrite as rewriter
from polyml.graph.fuse import fuse
from polyml.graph.ir import Equation, Graph, Loop, Op
from polyml.graph.plan import plan
from polyml.graph.printer import graph_text, op_lines
from polyml.graph.reference import execute
from polyml.graph.rewrite import rewrite
from polyml.graph.rules.algebra.simplify import simplify
from polyml.graph.rules.algebra.single_values import drop_single_values
from polyml.graph.rules.reuse import dead
from polyml.graph.rules.reuse.absorb import absorb_copies
from polyml.graph.rules.reuse.common import share_equal
from polyml.graph.rules.reuse.dead import remove_dead
from polyml.graph.rules.reuse.hoist import hoist
from polyml.graph.rules.reuse.inline import inline_elementwise
from polyml.graph.rules.sums.factor import factor_sums
from polyml.graph.rules.table import LAST_RULES, RULES, RewriteOptions, Rule
from polyml.graph.traverse import read_names
from polyml.graph.verify import verify
from tests.graph import programs
from tests.graph.graph_text import graph
from tests.graph.memory_machine import run_plan
from tests.graph.random_graphs import random_text


def lines(g: Graph) -> list[str]:
    """The equations without their domains."""
    return [line.split("   for ")[0].strip() for line in op_lines(g.ops)]


# -- expressions --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x[i] * 1.0", "x[i]"),
        ("x[i] - 0.0", "x[i]"),
        ("x[i] + 0.0", "x[i] + 0"),  # -0.0 + 0.0 is 0.0
        ("x[i] * 0.0", "x[i] * 0"),  # NaN, infinity, -0.0
        ("x[i] - x[i]", "x[i] - x[i]"),
        ("-(-x[i])", "x[i]"),
        ("x[i] + (-x[0])", "x[i] - x[0]"),
        ("x[i] / 4.0", "x[i] * 0.25"),
        ("x[i] / 3.0", "x[i] / 3"),
        ("x[i] ** 2.0", "x[i] * x[i]"),
        ("x[i] ** 0.5", "x[i] ** 0.5"),
        ("n[i] * 0", "0"),
        ("n[i] - n[i]", "0"),
        ("n[i] + 0", "n[i]"),
        ("f32(f64(x[i]))", "x[i]"),
        ("f64(f32(d[i]))", "f64(f32(d[i]))"),
        ("i64(i32(n[i]))", "i64(i32(n[i]))"),
        ("relu(relu(x[i]))", "relu(x[i])"),
        ("abs(-x[i])", "abs(x[i])"),
        ("where(i < i + 1, x[i], d32[i])", "x[i]"),
        ("where(not (x[i] < 0.0), x[i], d32[i])", "where(x[i] < 0, d32[i], x[i])"),
        ("where(i < 2, f32(0.0), f32(-0.0))", "where(i < 2, 0, -0)"),
        ("max(x[i], x[i])", "x[i]"),
        ("f32(2.0) * f32(3.0) + x[i]", "6 + x[i]"),
        ("f32(i + 1 - i)", "1"),
        ("sqrt(f32(2.0)) + x[i]", "1.41421354 + x[i]"),
        ("x[n[i] * 0 + i]", "x[i]"),
    ],
)
def test_expressions(text: str, expected: str) -> None:
    g = graph(
        f"""
        x: f32[4]
        d32: f32[4]
        d: f64[4]
        n: i64[4]
        if i < 4: y[i] = {text}
        return y
    """.replace("if i < 4: y[i]", "tensor(y, DTYPE[4])\n        y[i]").replace("DTYPE", _dtype(text))
    )
    assert lines(simplify(g)) == [f"y[i] = {expected}"]
    verify(simplify(g), bounds=False)


def _dtype(text: str) -> str:
    return {"n": "i64", "f": "f32", "i": "i64"}.get(text[0], "f32") if not text.startswith("f64") else "f64"


# -- equations ----------------------------------------------------------------------------------------------------------------


def test_nothing_to_do_gives_the_same_object() -> None:
    g = graph(programs.SOFTMAX)
    for rule in (*RULES, *LAST_RULES):
        assert rule.apply(g, RewriteOptions()) is g, rule.name
    assert rewrite(g) is g


def test_a_rule_is_not_asked_again_about_a_graph_that_it_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second round is for the rules before the last change."""
    asked = []

    def counted(name: str, changes: int) -> Rule:
        def apply(graph: Graph, _: RewriteOptions) -> Graph:
            asked.append(name)
            return dataclasses.replace(graph) if asked.count(name) <= changes else graph

        return Rule(name, apply)

    monkeypatch.setattr(rewriter, "RULES", (counted("before", 0), counted("twice", 2), counted("behind", 0)))
    monkeypatch.setattr(rewriter, "LAST_RULES", ())
    rewrite(graph(programs.SOFTMAX))
    assert asked == ["before", "twice", "behind"] * 2 + ["before", "twice"]


def test_rules_need_numbers_that_options_have() -> None:
    known = {field.name for field in dataclasses.fields(RewriteOptions)}
    assert all(known.issuperset(rule.needs) for rule in (*RULES, *LAST_RULES))


def test_equal_equations_are_computed_once_whatever_their_indices_are_called() -> None:
    g = graph("""
        x: f32[4, 6]
        a[i] = sum[k](exp(x[i, k]))
        b[n] = sum[m](exp(x[n, m]))
        c[i] = sum[k](exp(x[i, k] * 2.0))
        y[i] = a[i] + b[i] + c[i]
        return y
    """)
    assert len(lines(share_equal(g))) == 3
    assert "y[i] = a[i] + a[i] + c[i]" in lines(share_equal(g))


def test_zero_and_minus_zero_are_different_values() -> None:
    g = graph("""
        x: f32[4]
        tensor(a, f32[4])
        a[i] = f32(0.0)
        tensor(b, f32[4])
        b[i] = f32(-0.0)
        y[i] = x[i] + a[i] * b[i]
        return y
    """)
    assert share_equal(g) is g


def test_fills_of_tensors_that_are_updated_are_not_shared() -> None:
    g = graph("""
        x: f32[4]
        tensor(a, f32[4])
        a[i] = f32(0.0)
        tensor(b, f32[4])
        b[i] = f32(0.0)
        a1(a)[i] += x[i]
        b1(b)[i] += x[i] * x[i]
        return a1, b1
    """)
    assert share_equal(g) is g


def test_an_equal_output_becomes_a_copy() -> None:
    g = graph("""
        x: f32[4, 6]
        a[i] = sum[k](exp(x[i, k]))
        b[i] = sum[k](exp(x[i, k]))
        return a, b
    """)
    assert lines(share_equal(g)) == ["a[i] = sum_k exp(x[i, k])", "b[e0] = a[e0]"]


def test_dead_code_goes_and_loops_lose_what_nobody_uses() -> None:
    g = graph("""
        x: f32[4]
        dead[i] = exp(x[i])
        for t in range(0, 3):
            carry(x, a, a2, a3)
            carry(x, b, b2, b3)
            carry(x, c, c2, c3)
            a2[i] = a[i] + b[i]
            b2[i] = b[i] * 0.5
            c2[i] = c[i] * 0.25
        return a3
    """)
    (loop,) = remove_dead(g).ops
    assert isinstance(loop, Loop)
    assert [c.result.name for c in loop.carried] == ["a3", "b3"]
    assert len(loop.body) == 2


def test_what_depends_on_what_is_asked_once_of_each_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that each need the next one, an iteration before: nothing goes through the loop again for each of them."""
    count = 12
    carried = "".join(f"carry(x, a{k}, n{k}, r{k})\n" for k in range(count))
    ops = "".join(f"n{k}[i] = a{k}[i] + a{min(k + 1, count - 1)}[i]\n" for k in range(count))
    body = (carried + ops).replace("\n", "\n" + " " * 12)
    g = graph(f"""
        x: f32[4]
        for t in range(0, 3):
            {body}
        return r0
    """)
    asked = []

    def names(op: Op) -> dict[str, None]:
        asked.append(op)
        return read_names(op)

    monkeypatch.setattr(dead, "read_names", names)
    assert remove_dead(g) is g
    assert len(asked) == count


def test_views_vanish_into_subscripts() -> None:
    g = graph(
        """
        x: f32[4, 6]
        t[j, i] = x[i, j]
        tensor(s, f32[3, 4])
        s[j, i] = t[j + 2, i]
        tensor(p, f32[5, 4])
        p[j, i] = where(j >= 1 and j < 4, s[j - 1, i], f32(0.0))
        y[j, i] = p[j, i] * 2.0 + x[i, j]
        return y
    """.replace("y[j, i] =", "tensor(y, f32[4, 4])\n        y[j, i] =")
    )
    assert lines(rewrite(g)) == ["y[j, i] = where(j >= 1 and j < 4, x[i, j + 1], 0) * 2 + x[i, j]"]


def test_a_gather_reads_through_a_view() -> None:
    g = graph("""
        table: f32[6, 3]
        ids: i32[5]
        t[d, r] = table[r, d]
        e[n, d] = t[d, ids[n]] + 1.0
        return e
    """)
    assert lines(rewrite(g)) == ["e[n, d] = table[ids[n], d] + 1"]


def test_a_producer_is_inlined_where_nothing_is_computed_twice() -> None:
    g = graph(
        programs.LOGSUMEXP.replace("sum[k](exp(x[n, k] - m[n]))", "sum[k](e[n, k])").replace(
            "    s[n]", "    e[n, k] = exp(x[n, k] - m[n])\n    s[n]"
        )
    )
    assert "s[n] = sum_k exp(x[n, k] - m[n])" in lines(rewrite(g))


def test_an_expensive_producer_is_not_recomputed_in_a_contraction() -> None:
    g = graph("""
        x: f32[64, 32]
        w: f32[32, 48]
        e[n, k] = exp(x[n, k])
        y[n, m] = sum[k](e[n, k] * w[k, m])
        return y
    """)
    assert rewrite(g) is g


def test_a_row_of_an_overwritten_tensor_is_kept_rather_than_the_whole() -> None:
    g = graph("""
        x: f32[100, 100]
        row[j] = x[0, j]
        x1(x)[i, j] = x[i, j] * 0.5
        y[j] = row[j] + x1[1, j]
        final(x, x1)
        return y
    """)
    rewritten = rewrite(g)
    assert "row[j] = x[0, j]" in lines(rewritten)
    assert plan(rewritten, fuse(rewritten)).storage["x1"] == "x"


def test_a_value_that_a_loop_passes_on_is_not_read_late() -> None:
    g = graph(
        """
        h0: f32[4]
        for t in range(0, 3):
            carry(h0, h, h2, h3)
            carry(h0, o, o2, o3)
            old[i] = h[3 - i]
            h2[i] = h[i] * 0.5
            o2[i] = o[i] + old[i]
        return h3, o3
    """.replace("old[i] =", "tensor(old, f32[4])\n            old[i] =")
    )
    assert "old[i] = h[-i + 3]" in lines(inline_elementwise(g))


def test_copies_and_transposes_are_absorbed_by_what_makes_their_source() -> None:
    g = graph("""
        x: f32[4, 6]
        w: f32[6, 5]
        t[n, m] = sum[k](x[n, k] * w[k, m])
        y[m, n] = t[n, m]
        for s in range(0, 3):
            carry(y, h, h2, h3)
            h2[i, j] = h[i, j] * 0.5
        z[i, j] = h3[i, j]
        return z
    """)
    changed = absorb_copies(g)
    assert lines(changed)[0] == "y[m, n] = sum_k x[n, k] * w[k, m]"
    assert changed.ops[-1].carried[0].result.name == "z"
    verify(changed)


def test_factors_leave_sums() -> None:
    g = graph(programs.ATTENTION)
    assert lines(rewrite(g))[-2:] == [
        "o_sum[h, i, d] = sum_j e[h, i, j] * v[h, j, d]",
        "o[h, i, d] = o_sum[h, i, d] / z[h, i]",
    ]
    assert not any("o_sum" in line for line in lines(rewrite(g, RewriteOptions(precise=True))))


def test_sums_know_only_the_indices_of_what_factors_leave() -> None:
    text = """
        x: f32[5, 4]
        w: f32[6, 5]
        y[m, n] = sum[k](x[n, k] * w[m, n])
        return y
    """
    assert lines(factor_sums(graph(text))) == ["y_sum[n] = sum_k x[n, k]", "y[m, n] = y_sum[n] * w[m, n]"]
    verify(factor_sums(graph(text)))
    # A condition ties the sum to an index that its terms do not name.
    tied = """
        x: f32[5, 6]
        w: f32[6, 5]
        tensor(y, f32[6, 5])
        if k <= m: y[m, n] = sum[k](x[n, k] * w[m, n])
        return y
    """
    assert lines(factor_sums(remove_dead(simplify(graph(tied)))))[-2].startswith("y_sum[m, n] = sum_k")


def test_a_factor_stays_where_some_sums_are_empty() -> None:
    text = """
        x: f32[4, 4]
        a: f32[4]
        tensor(y, f32[4])
        if k < i: y[i] = sum[k](x[i, k] * a[i])
        return y
    """
    assert factor_sums(graph(text)).ops == graph(text).ops or lines(factor_sums(graph(text))) == lines(graph(text))
    assert len(lines(factor_sums(graph(text.replace("k < i", "k <= i"))))) == 2


def test_a_factor_leaves_half_a_matrix_of_sums_when_nobody_reads_the_other_half() -> None:
    text = """
        x: f32[5, 4]
        a: f32
        tensor(s, f32[5, 5])
        tensor(y, f32[5, 5])
        if j <= i: s[i, j] = sum[k](a * x[i, k] * x[j, k])
        if j <= i: y[i, j] = s[i, j] + 1.0
        return y
    """
    changed = factor_sums(remove_dead(simplify(graph(text))))
    assert any(line.endswith("sum_k x[i, k] * x[j, k]") for line in lines(changed))
    verify(changed)
    read_across = graph(text.replace("s[i, j] + 1.0", "s[j, i] + 1.0"))
    assert not any("s_sum" in line for line in lines(factor_sums(read_across)))


def test_a_factor_that_is_not_there_for_the_other_half_stays_in_the_sum() -> None:
    """Elements that nobody reads are scaled with the others, but not by what lies behind an array's end."""
    text = """
        x: f32[5, 4]
        a: f32[7]
        tensor(s, f32[5])
        tensor(y, f32[5])
        if i < 4: s[i] = sum[k](a[i + 2] * x[i, k])
        if i < 4: y[i] = s[i] + 1.0
        return y
    """
    changed = factor_sums(remove_dead(simplify(graph(text))))
    assert any(line.endswith("sum_k x[i, k]") for line in lines(changed))
    verify(changed)
    behind = factor_sums(remove_dead(simplify(graph(text.replace("i + 2", "i + 3")))))
    assert not any("s_sum" in line for line in lines(behind))
    verify(behind)


def test_a_factor_at_computed_places_stays_in_a_sum_that_not_every_element_has() -> None:
    """Nobody has checked the places of elements without anything to sum: reading there is out of bounds."""
    text = """
        a: f32[7]
        w: f32[6, 20]
        idx: i64[6]
        tensor(t, f32[6, 20])
        tensor(y, f32[6, 20])
        if k < n: t[n, m] = sum[k](a[idx[n]] * w[k, m])
        if n > 0: y[n, m] = t[n, m] + 1.0
        return y
    """
    assert not any("t_sum" in line for line in lines(factor_sums(remove_dead(simplify(graph(text))))))
    whole = graph(text.replace("k < n", "k <= n").replace("if n > 0: ", ""))
    assert any("t_sum" in line for line in lines(factor_sums(remove_dead(simplify(whole)))))


def test_a_factor_leaves_sums_beside_elements_that_stay() -> None:
    function = polyml.einsum("""
def f(x: f64["N K"], a: f64):
    s: f64["N"] = 3
    if i < 2:
        s[i] = sum[k](a * x[i, k])
    return s
""")
    x = np.random.default_rng(0).standard_normal((5, 4))
    assert any(line.endswith("= sum_k x[i, k]") for line in lines(function.trace(x, 2.0)))
    np.testing.assert_allclose(function(x, np.inf), [*(np.inf * x[:2].sum(axis=1)), 3, 3, 3])


@pytest.mark.parametrize(
    "factor",
    [
        "where(h + r >= 1 and h + r < 10, x[h + r - 1], f32(0.0))",
        "where(h + r < 1 or h + r >= 10, f32(0.0), x[h + r - 1])",
    ],
)
def test_padding_written_as_where_becomes_a_domain(factor: str) -> None:
    g = graph(f"""
        x: f32[9]
        f: f32[3]
        tensor(y, f32[9])
        y[h] = sum[r]({factor} * f[r])
        return y
    """)
    rewritten = rewrite(g)
    assert lines(rewritten) == ["y[h] = sum_r x[h + r - 1] * f[r]"]
    verify(rewritten)
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(9), rng.standard_normal(3)]
    np.testing.assert_allclose(execute(rewritten, arguments, wide=True)[0], execute(g, arguments, wide=True)[0])
    assert "where" in lines(rewrite(g, RewriteOptions(precise=True)))[0]


def test_a_condition_on_data_stays_a_condition() -> None:
    text = """
        x: f32[9]
        f: f32[9]
        s = sum[r](where(r < 4 and x[r] > 0.0, x[r], f32(0.0)) * f[r])
        return s
    """
    assert "where" in lines(rewrite(graph(text)))[0]
    assert "where" in lines(rewrite(graph(text.replace("and", "or"))))[0]


def test_lstm_input_products_become_one_contraction() -> None:
    g = graph("""
        x: f32[7, 2, 3]
        w: f32[3, 4]
        u: f32[4, 4]
        b: f32[4]
        h0: f32[2, 4]
        for t in range(6, -1, -2):
            carry(h0, h, h2, h3)
            p[n, m] = sum[k](x[t, n, k] * w[k, m])
            q[n, m] = sum[k](h[n, k] * u[k, m])
            c[m] = exp(b[m])
            h2[n, m] = tanh(p[n, m] + q[n, m] + c[m])
        return h3
    """)
    rewritten = hoist(g)
    assert lines(rewritten)[:2] == ["p_all[t_, n, m] = sum_k x[-2*t_ + 6, n, k] * w[k, m]", "c[m] = exp(b[m])"]
    verify(rewritten)
    (loop,) = [op for op in rewritten.ops if isinstance(op, Loop)]
    assert [op.result.name for op in loop.body] == ["q", "h2"]
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(tuple(e.constant for e in i.tensor.shape)) for i in g.inputs]
    np.testing.assert_allclose(execute(rewritten, arguments, wide=True)[0], execute(g, arguments, wide=True)[0])


def test_what_depends_on_carried_values_or_dynamic_bounds_stays_in_the_loop() -> None:
    g = graph("""
        sizes(T)
        x: f32[T, 3]
        w: f32[3, 3]
        h0: f32[3]
        for t in range(0, T):
            carry(h0, h, h2, h3)
            p[m] = sum[k](x[t, k] * w[k, m])
            h2[i] = h[i] + p[i]
        return h3
    """)
    assert hoist(g) is g


@pytest.mark.parametrize(
    ("steps", "read", "ahead"),
    [
        ("range(5)", "x[i[0], m]", True),
        ("range(5)", "x[T - 1, m]", True),
        ("range(T)", "x[2, m]", True),
        ("range(T)", "x[T - 1, m]", False),
        ("range(T)", "x[i[0], m]", False),
        ("range(3, T)", "x[T - 4, m]", False),
    ],
)
def test_a_loop_without_iterations_reads_nothing(steps: str, read: str, ahead: bool) -> None:
    """What is in bounds, or checked, in each iteration may be anywhere where there is none."""
    text = f"""
def f(x: f32["9 M"], i: i64["1"], y: f32["M"], z: f32["M"], T: int):
    for t in {steps}:
        g[n] = max[m]({read} * z[n])
        y[n] += t * g[n]
    return y
"""
    x, index, y = np.ones((9, 4), np.float32), np.zeros(1, np.int64), np.ones(4, np.float32)
    ops = polyml.einsum(text).trace(x, index, y, y.copy(), 6).ops
    makers = [op.result.name for op in ops if isinstance(op, Equation)]
    assert ("g" in makers) == ahead


def test_a_gather_is_not_read_for_a_loop_without_iterations() -> None:
    text = """
def f(x: f32["V D"], i: i64["N"], y: f32["N"], T: int):
    for t in range(T):
        g[n] = sum[d](x[i[n], d] * x[i[n], d])
        y[n] += g[n] * t
    return y
"""
    f, x = polyml.einsum(text), np.ones((9, 40), np.float32)
    far = np.full(5, 9 + (1 << 12))
    y = np.ones(5, np.float32)
    assert (f(x, far, y, 0) == 1).all()
    with pytest.raises(IndexError):
        f(x, far, y, 1)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("sum[k, r](x[i, k + r] * w[k, r])", "sum_k x[i, k] * w[k, 0]"),
        ("max[r, s](x[i + r, s] * v[r, s])", "x[i, 0] * v[0, 0]"),
        ("sum[s](x[i, s] * v[0, s])", "x[i, 0] * v[0, 0]"),
        ("sum[k, s](x[i, k + s] * u[k, s])", "sum_k_s x[i, k + s] * u[k, s]"),
    ],
)
def test_indices_with_a_single_value_go(body: str, expected: str) -> None:
    """A reduction of one term is none."""
    text = f"""
        x: f32[5, 5]
        w: f32[3, 1]
        v: f32[1, 1]
        u: f32[3, 2]
        tensor(y, f32[4])
        y[i] = {body}
        return y
    """
    changed = drop_single_values(graph(text))
    assert lines(changed) == [f"y[i] = {expected}"]
    verify(changed)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("    y[i] = x[i, s] * v[s]\n", lambda x, v: x[:, 0] * v[0]),
        ('    y: f32["N"] = 1\n    y[i] += x[i, s] * v[s]\n', lambda x, v: 1 + x[:, 0] * v[0]),
        ("    y[i] = sum[s < i](x[i, s] * v[s])\n", lambda x, v: np.arange(5).clip(0, 1) * x[:, 0] * v[0]),
        ("    y[i] = max[s](x[i, s] * v[s])\n", lambda x, v: x[:, 0] * v[0]),
        ("    y[i] = argmax[s](x[i, s] * v[s])\n", lambda x, v: np.zeros(5)),
    ],
)
def test_results_of_one_term(body: str, expected: Callable[[Any, Any], Any]) -> None:
    x, v = np.arange(1, 6, dtype=np.float32).reshape(5, 1), np.full(1, 3, np.float32)
    text = f'def f(x: f32["N M"], v: f32["M"]):\n{body}    return y\n'
    for dynamic in (False, True):
        function = polyml.einsum(text, dynamic=dynamic)
        np.testing.assert_array_equal(function(x, v), expected(x, v))


# -- everything ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*range(30), *(pytest.param(n, marks=pytest.mark.slow) for n in range(30, 200))])
def test_random_graphs_keep_their_meaning(seed: int) -> None:
    text = random_text(seed)
    g = graph(text)
    verify(g)
    rewritten = rewrite(g)
    verify(rewritten)
    assert rewrite(rewritten) is rewritten, f"no fixpoint:\n{graph_text(rewritten)}"
    rng = np.random.default_rng(seed)
    arguments = [rng.standard_normal(tuple(e.constant for e in i.tensor.shape)).astype(np.float32) for i in g.inputs]
    first, second, third = ([a.copy() for a in arguments] for _ in range(3))
    expected = execute(g, first, wide=True)
    got = execute(rewritten, second, wide=True)
    regions = fuse(rewritten)
    ran = run_plan(rewritten, regions, plan(rewritten, regions), third)
    message = f"{text}\n{graph_text(rewritten)}"
    for one, two, three in zip(expected, got, ran, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-9, atol=1e-9, err_msg=message)
        np.testing.assert_allclose(three, one, rtol=1e-2, atol=1e-2, err_msg=message)
    for one, two, three in zip(first, second, third, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-5, err_msg=message)
        np.testing.assert_allclose(three, one, rtol=1e-2, atol=1e-2, err_msg=message)


def test_a_wide_sum_does_not_exhaust_the_stack() -> None:
    terms = "\n".join(f"y{k + 1}[i] = y{k}[i] + x[i]" for k in range(400))
    g = graph(f"x: f32[4]\ny0[i] = x[i]\n{terms}\nreturn y400")
    rewritten = rewrite(g)
    verify(rewritten)
    (y,) = execute(rewritten, [np.ones(4, np.float32)])
    np.testing.assert_array_equal(y, 401)
    assert all(not isinstance(op.body, Read) and isinstance(op.body, Apply) for op in rewritten.ops)


def test_a_sum_whose_terms_a_condition_leaves_out_is_zero_where_there_are_none() -> None:
    """No index has a value here, and the sum has no dimension that an index would go along."""
    source = 'def f(x: f64["N"]):\n    s = sum[k < N](where(k % 2 == 0, 1, 0) ** 2)\n    return s\n'
    assert "s = 0" in polyml.einsum(source).lower(np.empty(0)).text("loops")
    assert polyml.einsum(source)(np.empty(0)) == 0


def test_an_element_that_is_read_at_several_places_of_an_expression_is_computed_once() -> None:
    """Differences that an update uses twice each need no arrays beside what it writes (Perona and Malik's diffusion)."""
    terms = " + ".join(f"{d}[i, j] / (1 + {d}[i, j] ** 2)" for d in "nsw")
    lines = [
        "    n[i, j] = x[max(i - 1, 0), j] - x[i, j]",
        "    s[i, j] = x[min(i + 1, N - 1), j] - x[i, j]",
        "    w[i, j] = x[i, max(j - 1, 0)] - x[i, j]",
        f"    x[i, j] += 0.2 * ({terms})",
    ]
    smooth = polyml.einsum("\n    ".join(['def f(x: f64["N M"]):', "for t in range(3):", *lines, "return x"]) + "\n")
    x = np.random.default_rng(0).standard_normal((6, 9))
    (loop,) = (op for op in smooth.lower(x).stages.graph.ops if isinstance(op, Loop))
    assert len(loop.body) == 1
    expected = x.copy()
    for _ in range(3):
        rows, columns = ([0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 5, 5]), [0, *range(8)]
        steps = [*(expected[near] - expected for near in rows), expected[:, columns] - expected]
        expected += 0.2 * sum(step / (1 + step**2) for step in steps)
    np.testing.assert_allclose(smooth(x.copy()), expected, rtol=1e-12)


def test_chains_of_squares_do_not_grow_without_bounds() -> None:
    """Each is read twice: all of them in one expression are 2 ** 30 products."""
    steps = [f"    t{k + 1}[i] = t{k}[i] * t{k}[i]" for k in range(30)]
    squares = polyml.einsum("\n".join(['def f(x: f64["N"]):', "    t0[i] = x[i] - 1", *steps, "    return t30", ""]))
    x = np.array([1.0, 0.0, 2.0, 0.5])
    made = [op for op in squares.lower(x).stages.graph.ops if isinstance(op, Equation)]
    assert all(sum(1 for _ in walk(op.body)) <= 256 for op in made)
    np.testing.assert_array_equal(squares(x), [0, 1, 1, 0])
