"""Sizes bound by arguments, and which `int` parameters stay symbolic."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.dtypes import f32, f64
from polyml.einsum_frontend.arguments import ArgumentType, Signature, bind_sizes
from polyml.einsum_frontend.symbolic_ints import symbolic_ints
from polyml.errors import DTypeError, ShapeError
from polyml.sets.affine import affine
from tests.graph.built import Callee, program


def test_sizes_are_bound_by_bare_entries_and_check_the_others() -> None:
    source = program('x: f32["N+1 K"], w: f32["K N"]', "y[k] = sum[n](w[k, n] * x[n, k])", "return y")
    given = Signature((ArgumentType(f32, (5, 3)), ArgumentType(f32, (3, 4))))
    assert bind_sizes(source, given) == {"K": affine(3), "N": affine(4)}


def test_an_int_parameter_binds_before_any_shape() -> None:
    source = program('x: f32["N"], N: int', "y[n] = x[n]", "return y")
    assert bind_sizes(source, Signature((ArgumentType(f32, (4,)), 4))) == {"N": affine(4)}
    with pytest.raises(ShapeError, match=r"dimension 0 of argument x is 5, and its entry says 4 \(N = 4 by the int"):
        bind_sizes(source, Signature((ArgumentType(f32, (5,)), 4)))


def test_a_disagreement_names_argument_entry_and_both_values() -> None:
    source = program('x: f32["N K"], w: f32["K M"]', "y[n, m] = x[n, k] * w[k, m]", "return y")
    given = Signature((ArgumentType(f32, (5, 3)), ArgumentType(f32, (4, 2))))
    message = r"dimension 0 of argument w is 4, and its entry says 3 \(K = 3 by dimension 1 of x\)"
    with pytest.raises(ShapeError, match=message) as caught:
        bind_sizes(source, given)
    assert caught.value.span is not None


def test_a_fixed_entry_is_checked() -> None:
    source = program('x: f32["2 N"]', "y[n] = x[0, n]", "return y")
    with pytest.raises(ShapeError, match="dimension 0 of argument x is 3, and its entry says 2"):
        bind_sizes(source, Signature((ArgumentType(f32, (3, 4)),)))


def test_dtype_and_rank_are_checked() -> None:
    source = program('x: f32["N"]', "y[n] = x[n]", "return y")
    with pytest.raises(DTypeError, match="argument x has dtype f64, and the program declares f32"):
        bind_sizes(source, Signature((ArgumentType(f64, (3,)),)))
    with pytest.raises(ShapeError, match="argument x has 2 dimensions"):
        bind_sizes(source, Signature((ArgumentType(f32, (3, 4)),)))
    with pytest.raises(ShapeError, match="takes 1 arguments, and 0 were given"):
        bind_sizes(source, Signature(()))


@pytest.mark.parametrize(
    ("lines", "stays"),
    [
        (("y[n] = x[n] * T", "return y"), True),  # a number
        (("for t in range(T):", "    x[n] = x[n] / 2"), True),  # a count
        (("for t in range(T):", "    if n > t:", "        x[n] = 0"), True),  # a condition
        (('y: f32["T"] = 0', "return y"), True),  # a shape
        (("y[n] = where(n + T < N, x[n + T], 0)", "return y"), True),  # a subscript
        (("for t in range(T):", "    x[t] = 0"), True),  # the range of a subscript
        (("s = sum[k, k < T](x[k])", "return s"), True),  # a stated range
        (("y[n] = pad(x, ((T, T),))[n]", "return y"), True),  # a pad width
        (("y[n] = x[n // T]", "return y"), False),  # divides an index
        (("y[n] = x[n] * (n * T)", "return y"), False),  # multiplies an index
        (("for t in range(N):", "    if t % T == 0:", "        x[t] = 0"), False),  # divides a loop variable
    ],
)
def test_which_ints_stay_symbolic(lines: tuple[str, ...], stays: bool) -> None:
    assert symbolic_ints(program('x: f32["N"], T: int', *lines)) == (frozenset("T") if stays else frozenset())


def test_an_int_that_a_callee_specializes_is_specialized() -> None:
    strided = Callee('x: f32["N"], s: int', 'y: f32["2"]', "y[n] = x[s * n]", "return y")
    shift = Callee('x: f32["N"], s: int', "y[n] = where(n + s < N, x[n + s], 0)", "return y")
    for callee, stays in ((strided, False), (shift, True)):
        caller = program('x: f32["N"], T: int', "y = g(x, T)", "return y", namespace={"g": callee})
        assert symbolic_ints(caller) == (frozenset("T") if stays else frozenset())


def test_an_int_that_a_shape_gives_is_a_number() -> None:
    assert symbolic_ints(program('x: f32["T+1"], T: int', "y[n] = x[n] * T", "return y")) == frozenset()
    both = program('x: f32["T+K"], T: int, K: int', 'y: f32["T"]', "y[n] = x[n + K]", "return y")
    assert symbolic_ints(both) == frozenset("TK")


def test_numbers_of_the_enclosing_scope_are_named_where_they_do_not_fit() -> None:
    K = 4  # a size of the program's
    f = polyml.einsum('def f(x: f32["2*K+1 N"]):\n    y[n] = x[k, n]\n    return y\n')
    with pytest.raises(ShapeError, match=r"is 6, and its entry says 9 \(K = 4 in the enclosing scope\)"):
        f(np.ones((6, 2), np.float32))
    assert K == 4


def test_a_size_is_bound_by_an_entry_of_it_alone_where_no_bare_one_is() -> None:
    source = program('x: f32["2*P+1 K"]', "y[k] = x[P, k]", "return y")
    assert bind_sizes(source, Signature((ArgumentType(f32, (7, 3)),))) == {"K": affine(3), "P": affine(3)}
    halves = Signature((ArgumentType(f32, (affine("N") * 4 + 1, 3)),))
    assert bind_sizes(source, halves) == {"K": affine(3), "P": affine("N") * 2}
    for extent in (6, 0, affine("N")):
        with pytest.raises(ShapeError, match=rf"dimension 0 of argument x is {extent}, which is 2\*P \+ 1 for no size"):
            bind_sizes(source, Signature((ArgumentType(f32, (extent, 3)),)))


def test_a_number_of_the_enclosing_scope_comes_before_an_entry_of_it_alone() -> None:
    P = 2  # noqa: F841 - the program's
    double = polyml.einsum('def f(x: f32["2*P"]):\n    y[i] = x[i] * P\n    return y\n')
    with pytest.raises(ShapeError, match=r"is 6, and its entry says 4 \(P = 2 in the enclosing scope\)"):
        double(np.ones(6, np.float32))


def test_what_is_no_number_in_the_enclosing_scope_is_not_meant() -> None:
    P, T = [1, 2], np.ones(3)  # noqa: F841 - as in a notebook
    halves = polyml.einsum('def f(x: f32["2*P T+1"]):\n    y[t] = x[P, t]\n    return y\n')
    x = np.random.default_rng(0).random((6, 4), np.float32)
    np.testing.assert_array_equal(halves(x), x[3])
