"""Trees by the ilp scheduler, proved legal, as text."""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

import polyml
from polyml.options import FusionPolicy
from polyml.schedule.ilp.costs import DEFAULT_COSTS
from polyml.schedule.ilp.driver import NODES, schedule_by_ilp
from polyml.schedule.legality import check_tree
from polyml.schedule.matching import Matcher
from polyml.schedule.tree import print_tree
from polyml.scop.dependences import Dependences, analyse
from polyml.scop.expansion import expanded
from polyml.scop.scop import Scop
from polyml.scop.values import used_values
from polyml.target import Target
from tests.schedule.programs import scop_of

__all__ = ["bands", "legal_tree", "regions_of", "tree_text"]


MACHINE = Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20)
"""Which equations share a region depends on caches and vectors; the trees on record are of this machine."""


def regions_of(text: str, *arguments: object) -> list[tuple[Scop, Dependences]]:
    """The regions of an einsum program for these arguments, before anything is decided."""
    program = polyml.einsum(text, scheduler="written", target=MACHINE)
    assert isinstance(program, polyml.Einsum)
    regions = program.lower(*arguments).stages.regions
    scops = [expanded(used_values(region.scop, region.dependences.values)) for region in regions]
    return [(scop, analyse(scop)) for scop in scops]


def legal_tree(
    scop: Scop,
    dependences: Dependences,
    *,
    costs: Sequence[str] = DEFAULT_COSTS,
    fusion: FusionPolicy = "smart",
    relax: bool = True,
    nodes: int = NODES,
) -> isl.Schedule:
    matcher = Matcher(scop, dependences, relax_reductions=relax)
    tree, _ = schedule_by_ilp(scop, matcher, costs=costs, fusion=fusion, nodes=nodes)
    check_tree(tree, scop, dependences.validity, dependences.reduction, relax_reductions=relax)
    return tree


def tree_text(
    text: str, *, costs: Sequence[str] = DEFAULT_COSTS, fusion: FusionPolicy = "smart", relax: bool = True
) -> str:
    """The tree below the domain of a scop in the notation of tests.schedule.programs."""
    scop = scop_of(text)
    return print_tree(legal_tree(scop, analyse(scop), costs=costs, fusion=fusion, relax=relax), scop)


def bands(text: str, *, costs: Sequence[str] = DEFAULT_COSTS, fusion: FusionPolicy = "smart") -> list[str]:
    """Its bands from top to bottom: rows and coincidence."""
    lines = tree_text(text, costs=costs, fusion=fusion).splitlines()
    return [line[line.index("band[") + 5 : -1].replace(" | permutable", "") for line in lines if "band[" in line]
