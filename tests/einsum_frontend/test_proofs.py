"""Proofs: accepted where they hold, refused with a witness where they do not."""

from __future__ import annotations

import numpy as np
import pytest

from polyml.einsum_frontend.proofs import Scope, find_collision, points_without_items
from polyml.einsum_frontend.quasi_affine import Constraint
from polyml.einsum_frontend.ranges import box_range
from polyml.errors import BoundsError, EinsumSyntaxError, NotAffineError, PolymlError, ShapeError
from polyml.sets.affine import affine
from tests.graph.built import Argument, check_refused, graph, program, run, values

I, J = affine("i"), affine("j")


def test_collisions_are_found_and_only_where_they_are() -> None:
    scope = Scope((), (box_range("i", 0, 4), box_range("j", 0, 3)))
    assert find_collision([J, I], scope) is None
    assert find_collision([I * 3 + J], scope) is None
    pair = find_collision([I * 2 + J], scope)
    assert pair is not None
    first, second = pair
    assert first != second
    assert (I * 2 + J).evaluate(first) == (I * 2 + J).evaluate(second)


def test_a_collision_needs_equal_loop_variables() -> None:
    loop = Scope((box_range("t", 0, 5),), (box_range("i", 0, 4),))
    assert find_collision([affine("t") + I], loop) is None


def test_points_without_items() -> None:
    outer = Scope((), (box_range("i", 0, 4),))
    inner = outer.bind([box_range("k", 0, 4)])
    assert points_without_items(outer, inner) is None
    lacking = points_without_items(outer, inner.within(Constraint("k < i", frozenset("ik"))))
    assert lacking is not None
    assert lacking.plain_is_equal(type(lacking)("{ [i] : i = 0 }"))


@pytest.mark.parametrize(
    "lines",
    [
        ("y[n] = where(n < N - 1, x[n + 1], 0)",),
        ("y[n] = where(n == 0 or n == N - 1, x[n], x[n - 1] + x[n + 1])",),
        ("y[n] = where(not (n == 0), x[n - 1], 0)",),
        ("y[n] = where(n > 0 and x[n] > 0, x[n - 1], 0)",),  # the affine part of the condition is enough
        ("if 0 < n < N - 1:", "    y[n] = x[n - 1] + x[n + 1]", "else:", "    y[n] = 0"),
        ("y[n] = sum[r, 0 <= n + r - 1 < N, r < 3](x[n + r - 1])",),
        ("y[n] = x[(n + 1) % N]",),
        ("y[n] = x[N - 1 - n]",),
        ("for t in range(N):", "    y[t] = x[N - 1 - t]"),
        ("for t in range(N - 1, -1, -1):", "    y[t] = x[t]"),
        ("for t in range(0, N, 3):", "    y[t] = x[t]", "    if t < N - 1:", "        y[t + 1] = 1", "    if t + 2 < N:", "        y[t + 2] = 2"),
        ("y[N - 1 - n] = x[n]",),
        ("for t in range(N):", "    for s in range(t, N):", "        y[s] = x[s - t]"),
    ],
)  # fmt: skip
def test_proved(lines: tuple[str, ...]) -> None:
    run(program('x: f32["N"]', 'y: f32["N"]', *lines, "return y"), values(7))


X: tuple[Argument, ...] = (values(8),)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("y[n] = x[«n + 1»]",), "subscript 0 of x leaves its dimension of 8: it is 8 for n = 7"),
        (("y[n] = x[«n - 1»]",), "it is -1 for n = 0"),
        (("y[n] = where(n < N, x[«n + 1»], 0)",), "it is 8 for n = 7"),
        (("y[n] = where(n > 3 or x[n] > 0, x[«n - 1»], 0)",), "it is -1 for n = 0"),
        (("y[n] = where(x[n] > 0 and n > 0, 0, x[«n - 1»])",), "it is -1 for n = 0"),
        (("for t in range(N):", "    y[n] = x[«t + 1»]"), "it is 8 for t = 7"),
        (
            ("for t in range(2):", "    y[«n + t»] = x[n]"),
            "subscript 0 of y leaves its dimension of 8: it is 8 for t = 1, n = 7",
        ),
    ],
)
def test_refused_out_of_bounds(lines: tuple[str, ...], message: str) -> None:
    check_refused('x: f32["N"]', 'y: f32["N"] = 0', *lines, "return y", arguments=X, error=BoundsError, message=message)


@pytest.mark.parametrize("place", ["-1", "N"])
def test_refused_numbers_that_are_no_subscripts(place: str) -> None:
    check_refused(
        'x: f32["N"]', f"y = x[«{place}»]", "return y",
        arguments=X, error=BoundsError, message="leaves its dimension of 8", hint="count from 0 to 7, and none from the end",
    )  # fmt: skip


def test_refused_left_sides_that_hit_an_element_twice() -> None:
    check_refused(
        'x: f32["N"]', 'y: f32["N"] = 0', "«y[n // 2]» = x[n]", "return y",
        arguments=X, error=ShapeError, message=r"`=` would write y\[0\] twice: for n = 0 and for n = 1", hint="+=",
    )  # fmt: skip
    check_refused(
        'x: f32["N"], ids: i32["N"]', 'y: f32["N"] = 0', "«y[ids[n]]» = x[n]", "return y",
        arguments=(values(8), values(8, dtype="i4")), error=PolymlError, message="reads a tensor", hint="+=",
    )  # fmt: skip


