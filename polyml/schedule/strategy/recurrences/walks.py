"""Inside of lanes: recurrences that walk through the same elements, one after the other, walk side by side.

A scan whose state has an index of its own, such as h[d, n] for each n, goes through all steps once for each n: what the steps read and write (x[t, d], y[t, d]) comes from L2 each time, and more
instructions load and store than compute. Several walks at once load it once, and hide each other's latency. Each walk keeps its order, and so does a sum over n, whose copies run one after the other.
"""

from __future__ import annotations

import islpy as isl

from polyml.schedule.schedule import Note
from polyml.schedule.strategy.bands import Band, Place, is_flat, take_band
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.strategy.lanes import carries_only_reductions
from polyml.schedule.transforms import insert_mark
from polyml.schedule.tree import Kind, is_coincident, kind_of, members

__all__ = ["walk_side_by_side"]

MOST = 4
"""Walks at once, at most: eight take a few hundredths less time, and twice as long to compile."""


def walk_side_by_side(
    node: isl.ScheduleNode, facts: Facts, lanes: dict[str, str], vectors: int
) -> tuple[isl.ScheduleNode, tuple[Note, ...]]:
    """The nest with walks below it side by side, and how many.

    Args:
        lanes: the index that lanes run along, of each statement.
        vectors: of lanes at once.
    """
    notes: list[Note] = []

    def visit(node: isl.ScheduleNode) -> isl.ScheduleNode:
        match kind_of(node):
            case Kind.leaf:
                return node
            case Kind.sequence:
                for k in range(node.n_children()):
                    node = visit(node.child(k).child(0)).parent().parent()
                return node
            case Kind.band if (band := _walks(node, facts)) is not None:
                count = _how_many(band, facts, lanes, vectors)
                if count > 1:
                    notes.append(Note("tiling", band.title, f"{count} walks for {band.indices[0][band.core]} at once"))
                return insert_mark(node, f"neighbours:{count}") if count > 1 else node
            case _:
                return visit(node.child(0)).parent()

    return visit(node), tuple(notes)


def _walks(node: isl.ScheduleNode, facts: Facts) -> Band | None:
    """The loop around one that is a recurrence, whose iterations meet in sums at most."""
    inside = node.child(0)
    if not is_flat(inside) or is_coincident(inside) or len(members(node, facts.scop)) != 1:
        return None
    band = take_band(node, facts, Place(False, {}))
    return band if band is not None and carries_only_reductions(band, 0, facts) else None


def _how_many(band: Band, facts: Facts, lanes: dict[str, str], vectors: int) -> int:
    """As many as registers keep the elements of that stay with a walk through all its steps (those that are only read may come from L1 as well); one where walks have no rows in common."""
    inside = take_band(band.node.child(0), facts, Place(False, {}))
    if inside is None:
        return 1
    kept, shared = set[str](), False
    for name in band.statements:
        walk, step = band.indices[0][name], inside.indices[0][name]
        for access in facts.models[name].accesses:
            along = access.stride(walk)
            if access.stride(lanes[name]) == 0:
                continue
            if along != 0 and access.stride(step) == 0:
                kept.add(access.array)
            shared = shared or (along == 0 and access.stride(step) != 0)
    if not shared or not kept:
        return 1
    count = min(MOST, facts.target.vector_registers // (vectors * len(kept)), band.extents[0])
    return 1 if count < 2 else -(-band.extents[0] // -(-band.extents[0] // count))
