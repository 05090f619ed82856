"""The NumPy reference of a Graph against formulas written by hand."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl
import numpy as np
import pytest

from polyml.graph import reference
from polyml.graph.reference import evaluate, execute
from tests.graph.graph_text import graph

RNG = np.random.default_rng(7)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_dense_layer_with_bias_and_relu() -> None:
    g = graph("""
        x: f32[5, 7]
        w: f32[7, 3]
        b: f32[3]
        t[n, m] = sum[k](x[n, k] * w[k, m])
        y[n, m] = relu(t[n, m] + b[m])
        return y
    """)
    x, w, b = f32(5, 7), f32(7, 3), f32(3)
    (y,) = execute(g, [x, w, b])
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, np.maximum(x @ w + b, 0), rtol=1e-5, atol=1e-6)
    (wide,) = execute(g, [x, w, b], wide=True)
    assert wide.dtype == np.float64
    np.testing.assert_allclose(wide, np.maximum(x.astype(float) @ w.astype(float) + b, 0), rtol=1e-12)


def test_slabs_give_what_the_whole_box_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    g = graph("""
        x: f32[9, 11]
        s = sum[i, j](x[i, j])
        if j <= i: t[i] = max[j](x[i, j])
        a[i] = argmin[j](x[i, j])
        return s, t, a
    """)
    x = f32(9, 11)
    whole = execute(g, [x])
    monkeypatch.setattr(reference, "_POINTS_AT_ONCE", 10)
    for one, other in zip(whole, execute(g, [x]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    np.testing.assert_allclose(whole[0], x.sum(), rtol=1e-5)
    np.testing.assert_array_equal(whole[1], [x[i, : i + 1].max() for i in range(9)])
    np.testing.assert_array_equal(whole[2], x.argmin(axis=1))


def test_convolution_padding_and_strides() -> None:
    g = graph(
        """
        x: f32[9]
        f: f32[3]
        tensor(y, f32[9])
        if 0 <= h + r - 1 and h + r - 1 < 9: y[h] = sum[r](x[h + r - 1] * f[r])
        tensor(v, f32[4])
        v[h] = sum[r](x[2*h + r] * f[r])
        z[a] = where(a < 4, x[a + 5], f[0])
        tensor(q, f32[3, 3])
        q[i // 3, i % 3] = x[i]
        return y, v, z, q
    """.replace("z[a] = ", "if a < 9: z[a] = ").replace("tensor(v", "tensor(z, f32[9])\n        tensor(v")
    )
    x, f = f32(9), f32(3)
    y, v, z, q = execute(g, [x, f])
    np.testing.assert_allclose(y, np.convolve(x, f[::-1], "same"), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(v, np.convolve(x, f[::-1], "valid")[::2], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(z, [*x[5:], *[f[0]] * 5])
    np.testing.assert_array_equal(q, x.reshape(3, 3))


def test_an_untaken_read_out_of_bounds_is_allowed_and_a_taken_one_is_not() -> None:
    text = """
        x: f32[4]
        tensor(z, f32[8])
        z[a] = where(a < LIMIT, x[a], x[0])
        return z
    """
    x = f32(4)
    (z,) = execute(graph(text.replace("LIMIT", "4")), [x])
    np.testing.assert_array_equal(z, [*x, *[x[0]] * 4])
    with pytest.raises(AssertionError, match="leaves its dimension"):
        execute(graph(text.replace("LIMIT", "5")), [x])


def test_gather_and_scatter() -> None:
    g = graph("""
        table: f32[6, 3]
        ids: i32[5]
        e[n, d] = table[ids[n], d]
        h1(table)[ids[n], d] += e[n, d]
        return e, h1
    """)
    table, ids = f32(6, 3), np.array([1, 4, 1, 0, 1], np.int32)
    e, h = execute(g, [table, ids])
    np.testing.assert_array_equal(e, table[ids])
    expected = table.copy()
    np.add.at(expected, ids, table[ids])
    np.testing.assert_allclose(h, expected, rtol=1e-6)


def test_accumulation_into_elements_that_several_instances_hit() -> None:
    g = graph("""
        x: f32[4, 3]
        y: f32[9]
        y1(y)[2*h + r] += x[h, r]
        y2(y1)[h] += sum[r](x[h, r])
        return y1, y2
    """)
    x, y = f32(4, 3), f32(9)
    y1, y2 = execute(g, [x, y])
    expected = y.copy()
    for h in range(4):
        for r in range(3):
            expected[2 * h + r] += x[h, r]
    np.testing.assert_allclose(y1, expected, rtol=1e-5, atol=1e-6)
    expected[:4] += x.sum(axis=1)
    np.testing.assert_allclose(y2, expected, rtol=1e-5, atol=1e-6)


def test_argmax_takes_the_first_winner_and_nan_wins_inside_the_domain_only() -> None:
    g = graph("""
        x: f32[4, 5]
        if k >= 1 and k <= i + 1: a[i] = argmax[k](x[i, k])
        b[i] = argmin[k](x[i, k])
        return a, b
    """)
    x = np.array([[9, 1, 1, 1, 1], [1, 2, 2, np.nan, 0], [np.nan, 1, np.nan, 5, np.nan], [-np.inf] * 5], np.float32)
    a, b = execute(g, [x])
    np.testing.assert_array_equal(a, [1, 1, 2, 1])
    np.testing.assert_array_equal(b, np.argmin(x, axis=1))
    assert a.dtype == np.int64


def test_loop_carries_tensors_and_runs_backwards() -> None:
    g = graph("""
        x: f32[6, 3]
        h0: f32[3]
        for t in range(5, -1, -2):
            carry(h0, h, h2, h3)
            h2[i] = f32(0.5) * h[i] + x[t, i]
        for t in range(4, 4):
            carry(h3, g, g2, g3)
            g2[i] = g[i] + g[i]
        return h3, g3
    """)
    x, h0 = f32(6, 3), f32(3)
    h3, g3 = execute(g, [x, h0])
    expected = h0
    for t in (5, 3, 1):
        expected = np.float32(0.5) * expected + x[t]
    np.testing.assert_allclose(h3, expected, rtol=1e-6)
    np.testing.assert_array_equal(g3, h3)


def test_written_input_is_updated_in_place_unless_a_check_fails() -> None:
    g = graph("""
        x: f32[4]
        n: i64
        bad = n < 0
        check(bad)
        x1(x)[i] = x[i] + x[i]
        final(x, x1)
        return x1
    """)
    x = f32(4)
    before = x.copy()
    with pytest.raises(IndexError, match="bad is set"):
        execute(g, [x, -1])
    np.testing.assert_array_equal(x, before)
    execute(g, [x, 1])
    np.testing.assert_array_equal(x, 2 * before)


def test_symbolic_sizes_come_from_shapes() -> None:
    g = graph("""
        sizes(N, S)
        x: f32[N]
        if i < S: y[i] = x[N - 1 - i] + x[i]
        return y
    """)
    x = f32(8)
    y = evaluate(g, [x], sizes={"S": 5})["y"]
    np.testing.assert_array_equal(y[:5], (x + x[::-1])[:5])
    np.testing.assert_array_equal(y[5:], 0)


def test_points_of_an_update_with_nothing_to_reduce_take_the_identity() -> None:
    g = graph("""
        x: f32[4]
        y: f32[4]
        if k < i: y1(y)[i] = sum[k](x[k])
        return y1
    """)
    x, y = f32(4), f32(4)
    (kept,) = execute(g, [x, y])
    np.testing.assert_allclose(kept[:2], [y[0], x[0]])
    instances = isl.Set("{ y1[i] : 0 <= i < 3 }")
    (op,) = g.ops
    (zeroed,) = execute(replace(g, ops=(replace(op, instances=instances),)), [x, y])
    np.testing.assert_allclose(zeroed[:2], [0, x[0]])
    np.testing.assert_array_equal(zeroed[2:], kept[2:])


def test_integers_wrap_and_bools_count() -> None:
    g = graph("""
        x: i32[3]
        b: bool[3]
        p = prod[i](x[i])
        n = sum[i](i64(b[i]))
        a = all[i](b[i])
        return p, n, a
    """)
    x = np.array([2**30, 4, 3], np.int32)
    p, n, a = execute(g, [x, np.array([True, False, True])])
    assert (p.dtype, p[()], n[()], a[()]) == (np.int32, 0, 2, False)


def test_reduction_over_nothing_is_the_identity() -> None:
    g = graph("""
        x: f32[4]
        tensor(y, f32[4])
        if k < i: y[i] = sum[k](x[k])
        tensor(z, f32[4])
        if k < i: z[i] = max[k](x[k])
        return y, z
    """)
    x = f32(4)
    y, z = execute(g, [x])
    np.testing.assert_allclose(y, np.concatenate(([0], np.cumsum(x)[:3])), rtol=1e-6, atol=1e-6)
    assert z[0] == -np.inf
