"""Golden trees of PolyBench: the order of loops that the default cost functions find, and the tileable bands that Pluto's find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.polybench import KERNELS
from polyml.schedule.ilp.costs import DEFAULT_COSTS, TILING_COSTS
from polyml.schedule.tree import print_tree
from tests.schedule.ilp.helpers import legal_tree, regions_of

TILEABLE = {"jacobi-1d": 2, "jacobi-2d": 3, "heat-3d": 4, "fdtd-2d": 3, "seidel-2d": 3, "lu": 3, "cholesky": 3}
"""Loops in the outermost band that Pluto's cost functions find (Bondhugula et al., PLDI 2008, and the study's table)."""


@pytest.mark.parametrize("name", KERNELS)
def test_trees(name: str, golden: Callable[[str, str], None]) -> None:
    kernel = KERNELS[name]
    parts = []
    for scop, dependences in regions_of(kernel.text, *kernel.arguments("MEDIUM")):
        if len(scop.statements) == 1 and not dependences.flow.union(dependences.reduction).n_map():
            continue  # one loop nest that carries nothing
        for title, costs in (("default", DEFAULT_COSTS), ("tiling", TILING_COSTS)):
            tree = legal_tree(scop, dependences, costs=costs)
            if title == "tiling" and name in TILEABLE:
                assert tree.get_root().child(0).band_n_member() == TILEABLE[name]
            parts.append(f"{scop.name}, {title}:\n{print_tree(tree, scop)}")
    golden(f"schedule/ilp/{name}", "\n\n".join(parts))
