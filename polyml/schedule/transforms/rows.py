"""Changes of what a loop computes: shift, scale, reverse and skew. Alone they hardly move an instance; they make the next step possible.

A shift or scale concerns one statement, and so its order against the statements that share the loop; a skew or reversal concerns the whole loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import islpy as isl

from polyml.errors import TransformError
from polyml.schedule.schedule import Schedule
from polyml.schedule.transforms.loops import LARGEST, LoopNode, find_loop, whole_number
from polyml.schedule.transforms.nest import with_tree
from polyml.schedule.transforms.nodes import Loop, nest_loops

__all__ = ["reverse", "scale", "shift", "skew"]


def shift(schedule: Schedule, statement: str, distances: Mapping[str, int]) -> Schedule:
    """The statement `distance` iterations later in each named loop; other statements of the loop stay.

    Rewrite: S: i -> S: i + 1.
    """
    name = statement.partition("@")[0]
    for loop, distance in distances.items():
        found = find_loop(schedule, statement, loop)
        constant = _add_constant(whole_number(distance, f"the distance in loop {loop}", least=1 - LARGEST))
        row = _map_row(found.loop.row, lambda owner, aff, add=constant: add(aff) if owner == name else aff)  # type: ignore[misc]
        schedule = _with_row(schedule, found, row)
    return schedule


def scale(schedule: Schedule, statement: str, loop: str, factor: int) -> Schedule:
    """The loop with its values times `factor`, for all its statements: room for shifts between two iterations.

    Rewrite: i -> 2*i.
    """
    found = find_loop(schedule, statement, loop)
    value = isl.Val.int_from_si(found.node.get_ctx(), whole_number(factor, f"the factor of loop {loop}"))
    return _with_row(schedule, found, found.loop.row.scale_val(value))


def reverse(schedule: Schedule, statement: str, loop: str) -> Schedule:
    """The loop runs from its last iteration to its first.

    Rewrite: i -> -i.
    """
    found = find_loop(schedule, statement, loop)
    return _with_row(schedule, found, found.loop.row.neg())


def skew(schedule: Schedule, statement: str, loop: str, by: str, factor: int = 1) -> Schedule:
    """The loop `factor` iterations later for each iteration of loop `by`. Skewed by an outer loop its order stays as it was.

    Rewrite: t, i -> t, i + factor*t.

    Raises:
        TransformError: the two loops are one, or do not run over the same statements.
    """
    found, other = find_loop(schedule, statement, loop), find_loop(schedule, statement, by)
    if found.depth == other.depth:
        raise TransformError(f"loop {loop} cannot be skewed by itself")
    factor = whole_number(factor, f"the factor of loop {by}", least=1 - LARGEST)
    value = isl.Val.int_from_si(found.node.get_ctx(), factor)
    step = other.loop.row.intersect_domain(found.loop.row.domain())
    if not found.loop.row.domain().is_subset(step.domain()):
        raise TransformError(f"loop {by} does not run over all statements of loop {loop}", hint="fuse first")
    return _with_row(schedule, found, found.loop.row.add(step.scale_val(value)))


def _with_row(schedule: Schedule, found: LoopNode, row: isl.UnionPwAff) -> Schedule:
    return with_tree(schedule, nest_loops(found.node, [Loop(row)]))


def _add_constant(distance: int) -> Callable[[isl.PwAff], isl.PwAff]:
    return lambda aff: aff.add_constant_val(isl.Val.int_from_si(aff.get_ctx(), distance))


def _map_row(row: isl.UnionPwAff, change: Callable[[str, isl.PwAff], isl.PwAff]) -> isl.UnionPwAff:
    """The row with the part of each statement changed."""
    parts = row.get_pw_aff_list()
    total: isl.UnionPwAff | None = None
    for k in range(parts.n_pw_aff()):
        part = parts.get_at(k)
        name = part.get_space().get_tuple_name(isl.dim_type.in_)
        assert name is not None, "internal: a row of a statement without a name"
        made = isl.UnionPwAff.from_pw_aff(change(name, part))
        total = made if total is None else total.union_add(made)
    assert total is not None, "internal: a loop over nothing"
    return total
