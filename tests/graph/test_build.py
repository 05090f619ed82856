"""Program to Graph: values against NumPy by the graph's reference, and the shape of what is built."""

from __future__ import annotations

import numpy as np
import pytest

from polyml.errors import ShapeError
from polyml.expressions import Apply, walk
from polyml.graph.ir import Check, Equation, Graph, Loop
from polyml.sets.affine import affine
from tests.graph.built import Callee, check_refused, graph, program, run, values


def equations(built: Graph) -> list[Equation]:
    return [op for op in built.ops if isinstance(op, Equation)]


def ops_applied(built: Graph) -> set[str]:
    return {n.op for eq in equations(built) for n in walk(eq.body) if isinstance(n, Apply)}


# -- reductions ----------------------------------------------------------------------------------------------------


def test_dense_layer() -> None:
    x, w, b = values(5, 7), values(7, 3), values(3)
    source = program(
        'x: f32["N K"], w: f32["K M"], b: f32["M"]', "y[n, m] = relu(x[n, k] * w[k, m] + b[m])", "return y"
    )
    product, layer = equations(graph(source, x, w, b))
    assert (product.reduce, product.reduced, layer.reduce) == ("sum", ("k",), None)
    assert product.domain.plain_is_equal(
        type(product.domain)("{ y_sum[n, m, k] : 0 <= n < 5 and 0 <= m < 3 and 0 <= k < 7 }")
    )
    np.testing.assert_allclose(run(source, x, w, b)[0], np.maximum(x @ w + b, 0), rtol=1e-5)


def test_softmax() -> None:
    lines = (
        "m[n] = max[k](x[n, k])",
        "e[n, k] = exp(x[n, k] - m[n])",
        "y[n, k] = e[n, k] / sum[j](e[n, j])",
        "return y",
    )
    source, x = program('x: f32["N K"]', *lines), values(5, 7)
    assert [eq.reduce for eq in equations(graph(source, x))] == ["max", None, "sum", None]
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(run(source, x)[0], e / e.sum(1, keepdims=True), rtol=1e-5)


def test_a_right_side_that_is_one_reducer_is_the_statement_itself() -> None:
    x = values(4, 5)
    source = program('x: f32["N K"]', "y[n] = x[n, k]", "return y")
    (only,) = equations(graph(source, x))
    assert only.reduce == "sum"
    # but what does not depend on a left index is summed once
    source = program('x: f32["N K"]', 'y: f32["N 3"]', "y[n, m] = sum[k](x[n, k])", "return y")
    once, spread = equations(graph(source, x))
    assert (once.result.shape, spread.reduce) == ((affine(4),), None)
    np.testing.assert_allclose(run(source, x)[0], np.repeat(x.sum(1)[:, None], 3, 1), rtol=1e-6)


def test_each_term_has_its_own_sum() -> None:
    a, b, x = values(4, 5), values(4, 6), values(5)
    source = program('a: f32["N K"], b: f32["N J"], x: f32["K"]', "y[n] = 2 * a[n, k] * x[k] + b[n, j]", "return y")
    assert [eq.reduce for eq in equations(graph(source, a, b, x))] == ["sum", "sum", None]
    np.testing.assert_allclose(run(source, a, b, x)[0], 2 * a @ x + b.sum(1), rtol=1e-5)


def test_nested_reducers_keep_the_indices_that_they_use() -> None:
    x = values(4, 5)
    source = program(
        'x: f32["N K"]', "y[n, k] = where(k < n, x[n, k] / sum[j](abs(x[n, j])), max[i](x[i, k]))", "return y"
    )
    total, best, last = equations(graph(source, x))
    assert (total.result.shape, best.result.shape, last.reduce) == ((affine(4),), (affine(5),), None)
    n, k = np.indices((4, 5))
    expected = np.where(k < n, x / np.abs(x).sum(1, keepdims=True), x.max(0))
    np.testing.assert_allclose(run(source, x)[0], expected, rtol=1e-5)


def test_a_sum_of_nothing_is_zero() -> None:
    x = values(4, 4)
    lower = np.tril(x, -1).sum(1)
    for line in ("y[n] = sum[k, k < n](x[n, k])", "y[n] = 0 + sum[k, k < n](x[n, k])"):
        np.testing.assert_allclose(run(program('x: f32["N N"]', line, "return y"), x)[0], lower, rtol=1e-6)
    # into a tensor that has other elements
    source = program('x: f32["N N"]', 'y: f32["N"] = 3', "if n < 2:", "    y[n] = sum[k, k < n](x[n, k])", "return y")
    (built,) = [eq for eq in equations(graph(source, x)) if eq.reduce]
    assert built.instances is not None
    assert built.instances.plain_is_equal(type(built.instances)(f"{{ {built.result.name}[n] : 0 <= n < 2 }}"))


