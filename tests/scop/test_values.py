"""Dead statements and webs of arrays: what goes, what must stay, and that the dependences are those of the new scop."""

from __future__ import annotations

import islpy as isl
import numpy as np

import polyml
from polyml.scop.dependences import analyse
from polyml.scop.scop import Scop
from polyml.scop.values import used_values
from tests.scop.helpers import add, equation, mul, read, scop, tensor

X, Y = tensor("x", 10), tensor("y", 10)
T = [tensor(f"t{k}", 10) for k in range(4)]
ONE = {t.name: "t" for t in T}
LINE = "0 <= i < 10"


def used(program: Scop) -> Scop:
    return used_values(program, analyse(program).values)


def overwritten(first: int) -> Scop:
    """t is filled, its first three elements written and one of them read, then those from `first` on written; all of it is read in the end."""
    one = tensor("one", 1)
    ops = [
        equation(T[0], "i", LINE, ["i"], read(X, "i")),
        equation(T[1], "i", "0 <= i < 3", ["i"], read(X, "i"), base=T[0]),
        equation(one, "i", "0 <= i < 1", ["i"], read(T[1], "i")),
        equation(T[2], "i", f"{first} <= i < 10", ["i"], mul(read(X, "i"), read(X, "i")), base=T[1]),
        equation(Y, "i", LINE, ["i"], read(T[2], "i")),
    ]
    return scop(ops, [X], [Y, one], ONE)


def test_a_value_that_is_overwritten_unread_is_not_computed() -> None:
    program = overwritten(3)
    found = used(program)
    assert set(program.statements) - set(found.statements) == {"S_t0"}
    assert used(found) is found
    # Elements that nobody else writes are kept: a few of them as a statement of their own.
    found = used(overwritten(4))
    assert set(found.statements) == set(program.statements) - {"S_t0"} | {"S_t0_rim1'"}
    assert found.statements["S_t0_rim1'"].domain.is_equal(isl.Set("{ S_t0_rim1'[i] : i = 3 }"))
    assert used(found) is found
    program = overwritten(7)
    assert used(program) is program


def test_of_a_copy_that_is_overwritten_only_the_rim_is_made() -> None:
    text = """
def f(a: f64["N M"]):
    b: f64["N M"]
    b[i, j] = a[i, j]
    for t in range(10):
        if 1 <= i < N - 1 and 2 <= j < M - 1:
            b[i, j] = 0.2 * (b[i, j] + b[i, j - 2] + b[i, j + 1] + b[i - 1, j] + b[i + 1, j])
    return b
"""
    a = np.random.default_rng(0).random((23, 41))
    small = polyml.Target(l2_bytes=64)
    (region,) = polyml.einsum(text, target=small).lower(a).stages.regions
    rims = [s.domain for name, s in region.scop.statements.items() if "_rim" in name]
    elements = isl.UnionSet("{ }")
    for rim in rims:
        elements = elements.union(rim.set_tuple_name("e").to_union_set())
    # No corner is read, and columns 0 and 1 are on the left.
    expected = isl.UnionSet("{ e[i, j] : 1 <= i < 22 and (0 <= j < 2 or j = 40) or (i = 0 or i = 22) and 2 <= j < 40 }")
    assert elements.is_equal(expected)
    want = a.copy()
    for _ in range(10):
        new = want[1:-1, 2:-1] + want[1:-1, :-3] + want[1:-1, 3:] + want[:-2, 2:-1] + want[2:, 2:-1]
        want[1:-1, 2:-1] = 0.2 * new
    np.testing.assert_allclose(polyml.einsum(text, target=small, verify=True)(a), want, rtol=1e-13)


def test_results_are_used_but_for_what_is_written_again() -> None:
    versions = [tensor(f"y{k}", 10) for k in range(3)]
    storage = {y.name: "y" for y in versions}
    fill = equation(versions[0], "i", LINE, ["i"], read(X, "i"))
    half = equation(versions[1], "i", "0 <= i < 5", ["i"], mul(read(X, "i"), read(X, "i")), base=versions[0])
    whole = equation(versions[1], "i", LINE, ["i"], mul(read(X, "i"), read(X, "i")), base=versions[0])
    kept = scop([fill, half], [X], [versions[1]], storage)
    assert used(kept) is kept
    assert set(used(scop([fill, whole], [X], [versions[1]], storage)).statements) == {"S_y1"}


def test_memory_that_values_take_turns_in_becomes_two_arrays() -> None:
    z = tensor("z", 10)
    ops = [
        equation(T[0], "i", LINE, ["i"], read(X, "i")),
        equation(Y, "i", LINE, ["i"], add(read(T[0], "i"), read(X, "i"))),
        equation(T[1], "i", LINE, ["i"], mul(read(Y, "i"), read(X, "i"))),
        equation(z, "i", LINE, ["i"], read(T[1], "i")),
    ]
    program = scop(ops, [X], [Y, z], ONE)
    found = used(program)
    targets = {name: s.target.array for name, s in found.statements.items()}
    assert targets["S_t0"] == "t"
    assert targets["S_t1"] != "t"
    assert {r.tensor for r in [found.statements["S_z"].value]} == {targets["S_t1"]}
    # No order is left between the first reader and the second writer.
    between = analyse(program).anti.subtract(analyse(found).anti)
    assert not between.is_empty()


