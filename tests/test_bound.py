"""Constant arguments: what is computed and packed once, and that nobody sees a difference but in time."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

import polyml
from polyml import bound as module
from polyml.compiler.constants import lower_bound
from polyml.errors import ArgumentError, DTypeError, PolymlError, ShapeError
from polyml.target import Target

SMALL = Target("host", l1_bytes=2048, l2_bytes=16 * 1024, cores=2)
DENSE = """
def dense(x: {0}["N K"], w: {0}["K M"], b: {0}["M"]):
    y[n, m] = relu(x[n, k] * w[k, m] + b[m])
    return y
"""
TYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "i32": np.int32}


def numbers(*shape: int, dtype: str = "f32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(TYPES[dtype])


def constants_of(function: polyml.Einsum) -> list[str]:
    """The names of what comes before the arguments of a call."""
    (kernel,) = function.kernels
    return [p.name for p in kernel.kernel.signature.parameters[: len(kernel.constants)]]


# Elements are small integers: every sum is exact, in any order.
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.few(1)
def test_constant_operands_are_packed_once(dtype: str, transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = module._aligned

    def poisoned(shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
        made = plain(shape, kind)
        made.fill(np.nan if kind.kind == "f" else 77)
        return made

    monkeypatch.setattr(module, "_aligned", poisoned)
    x, b = numbers(37, 80, dtype=dtype), numbers(130, dtype=dtype, seed=1)
    w = numbers(130, 80, dtype=dtype, seed=2).T if transposed else numbers(80, 130, dtype=dtype, seed=2)
    function = polyml.einsum(DENSE.format(dtype), target=SMALL, threads=2)
    frozen = function.bind(w=w, b=b)
    expected = np.maximum(x.astype(np.float64) @ w.astype(np.float64) + b, 0)
    for _ in range(2):
        np.testing.assert_array_equal(frozen(x), expected.astype(x.dtype))
    names = constants_of(frozen)
    assert any("panels" in name or "once" in name or name.startswith("w_") for name in names), names
    assert "w" not in names


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 15])
@pytest.mark.few(2)
def test_constants_are_packed_for_a_few_rows_too(rows: int, transposed: bool) -> None:
    """Their panels cost a call nothing, which others only gain with sixteen."""
    x, b = numbers(rows, 97), numbers(83, seed=1)
    w = numbers(83, 97, seed=2).T if transposed else numbers(97, 83, seed=2)
    function = polyml.einsum(DENSE.format("f32"), target=Target("host", l1_bytes=32 * 1024, l2_bytes=1 << 20))
    frozen = function.bind(w=w, b=b)
    notes = [note for region in frozen.lower(x).stages.regions for note in region.notes]
    assert any(note.stage == "blocking" for note in notes) == (rows > 1)
    assert not any(note.stage == "blocking" for r in function.lower(x, w, b).stages.regions for note in r.notes)
    np.testing.assert_array_equal(frozen(x), np.maximum(x @ w + b, 0))


def test_blocks_of_packed_panels_lie_one_after_the_other() -> None:
    x, w = numbers(40, 300), numbers(300, 200, seed=1)
    text = 'def f(x: f32["N K"], w: f32["K M"]):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n'
    frozen = polyml.einsum(text, target=SMALL, threads=1).bind(w=w)
    np.testing.assert_array_equal(frozen(x), x @ w)
    (kernel,) = frozen.kernels
    (panels,) = (c.value for c in kernel.constants)
    blocks = panels.shape[:2]
    assert min(blocks) > 1, "several blocks of columns and of the sum"
    assert panels.ctypes.data % 64 == 0
    assert not panels.flags.writeable


def test_row_operands_are_packed_once_too() -> None:
    w, y = numbers(70, 200), numbers(150, 70, seed=1)
    text = 'def f(w: f32["K N"], y: f32["M K"]):\n    z[n, m] = w[k, n] * y[m, k]\n    return z\n'
    frozen = polyml.einsum(text, target=SMALL).bind(w=w)
    np.testing.assert_array_equal(frozen(y), w.T @ y.T)
    assert any("panels" in name for name in constants_of(frozen))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_what_is_filled_once_fetches_nothing_of_a_call(dtype: str) -> None:
    """The result's lines, which the kernel fetches before it packs, are no argument of the filling."""
    x, w = numbers(255, 25).astype(TYPES[dtype]), numbers(255, 100, seed=1).astype(TYPES[dtype])
    text = f'def f(x: {dtype}["K N"], w: {dtype}["K M"]):\n    y[m, n] = x[k, n] * w[k, m]\n    return y\n'
    frozen = polyml.einsum(text, target=Target("x86-64-v3", l1_bytes=2048, l2_bytes=16 * 1024), threads=1).bind(w=w)
    np.testing.assert_array_equal(frozen(x), w.T @ x)


