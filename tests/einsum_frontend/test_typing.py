"""Element types: promotion against NumPy, weak numbers, accumulators, refusals."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.dtypes import DTYPES, DType, bf16, boolean, f32, f64, i32, i64, u8
from polyml.einsum_frontend.typing import Typed, apply, common, element, number
from polyml.errors import DTypeError
from polyml.expressions import Apply, Const, Read
from tests.graph.built import check_refused, graph, program, run, values


@pytest.mark.parametrize("left", DTYPES.values(), ids=str)
@pytest.mark.parametrize("right", [*DTYPES.values(), 1, 1.5], ids=str)
def test_promotion_is_numpys(left: DType, right: DType | float) -> None:
    """Of values of every type: half precision is known as what it is, though it is computed in f32."""

    def typed(kind: DType | float, name: str) -> Typed:
        return element(Read(name, (), kind)) if isinstance(kind, DType) else number(kind)

    def sample(kind: DType | float) -> object:
        return np.ones(1, kind.numpy) if isinstance(kind, DType) else kind

    try:
        expected = np.result_type(sample(left), sample(right))  # type: ignore[arg-type]
    except TypeError:  # ml_dtypes refuses bf16 beside f16 and wider integers
        with pytest.raises(DTypeError, match="no common type"):
            common([typed(left, "x"), typed(right, "y")])
        return
    if left == bf16 and right == 1.5:
        expected = bf16.numpy  # NumPy does not know that Python numbers are weak beside it
    dtype, weak = common([typed(left, "x"), typed(right, "y")])
    assert dtype.numpy == expected
    assert not weak
    if dtype != boolean:
        assert apply("add", [typed(left, "x"), typed(right, "y")]).dtype == dtype


def test_arguments_of_an_op_are_cast_to_their_common_type() -> None:
    result = apply("mul", [Typed(Read("x", (), i32), False), Typed(Read("y", (), f32), False)])
    assert result == Typed(
        Apply("mul", (Apply("cast", (Read("x", (), i32),), f64), Apply("cast", (Read("y", (), f32),), f64)), f64), False
    )
    assert apply("mul", [Typed(Read("x", (), f32), False), number(2)]).expr == Apply(
        "mul", (Read("x", (), f32), Const(2.0, f32)), f32
    )


def test_numbers_are_computed() -> None:
    assert apply("div", [number(1), number(4)]) == number(0.25)
    assert apply("pow", [number(2), number(-1)]) == number(0.5)
    assert apply("sqrt", [number(16)]) == number(4.0)
    assert apply("floordiv", [number(1), number(0)]).dtype == i64  # left to run time


def test_booleans_add_and_multiply_as_in_numpy() -> None:
    x, y = (Typed(Read(name, (), boolean), False) for name in "xy")
    assert apply("add", [x, y]).expr == Apply("or", (x.expr, y.expr), boolean)
    assert apply("mul", [x, y]).expr == Apply("and", (x.expr, y.expr), boolean)
    assert apply("div", [x, y]).dtype == f64
    with pytest.raises(DTypeError, match="`-` is not defined for bool"):
        apply("sub", [x, y])


def test_bits_are_those_of_unsigned_numbers() -> None:
    assert apply("popcount", [Typed(Read("x", (), u8), False)]).dtype == u8
    with pytest.raises(DTypeError, match="of i64"):
        apply("popcount", [Typed(Read("x", (), i64), False)])
    with pytest.raises(DTypeError, match="not of a number"):
        apply("popcount", [number(3)])


def test_comparison_with_a_number_beyond_the_type() -> None:
    result = apply("lt", [Typed(Read("x", (), u8), False), number(300)])
    assert result.expr == Apply("lt", (Apply("cast", (Read("x", (), u8),), i64), Const(300, i64)), boolean)


def test_weak_values_leave_a_tensors_type() -> None:
    source = program('x: f32["N"], T: int', "s = 1 / 3", "y[n] = x[n] * s + n / sqrt(N) + T", "return y, s")
    y, s = graph(source, values(4), 2).outputs
    assert (y.dtype, s.dtype) == (f32, f64)


@pytest.mark.parametrize(
    ("line", "dtype"),
    [("y[n] = where(x[n] > 0, n, 0)", i64), ("y[n] = where(x[n] > 0, n / 2, 0)", f64), ("y[n] = x[n] > 0", boolean),
     ("y[n] = where(x[n] > 0, i8(1), 0)", DTYPES["i8"]), ("y[n] = n + 0 * argmax[k](x[k]) + where(x[n] > 0, 0, 0)", i64)],
)  # fmt: skip
def test_tensors_of_weak_values(line: str, dtype: object) -> None:
    (y,) = graph(program('x: f32["N"]', line, "return y"), values(4)).outputs
    assert y.dtype == dtype


def test_a_weak_variable_takes_the_type_of_its_first_strong_assignment() -> None:
    source = program('x: f32["T"]', "s = 0", "for t in range(T):", "    s = s + x[t] * 0.5", "return s")
    x = values(5)
    (s,) = run(source, x)
    assert s.dtype == np.float32
    np.testing.assert_allclose(s, x.sum() / 2)


def test_a_weak_variable_that_is_assigned_in_part() -> None:
    source = program('x: f32["T"], T2: int', "s = 2", "if T2 > 1:", "    s = x[0]", "return s")
    for value, expected in ((1, 2.0), (2, -1.5)):
        (s,) = run(source, values(3), value)
        assert s.dtype == np.float32
        assert s == expected


def test_sums_of_bool_count_and_sums_accumulate_in_their_own_type() -> None:
    x = np.full(4, 2**30, "i4")
    lines = (
        "y = sum[n](x[n])",
        "z = sum[n](i64(x[n]))",
        "c = sum[n](x[n] > 0)",
        "w: i64",
        "w = sum[n](x[n])",
        "return y, z, c, w",
    )
    y, z, c, w = run(program('x: i32["N"]', *lines), x)
    assert (y.dtype, z, c.dtype, c) == (np.int32, 2**32, np.int64, 4)
    assert y == w == 0  # wrapped, before it is widened


def test_a_sum_is_rounded_once_into_a_narrower_tensor() -> None:
    x = np.asarray([2.0**24, 1.0, 1.0])  # in f32 the ones would vanish one by one
    (y,) = run(program('x: f64["N"]', 'y: f32["1"]', "y[i] = sum[n](x[n])", "return y"), x)
    assert y.tolist() == [2.0**24 + 2]


def test_refused_narrow_sums() -> None:
    check_refused(
        'x: i8["N"]', "s = «sum[n](x[n])»", "return s",
        arguments=(values(4, dtype="i1"),), error=DTypeError, message="sum over i8 would wrap", hint="i32",
    )  # fmt: skip
    (s,) = run(program('x: i8["N"]', "s = sum[n](i32(x[n]))", "return s"), np.full(4, 100, "i1"))
    assert (s, s.dtype) == (400, np.int32)


def test_refused_floats_into_integers() -> None:
    check_refused(
        'x: f32["N"]', 'y: i32["N"]', "«y[n] = x[n]»", "return y",
        arguments=(values(4),), error=DTypeError, message="y has dtype i32, and is assigned values of dtype f32", hint=r"i32(..)",
    )  # fmt: skip
    check_refused(
        'x: f32["N"], y: i32["N"]', "«y[n] += x[n]»",
        arguments=(values(4), values(4, dtype="i4")), error=DTypeError, message="y has dtype i32, and is updated with",
    )  # fmt: skip


def test_refused_numbers_that_do_not_fit() -> None:
    check_refused(
        'x: u8["N"]', "y[n] = «x[n] + 300»", "return y",
        arguments=(values(4, dtype="u1"),), error=DTypeError, message="300 does not fit in u8",
    )  # fmt: skip


@pytest.mark.parametrize(("factor", "dynamic"), [("N", False), ("N", True), ("m", False)])
def test_sizes_and_ints_wrap_at_64_bits(factor: str, dynamic: bool) -> None:
    text = f'def f(x: i64["N"], m: int):\n    y[n] = x[n] + {factor} * 6364136223846793005\n    return y\n'
    found = polyml.einsum(text, dynamic=dynamic)(np.zeros(7, np.int64), 7)
    assert (found == np.int64((7 * 6364136223846793005 + 2**63) % 2**64 - 2**63)).all()


def test_numbers_beyond_64_bits_are_floats_or_refused() -> None:
    scope = {"LARGE": 10**30}
    (y,) = run(program('x: f32["N"]', "y[n] = x[n] * LARGE", "return y", namespace=scope), np.ones(2, "f4"))
    assert (y == np.float32(1e30)).all()
    check_refused(
        'x: i64["N"]', "y[n] = «x[n] * 9223372036854775808»", "return y",
        arguments=(values(4, dtype="i8"),), error=DTypeError, message="does not fit in i64", hint="as a float",
    )  # fmt: skip


def test_refused_integer_to_a_negative_power() -> None:
    check_refused(
        'x: i32["N"]', "y[n] = «x[n] ** -1»", "return y",
        arguments=(values(4, dtype="i4"),), error=DTypeError, message="to the power -1",
    )  # fmt: skip


def test_refused_float_subscripts() -> None:
    check_refused(
        'x: f32["N"], s: f32["M"]', "y[m] = x[«s[m]»]", "return y",
        arguments=(values(4), values(3)), error=DTypeError, message="subscript 0 of x has dtype f32",
    )  # fmt: skip
