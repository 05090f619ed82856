"""Generators of products: those around them span no less than the product, are few, and are its own where these are few."""

from __future__ import annotations

import islpy as isl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from polyml.schedule.ilp import generators
from polyml.schedule.ilp.cones import cones_of
from polyml.schedule.ilp.generators import Generators, generators_around, generators_of
from polyml.scop.dependences import analyse
from tests.schedule.programs import scop_of

FACTORS = (
    "0 <= {0} <= 1",
    "-3 <= {0} < 5",
    "0 <= 2 {0} and 3 {0} <= 7",
    "{0} <= 4",
    "{0} = {1}",
    "{0} = {1} and 0 <= {1} < 2",
    "0 <= {0} <= {1} < 6",
    "0 <= {0} < N",
    "2 {0} + 3 {1} <= 11 and {0} >= 0 and {1} >= 1",
)


def lows(found: Generators, directions: NDArray[np.int64]) -> NDArray[np.float64]:
    """The least values of linear forms among the vertices."""
    rows, lines = found
    vertices = rows[(rows[:, 0] > 0) & ~lines]
    return (directions @ (vertices[:, 1:] / vertices[:, :1]).T).min(axis=1)


def unbounded(found: Generators) -> set[tuple[int, ...]]:
    """The rays and lines."""
    rows, lines = found
    return {(int(line), *row) for row, line in zip(rows.tolist(), lines, strict=True) if line or row[0] == 0}


@given(st.lists(st.sampled_from(FACTORS), min_size=5, max_size=9).filter(lambda found: found.count(FACTORS[7]) < 2))
@settings(max_examples=30, deadline=None)
def test_what_holds_around_a_product_holds_on_it(factors: list[str]) -> None:
    texts = [factor.format(f"a{k}", f"b{k}") for k, factor in enumerate(factors)]
    names = [
        name for k, factor in enumerate(factors) for name in ((f"a{k}", f"b{k}") if "{1}" in factor else (f"a{k}",))
    ]
    points = isl.BasicSet(f"[N] -> {{ [{', '.join(names)}] : N >= 1 and {' and '.join(texts)} }}")
    exact = generators_of(points)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generators, "MANY_GENERATORS", 8)
        patch.setattr(generators, "_FEWEST_CONSTRAINTS", 0)
        around = generators_around(points)
    directions = np.random.default_rng(1).integers(-3, 4, (300, len(names) + 1))
    assert (lows(around, directions) <= lows(exact, directions) + 1e-9).all()
    assert unbounded(around) == unbounded(exact)
    assert len(around[0]) <= max(8, 2 + 4 * len(factors) + 2 * len(names))


def test_few_generators_are_exact() -> None:
    points = isl.BasicSet("{ [a, b, c, d, e, f, g] : " + " and ".join(f"0 <= {i} < 2" for i in "abcdefg") + " }")
    rows, lines = generators_around(points)
    assert len(rows) == 2**7
    assert not lines.any()
    rows, _ = generators_around(
        isl.BasicSet("{ [a, b, c, d, e, f, g, h] : " + " and ".join(f"0 <= {i} < 2" for i in "abcdefgh") + " }")
    )
    assert sorted(rows.tolist()) == sorted([[1] + [0] * 8, *([1, *(8 * (j == k) for j in range(8))] for k in range(8))])


def test_dependences_between_many_short_indices_have_few_generators() -> None:
    """A gate on two of ten qubits: 2^10 and more vertices a piece."""
    names = "abcdefghij"
    box = " and ".join(f"0 <= {name} < 2" for name in names)
    sizes = ", ".join("2" * len(names))
    scop = scop_of(
        f"""
        input g f32[2, 2]
        inout s f32[{sizes}]
        local y f32[{sizes}]
        I[t, {", ".join(names)}]: 0 <= t < 9 and {box}: y[{", ".join(names)}] sum: 0
        U[t, {", ".join(names)}, z]: 0 <= t < 9 and {box} and 0 <= z < 2: y[{", ".join(names)}] sum= g[c, z] * s[a, b, z, d, e, f, g, h, i, j]
        S[t, {", ".join(names)}]: 0 <= t < 9 and {box}: s[{", ".join(names)}] = y[{", ".join(names)}]
        """
    )
    cones = cones_of(scop, analyse(scop), relax_reductions=True)
    most = max(len(face.generators) for cone in cones for face in cone.faces)
    assert 8 < most < 40


def test_what_takes_too_long_is_taken_for_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """isl stops for the part that is no box, and the next one does without trying."""
    box = " and ".join(f"1 <= {i} < 8" for i in "abcdef")
    sums = " and ".join(f"{i} + {j} <= 13" for k, i in enumerate("abcdef") for j in "abcdef"[:k])
    points = isl.BasicSet(f"{{ [a, b, c, d, e, f] : {box} and {sums} and 7 <= a + b + c + d + e + f }}")
    monkeypatch.setattr(generators, "OPERATIONS", 500)
    rows, _ = generators_around(points)
    assert 6 < len(rows) <= 64
    vertices = rows[:, 1:] / rows[:, :1]
    assert (vertices.min(axis=0) == 1).all()
    assert (vertices.max(axis=0) >= 7).all()


def test_equal_polyhedra_have_one_answer_whatever_they_are_called() -> None:
    texts = (
        "[N] -> { A[i, j] : 0 <= i <= j < N }",
        "[M] -> { B[k, l] : 0 <= k <= l < M }",
        "[M] -> { [k, l] : 0 <= k <= l <= M }",
    )
    first, again, other = (generators_of(isl.BasicSet(text)) for text in texts)
    assert again[0] is first[0]
    assert not np.array_equal(other[0], first[0])
    assert not first[0].flags.writeable
    assert not first[1].flags.writeable
