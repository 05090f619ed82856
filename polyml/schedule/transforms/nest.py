"""Perfect nests: runs of loops with nothing but their marks between them, which several transformations take apart and build again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from polyml.errors import TransformError
from polyml.schedule.schedule import Schedule
from polyml.schedule.transforms.loops import LoopNode, find_loop, loops_around
from polyml.schedule.transforms.nodes import Loop, insert_loops
from polyml.schedule.tree import Kind, kind_of, mark_name

__all__ = ["nest_of", "rebuilt", "with_tree"]


def with_tree(schedule: Schedule, node: isl.ScheduleNode) -> Schedule:
    """The schedule with the tree that the node stands in."""
    return replace(schedule, tree=node.get_schedule())


def nest_of(schedule: Schedule, statement: str, names: Sequence[str]) -> tuple[LoopNode, ...]:
    """The perfect nest from the outermost to the innermost of the named loops, whatever lies between included.

    Raises:
        TransformError: no such loop, or something else than loops stands between them.
    """
    named = [find_loop(schedule, statement, name) for name in names]
    low, high = min(l.depth for l in named), max(l.depth for l in named)
    nest = tuple(l for l in loops_around(schedule, statement) if low <= l.depth <= high)
    node = nest[-1].node
    while node.get_tree_depth() > low:
        node = node.parent()
        if kind_of(node) not in (Kind.band, Kind.mark):
            raise TransformError(
                f"loops {', '.join(l.name for l in nest)} of {statement} are no perfect nest",
                hint="other statements stand between them: fuse or distribute first",
            )
        if kind_of(node) == Kind.mark and mark_name(node).startswith("allocate:"):
            raise TransformError(f"{mark_name(node)} stands between the loops of {statement}")
    return nest


def rebuilt(nest: Sequence[LoopNode], loops: Sequence[Loop]) -> isl.ScheduleNode:
    """The nest's bands and marks replaced by `loops`, outermost first. *Returns* the outermost inserted node."""
    node = nest[0].top
    for loop in nest:
        node = node.delete() if loop.mark is None else node.delete().delete()
    return insert_loops(node, loops)
