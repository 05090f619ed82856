"""Loops that count tiles, read as loops over values; and schedule trees without divisions."""

from __future__ import annotations

import islpy as isl
import pytest

from polyml.codegen.counts import condition_of_values, value_of_values, values_before
from polyml.codegen.quotients import without_divisions
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, IndexValue
from polyml.sets.affine import Affine, affine, minimum

COUNTS = {"a": 48, "b": 24, "c": 20}
A, B, C, N = map(affine, "abcn")


@pytest.mark.parametrize(
    "value",
    [
        A * 48 + B * 24 + 5,  # whole
        B - A * 2,  # exact, though each term is not
        (B * 3 + N) // 7,
        C * 2 + C // 2,  # 5 c / 2, rounded down
        minimum([B * 24 + 1, A * 2, N]) + A,
        affine(3),
    ],
)  # fmt: skip
def test_values_are_what_counts_stand_for(value: Affine) -> None:
    made = value_of_values(value, COUNTS)
    for a in range(3):
        for b in range(4):
            for c in range(4):
                for n in (-5, 0, 9):
                    counted = value.evaluate({"a": a, "b": b, "c": c, "n": n})
                    assert made.evaluate({"a": 48 * a, "b": 24 * b, "c": 20 * c, "n": n}) == counted


def test_a_difference_of_counts_is_one_division() -> None:
    assert str(value_of_values(B - A * 2, COUNTS)) == "(b - a)//24"
    assert str(value_of_values((C * 2 + C // 2) * 8, COUNTS)) == "8*((c)//8)"


@pytest.mark.parametrize(
    "end", [N // 24 + 1, (N + 5) // 12 + 2, minimum([affine(45), A * 2 + 2]), minimum([N // 24 + A, affine(7)])]
)
def test_loops_have_the_same_iterations(end: Affine) -> None:
    made = value_of_values(values_before(end, 24), COUNTS)
    for a in range(4):
        for n in range(-30, 200):
            last = end.evaluate({"a": a, "n": n})
            values = range(-240, made.evaluate({"a": 48 * a, "n": n}), 24)
            assert [v // 24 for v in values] == list(range(-10, last))


def test_ends_in_sizes_have_no_division() -> None:
    assert str(values_before((N - 1) // 48 + 1, 48)) == "n"
    assert str(values_before((N - 1) // 24 + 1, 48)) == "2*n - 1"


@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_conditions(op: str) -> None:
    condition = Apply(op, (IndexValue(A * 2, i64), IndexValue(B + 1, i64)), boolean)
    made = condition_of_values(Apply("not", (condition,), boolean), COUNTS)
    assert isinstance(made, Apply)
    (compared,) = made.args
    assert isinstance(compared, Apply)
    assert compared.op == op
    assert [str(side.affine) for side in compared.args if isinstance(side, IndexValue)] == ["a", "b + 24"]


def _tree(text: str, *bands: str) -> isl.Schedule:
    made = isl.Schedule.from_domain(isl.UnionSet(text))
    for band in reversed(bands):
        made = made.insert_partial_schedule(isl.MultiUnionPwAff(band))
    return made


def test_quotients_are_dimensions() -> None:
    tree = _tree(
        "[N] -> { S[i] : 0 <= i < N; T[i, j] : 0 <= i < N and 0 <= j <= i }",
        "[N] -> [{ S[i] -> [(32*floor(i/32))]; T[i, j] -> [(32*floor((i)/32) + 32*floor((j + 1)/32))] }]",
        "[{ S[i] -> [(i)]; T[i, j] -> [(j)] }]",
    )
    made = without_divisions(tree)
    assert made is not None
    assert made.counts == {("S", 0): 32, ("T", 0): 32}
    # The same instances in the same order.
    forgotten = isl.UnionMap.empty(tree.get_domain().get_space())
    for name, count in (("S", 1), ("T", 2)):
        indices = ", ".join("ij"[:count])
        quotients = "q" if name == "S" else "q, r"
        forgotten = forgotten.union(isl.UnionMap(f"{{ {name}[{indices}, {quotients}] -> {name}[{indices}] }}"))
    times = isl.UnionMap("{ [c, d] -> [32c, d] }")
    plain = made.tree.get_map().intersect_domain(made.tree.get_domain()).apply_range(times).apply_domain(forgotten)
    assert plain.is_equal(tree.get_map().intersect_domain(tree.get_domain()))


def test_a_band_that_does_not_divide_alike_everywhere_counts_less() -> None:
    tree = _tree("{ S[i] : 0 <= i < 100; T[i] : 0 <= i < 9 }", "[{ S[i] -> [(32*floor(i/32))]; T[i] -> [(8*i)] }]")
    made = without_divisions(tree)
    assert made is not None
    assert made.counts == {("S", 0): 8, ("T", 0): 8}


def test_nothing_to_do() -> None:
    assert without_divisions(_tree("{ S[i] : 0 <= i < 100 }", "[{ S[i] -> [(2*i)] }]")) is None
    halves = "[{ S[t] -> [(4*floor(t/2))]; T[t] -> [(4*floor((2t + 1)/4))] }]"
    assert without_divisions(_tree("{ S[t] : 0 <= t < 100; T[t] : 0 <= t < 100 }", halves)) is None
