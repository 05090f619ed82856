"""`int` parameters stay symbolic: one kernel for all values that a program is right for, and for the others what a compilation for that number says."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import polyml
from polyml.dtypes import from_numpy
from polyml.einsum_frontend.arguments import ArgumentType, Signature
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.symbolic_ints import LARGEST_INT
from polyml.errors import NotAffineError, PolymlError, ShapeError, SubscriptError
from polyml.graph.builder.program import build
from polyml.runtime.signature import SizeParameter
from polyml.source import Source
from tests.differential.int_programs import IntCase, int_programs
from tests.differential.oracles import results_of

Values = tuple[int, ...]
Arrays = Sequence[np.ndarray]
RNG = np.random.default_rng(3)


def text(parameters: str, *lines: str) -> str:
    return f"def f({parameters}):\n" + "".join(f"    {line}\n" for line in lines)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def refusal(f: polyml.Einsum, arrays: Arrays, ints: Values) -> PolymlError | None:
    """What a compilation for these numbers says."""
    types = [ArgumentType(from_numpy(a.dtype), a.shape) for a in arrays]
    try:
        build(f.program, Signature((*types, *ints)))
    except PolymlError as fault:
        return fault
    return None


def check(f: polyml.Einsum, source: str, arrays: Arrays, ints: Values) -> bool:
    """The call does what the interpreter does, or is refused as it always was. *Returns* whether it is right."""
    expected_arrays, given_arrays = [a.copy() for a in arrays], [a.copy() for a in arrays]
    fault = refusal(f, arrays, ints)
    if fault is not None:
        with pytest.raises(type(fault)) as caught:
            f(*given_arrays, *ints)
        assert (str(caught.value), caught.value.hint) == (str(fault), fault.hint), ints
        return False
    try:
        expected = results_of(interpret(parse(Source(source)), *expected_arrays, *ints, wide=True))
    except IndexError:
        with pytest.raises(SubscriptError):
            f(*given_arrays, *ints)
        return False
    actual = results_of(f(*given_arrays, *ints))
    for a, e in zip((*actual, *given_arrays), (*expected, *expected_arrays), strict=True):
        assert np.shape(a) == np.shape(e), ints
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4, err_msg=str(ints))
    return True


ONE = [(t,) for t in range(-3, 14)]
TWO = [(a, b) for a in range(-2, 12, 2) for b in range(-2, 12, 3)]
X, W = ((11,),), ((7, 5),)
PROGRAMS: dict[str, tuple[str, tuple[tuple[int, ...], ...], list[Values], int, int]] = {
    # text, shapes, values, how many of them are right, kernels
    "a row": (text('x: f32["T N"], t: int', "y[i] = x[t, i] * 2", "return y"), W, ONE, 7, 1),
    "a shift": (text('x: f32["N"], t: int', 'y: f32["N"]', "y[i] = where(0 <= i + t < N, x[i + t], t)", "return y"), X, ONE, 17, 1),
    "a shift that makes a shape": (text('x: f32["N"], t: int', "y[i] = x[i + t]", "return y"), X, ONE, 11, 1),
    "a sum over a shift": (text('x: f32["N"], t: int', "s = sum[i](x[i + t])", "return s"), X, ONE, 14, 1),
    "rows": (text('x: f32["N M"], t: int', 'y: f32["M"] = 0', "for s in range(t):", "    y[m] = y[m] / 2 + x[s, m]", "return y"), W, ONE, 11, 1),
    "rows downwards": (text('x: f32["N M"], t: int', 'y: f32["M"] = 0', "for s in range(t - 1, -1, -1):", "    y[m] = y[m] / 2 + x[s, m]", "return y"), W, ONE, 11, 1),
    "every other row": (text('x: f32["N M"], t: int', 'y: f32["M"] = 0', "for s in range(0, t, 2):", "    y[m] = y[m] / 2 + x[s, m]", "return y"), W, ONE, 12, 1),
    "from there on": (text('x: f32["N"], t: int', "for s in range(t, N):", "    x[s] = x[s - 1] / 2 + x[s]", "return x"), X, ONE, 13, 1),
    "a shape": (text('x: f32["N"], T: int', 'y: f32["T"]', "y[i] = where(i < N, x[i], 1)", "return y"), X, ONE, 14, 1),
    "a shape and its inner dimension": (text('x: f32["N"], T: int', 'y: f32["N T"]', "y[i, j] = x[i] * j", "z[j] = sum[i](y[i, j] * x[i])", "return y, z"), X, ONE, 14, 1),
    "a stated bound": (text('x: f32["N"], t: int', "s = sum[k, k < t](x[k])", "return s"), X, ONE, 15, 1),
    "a stated bound of a maximum": (text('x: f32["N"], t: int', "s = max[k, k <= t](x[k])", "return s"), X, ONE, 11, 1),
    "windows": (text('x: f32["N"], t: int', "y[i] = max[k, k < t](x[i + k])", "return y"), X, ONE, 11, 1),
    "pad widths": (text('x: f32["N"], t: int', "y[i] = pad(x, ((t, t + 1),))[i] * 2", "return y"), X, ONE, 14, 1),
    "a condition": (text('x: f32["N"], t: int', "if i >= t:", "    x[i] = x[i - t] + 1"), X, ONE, 14, 1),
    "made under a condition": (text('x: f32["N"], t: int', "if i < t:", "    y[i] = x[i]", "return y"), X, ONE, 17, 3),
    "two bounds": (text('x: f32["N"], a: int, b: int', 'y: f32["N"] = 0', "for s in range(a, b):", "    y[s] = x[s]", "return y"), X, TWO, 31, 2),
    "written by a loop": (text('x: f32["N"], t: int', 'y: f32["N"]', "for s in range(t):", "    y[s] = x[s]", "return y"), X, ONE, 1, 1),
    "parts of a shape": (text('x: f32["A+B"], A: int, B: int', 'y: f32["A"]', "y[i] = x[i + B] + i", "return y"), X, [(a, b) for a in range(-1, 13) for b in range(-1, 13)], 12, 1),
    "a gather": (text('x: f32["N"], t: int', 'ids: i64["4"]', "ids[i] = (i * 3) % 5", "y[i] = x[ids[i] + t]", "return y"), X, ONE, 7, 1),
    "a scatter": (text('x: f32["N"], t: int', 'y: f32["20"] = 0', "y[2*i + t] += x[i // 2]", "return y"), X, ONE, 17, 1),
    "a nested reduction": (text('x: f32["N"], t: int', "y[i] = x[i] * sum[k, k < t](x[k] * max[j, j <= k](x[j]))", "return y"), X, ONE, 15, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.few(15)
def test_one_kernel_for_all_values(name: str) -> None:
    source, shapes, values, right, kernels = PROGRAMS[name]
    f = polyml.einsum(source, verify=True)
    arrays = [normal(*shape) for shape in shapes]
    assert sum(check(f, source, arrays, ints) for ints in values) == right
    assert len(f.kernels) == kernels


@given(int_programs())
@settings(max_examples=3, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
def test_random_programs(case: IntCase) -> None:
    f = polyml.einsum(case.text)
    right = {ints for ints in case.calls if check(f, case.text, case.arrays, ints)}
    assert len(f.kernels) <= len(right)
    for ints in right:
        assert check(f, case.text, case.arrays, ints), "through the entry points, the other way round"


def test_any_order_and_keywords() -> None:
    source, *_ = PROGRAMS["a row"]
    f, x = polyml.einsum(source), normal(7, 5)
    for t in (7, 6, -1, 0, 3):
        if 0 <= t < 7:
            np.testing.assert_array_equal(f(x, t=np.int32(t)), 2 * x[t])
        else:
            with pytest.raises(PolymlError, match=rf"subscript 0 of x leaves its dimension of 7: it is {t}"):
                f(x, t)
    assert len(f.kernels) == 1


def test_calls_do_not_pass_through_python() -> None:
    f, x = polyml.einsum(PROGRAMS["a row"][0]), normal(7, 5)
    f(x, 2)
    frames: list[str] = []

    def spy(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call":
            frames.append(frame.f_code.co_name)

    sys.setprofile(spy)
    try:
        for t in (0, 6, 3):
            f(x, t)
    finally:
        sys.setprofile(None)
    assert frames == []


def test_values_that_need_numbers_do_not_hide_the_others() -> None:
    f, x = (
        polyml.einsum(
            text('x: f32["N"], t: int', "y[i] = x[i] * exp(max[k, k < t](x[k]) + sum[k, t <= k](x[k]))", "return y")
        ),
        normal(9),
    )
    for t in range(9, 0, -1):
        np.testing.assert_allclose(f(x, t), x * np.exp(x[:t].max() + x[t:].sum()), rtol=1e-5)
    assert len(f.kernels) == 1


def test_huge_values() -> None:
    f, x = (
        polyml.einsum(
            text(
                'x: f32["N"], t: int',
                'y: f32["N"] = 0',
                "if i > t:",
                "    y[i] = x[i]",
                "if i < 2*t:",
                "    y[i] += 1",
                "return y",
            )
        ),
        normal(9),
    )
    for t in (0, 3, LARGEST_INT, LARGEST_INT + 1, 2**63 - 1, -(2**63), -LARGEST_INT, -5):
        i = np.arange(9)
        np.testing.assert_array_equal(f(x, t), np.where(i > t, x, 0) + (i < 2 * t).astype(np.float32))
    assert len(f.kernels) == 4, "one, and one for each of three numbers that sums of might leave 64 bits"


def test_huge_values_beside_any_size() -> None:
    """A sum of such a number and a size would leave 64 bits: its kernel is for the shape, too."""
    lines = ('y: i64["N"] = 0', "if i + t > 3:", "    y[i] = x[i]", "if 0 <= i + t < N:", "    y[i] += x[i + t]")
    f = polyml.einsum(text('x: i64["N"], t: int', *lines, "return y"), dynamic=True)
    for n in (9, 70):
        x = np.arange(1, n + 1)
        for t in (0, 2, -5, LARGEST_INT, -LARGEST_INT, 2**63 - 1, -(2**63), 1 - 2**63):
            expected = [(x[k] if k + t > 3 else 0) + (x[k + t] if 0 <= k + t < n else 0) for k in range(n)]
            np.testing.assert_array_equal(f(x, t), expected, err_msg=f"t = {t}")
    assert len(f.kernels) == 1 + 2 * 3


def test_huge_values_beside_other_ints() -> None:
    """A sum of such a number and another int would leave 64 bits, too, bound or not."""
    lines = ('y: i64["N"] = 7', "if i <= a + b + 3:", "    y[i] = x[i]", "return y")
    f, x = polyml.einsum(text('x: i64["N"], a: int, b: int', *lines)), np.arange(9)
    for a, b in ((0, 3), (2**63 - 1, 10), (-(2**63), -5), (10, 2**63 - 1), (2**63 - 1, 2**63 - 1), (-5, -(2**63))):
        expected = np.where(np.arange(9) <= a + b + 3, x, 7)
        np.testing.assert_array_equal(f(x, a, b), expected, err_msg=f"{a}, {b}")
        np.testing.assert_array_equal(f.bind(a=a)(x, b), expected, err_msg=f"{a}, {b}")


@pytest.mark.parametrize("number", [2**63 - 1, 5 - 2**63, 2**62])
@pytest.mark.few(1)
def test_huge_numbers_of_the_text(number: int) -> None:
    """An int is a number where arithmetic with one would leave 64 bits."""
    x = np.arange(9)
    conditions = (
        f"i + t > {number}",
        f"i - t < {number}",
        f"2*i + 3*t >= {number} - 5",
        f"({abs(number) >> 30})*t > i",
    )
    for condition in conditions:
        lines = ('y: i64["N"] = 7', f"if {condition}:", "    y[i] = x[i]", "return y")
        f = polyml.einsum(text('x: i64["N"], t: int', *lines))
        for t in (0, 5, -5, LARGEST_INT, -LARGEST_INT):
            expected = [i if eval(condition, {"i": i, "t": t}) else 7 for i in range(9)]
            np.testing.assert_array_equal(f(x, t), expected, err_msg=f"{condition}, t = {t}")


def test_a_huge_number_that_is_added_to_elements_leaves_ints_symbolic() -> None:
    f = polyml.einsum(text('x: i64["N"], t: int', f"y[i] = x[i + t] + {2**62}", "return y"))
    assert [f(np.arange(9), t)[0] - 2**62 for t in (0, 3, 7)] == [0, 3, 7]
    assert len(f.kernels) == 1


def test_local_arrays_of_two_versions() -> None:
    """A large result has a version of its own; what is saved of x is local to each."""
    lines = (
        "if i < a + b:",
        "    y[i] = x[i] * 3",
        "if i >= (a + 1) // 2:",
        "    x[i] = x[i - (a + 1) // 2] + 1",
        "return y",
    )
    f = polyml.einsum(text('x: f32["N"], a: int, b: int', *lines))
    for a, b in ((3, 3), (-1, 4), (1, 6)):
        x, shift = normal(8), (a + 1) // 2
        expected = np.concatenate([x[:shift], x[: 8 - shift] + 1])
        np.testing.assert_array_equal(f(x.copy(), a, b), 3 * x[: a + b])
        f(x, a, b)
        np.testing.assert_array_equal(x, expected)


def test_what_cannot_be_allocated() -> None:
    lines = (
        'y: f32["T K"]',
        "y[i, j] = exp(x[0] * i + j)",
        "s = sum[i, j](y[i, j])",
        "m = max[i, j](y[i, j] * s)",
        "return m",
    )
    f = polyml.einsum(text('x: f32["N"], T: int, K: int', *lines))
    assert f(normal(3) * 0, 2, 1) == 2
    for t, k in ((2**32, 2**32), (2**40, 2**40), (2**31, 2**21)):
        with pytest.raises(MemoryError):
            f(normal(3), t, k)


def test_a_kernel_alone_refuses_other_values() -> None:
    f, x = polyml.einsum(PROGRAMS["a row"][0]), normal(7, 5)
    kernel = f.compile(x, 2)
    np.testing.assert_array_equal(kernel(x, 6), 2 * x[6])
    with pytest.raises(ShapeError, match="not compiled for t = 7"):
        kernel(x, 7)
    scaled = polyml.einsum(text('x: f32["N"], t: int', "y[i] = x[i] * t", "return y"))
    with pytest.raises(ShapeError, match="takes up to"):
        scaled.compile(x[0], 2)(x[0], 2**50)


def test_which_ints_are_numbers() -> None:
    f = polyml.einsum(text('x: f32["N"], K: int, t: int', 'y: f32["3"]', "y[i] = x[K*i + t]", "return y"))
    x = normal(12)
    for k, t in ((1, 0), (1, 9), (4, 2), (4, 0), (4, 3)):
        np.testing.assert_array_equal(f(x, k, t), x[t : t + 3 * k : k])
    assert [str(p.signature) for p in f.kernels] == [f"f(x: f32[12], K = {k}, t: int) -> f32[3]" for k in (1, 4)]
    pinned = polyml.einsum(text('x: f32["N"], T: int', 'y: f32["T"]', "y[i] = x[i] * 2", "return y"))
    assert pinned(x, 12).shape == (12,)
    assert pinned.kernels[0].signature.parameters[1] == SizeParameter(name="T", value=12), "right for 12 only"


@pytest.mark.parametrize(
    ("lines", "value", "message"),
    [
        (("y[n] = x[n // m]",), 0, "subscript 0 of x must be affine .* this one divides by m, which is 0"),
        (("y[n] = x[n + n % m]",), -2, "this one divides by m, which is -2"),
        (
            ("if n % m == 0:", "    y[n] = x[n]"),
            0,
            "the condition of an `if` must be affine .* divides by m, which is 0",
        ),
        (("y[0] = sum[n, n // m > 1](x[n])",), 0, "a reducer's condition must be affine .* divides by m, which is 0"),
        (("for t in range(N // m):", "    y[t] = 1"), 0, "a loop bound must be affine .* divides by m, which is 0"),
        (
            ("for t in range(2**m):", "    y[t] = 1"),
            -1,
            "a loop bound .* has the power 2 \\*\\* m, which is no integer",
        ),
    ],
)
def test_numbers_that_a_form_has_no_value_for_are_named(lines: tuple[str, ...], value: int, message: str) -> None:
    f = polyml.einsum(text('x: f32["N"], m: int', 'y: f32["N"] = 0', *lines, "return y"))
    f(normal(9), 2)
    with pytest.raises(NotAffineError, match=message) as caught:
        f(normal(9), value)
    assert "m" in str(caught.value).splitlines()[2]


def test_a_size_that_divides_has_to_be_a_number() -> None:
    f = polyml.einsum(text('x: f32["N"]', 'y: f32["N"]', "y[n] = x[(n + 1) % N]", "return y"), dynamic=True)
    with pytest.raises(
        PolymlError, match=r"cannot be compiled for any N: .* divides by N, whose value is not known here"
    ):
        f(normal(5))


def test_callees() -> None:
    shift = polyml.einsum('def shift(x: f32["N"], s: int):\n    y[n] = x[n + s]\n    return y\n')
    assert shift is not None
    f = polyml.einsum(text('x: f32["N"], t: int', "a = shift(x, t)", "b = shift(a, t + 1)", "return b"))
    x = normal(12)
    for t in range(6):
        np.testing.assert_array_equal(f(x, t), x[2 * t + 1 :])
    assert len(f.kernels) == 1
    with pytest.raises(ShapeError, match="no value of n keeps every subscript in bounds"):
        f(x, 6)


def test_layouts() -> None:
    f, x = polyml.einsum(PROGRAMS["a row"][0]), normal(14, 20)
    for view in (x[::2, ::4], x[::-2, :5], x[:5, :7].T):
        for t in range(7):
            np.testing.assert_array_equal(f(view, t), 2 * view[t])
    assert len(f.kernels) == 3
    out = np.empty(5, np.float32)
    assert f(x[:7, :5], 3, out=out) is out
    np.testing.assert_array_equal(out, 2 * x[3, :5])


def test_out_of_the_results_shape() -> None:
    f, x = polyml.einsum(PROGRAMS["a shift that makes a shape"][0]), normal(12)
    f(x, 3)
    out = np.empty(7, np.float32)
    assert f(x, 5, out=out) is out
    np.testing.assert_array_equal(out, x[5:])
    with pytest.raises(PolymlError, match=r"must be an array of f32 \(8,\)"):
        f(x, 4, out=out)


def test_dynamic_sizes_too() -> None:
    f = polyml.einsum(PROGRAMS["rows"][0], dynamic=True)
    for n, m in ((3, 4), (9, 5), (5, 17)):
        x = normal(n, m)
        for t in (0, n, n - 1, 2):
            expected = np.zeros(m, np.float32)
            for s in range(t):
                expected = expected / 2 + x[s]
            np.testing.assert_allclose(f(x, t), expected, rtol=1e-5, atol=1e-6)
        with pytest.raises(PolymlError, match=f"subscript 0 of x leaves its dimension of {n}: it is {n}"):
            f(x, n + 1)
    assert len(f.kernels) == 1


def test_explain_says_what_a_kernel_is_for() -> None:
    f = polyml.einsum(text('x: f32["N"], K: int, t: int', 'y: f32["3"]', "y[i] = x[K*i + t]", "return y"))
    said = f.explain(normal(12), 2, 1)
    assert "for K = 2 only\n" in said
    assert "for any t\n" in said
    assert "where t <= 7\n" in said
    assert "where t >= 0\n" in said


def test_the_cache_keeps_kernels_for_all_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYML_CACHE", str(tmp_path))
    source, *_ = PROGRAMS["two bounds"]
    x, calls = normal(11), ((-5, -6), (2, 9), (0, 11), (-1, -1))
    first = polyml.einsum(source)
    expected = [first(x, *ints) for ints in calls]
    number, source_of_number = len(list(tmp_path.iterdir())), PROGRAMS["written by a loop"][0]
    assert number == len(first.kernels) == 2
    polyml.einsum(source_of_number)(x, 11)
    monkeypatch.setattr("polyml.compiler.driver.lower_program", None)
    for order in (calls, calls[::-1]):
        again = polyml.einsum(source)
        for ints in order:
            np.testing.assert_array_equal(again(x, *ints), expected[calls.index(ints)])
        assert len(again.kernels) == 2
    np.testing.assert_array_equal(polyml.einsum(source_of_number)(x, 11), x)