def test_padding_restricts_the_sum() -> None:
    x, f = values(6, 5), values(3, 3)
    padded = np.pad(x, 1)
    expected = np.asarray([[(padded[h : h + 3, w : w + 3] * f).sum() for w in range(5)] for h in range(6)])
    for line in (
        "y[h, w] = pad(x, ((1, 1), (1, 1)))[h + r, w + s] * f[r, s]",
        "y[h, w] = sum[r, s, 0 <= h + r - 1 < H, 0 <= w + s - 1 < W](x[h + r - 1, w + s - 1] * f[r, s])",
        "y[h, w] = sum[r, s](where(0 <= h + r - 1 < H and 0 <= w + s - 1 < W, x[h + r - 1, w + s - 1], 0) * f[r, s])",
    ):
        source = program('x: f32["H W"], f: f32["R S"]', 'y: f32["H W"]', line, "return y")
        assert "select" not in ops_applied(graph(source, x, f, reorders=True))
        np.testing.assert_allclose(run(source, x, f, reorders=True)[0], expected, rtol=1e-5)


def test_zeros_that_a_sum_skips_keep_their_type() -> None:
    """Whole numbers are added up as floats beside one."""
    x = np.full(3, 2**30, np.int32)
    source = program('x: i32["N"]', "y[n] = sum[k](where(k <= n, x[k], 0.0)) + x[n]", "return y")
    (y,) = run(source, x, reorders=True)
    np.testing.assert_array_equal(y, 2.0**30 * np.arange(2, 5))


def test_padding_is_a_factor_where_sums_keep_their_order() -> None:
    x, f = values(6), values(3)
    f[0] = np.inf
    for factor, written in (
        ("pad(x, ((1, 1),))[h + r]", False),
        ("where(0 <= h + r - 1 < H, x[h + r - 1], 0)", False),
        ("-where(0 <= h + r - 1 < H, x[h + r - 1], 0) / -1", False),
        ("x[h + r - 1]", True),
    ):
        condition = ", 0 <= h + r - 1 < H" if written else ""
        line = f"y[h] = sum[r{condition}]({factor} * f[r])"
        source = program('x: f32["H"], f: f32["3"]', 'y: f32["H"]', line, "return y")
        with np.errstate(invalid="ignore"):
            (y,) = run(source, x, f)
            assert np.isnan(y[0]) != written, line
            assert not np.isnan(run(source, x, f, reorders=True)[0][0]), line


def test_padding_elsewhere_selects() -> None:
    x = values(5)
    source = program('x: f32["H"]', "y[h] = max[r < 3](pad(x, ((1, 2),))[h + r])", "return y")
    assert "select" in ops_applied(graph(source, x))
    padded = np.pad(x, (1, 2))
    np.testing.assert_array_equal(run(source, x)[0], [padded[h : h + 3].max() for h in range(6)])


# -- assignments ---------------------------------------------------------------------------------------------------


def test_updates() -> None:
    x = values(6)
    lines = ('y: f32["N"] = 8', "y[n] += x[n]", "y[n] -= 2*x[n]", "y[n] *= x[n]", "y[n] /= 4", "return y")
    source = program('x: f32["N"]', *lines)
    assert all(eq.base is None for eq in equations(graph(source, x)))  # each writes the whole tensor
    np.testing.assert_allclose(run(source, x)[0], (8 + x - 2 * x) * x / 4, rtol=1e-6)


def test_instances_that_hit_one_element_accumulate() -> None:
    x = values(6) + 2
    expected = x[0::2] + x[1::2]
    source = program('x: f32["N"]', 'y: f32["3"] = 1', "y[n // 2] += x[n]", "return y")
    built = equations(graph(source, x))[-1]
    assert (built.reduce, built.accumulate, built.reduced) == ("sum", True, ())
    np.testing.assert_allclose(run(source, x)[0], 1 + expected, rtol=1e-6)
    source = program('x: f32["N"]', 'y: f32["3"] = 1', "y[n // 2] -= x[n]", "return y")
    np.testing.assert_allclose(run(source, x)[0], 1 - expected, rtol=1e-6)
    source = program('x: f32["N"]', 'y: f32["3"] = 2', "y[n // 2] *= x[n]", "return y")
    np.testing.assert_allclose(run(source, x)[0], 2 * x[0::2] * x[1::2], rtol=1e-6)
    source = program('x: f32["N"]', 'y: f32["3"] = 2', "y[n // 2] /= x[n]", "return y")
    np.testing.assert_allclose(run(source, x)[0], 2 / x[0::2] / x[1::2], rtol=1e-6)