@pytest.mark.parametrize("sizes", [(11, 0, 9, 12), (0, 3, 9, 12), (11, 3, 0, 12), (11, 3, 9, 0)])
def test_empty_arguments(sizes: tuple[int, int, int, int]) -> None:
    batch, rows, depth, columns = sizes
    text = 'def f(x: f32["B N K"], w: f32["B K M"]):\n    y[b, n, m] = relu(x[b, n, k] * w[b, k, m])\n    return y\n'
    x, w = numbers(batch, rows, depth), numbers(batch, depth, columns, seed=1)
    frozen = polyml.einsum(text, target=Target("x86-64-v3")).bind(w=w)
    np.testing.assert_array_equal(frozen(x), np.maximum(x @ w, 0))


def test_what_constants_decide_is_computed_once() -> None:
    text = """
def normed(x: f32["N K"], w: f32["K M"]):
    s[m] = sum[k](w[k, m] * w[k, m])
    v[k, m] = exp(w[k, m]) / sqrt(s[m] + 1)
    y[n, m] = x[n, k] * v[k, m]
    return y
"""
    x, w = numbers(20, 30), numbers(30, 40, seed=1)
    function = polyml.einsum(text)
    key = function.key_of(x, w)
    code = lower_bound(function.program, key, function.options, {"w"})
    assert code.once is not None
    calls, once = (polyml.compiler.driver.llvm_text(part[2], code.options) for part in (code.calls, code.once))
    assert "sqrt" in once
    assert "sqrt" not in calls
    assert "scalef" not in calls
    v = np.exp(w) / np.sqrt((w * w).sum(0) + 1)
    np.testing.assert_allclose(function.bind(w=w)(x), x @ v, rtol=1e-4, atol=1e-4)


def test_tables_of_index_values_are_made_once() -> None:
    """Factors of a transform, alone and times a constant window; a call neither computes nor packs them."""
    text = """
def spectrum(x: f32["T N"], w: f32["N"], F: int):
    c: f32["T F"]
    s: f32["T F"]
    c[t, f] = sum[n](x[t, n] * w[n] * cos(0.25 * f * n))
    s[t, f] = sum[n](x[t, n] * sin(0.25 * f * n))
    return c, s
"""
    x, w = numbers(40, 70), numbers(70, seed=1)
    function = polyml.einsum(text)
    frozen = function.bind(w=w, F=33)
    assert "cos(" in function.lower(x, w, 33).text("loops")
    assert not re.search(r"(cos|sin)\(", frozen.lower(x).text("loops"))
    angles = 0.25 * np.outer(np.arange(33), np.arange(70))
    for result, table in zip(frozen(x), (w * np.cos(angles), np.sin(angles)), strict=True):
        np.testing.assert_allclose(result, x @ table.T, atol=1e-3)


def test_a_table_stays_where_nothing_is_constant_but_a_number() -> None:
    """What fills an array with one number costs a call less than reading it."""
    text = 'def f(x: f32["N"], a: f32):\n    z: f32["N"] = 1\n    z[n] += x[n] * a\n    return z\n'
    frozen = polyml.einsum(text).bind(a=np.float32(2))
    np.testing.assert_array_equal(frozen(numbers(50)), 1 + 2 * numbers(50))
    assert constants_of(frozen) == ["a"]


