"""Loops along which windows are cut at both ends: the iterations whose windows are whole become a loop of their own, and only those are a register tile.

    for (t = 0; t < 1000; t++) for (k = max(0, 3 - t); k < 4; k++) S
    -> for (t = 0; t < 3; t++) for (k = 3 - t; k < 4; k++) S   for (t = 3; t < 1000; t++) for (k = 0; k < 4; k++) S

Rows of a register tile share the loops inside of it, so that all of them must run over the same values. Few rows at an edge do not: they go one by one.

Source: Griebl, Feautrier and Lengauer, "Index set splitting" (IJPP 2000).
"""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.statement_models import UNKNOWN_EXTENT
from polyml.schedule.strategy.bands import Band
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.transforms import Loop, insert_loops, insert_sequence
from polyml.scop.scop import Statement
from polyml.sets.affine import Affine

__all__ = ["WholeWindows", "insert_parts", "whole_windows"]

_SET = isl.dim_type.set

LEAST = 0.5
"""The part of the iterations that have whole windows, at least: code for both is twice as much."""


@dataclass(frozen=True, slots=True)
class WholeWindows:
    """Of a member of a band. instances: those with whole windows; edges: all others. first: the least value that has one, where it is known, and tiles may begin there. extent: iterations, or those of a block.
    part: of all iterations."""

    instances: isl.UnionSet
    edges: isl.UnionSet
    first: int | None
    extent: int
    part: float


def whole_windows(band: Band, member: int, facts: Facts) -> WholeWindows | None:
    """The iterations of the member for which the loops inside run over all the values that they have for any; None where these are no range, or less than half of them all, or where what an
    iteration keeps for itself is more than an element: of arrays that both parts write each has to exist as a whole."""
    if not all(_is_element(name, band, facts) for name in band.statements):
        return None
    index = band.indices[member]
    found = [_values(facts.scop.statements[name], index[name], band.own(name)) for name in band.statements]
    values, whole = found[0]
    for every, own in found[1:]:
        values, whole = values.union(every), whole.intersect(own)
    # Where sizes are small other iterations may be whole than where they are large.
    pieces = [isl.Set.from_basic_set(piece) for piece in whole.coalesce().get_basic_sets()]
    large = [piece for piece in pieces if not _at_large(piece).is_empty()]
    if len(large) != 1:
        return None
    (whole,) = large
    outside = values.subtract(whole)
    if outside.is_empty():
        return None
    low, high = whole.dim_min_val(0), whole.dim_max_val(0)
    extent, all_of_them = band.extents[member], facts.models[band.core].extents[index[band.core]]
    count = high.to_python() - low.to_python() + 1 if low.is_int() and high.is_int() else all_of_them
    if count < LEAST * all_of_them:
        return None
    in_blocks = extent < all_of_them
    first = low.to_python() if low.is_int() and not in_blocks else None
    inside, edges = (_instances(band, member, facts, part) for part in (whole, outside))
    return WholeWindows(inside, edges, first, extent if in_blocks else count, count / all_of_them)


def _is_element(name: str, band: Band, facts: Facts) -> bool:
    """Whether the statement writes an array that outlives the region, or one element for the band's indices."""
    target = facts.scop.statements[name].target
    if facts.scop.arrays[target.array].kind != "local":
        return True
    around = band.own(name) | band.above[name]
    return all(isinstance(s, Affine) and s.variables() <= around | set(facts.scop.sizes) for s in target.subscripts)


def _values(statement: Statement, index: str, own: frozenset[str]) -> tuple[isl.Set, isl.Set]:
    """The index's values, and those for which the indices that are not the band's own have all values that they have for any."""
    domain = statement.domain.reset_tuple_id()
    left = [i for i in statement.indices if i == index or i not in own]
    for position in reversed(range(len(statement.indices))):
        if statement.indices[position] not in left:
            domain = domain.project_out(_SET, position, 1)
    at, behind = left.index(index), len(left) - left.index(index) - 1

    def alone(points: isl.Set) -> isl.Set:
        return points.project_out(_SET, at + 1, behind).project_out(_SET, 0, at)

    every = alone(domain)
    inside = domain.project_out(_SET, at, 1).insert_dims(_SET, at, 1)
    box = inside.intersect(every.insert_dims(_SET, 0, at).insert_dims(_SET, at + 1, behind))
    return every, every.subtract(alone(box.subtract(domain)))


def _at_large(values: isl.Set) -> isl.Set:
    """The values where all sizes are large."""
    for position in range(values.dim(isl.dim_type.param)):
        values = values.fix_val(isl.dim_type.param, position, isl.Val.int_from_si(values.get_ctx(), UNKNOWN_EXTENT))
    return values


def _instances(band: Band, member: int, facts: Facts, values: isl.Set) -> isl.UnionSet:
    """The instances in which the member has these values."""
    found = isl.UnionSet.empty(values.get_space().params())
    for name in band.statements:
        statement = facts.scop.statements[name]
        at = statement.indices.index(band.indices[member][name])
        placed = values.insert_dims(_SET, 0, at).insert_dims(_SET, at + 1, len(statement.indices) - at - 1)
        found = found.union(statement.domain.intersect(placed.set_tuple_name(name)).to_union_set())
    return found


def insert_parts(
    node: isl.ScheduleNode, whole: WholeWindows, edges: Sequence[Loop], tiled: Sequence[Loop]
) -> isl.ScheduleNode:
    """The subtree twice: at the edges under one nest of loops, and elsewhere under another. *Returns* the sequence of both."""
    made = insert_sequence(node, [whole.edges, whole.instances])
    for position, loops in enumerate((edges, tiled)):
        made = insert_loops(made.child(position).child(0), loops).parent().parent()
    return made
