"""Fusion and distribution: statements under one loop, or each under a loop of its own."""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from polyml.errors import TransformError
from polyml.schedule.schedule import Schedule
from polyml.schedule.transforms.loops import LoopNode, find_loop, find_part, loops_around, whole_number
from polyml.schedule.transforms.nest import with_tree
from polyml.schedule.transforms.nodes import (
    Loop,
    distribute_band,
    graft,
    insert_loops,
    insert_mark,
    insert_sequence,
    spliced,
)
from polyml.schedule.tree import Kind, kind_of, mark_name

__all__ = ["distribute", "fuse", "split_init"]


def fuse(schedule: Schedule, first: str, second: str, *, depth: int = 1) -> Schedule:
    """The outermost loops that the two statements do not share become one, `depth` times, the first one's iterations before the second's in each. What
    stood between their nests comes after.

    Rewrite: sequence(i(S), j(T)) -> i: sequence(S, T).

    Raises:
        TransformError: one of them has no loop left there.
    """
    for _ in range(whole_number(depth, "the depth of a fusion")):
        schedule = _fuse_once(schedule, first, second)
    return schedule


def _fuse_once(schedule: Schedule, first: str, second: str) -> Schedule:
    one, other = find_part(schedule, first), find_part(schedule, second)
    sequence = _shared(one, other)
    if sequence is None:
        raise TransformError(f"{first} and {second} do not stand in different nests", hint="there is nothing to fuse")
    places = [_branch(leaf, sequence) for leaf in (one, other)]
    nests = [_outer_loop(sequence.child(k).child(0)) for k in places]
    for statement, nest in zip((first, second), nests, strict=True):
        if nest is None:
            raise TransformError(f"{statement} has no loop that could be fused there")
    rows = [nest.band_get_partial_schedule().get_at(0) for nest in nests if nest is not None]
    marks = {_mark_of(nest) for nest in nests if nest is not None}
    filters = [sequence.child(k).filter_get_filter() for k in range(sequence.n_children())]
    bodies = [sequence.child(k).child(0) for k in range(sequence.n_children())]
    reach = [filters[k].universe() for k in places]
    if not reach[0].is_disjoint(reach[1]):
        reach = [filters[k] for k in places]
    rows = [row.intersect_domain(part) for row, part in zip(rows, reach, strict=True)]
    order = [k for k in range(len(filters)) if k != places[1]]
    merged = filters[places[0]].union(filters[places[1]])
    leaf = sequence.cut()
    if len(order) > 1:
        node = insert_sequence(leaf, [merged if k == places[0] else filters[k] for k in order])
        for position, k in enumerate(order):
            if k != places[0]:
                node = graft(node.child(position).child(0), bodies[k]).parent().parent()
        leaf = node.child(order.index(places[0])).child(0)
    mark = marks.pop() if len(marks) == 1 else None
    node = insert_loops(leaf, [Loop(rows[0].union_add(rows[1]).coalesce(), mark=mark)])
    inner = node.child(0) if mark is None else node.child(0).child(0)
    node = insert_sequence(inner, [filters[k] for k in places])
    for position, nest in enumerate(nests):
        assert nest is not None, "internal: a nest without a loop"
        node = graft(node.child(position).child(0), nest.child(0)).parent().parent()
    return with_tree(schedule, spliced(node.get_schedule()).get_root())


def distribute(schedule: Schedule, statement: str, loop: str) -> Schedule:
    """Each statement or nest inside the loop gets a loop of its own, one after another; loops between it and them as well.

    Rewrite: i: sequence(S, T) -> sequence(i(S), i(T)).

    Raises:
        TransformError: there is a single nest inside the loop.
    """
    found = find_loop(schedule, statement, loop)
    node = found.node.child(0)
    while kind_of(node) in (Kind.band, Kind.mark):
        node = node.child(0)
    if kind_of(node) != Kind.sequence:
        raise TransformError(
            f"loop {loop} of {statement} has a single nest inside", hint="there is nothing to distribute"
        )
    groups = [[k] for k in range(node.n_children())]
    return _distributed(schedule, node, found.depth, groups)


def split_init(schedule: Schedule, statement: str) -> Schedule:
    """The initialization of the reduction that `statement` updates gets a nest of its own ahead of it, out of all loops that they share inside the
    program's own sequential loops.

    Rewrite: i: sequence(init, k: update) -> sequence(i: init, i: k: update).

    Raises:
        TransformError: the statement is no update, or its initialization is apart already.
    """
    name = statement.partition("@")[0]
    update = find_part(schedule, statement)
    statements = schedule.scop.statements
    target = statements[name].target.array
    starts = [s.name for s in statements.values() if s.kind == "init" and s.target.array == target]
    if statements[name].kind != "update" or not starts:
        raise TransformError(f"{name} is no reduction with an initialization")
    sequence = _shared(find_part(schedule, starts[0]), update)
    outer = set(statements[name].indices[: statements[name].loop_depth])
    shared: list[LoopNode] = []
    if sequence is not None:
        for loop in reversed([l for l in loops_around(schedule, statement) if l.depth < sequence.get_tree_depth()]):
            if loop.row is None or loop.row.variables() & outer:
                break
            shared.append(loop)
    if sequence is None or not shared:
        raise TransformError(f"{starts[0]} and {name} share no loop", hint="the initialization is apart already")
    cut = _branch(find_part(schedule, starts[0]), sequence) + 1
    count = sequence.n_children()
    groups = [list(range(cut)), list(range(cut, count))]
    return _distributed(schedule, sequence, shared[-1].depth, groups)


def _distributed(
    schedule: Schedule, sequence: isl.ScheduleNode, depth: int, groups: Sequence[Sequence[int]]
) -> Schedule:
    """The loops above the sequence down from tree depth `depth` distributed over groups of its children."""
    node = sequence
    while node.get_tree_depth() > depth:
        band = node.parent()
        assert kind_of(band) == Kind.band, "internal: a sequence below something else than a band"
        mark = _mark_of(band)
        if mark is not None:
            band = band.parent().delete()
        node = distribute_band(band, groups)
        if mark is not None:
            for k in range(node.n_children()):
                node = insert_mark(node.child(k).child(0), mark).parent().parent()
        groups = [[k] for k in range(node.n_children())]
    return with_tree(schedule, spliced(node.get_schedule()).get_root())


def _shared(one: isl.ScheduleNode, other: isl.ScheduleNode) -> isl.ScheduleNode | None:
    """The sequence in which the ways to two leaves part."""
    if one.is_equal(other):
        return None
    node = one.get_shared_ancestor(other)
    return node if kind_of(node) == Kind.sequence else None


def _branch(leaf: isl.ScheduleNode, sequence: isl.ScheduleNode) -> int:
    return leaf.get_ancestor_child_position(sequence)


def _outer_loop(node: isl.ScheduleNode) -> isl.ScheduleNode | None:
    if kind_of(node) == Kind.mark:
        node = node.child(0)
    return node if kind_of(node) == Kind.band else None


def _mark_of(band: isl.ScheduleNode) -> str | None:
    above = band.parent()
    return mark_name(above) if kind_of(above) == Kind.mark else None