def test_refused_empty_maximum() -> None:
    check_refused(
        'x: f32["N N"]', "y[n] = «max[k, k < n](x[n, k])»", "return y",
        arguments=(values(4, 4),), error=ShapeError, message="max has nothing to reduce for n = 0",
    )  # fmt: skip
    x = values(4, 4)
    source = program('x: f32["N N"]', 'y: f32["N"] = 9', "if n > 0:", "    y[n] = max[k, k < n](x[n, k])", "return y")
    np.testing.assert_allclose(run(source, x)[0], [9, *(x[n, :n].max() for n in range(1, 4))])
    source = program('x: f32["N N"]', "y[n] = where(n > 0, 1 + max[k, k < n](x[n, k]), 0)", "return y")
    np.testing.assert_allclose(run(source, x)[0], [0, *(1 + x[n, :n].max() for n in range(1, 4))])


# -- declared tensors without a fill -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        ("if n > 2:", "    y[n] = x[n]", "else:", "    y[n] = -x[n]"),
        ("y[0] = x[0]", "for t in range(1, N):", "    y[t] = x[t] + y[t - 1]"),
        ("y[N - 1] = x[0]", "for t in range(N - 2, -1, -1):", "    y[t] = x[t] + y[t + 1]"),
        ("for t in range(N):", "    y[t] = x[t] + sum[k, k < t](y[k])"),
        ("for t in range(0, N, 2):", "    y[t] = x[t]", "for t in range(1, N, 2):", "    y[t] = y[t - 1]"),
        ("y[2*n] = x[n + 4]", "y[2*n + 1] = y[2*n]"),
        ("for t in range(N):", "    if t == 0:", "        y[t] = x[t]", "    else:", "        y[t] = y[t - 1]"),
        ("for s in range(N // 2):", "    for t in range(2):", "        y[2*s + t] = x[t] + sum[k, k < 2*s + t](y[k])"),
    ],
)  # fmt: skip
def test_written_before_it_is_read(lines: tuple[str, ...]) -> None:
    run(program('x: f32["N"]', 'y: f32["N"]', *lines, "return y"), values(8))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("if n > 0:", "    y[n] = x[n]", "return «y»"), r"y\[0\] is returned before it is written"),
        (("for t in range(0, N, 2):", "    y[t] = x[t]", "return «y»"), r"y\[1\] is returned before"),
        (("for t in range(N):", "    y[t] = x[t] + sum[k, k <= t](«y[k]»)", "return y"), r"y\[0\] is read before it is written \(at t = 0\)"),
        (("for t in range(N - 1, -1, -1):", "    y[t] = sum[k, k < t](«y[k]»)", "return y"), r"y\[0\] is read before"),
        (("for t in range(N):", "    «y[t]» += x[t]", "return y"), r"y\[0\] is updated before it is written"),
        (("for t in range(N):", "    if t > 0:", "        y[t] = «y[t - 1]»", "    else:", "        y[1] = 0", "return y"), r"y\[0\] is read before it is written \(at t = 1\)"),
    ],
)  # fmt: skip
def test_refused_reads_of_what_is_not_written(lines: tuple[str, ...], message: str) -> None:
    check_refused('x: f32["N"]', 'y: f32["N"]', *lines, arguments=X, error=BoundsError, message=message)


def test_a_partly_written_tensor_of_no_dimensions() -> None:
    source = program('x: f32["N"]', "s: f32", "for t in range(N):", "    s = x[t]", "return s")
    assert run(source, values(8))[0] == values(8)[7]
    check_refused(
        'x: f32["N"]', "s: f32", "for t in range(N):", "    if t > 9:", "        s = x[t]", "return «s»",
        arguments=X, error=BoundsError, message="s is returned before it is written",
    )  # fmt: skip


# -- first left sides ----------------------------------------------------------------------------------------------


def test_a_first_left_side_under_an_if() -> None:
    (y,) = run(program('x: f32["N"]', "if n < 3:", "    y[n] = x[n]", "return y"), values(8))
    np.testing.assert_array_equal(y, values(8)[:3])


@pytest.mark.parametrize("condition", ["n > 0", "n % 2 == 0", "n < 9 and n != 3"])
def test_refused_holes_of_a_first_left_side(condition: str) -> None:
    check_refused(
        'x: f32["N"]', f"if {condition}:", "    y[n] = x[n]", "return «y»",
        arguments=X, error=BoundsError, message="is returned before it is written", hint="fill it where it is declared",
    )  # fmt: skip


def test_refused_first_left_side_that_only_some_iterations_make() -> None:
    check_refused(
        'x: f32["N"]', "for t in range(N):", "    if t > 0:", "        z[n] = x[n]", "    x[n] = «z[n]»",
        arguments=X, error=BoundsError, message="is read before it is written",
    )  # fmt: skip


def test_refused_first_left_side_that_does_not_start_at_zero() -> None:
    check_refused(
        'x: f32["N"]', "«y[n]» = x[n - 2]", "return y",
        arguments=X, error=ShapeError, message="the range of n is 2 <= n < 10, not 0 to a fixed number", hint="declare it first",
    )  # fmt: skip


def test_refused_conditions_that_are_not_affine() -> None:
    with pytest.raises((NotAffineError, EinsumSyntaxError)):
        graph(program('x: f32["N N"]', "y[n] = sum[k, k * n < 3](x[n, k])", "return y"), values(4, 4))


def test_refused_ranks() -> None:
    with pytest.raises(PolymlError, match="dimensions"):
        graph(program('x: f32["N N"]', "y[n] = x[n]", "return y"), values(4, 4))