def test_later_writes_change_nothing() -> None:
    x, w, b = numbers(5, 6), numbers(6, 7, seed=1), numbers(7, seed=2)
    frozen = polyml.einsum(DENSE.format("f32")).bind(w=w, b=b)
    expected = np.maximum(x @ w + b, 0)
    w += 1
    np.testing.assert_array_equal(frozen(x), expected)
    b -= 1
    np.testing.assert_array_equal(frozen(x[:3]), expected[:3])  # another shape: from the same constants
    assert len(frozen.kernels) == 2


def test_all_ways_to_call() -> None:
    x, w, b = numbers(5, 6), numbers(6, 7, seed=1), numbers(7, seed=2)
    frozen = polyml.einsum(DENSE.format("f32")).bind(w=w)
    expected, out = np.maximum(x @ w + b, 0), np.empty((5, 7), np.float32)
    for given in (frozen(x, b), frozen(x, b=b), frozen(b=b, x=x), frozen(x.tolist(), b)):
        np.testing.assert_array_equal(given, expected)
    assert frozen(x, b, out=out) is out
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(frozen(x[::-1], b), expected[::-1])


def test_numbers_can_be_bound() -> None:
    text = 'def f(x: f32["N"], a: f32, n: int):\n    y[i] = a * x[i] + n\n    return y\n'
    x = numbers(9)
    function = polyml.einsum(text)
    np.testing.assert_array_equal(function.bind(a=2.5)(x, 3), 2.5 * x + 3)
    np.testing.assert_array_equal(function.bind(n=4)(x, 2.5), 2.5 * x + 4)
    everything = function.bind(n=4, a=2.5, x=x)
    np.testing.assert_array_equal(everything(), 2.5 * x + 4)


def test_more_can_be_bound() -> None:
    function = polyml.einsum(DENSE.format("f32"))
    x, w, b = numbers(5, 6), numbers(6, 7, seed=1), numbers(7, seed=2)
    some = function.bind(w=w)
    layer = some.bind(b=b)
    expected = np.maximum(x @ w + b, 0)
    w += 1  # what is bound was copied
    np.testing.assert_array_equal(layer(x), expected)
    np.testing.assert_array_equal(layer.bind(x=x)(), expected)
    np.testing.assert_array_equal(some(x, b), expected)  # as before
    assert "w, b" in repr(layer)
    for bad, message in (
        ({"w": w}, r"dense has w bound already(.|\n)*hint: bind another value to the program itself"),
        ({"v": w}, r"no parameter v(.|\n)*hint: its parameters: x, w, b"),
        ({}, r"dense.bind got no arguments(.|\n)*as in bind\(x=...\)"),
    ):
        with pytest.raises(ArgumentError, match=message):
            layer.bind(**bad)


def test_a_constant_may_be_returned() -> None:
    text = 'def f(x: f32["N"], w: f32["N"]):\n    y[i] = x[i] * w[i]\n    v[i] = 2 * w[i]\n    return y, v, w\n'
    x, w = numbers(9), numbers(9, seed=1)
    y, v, same = polyml.einsum(text).bind(w=w)(x)
    np.testing.assert_array_equal(y, x * w)
    np.testing.assert_array_equal(v, 2 * w)
    np.testing.assert_array_equal(same, w)


def test_many_threads_share_one_kernel() -> None:
    x, w, b = numbers(33, 64), numbers(64, 100, seed=1), numbers(100, seed=2)
    frozen = polyml.einsum(DENSE.format("f32"), target=SMALL, threads=1).bind(w=w, b=b)
    expected, wrong = np.maximum(x @ w + b, 0), list[int]()

    def work(number: int) -> None:
        for _ in range(20):
            if not np.array_equal(frozen(x), expected):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(frozen.kernels) == 1


