"""Compiled programs through the whole pipeline, as callers see them: layouts, in-place parameters, results, checks, sizes, threads."""

import sys
import threading

import numpy as np
import pytest

import polyml
from polyml.compiler import driver
from polyml.errors import ArgumentError, DTypeError, PolymlError, ShapeError
from polyml.options import overridden

random = np.random.default_rng(0)


def f4(*shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def dense() -> polyml.Einsum:
    program: polyml.Einsum = polyml.einsum("""
def dense(x: f32["N K"], w: f32["K M"], b: f32["M"]):
    y[n, m] = relu(x[n, k] * w[k, m] + b[m])
    return y
""")
    return program


def expected(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.maximum(x.astype(float) @ w.astype(float) + b, 0)


def test_layouts(dense: polyml.Einsum) -> None:
    x, w, b = f4(10, 14), f4(14, 6), f4(6)
    views = [
        (x, w, b), (f4(14, 10).T, w, b), (x[::-1], w[::-1], b[::-1]), (f4(20, 28)[::2, 1::2], f4(6, 14).T, f4(12)[::2]),
        (np.broadcast_to(x[0], (10, 14)), w, np.broadcast_to(np.float32(2), (6,))), (x[:1], w[:, :1], b[:1]),
        (x[3:4, ::-1], np.broadcast_to(w[:, :1], (14, 6)), b), (x.astype(">f4"), w, b),
    ]  # fmt: skip
    for x_, w_, b_ in views:
        for _ in range(2):
            made = dense(x_, w_, b_)
            assert made.dtype == np.float32
            assert made.flags.c_contiguous
            np.testing.assert_allclose(made, expected(x_, w_, b_), rtol=1e-5, atol=1e-5)


def test_empty_arrays(dense: polyml.Einsum) -> None:
    x, w, b = f4(10, 14), f4(14, 6), f4(6)
    for x_, w_ in ((x[:0], w), (x[:, :0], w[:0])):
        np.testing.assert_array_equal(dense(x_, w_, b), expected(x_, w_, b).astype(np.float32))


@pytest.mark.usefixtures("lowered_anew")
def test_a_call_takes_what_was_lowered_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[object] = []
    lower = driver.lower_program
    monkeypatch.setattr(driver, "lower_program", lambda *given: (lowered.append(given), lower(*given))[1])
    f = polyml.einsum('def f(x: f32["N"], t: int):\n    y[n] = x[n] + t\n    return y\n')
    x = f4(5)
    f.explain(x, 2)
    f.lower(x, 2).text("schedule")
    np.testing.assert_array_equal(f(x, 2), x + np.float32(2))
    assert len(lowered) == 1
    f.explain(x, 2)
    assert len(lowered) == 2, "it is not kept for ever"
    f.explain(x, 3)
    assert len(lowered) == 3, "what is assumed of an int may be another value's"
    with overridden(debug=1):
        f.explain(x, 3)
    assert len(lowered) == 4, "who watches the stages sees them"
    np.testing.assert_array_equal(f(f4(7)[::-1][:5], 3).shape, (5,))
    assert len(lowered) == 5, "another layout"


def test_a_parameter_called_out() -> None:
    f = polyml.einsum('def f(x: f32["N"], out: f32["N"]):\n    y[n] = x[n] - out[n]\n    return y\n')
    x, o = f4(5), f4(5)
    for _ in range(2):
        np.testing.assert_array_equal(f(x, out=o), x - o)
        np.testing.assert_array_equal(f(out=o, x=x), x - o)
        with pytest.raises(ArgumentError, match="two values for out"):
            f(x, o, out=x)


def test_out(dense: polyml.Einsum) -> None:
    x, w, b = f4(7, 5), f4(5, 9), f4(9)
    for out in (np.full((7, 9), np.nan, np.float32), np.full((9, 7), np.nan, np.float32).T):
        assert dense(x, w, b, out=out) is out
        np.testing.assert_allclose(out, expected(x, w, b), rtol=1e-5, atol=1e-5)


def test_disagreement_is_refused_and_nothing_is_kept(dense: polyml.Einsum) -> None:
    before = len(dense.kernels)
    x, w, b = f4(7, 5), f4(5, 9), f4(9)
    for args, error, message in (
        ((x, w[:4], b), ShapeError, "argument w"),
        ((x, w, b[:8]), ShapeError, "argument b"),
        ((x, w, b[None]), ShapeError, "argument b has 2 dimensions"),
        ((x.astype(float), w, b), DTypeError, "argument x has dtype f64"),
        ((x, w), ArgumentError, "dense misses b"),
    ):
        with pytest.raises(error, match=message):
            dense(*args)
    assert len(dense.kernels) == before


def test_in_place_and_several_results() -> None:
    f = polyml.einsum("""
def momentum(w: f32["N"], v: f32["N"], g: f32["N"], rate: f32):
    v[n] = 0.9 * v[n] + g[n]
    w[n] = w[n] - rate * v[n]
    size = g[n] * g[n]
    old[n] = g[n] + 0
    return w, size, old
""")
    for step in (1, np.s_[::-1], np.s_[::2]):
        pick = np.s_[:] if step == 1 else step
        w, v, g = f4(30)[pick], f4(30)[pick], f4(30)[pick]
        w0, v0 = w.copy(), v.copy()
        same, size, old = f(w, v, g, 0.5)
        assert same is w
        assert isinstance(size, np.float32)
        assert size == pytest.approx(float(g @ g), rel=1e-5)
        np.testing.assert_allclose(v, 0.9 * v0 + g, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(w, w0 - 0.5 * v, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(old, g)
    frozen = f4(30)
    frozen.flags.writeable = False
    with pytest.raises(ArgumentError, match="argument v is updated in place, and it is read-only"):
        f(f4(30), frozen, f4(30), 0.5)
    both = f4(30)
    with pytest.raises(ArgumentError, match="w is updated in place, and it shares memory with argument v"):
        f(both, both, f4(30), 0.5)
    with pytest.raises(ArgumentError, match="w is updated in place, and it shares memory with argument g"):
        f(both, np.zeros(30, np.float32), both[::-1], 0.5)


def test_index_checks() -> None:
    f = polyml.einsum("""
def take(x: f32["N D"], ids: i64["M"], total: f32["D"]):
    y[m, d] = x[ids[m], d]
    total[d] += y[m, d]
    return y
""")
    x, ids, total = f4(5, 3), np.array([4, 0, 2, 2]), np.zeros(3, np.float32)
    references = sys.getrefcount(x), sys.getrefcount(total)
    np.testing.assert_array_equal(f(x, ids, total), x[ids])
    before = total.copy()
    np.testing.assert_allclose(before, x[ids].sum(0), rtol=1e-5)
    for wrong in (5, -1, 2**62):
        ids[1] = wrong
        with pytest.raises(IndexError) as caught:
            f(x, ids, total)
        assert isinstance(caught.value, PolymlError)
        del caught
    np.testing.assert_array_equal(total, before)
    assert (sys.getrefcount(x), sys.getrefcount(total)) == references


def test_ints() -> None:
    f = polyml.einsum("""
def smooth(x: f32["N"], steps: int, K: int):
    for t in range(0, steps):
        x[0] = x[0] + 1
    y[i] = x[K * i]
    return y
""")
    x = np.zeros(12, np.float32)
    assert f(x, 3, 2).shape == (6,)
    assert f(x, np.int64(4), 2)[0] == 7
    assert f(x, 0, 3).shape == (4,)
    assert len(f.kernels) == 2
    with pytest.raises(ArgumentError, match="argument steps must be an integer"):
        f(x, 1.5, 2)


def test_scalars_of_every_kind() -> None:
    f = polyml.einsum("""
def scale(x: f32["N"], s: f32, k: i32, on: bool):
    y[n] = where(on, s * x[n], f32(k))
    return y
""")
    x = f4(9)
    np.testing.assert_allclose(f(x, 2, 7, True), 2 * x)
    np.testing.assert_allclose(f(x, np.float64(0.5), np.int8(7), np.True_), 0.5 * x)
    np.testing.assert_allclose(f(x, np.float32(0.5), 7, on=False), np.full(9, 7))
    with pytest.raises(ArgumentError, match="argument k = 2147483648 does not fit i32"):
        f(x, 1.0, 2**31, True)
    with pytest.raises(ArgumentError, match="argument on must be a bool"):
        f(x, 1.0, 2, 1)


def test_lists_and_zero_dimensional_arrays() -> None:
    f = polyml.einsum('def total(x: f32["N"], s: f32):\n    t = s * x[n]\n    return t\n')
    assert f([1, 2, 3], np.array(2.0)) == 12


def test_threads_give_the_same_result() -> None:
    text = 'def big(x: f32["N M"]):\n    y[n, m] = exp(x[n, m]) + x[n, m]\n    return y\n'
    x = f4(300, 257)
    results = [polyml.einsum(text, threads=count)(x) for count in (1, 2, 3)]
    results.append(polyml.einsum(text, parallel=False)(x))
    for made in results:
        np.testing.assert_array_equal(made, results[0])
    np.testing.assert_allclose(results[0], np.exp(x) + x, rtol=1e-5, atol=1e-6)


def test_callers_in_eight_threads(dense: polyml.Einsum) -> None:
    cases = [(f4(k, 20), f4(20, 30), f4(30)) for k in range(3, 7)]
    wanted = [expected(*case) for case in cases]
    wrong: list[int] = []

    def work() -> None:
        for _ in range(10):
            for k, case in enumerate(cases):
                if not np.allclose(dense(*case), wanted[k], rtol=1e-4, atol=1e-4):
                    wrong.append(k)

    team = [threading.Thread(target=work) for _ in range(8)]
    for member in team:
        member.start()
    for member in team:
        member.join()
    assert not wrong


@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64"])
def test_named_targets(name: str) -> None:
    target = polyml.Target(name)
    text = 'def f(x: f32["N K"], w: f32["K M"]):\n    y[n, m] = exp(x[n, k] * w[k, m])\n    return y\n'
    f = polyml.einsum(text, target=name)
    x, w = f4(5, 7), f4(7, 33)
    assert f.lower(x, w).text("asm")
    if target.runs_here:
        np.testing.assert_allclose(f(x, w), np.exp(x @ w), rtol=1e-4)
    else:
        for call in (
            lambda: f(x, w),
            lambda: f.bind(w=w)(x),
            lambda: polyml.einsum(text, target=name, dynamic=True)(x, w),
        ):
            with pytest.raises(PolymlError, match=f"^code for the target {name} does not run on this machine"):
                call()
        loop = 'def f(x: f32["N"]):\n    for n in range(N):\n        x[n + 1] = 1\n    return x\n'
        beyond = polyml.einsum(loop, target=name)
        with pytest.raises(PolymlError, match="does not run on this machine"):
            beyond(f4(5))  # refused before anything is lowered: not for its subscript