def test_an_update_sums_what_the_left_side_lacks() -> None:
    x = values(4, 5)
    source = program('x: f32["N K"]', 'y: f32["N"] = 1', "y[n] -= x[n, k] * x[n, k]", "return y")
    built = equations(graph(source, x))[-1]
    assert (built.reduce, built.accumulate, built.reduced) == ("sum", True, ("k",))
    np.testing.assert_allclose(run(source, x)[0], 1 - (x * x).sum(1), rtol=1e-5)
    source = program('x: f32["N K"]', 'y: f32["N"] = 1', "if k <= n:", "    y[n] += x[n, k]", "return y")
    np.testing.assert_allclose(run(source, x)[0], 1 + np.tril(x).sum(1), rtol=1e-5)


def test_simultaneity() -> None:
    x = values(6)
    expected = x[::-1].copy()
    run(program('x: f32["N"]', "x[n] = x[N - 1 - n]"), x)
    np.testing.assert_array_equal(x, expected)


def test_results_are_tensors_of_their_own() -> None:
    x = values(3)
    built = graph(program('x: f32["N"], y: f32["N"]', "y[n] = x[n]", "return x, y"), x, values(3))
    assert [item.written for item in built.inputs] == [False, True]
    assert built.outputs[0] != built.inputs[0].tensor
    assert built.outputs[1] == built.inputs[1].final


def test_empty_tensors() -> None:
    x, w = np.zeros((0, 3), "f4"), np.zeros((3, 0), "f4")
    source = program('x: f32["N K"], w: f32["K M"]', "y[n, m] = x[n, k] * w[k, m]", "z[k] = x[n, k]", "return y, z")
    y, z = run(source, x, w)
    assert (y.shape, z.tolist()) == ((0, 0), [0, 0, 0])


# -- loops ---------------------------------------------------------------------------------------------------------


def test_jacobi_with_a_symbolic_count() -> None:
    lines = (
        "b[i, j] = a[i, j]",
        "for t in range(T):",
        "    if 0 < i < N - 1 and 0 < j < N - 1:",
        "        b[i, j] = 0.25 * (a[i-1, j] + a[i+1, j] + a[i, j-1] + a[i, j+1])",
        "    a[i, j] = b[i, j]",
    )
    source, a = program('a: f32["N N"], T: int', *lines), values(7, 7)
    built = graph(source, a, 3)
    assert built.sizes == ("T",)
    loop = built.ops[-1]
    assert isinstance(loop, Loop)
    assert (loop.stop, sorted(c.initial.label for c in loop.carried)) == (affine("T"), ["a", "b"])
    expected = a.copy()
    for _ in range(3):
        mean = expected[:-2, 1:-1] + expected[2:, 1:-1] + expected[1:-1, :-2] + expected[1:-1, 2:]
        expected[1:-1, 1:-1] = mean / 4
    run(source, a, 3)
    np.testing.assert_allclose(a, expected, rtol=1e-5)


def test_loops_without_iterations_and_backwards() -> None:
    source = program(
        'x: f32["N"], T: int', "s = 1.5", "for t in range(T, 0, -2):", "    s = s * 2 + x[0] + t", "return s"
    )
    for count in (0, -3, 1, 4, 5):
        expected = np.float32(1.5)
        for t in range(count, 0, -2):
            expected = expected * 2 - 1.5 + t
        assert run(source, values(3), count)[0] == expected


def test_cholesky() -> None:
    lines = (
        "for i in range(N):",
        "    for j in range(i):",
        "        a[i, j] -= sum[k, k < j](a[i, k] * a[j, k])",
        "        a[i, j] /= a[j, j]",
        "    a[i, i] -= sum[k, k < i](a[i, k] * a[i, k])",
        "    a[i, i] = sqrt(a[i, i])",
    )
    m = values(6, 6, dtype="f8")
    a = m @ m.T + 9 * np.eye(6)
    expected = np.linalg.cholesky(a)
    run(program('a: f64["N N"]', *lines), a)
    np.testing.assert_allclose(np.tril(a), expected, rtol=1e-12)