def test_faults_say_what_would_help() -> None:
    function = polyml.einsum(DENSE.format("f32"))
    w, b = numbers(6, 7), numbers(7)
    with pytest.raises(ArgumentError, match=r"no parameter v(.|\n)*hint: its parameters: x, w, b"):
        function.bind(v=w)
    with pytest.raises(ArgumentError, match=r"got no arguments(.|\n)*hint: name the constants"):
        function.bind()
    for program in (function, function.bind(b=b)):
        with pytest.raises(ArgumentError, match=r"got 1 constant without a name(.|\n)*bind\(x=.., w=.., b=..\)"):
            program.bind(w)
    with pytest.raises(DTypeError, match=r"argument w has dtype f64(.|\n)*hint"):
        function.bind(w=w.astype(np.float64))
    with pytest.raises(ShapeError, match="argument b has 2 dimensions"):
        function.bind(b=w)
    frozen = function.bind(w=w, b=b)
    with pytest.raises(ArgumentError, match="takes 1 argument "):
        frozen(numbers(5, 6), w)
    with pytest.raises(ArgumentError, match=r"no parameter w(.|\n)*hint: its parameters: x"):
        frozen(numbers(5, 6), w=w)
    with pytest.raises(ShapeError):
        frozen(numbers(5, 8))
    update = polyml.einsum('def f(x: f32["N"], w: f32["N"]):\n    w[i] += x[i]\n')
    with pytest.raises(ArgumentError, match=r"updates w in place(.|\n)*hint: leave w out of bind"):
        update.bind(w=b)(b)


def test_both_kernels_come_from_the_disk_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("POLYML_CACHE", str(tmp_path))
    x, w, b = numbers(33, 64), numbers(64, 100, seed=1), numbers(100, seed=2)
    expected = np.maximum(x @ w + b, 0)
    for attempt in range(2):
        frozen = polyml.einsum(DENSE.format("f32"), target=SMALL).bind(w=w, b=b)
        if attempt:
            monkeypatch.setattr("polyml.compiler.constants.lower_bound", None)
        np.testing.assert_array_equal(frozen(x), expected)
    assert re.search("constant w, b", repr(frozen))


def test_bound_programs_show_their_stages() -> None:
    x, w, b = numbers(37, 80), numbers(80, 130), numbers(130)
    frozen = polyml.einsum(DENSE.format("f32"), target=SMALL, threads=1).bind(w=w, b=b)
    shown = frozen.explain(x)
    assert "filled once, from w" in shown
    lowered = frozen.lower(x)
    loops = lowered.text("loops")
    assert "w[" not in loops, "packed ahead of every call"
    assert str(frozen.trace(x)) == str(lowered.stages.graph)
    np.testing.assert_array_equal(frozen.compile(x)(x), frozen(x))
    assert lowered.text("graph").startswith("dense(")
    for refused in (lowered.compile, lowered.with_schedule):
        with pytest.raises(PolymlError, match="constant arguments"):
            refused()
    with pytest.raises(ShapeError):
        frozen.lower(numbers(37, 81))


def test_constant_subscripts_are_checked_once() -> None:
    program = polyml.einsum('def f(t: f64["V D"], i: i64["N"]):\n    y[n, d] = t[i[n], d]\n    return y\n')
    update = polyml.einsum('def f(h: f64["V"], i: i64["N"], x: f64["N"]):\n    h[i[n]] += x[n]\n    return h\n')
    t, i, h = numbers(5, 3, dtype="f64"), np.array([4, 0, 4]), np.zeros(5)
    np.testing.assert_array_equal(program.bind(i=i)(t), t[i])
    np.testing.assert_array_equal(program.bind(t=t, i=i)(), t[i])
    np.testing.assert_array_equal(update.bind(i=i)(h, np.array([1.0, 2.0, 4.0])), [2, 0, 0, 0, 5])
    for _ in range(2):  # the flag of the constants is looked at in each call
        with pytest.raises(IndexError, match="an index into dimension 0 of t"):
            program.bind(i=i + 1)(t)
        with pytest.raises(IndexError, match="an index into dimension 0 of h"):
            update.bind(i=i - 1)(h, np.ones(3))
    np.testing.assert_array_equal(h, [2, 0, 0, 0, 5])