def test_order_that_went_through_a_dead_statement_stays() -> None:
    # t is read, then overwritten in vain, then overwritten for good, by what reads one more element: the first read must still come first.
    z = tensor("z", 10)
    ops = [
        equation(T[0], "i", LINE, ["i"], read(X, "i")),
        equation(Y, "i", LINE, ["i"], read(T[0], "i")),
        equation(T[1], "i", "0 <= i < 5", ["i"], mul(read(X, "i"), read(X, "i")), base=T[0]),
        equation(T[2], "i", "0 <= i < 5", ["i"], read(X, "i"), base=T[1]),
        equation(z, "i", LINE, ["i"], read(T[2], "i")),
    ]
    program = scop(ops, [X], [Y, z], ONE)
    found = used(program)
    assert set(program.statements) - set(found.statements) == {"S_t1"}
    order = analyse(found).validity
    first = isl.UnionMap("{ S_y[i] -> S_t2[i] : 0 <= i < 5 }")
    assert first.is_subset(order)
    assert not first.is_subset(analyse(program).validity)  # it went through the statement that is gone


def test_an_array_of_a_loop() -> None:
    text = """
def f(x: f64["N"], T: int):
    p: f64["N"] = 0
    for t in range(T):
        p[i] = x[i] + t
        x[i] = p[i] * 2
        p[i] = x[i] - 1
        x[i] += p[i]
    return x
"""
    x = np.arange(9.0)
    expected = x.copy()
    for t in range(4):
        expected = (expected + t) * 2
        expected += expected - 1
    np.testing.assert_allclose(polyml.einsum(text)(x.copy(), 4), expected)


CHAIN = """
def chain(x: f64["N N"]):
    y: f64["N"] = 0
    for i in range(2, N):
        s = sum[k](x[i, k])
        for j in range(1, N):
            m = max[k, k < j](x[j, k] * s)
            y[j] = y[j - 1] + m
    return y
"""


def test_scalars_of_an_iteration_get_an_element_each() -> None:
    program = polyml.einsum(CHAIN)
    x = np.random.default_rng(0).random((8, 8))
    (region,) = [r for r in program.lower(x).stages.regions if "s" in r.scop.arrays]
    shapes = {name: tuple(e.constant for e in a.shape) for name, a in region.scop.arrays.items() if a.kind == "local"}
    assert shapes["s"] == (6,)
    assert shapes["m"] == (6, 7)
    # What is written for others keeps its scalars.
    plain = polyml.einsum(CHAIN, scheduler="written").lower(x).stages.regions
    assert all(a.shape == () for r in plain for a in r.scop.arrays.values() if a.name in ("s", "m"))
    y = np.zeros(8)
    for i in range(2, 8):
        for j in range(1, 8):
            y[j] = y[j - 1] + np.max(x[j, :j] * x[i].sum())
    np.testing.assert_allclose(program(x), y)


def test_a_scalar_that_lives_on_is_not_expanded() -> None:
    text = """
def running(x: f64["N"]):
    s = 0.0
    y: f64["N"] = 0
    for i in range(N):
        s = s + x[i]
        y[i] = s
    return y
"""
    x = np.arange(9.0)
    regions = polyml.einsum(text).lower(x).stages.regions
    assert all(a.shape == () for r in regions for a in r.scop.arrays.values() if a.name.startswith("s"))
    np.testing.assert_allclose(polyml.einsum(text)(x), np.cumsum(x))


WINDOWS = """
def f(T: int, a: f64["N N"], b: f64["N N"]):
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < N - 2:
            b[i, j] = sum[p, q, 0 <= p < 3, 0 <= q < 3](a[i + p - 1, j + q - 1]) / 9
            a[i, j] = b[i, j]
    return a
"""


def test_sums_start_where_there_are_terms() -> None:
    """Sums whose start has the loops of their terms are registers, not an array that is filled in each step."""
    a, b = np.random.default_rng(0).random((2, 13, 13))
    program = polyml.einsum(WINDOWS, parallel=False)
    lowered = program.lower(3, a, b)
    assert "S_b_sum_init[t, i, j] : 0 <= t < T and 0 < i <= 11 and 0 < j <= 10 }" in lowered.text("domains")
    assert "local f64 b_sum" not in lowered.text("loops")
    expected = a.copy()
    for _ in range(3):
        windows = sum(expected[p : 11 + p, q : 10 + q] for p in range(3) for q in range(3))
        expected[1:-1, 1:-2] = windows / 9
    np.testing.assert_allclose(program(3, a, b), expected, rtol=1e-12)


def test_a_start_that_is_read_without_terms_stays() -> None:
    text = """
def f(a: f64["N"]):
    s: f64["N"] = 0
    s[i] = sum[k, k < i and i >= 4](a[k])
    y[i] = 2 * s[i] + 1
    return y
"""
    a = np.random.default_rng(0).random(9)
    expected = [2 * a[:i].sum() * (i >= 4) + 1 for i in range(9)]
    np.testing.assert_allclose(polyml.einsum(text)(a), expected, rtol=1e-12)