def test_tensors_made_in_a_loop_live_for_one_iteration() -> None:
    source = program(
        'x: f32["T N"]',
        'y: f32["N"] = 0',
        "for t in range(T):",
        "    z[n] = 2 * x[t, n]",
        "    y[n] += z[n]",
        "return y",
    )
    x = values(4, 3)
    (loop,) = [op for op in graph(source, x).ops if isinstance(op, Loop)]
    assert [c.initial.label for c in loop.carried] == ["y"]
    np.testing.assert_allclose(run(source, x)[0], 2 * x.sum(0), rtol=1e-6)


# -- gathers -------------------------------------------------------------------------------------------------------


def test_indices_from_arguments_are_checked_ahead() -> None:
    table, y = values(5, 3), values(4)
    lines = ("y[m] = 0", "for t in range(2):", "    y[m] += table[ids[m, t], t]")
    source = program('table: f32["N D"], ids: i32["M 2"], y: f32["M"]', *lines)
    ids = np.asarray([[0, 4], [1, 1], [2, 0], [3, 3]], "i4")
    built = graph(source, table, ids, y)
    assert isinstance(built.ops[0], Equation)
    assert isinstance(built.ops[1], Check)
    assert built.ops[0].reduced == ("t", "m")
    run(source, table, ids, y)
    np.testing.assert_allclose(y, table[ids[:, 0], 0] + table[ids[:, 1], 1], rtol=1e-6)
    for bad in (-1, 5):
        before = y.copy()
        ids[2, 1] = bad
        with pytest.raises(IndexError, match=r"dimension 0 of table \(extent 5\)"):
            run(source, table, ids, y)
        np.testing.assert_array_equal(y, before)


def test_indices_are_checked_ahead_of_loops_whose_length_another_one_decides() -> None:
    table, y = values(5), values(4)
    lines = ("for t in range(3):", "    for u in range(t):", "        y[m] += table[ids[m]]")
    source = program('table: f32["N"], ids: i32["M"], y: f32["M"]', *lines)
    ids = np.asarray([0, 1, 4, 3], "i4")
    assert isinstance(graph(source, table, ids, y).ops[1], Check)
    run(source, table, ids, y)


def test_only_instances_whose_conditions_hold_are_checked() -> None:
    x, ids = values(5), np.asarray([4, 0, -1], "i4")
    for condition in ("m < 2", "ids[m] >= 0", "m < 2 and ids[m] >= 0", "not (ids[m] < 0)"):
        source = program('x: f32["N"], ids: i32["M"]', f"y[m] = where({condition}, x[ids[m]], 0)", "return y")
        np.testing.assert_array_equal(run(source, x, ids)[0], [x[4], x[0], 0])


def test_computed_indices_are_clamped_and_checked_where_the_loop_ends() -> None:
    lines = (
        "s: i64 = 0",
        "a: f32 = 0",
        "for t in range(T):",
        "    for u in range(2):",
        "        a = a + x[s]",
        "    s = s + 1",
    )
    source, x = program('x: f32["N"], T: int', *lines, "return a"), values(5)
    built = graph(source, x, 5)
    assert isinstance(built.ops[-1], Check)
    np.testing.assert_allclose(run(source, x, 5)[0], 2 * x.sum(), rtol=1e-6)
    with pytest.raises(IndexError, match="dimension 0 of x"):
        run(source, x, 6)


def test_indices_that_are_in_range_by_themselves_are_not_checked() -> None:
    x, ids, small = values(4, 3), np.asarray([-7, 9], "i4"), np.asarray([0, 255], "u1")
    lines = (
        "k[n] = argmax[d](x[n, d])",
        "a[n] = x[n, k[n]]",
        "b[m] = x[ids[m] % 4, 0]",
        "j[m] = min(max(ids[m], 0), 3)",
        "c[m] = x[j[m], 0]",
    )
    source = program('x: f32["N D"], ids: i32["M"]', *lines, "return a, b, c")
    assert not any(isinstance(op, Check) for op in graph(source, x, ids).ops)
    a, b, c = run(source, x, ids)
    np.testing.assert_array_equal(a, x.max(1))
    np.testing.assert_array_equal(b, x[ids % 4, 0])
    np.testing.assert_array_equal(c, x[[0, 3], 0])
    source = program('x: f32["N"], ids: u8["M"]', "y[m] = x[ids[m]]", "return y")
    assert not any(isinstance(op, Check) for op in graph(source, values(256), small).ops)
    assert any(isinstance(op, Check) for op in graph(source, values(255), small).ops)


