"""Index ranges, seen in the shapes that they give, and their refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import polyml as pm
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.ranges import Range, box_range, interval
from polyml.errors import BoundsError, ShapeError, UnboundedDomainError
from polyml.sets.affine import affine
from polyml.source import Source
from polyml.testing import verify
from tests.graph.built import check_refused, graph, program, run, values


@pytest.mark.parametrize(
    ("line", "extent"),
    [
        ("y[h] = x[h + r] * f[r]", 7),  # valid convolution: 0 .. H - R
        ("y[h] = x[2*h + r] * f[r]", 4),
        ("y[h] = max[r < 3](x[2*h + r])", 4),
        ("y[h] = x[8 - h]", 9),
        ("y[h] = x[7 - 2*h]", 4),
        ("y[h] = x[h + r + s] * f[r] * f[s]", 5),
        ("y[h] = x[h // 2]", 18),
        ("y[h] = x[(h + 3) % H] - x[(2 - h) % H]", 9),  # round the whole dimension
        ("y[h] = x[(h + 3) % H] - x[h + 1]", 8),  # in bounds, first
        ("y[h] = x[h // 2 + h % 2]", 17),
        ("y[h] = x[h + 1] + x[h + 2]", 7),  # both are in bounds
        ("y[h] = x[3*h + r] * f[r] + x[h]", 9),  # a plain subscript decides, and the proof refuses the other
    ],
)
def test_the_extent_that_a_range_gives(line: str, extent: int) -> None:
    source = program('x: f32["H"], f: f32["R"]', line, "return y")
    if "x[h]" in line:
        with pytest.raises(BoundsError):
            graph(source, values(9), values(3))
        return
    (result,) = graph(source, values(9), values(3)).outputs
    assert result.shape == (affine(extent),)


@pytest.mark.parametrize("inside", ["max(h - 1, 0)", "min(h + 1, H - 1)"])
def test_what_stays_inside_gives_no_range(inside: str) -> None:
    source = f'def f(x: f64["H"]):\n    y[h] = x[(h + 3) % H] - x[{inside}]\n    return y\n'
    assert verify(source, values(5).astype(float))
    with pytest.raises(UnboundedDomainError):
        interpret(
            parse(Source(f'def f(x: f64["H"]):\n    y[h] = x[{inside}]\n    return y\n')), values(5).astype(float)
        )


def test_valid_convolution_values() -> None:
    x, f = values(9), values(3)
    (y,) = run(program('x: f32["H"], f: f32["R"]', "y[h] = x[h + r] * f[r]", "return y"), x, f)
    np.testing.assert_allclose(y, np.correlate(x, f, "valid"), rtol=1e-6)


def test_indices_are_bounded_round_by_round() -> None:
    # r follows from f, then h from x, then q from z, whose subscript needs h.
    source = program(
        'x: f32["H"], f: f32["R"], z: f32["Q"]', "y[h, q] = sum[r](x[h + r] * f[r] * z[q + h])", "return y"
    )
    (result,) = graph(source, values(9), values(3), values(20)).outputs
    assert result.shape == (affine(7), affine(14))


def test_a_range_may_depend_on_a_loop_variable() -> None:
    source = program(
        'x: f32["H"]',
        'y: f32["H"] = 0',
        "for t in range(H):",
        "    y[t] = sum[q, q < 2](x[q]) + sum[h](x[h + t])",
        "return y",
    )
    x = values(6)
    (y,) = run(source, x)
    np.testing.assert_allclose(y, [x[:2].sum() + x[t:].sum() for t in range(6)], rtol=1e-6)


def test_stated_ranges_and_existing_left_sides() -> None:
    source = program('x: f32["H"]', 'y: f32["4"]', "y[h] = sum[r <= 2](x[h + r])", "return y")
    x = values(9)
    (y,) = run(source, x)
    np.testing.assert_allclose(y, [x[h : h + 3].sum() for h in range(4)], rtol=1e-6)


def test_restricted_extents_may_differ_from_the_free_one() -> None:
    source = program('x: f32["N"], z: f32["M"]', "y[n] = x[n] + where(n < M, z[n], 0)", "return y")
    x, z = values(6), values(4)
    (y,) = run(source, x, z)
    np.testing.assert_allclose(y, [*(x[:4] + z), *x[4:]], rtol=1e-6)


def test_an_index_that_an_if_restricts_runs_over_the_longest_dimension() -> None:
    """Rotary embeddings of two halves: the plain places of k are as long as a row and as half of one."""
    source = program(
        'x: f32["N D"], c: f32["N K"]',
        'y: f32["N D"] = 0',
        "if k < K:",
        "    y[n, k + K] = x[n, k + K] * c[n, k] + x[n, k]",
        "return y",
    )
    x, c = values(3, 10), values(3, 5)
    (y,) = run(source, x, c)
    np.testing.assert_allclose(y, np.concatenate([np.zeros((3, 5)), x[:, 5:] * c + x[:, :5]], axis=1), rtol=1e-6)
    np.testing.assert_allclose(interpret(parse(source.source), x, c), y, rtol=1e-6)


def test_refused_what_an_if_leaves_of_the_longest_dimension() -> None:
    check_refused(
        'x: f32["N"], z: f32["M"]', 'y: f32["N"] = 0', "if n > 1:", "    y[N - 1 - n] = x[n] + z[«n»]", "return y",
        arguments=(values(5), values(4)), error=BoundsError, message="subscript 0 of z leaves its dimension of 4: it is 4 for n = 4",
    )  # fmt: skip


def test_a_single_value_is_a_warning() -> None:
    source = program('x: f32["H"], f: f32["R"]', "y[h] = x[h + r] * f[r]", "return y")
    assert graph(source, values(4), values(3)).warnings == ()
    (warning,) = graph(source, values(3), values(3)).warnings
    assert "the inferred range of h is the single value 0" in warning


def test_an_unreachable_branch_is_a_warning() -> None:
    source = program('x: f32["H"]', "y[h] = where(h < 10, x[h], x[h] + 1)", "return y")
    assert graph(source, values(11)).warnings == ()
    (warning,) = graph(source, values(10)).warnings
    assert "this branch of `where` is never reached" in warning


def test_a_guard_that_nothing_satisfies_is_a_warning() -> None:
    source = program('x: f32["N"]', "if 0 < n < N - 1:", "    x[n] = 0")
    assert graph(source, values(3)).warnings == ()
    (warning,) = graph(source, values(2)).warnings
    assert "no instance satisfies the enclosing `if`" in warning


def test_refused_different_extents() -> None:
    check_refused(
        'x: f32["N"], z: f32["M"]', "y[n] = x[n] + z[«n»]", "return y",
        arguments=(values(4), values(5)), error=ShapeError, message="the index n runs over dimensions of different extents: 4 and 5",
        hint="`if n < 4:`",
    )  # fmt: skip
    source = program('x: f32["N"], z: f32["M"]', "y[n] = x[n] + z[n]", "return y")
    with pytest.raises(ShapeError, match="different extents: 4 and 0") as refused:
        graph(source, values(4), values(0))
    assert "`if" not in str(refused.value)  # `if n < 0:` leaves nothing


def test_refused_restricted_extents_that_differ() -> None:
    check_refused(
        'x: f32["N"], z: f32["M"]', "y[n] = where(n < 2, x[n], z[«n»])", "return y",
        arguments=(values(4), values(5)), error=ShapeError, message="different extents",
    )  # fmt: skip


def test_refused_unbounded() -> None:
    check_refused(
        'x: f32["N"]', "y[n] = x[«n» // 2 * 2 % 4]", "return y",
        arguments=(values(4),), error=UnboundedDomainError, message="the range of n follows from nothing", hint="declare the left side",
    )  # fmt: skip


def test_refused_unbounded_under_an_if() -> None:
    check_refused(
        'x: f32["N"]', "if i > 3:", "    y[n, i] = x[n] * «i»", "return y",
        arguments=(values(4),), error=UnboundedDomainError, message="the range of i follows from nothing", hint="an `if` gives i no upper bound",
    )  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_upper_bound_under_an_if_is_a_range_where_nothing_else_gives_one(dynamic: bool) -> None:
    step = "y[4*i + j] = x[4*i + j] - x[4*i + j + 2] * z[i, j]"
    lines = ["if j < 2:", "    z[n, j] = x[n] * j", 'y: f64["N"] = 0', "if j < 2:", f"    {step}", "return y"]
    text = "\n    ".join(['def f(x: f64["N"]):', *lines]) + "\n"
    assert verify(pm.einsum(text, dynamic=dynamic), np.arange(12.0))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_first_left_side_with_holes(dynamic: bool) -> None:
    """It has its shape from its last elements; in a loop, of sizes for which nothing is left of it, too."""
    lines = [
        "for t in range(T):",
        "    if 1 <= i < N - 1:",
        "        d[i] = x[i + 1] - x[i - 1]",
        "        x[i] += d[i]",
    ]
    lines += ["if i < N - 1:", "    y[i] = x[i + 1] * T", "return x, y"]
    text = "\n    ".join(['def f(x: f64["N"], T: int):', *lines]) + "\n"
    smooth = pm.einsum(text, dynamic=dynamic)
    for size in (7, 2, 1):
        assert verify(smooth, np.arange(float(size)) ** 2, 3)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("line", "extent"),
    [
        ("y[h] = sum[r < 5](where(x[h + r] > x[h + 2], 1, 0))", 5),
        ("y[h] = where(x[h + 1] > 0 and not x[h + 3] > 1, x[2*h], where(x[h + 2] > 2, x[h + 2], 7.0))", 5),
        ("y[h] = where(x[h + 1] > 0, x[h], 0)", None),  # a plain place decides, and the proof refuses the other
        ("y[h] = where(x[h + 1] > 0, where(h < 5, x[h + 3], 0), 0)", 8),  # what h < 5 restricts says nothing
    ],
)
def test_reads_under_conditions_on_values_give_ranges_where_nothing_else_does(
    line: str, extent: int | None, dynamic: bool
) -> None:
    compute = pm.einsum(f'def f(x: f64["H"]):\n    {line}\n    return y\n', dynamic=dynamic)
    x = np.random.default_rng(0).standard_normal(9)
    if extent is None:
        with pytest.raises(BoundsError):
            compute(x)
        return
    assert verify(compute, x)
    assert np.shape(compute(x)) == (extent,)


def test_refused_reads_under_conditions_on_indices_alone() -> None:
    check_refused(
        'x: f32["N"]', "y[n] = where(«n» < 3, x[n + 1], 0)", "return y",
        arguments=(values(4),), error=UnboundedDomainError, message="the range of n follows from nothing", hint="declare the left side",
    )  # fmt: skip


def test_nothing_is_left_of_one_index_of_any_size() -> None:
    """The others keep their ranges."""
    text = 'def f(x: f64["N M"]):\n    if j < M - 2:\n        y[i, j] = x[i + 1, j]\n    return y\n'
    assert np.shape(pm.einsum(text, dynamic=True)(np.ones((5, 2)))) == (4, 0)


def test_refused_an_index_that_a_reducer_binds_beside_the_left_one() -> None:
    check_refused(
        'x: f32["N K"]', "«y[n, k] = sum[k](x[n, k])»", "return y",
        arguments=(values(3, 4),), error=UnboundedDomainError, message="the range of k follows from nothing", hint="the k of sum[k](..) is another one",
    )  # fmt: skip


def test_refused_gaps() -> None:
    # 0, 1 and 4, 5 stay below 2: n % 4 < 2, and n // 8 bounds n.
    check_refused(
        'x: f32["N"], z: f32["M"]', "«y[n] = x[n % 4] * z[n // 8]»", "return y",
        arguments=(values(2), values(1)), error=UnboundedDomainError, message="gaps",
    )  # fmt: skip


def test_refused_no_value() -> None:
    check_refused(
        'x: f32["H"], f: f32["R"]', "y[h] = x[«h + r»] * f[r]", "return y",
        arguments=(values(2), values(3)), error=ShapeError, message="no value of h keeps every subscript in bounds",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "extent"),
    [((0, 0), 0), ((5, 0), 5), ((0, 3), 0)],  # an empty filter counts as one of size 1, whose sum is 0
)
def test_an_empty_range_of_another_index_counts_as_0(sizes: tuple[int, int], extent: int) -> None:
    source = program('x: f32["H"], f: f32["R"]', "y[h] = x[h + r] * f[r]", "return y")
    arguments = [values(size) for size in sizes]
    (result,) = run(source, *arguments)
    assert result.shape == (extent,)
    np.testing.assert_array_equal(result, interpret(parse(source.source), *arguments))


def test_no_value_of_another_index_in_some_iteration() -> None:
    lines = ("for t in range(3):", "    s += sum[h](sum[r, r < t](x[h + r]))")
    source = program('x: f32["H"]', "s: f32 = 0", *lines, "return s")
    (result,) = run(source, values(6))
    assert result == interpret(parse(source.source), values(6))


def test_a_loop_without_iterations_needs_no_value() -> None:
    lines = ("for t in range(0, 0, -1):", "    x[H - 1 - h] = f[h // 2 + t]")
    source = program('x: f32["H"], f: f32["R"]', *lines, "return x")
    (result,) = run(source, values(6), values(2))
    np.testing.assert_array_equal(result, values(6))


@pytest.mark.parametrize(
    ("statement", "terms", "dynamic"),
    [
        ("y[i] = sum[r, 1 <= r < 4, i + r < N](x[i + r])", lambda i, r: 1 <= r < 4, False),
        ("y[i] = sum[r, 4 > r and r != 2 and i + r < N](x[i + r])", lambda i, r: r < 4 and r != 2, True),
        ("y[i] = sum[r, i + r < N](x[i + r])", lambda i, r: True, True),  # not the one r that is right for every i
        ("if 0 < r < 4 and i + r < N:\n        y[i] += x[i + r]", lambda i, r: 0 < r < 4, False),
        ("if i > 3 and r - r >= 0 and i + r < N:\n        y[i] += x[i + r]", lambda i, r: i > 3, False),
        (
            "for t in range(3):\n        y[i] += sum[r, t < r <= t + 1, i + r < N](x[i + r])",
            lambda i, r: 0 < r < 4,
            True,
        ),
    ],
)
def test_conditions_give_a_summed_index_its_range(
    statement: str, terms: Callable[[int, int], bool], dynamic: bool
) -> None:
    f = pm.einsum(f'def f(x: f64["N"]):\n    y: f64["N"] = 0\n    {statement}\n    return y\n', dynamic=dynamic)
    x = np.arange(1.0, 7)
    assert f(x).tolist() == [sum(x[i + r] for r in range(6 - i) if terms(i, r)) for i in range(6)]
    assert verify(f, x)


@pytest.mark.parametrize("condition", ["«-1 <= r <= 1»", "r <= 1, «r > -2»"])
def test_refused_an_index_that_would_begin_below_0(condition: str) -> None:
    check_refused(
        'x: f32["N"]', 'y: f32["N"]', f"y[i] = sum[r, {condition}, 0 <= i + r < N](x[i + r])", "return y",
        arguments=(values(5),), error=ShapeError, message="this one of r would begin at -", hint="count r from 0",
    )  # fmt: skip


def test_interval_arithmetic() -> None:
    known: dict[str, Range] = {"i": box_range("i", 0, 5), "j": box_range("j", 2, 4)}
    i, j = affine("i"), affine("j")
    assert interval(i * 2 - j * 3 + 1, known) == (-8, 3)
    assert interval((i - j) // 2, known) == (-2, 1)
    assert interval(i + affine("unknown"), known) == (None, None)
