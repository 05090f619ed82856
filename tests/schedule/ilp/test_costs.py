"""Each cost function changes the outcome."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from polyml.options import CostName
from polyml.schedule.ilp.costs import COSTS, DEFAULT_COSTS, TILING_COSTS
from polyml.schedule.tree import print_tree
from tests.schedule.ilp.helpers import bands, legal_tree, regions_of


def sweep(*reads: str, element: str = "i, j") -> str:
    """One statement that updates a matrix in place from others of its elements."""
    return f"""
        inout y f32[40, 40]
        S[i, j]: 2 <= i < 38 and 2 <= j < 38: y[{element}] = {" + ".join(f"y[{read}]" for read in reads)}
    """


def test_names() -> None:
    assert {*COSTS, "parallelism"} == set(get_args(CostName))
    assert set(DEFAULT_COSTS) == set(get_args(CostName))
    assert set(TILING_COSTS) < set(get_args(CostName))


@pytest.mark.parametrize("name", get_args(CostName))
@pytest.mark.few(3)
def test_any_list_gives_legal_loops(name: CostName) -> None:
    """One cost function alone leaves much open, but never legality (which the helper proves)."""
    for text in (LEAPFROG, sweep("i, j - 1", "i - 1, j + 1")):
        for costs in ((name,), ("satisfaction", name), (name, "reuse")):
            assert bands(text, costs=tuple(dict.fromkeys(costs)))


def test_parallelism() -> None:
    """Columns are independent of each other: one more name in the list puts them outside."""
    text = sweep("i - 1, j")
    assert bands(text, costs=("coefficients", "order")) == ["i, j | coincident 0,1"]
    assert bands(text, costs=("coefficients", "parallelism", "order")) == ["j | coincident 1", "i | coincident 0"]


def test_coefficients() -> None:
    """Diagonals are independent of each other, but no index runs along them: within rows, elements are as well."""
    text = sweep("i - 1, j - 1")
    costs = ("coefficients", "parallelism", "satisfaction", "order")
    assert bands(text, costs=costs) == ["i | coincident 0", "j | coincident 1"]
    skewed = bands(text, costs=("parallelism", "coefficients", "order"))
    assert skewed[0] in ("i - j + 37 | coincident 1", "-i + j + 37 | coincident 1")


def test_satisfaction() -> None:
    """All dependences end at j, which leaves i parallel; i would carry one of the two."""
    text = sweep("i, j - 1", "i - 1, j - 1")
    assert bands(text, costs=("coefficients", "parallelism", "order")) == ["i, j | coincident 0,0"]
    costs = ("coefficients", "parallelism", "satisfaction", "order")
    assert bands(text, costs=costs) == ["j | coincident 0", "i | coincident 1"]


def test_reuse() -> None:
    """A value is read one j or two i later."""
    text = sweep("i, j - 1", "i - 2, j")
    assert bands(text, costs=("coefficients", "reuse"))[0].startswith("j, i |")
    assert bands(text, costs=("coefficients", "order", "reuse"))[0].startswith("i, j |")


def test_order() -> None:
    """Where reuse wants j outside, the written order can still come first."""
    text = sweep("i, j - 1", "i - 2, j")
    assert bands(text, costs=("coefficients", "order"))[0].startswith("i, j |")
    assert bands(text, costs=("coefficients", "reuse", "order"))[0].startswith("j, i |")


def test_contiguity() -> None:
    """The index of the last subscript goes inside."""
    text = sweep("j - 1, i", "j, i - 1", element="j, i")
    assert bands(text, costs=("coefficients", "order"))[0].startswith("i, j |")
    assert bands(text, costs=("coefficients", "contiguity", "order"))[0].startswith("j, i |")


LEAPFROG = """
    inout e f32[40]
    inout h f32[40]
    loop t
    E[t, i]: 0 <= t < 9 and 1 <= i < 40: e[i] = e[i] + h[i] - h[i - 1]
    H[t, i]: 0 <= t < 9 and 0 <= i < 39: h[i] = h[i] + e[i + 1] - e[i]
    end
"""


def test_alignment() -> None:
    """Shifting statements by an iteration satisfies more dependences at the outer loop, and gains nothing: a sequence inside does it for free."""
    text = """
        def f(a: f64["N"], b: f64["N"]):
            for k in range(1, N):
                b[k] = b[k - 1] + sum[i, i < k](a[i])
                if i <= k:
                    a[i] = a[i] + b[k]
            return a, b
    """
    ((scop, dependences),) = regions_of(text, np.zeros(50), np.zeros(50))
    shifted = legal_tree(scop, dependences, costs=("coefficients", "parallelism", "satisfaction", "order"))
    assert "k + 1" in print_tree(shifted, scop)
    costs = ("coefficients", "parallelism", "alignment", "satisfaction", "order")
    assert "band[k | permutable | coincident 0]" in print_tree(legal_tree(scop, dependences, costs=costs), scop)


def test_tiling_costs_make_permutable_bands() -> None:
    """Pluto's objective: time and space in one band that may be tiled, skewed and shifted as the stencil asks for it."""
    assert bands(LEAPFROG, costs=TILING_COSTS) == ["t, {E: i + t; H: i + t + 1} | coincident 0,0"]