def test_scatter() -> None:
    x, ids = values(4), np.asarray([1, 0, 1, 1], "i4")
    source = program('x: f32["M"], ids: i32["M"]', 'h: f32["3"] = 0', "h[ids[m]] += x[m]", "return h")
    np.testing.assert_allclose(run(source, x, ids)[0], np.bincount(ids, x, 3), rtol=1e-6)
    ids[0] = 3
    with pytest.raises(IndexError, match="dimension 0 of h"):
        run(source, x, ids)


# -- other programs ------------------------------------------------------------------------------------------------


def test_a_called_program_is_inlined() -> None:
    product = Callee('x: f32["N K"], w: f32["K M"], scale: f32', "y[n, m] = scale * x[n, k] * w[k, m]", "return y")
    lines = ("y = mm(x, w, 0.5)", "t[m, n] = y[n, m]", "z = mm(y, t, 2 + s)", "return y, z")
    source = program('x: f32["N K"], w: f32["K M"], s: f32', *lines, namespace={"mm": product})
    x, w = values(3, 4), values(4, 5)
    y, z = run(source, x, w, 1.0)
    np.testing.assert_allclose(y, 0.5 * x @ w, rtol=1e-5)
    np.testing.assert_allclose(z, 3 * y @ y.T, rtol=1e-5)


def test_a_callee_updates_the_callers_tensors_in_loops() -> None:
    step = Callee(
        'a: f32["N"], b: f32["N"], t: int',
        "for u in range(2):",
        "    b[i] = a[i] + t",
        "    a[i] = b[i] / 2",
        "return b",
    )
    lines = ('b: f32["N"] = 0', "for t in range(T):", "    c = step(a, b, t)", "return b")
    source = program('a: f32["N"], T: int', *lines, namespace={"step": step})
    a = values(4)
    expected = a.copy()
    for t in range(3):
        for _ in range(2):
            both = expected + t
            expected = both / 2
    (b,) = run(source, a, 3)
    np.testing.assert_allclose(b, both, rtol=1e-6)
    np.testing.assert_allclose(a, expected, rtol=1e-6)


@pytest.mark.parametrize("loop", ["range(T)", "range(T, 0, -2)", "range(2)"])
def test_a_callee_with_a_tensor_of_its_own_in_a_loop(loop: str) -> None:
    """It is wholly written in each iteration that there is."""
    scan = Callee(
        'a: f32["N"], c: int',
        'y: f32["N"]',
        "y[n] = a[n]",
        "for i in range(1, N):",
        "    y[i] = y[i - 1] + a[i] + c",
        "return y",
    )
    twice = Callee('a: f32["N"]', "for q in range(2):", "    a = scan(a, q)", "return a", namespace={"scan": scan})
    lines = (f"for t in {loop}:", "    b = twice(a)", "    a[n] = b[n] - t")
    source = program('a: f32["N"], T: int', *lines, "return a", namespace={"twice": twice})
    a = values(5)
    expected = a.copy()
    for t in eval(loop, {"T": 3}):
        for q in range(2):
            expected = np.cumsum(expected) + q * np.arange(5)
        expected = expected - t
    run(source, a, 3)
    np.testing.assert_allclose(a, expected, rtol=1e-5)


def test_names_of_caller_and_callee_do_not_meet() -> None:
    callee = Callee('t: f32["N"]', "i[n] = t[n] * 2", "y[k] = i[k] + sum[j](t[j])", "return y")
    lines = (
        'r: f32["T N"]',
        "for i in range(T):",
        "    j[n] = x[i, n]",
        "    k = g(j)",
        "    r[i, n] = k[n]",
        "return r",
    )
    source, x = program('x: f32["T N"]', *lines, namespace={"g": callee}), values(3, 4)
    np.testing.assert_allclose(run(source, x)[0], 2 * x + x.sum(1, keepdims=True), rtol=1e-6)


def test_refused_calls() -> None:
    fill = Callee('x: f32["N"], y: f32["N"]', "y[n] = x[n]")
    with pytest.raises(Exception, match="passed"):
        graph(program('x: f32["N"]', "g(x, x)", "return x", namespace={"g": fill}), values(3))
    with pytest.raises(
        ShapeError, match=r"in the call of .*: dimension 0 of argument y is 4, and its entry says 3.*\n.*\n +g.x, y.\n"
    ):
        graph(program('x: f32["N"], y: f32["M"]', "g(x, y)", namespace={"g": fill}), values(3), values(4))


def test_refused_update_of_a_tensor_without_a_value() -> None:
    check_refused(
        'x: f32["N"]', 'y: f32["N"]', "for t in range(2):", "    «y[n]» += x[n]", "return y",
        arguments=(values(3),), error=ShapeError, message=r"y\[0\] is updated before it is written",
    )  # fmt: skip
