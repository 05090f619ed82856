"""Storage after a change of the tree: the arrays that had less than themselves get it again, where and as large as the new tree needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyml.errors import IllegalScheduleError
from polyml.schedule.schedule import Schedule, Storage
from polyml.schedule.storage import box_at, contract_storage, traffic_of
from polyml.schedule.storage_check import storage_faults
from polyml.schedule.tree import Kind, kind_of, mark_name, nodes
from polyml.schedule.window import slide_storage, window_at

__all__ = ["contracted_as_before", "contracted_at_marks"]

PADDING = 0.25
"""Of an array, that a layout may have more: panels are whole, and rows a line longer where that keeps them apart."""


def contracted_as_before(schedule: Schedule, before: Mapping[str, Storage]) -> Schedule:
    """The schedule with the arrays contracted again that were: in boxes, or in windows. A layout of its own (panels of a packed operand) stays where it is
    still right."""
    for name, storage in before.items():
        if name in schedule.storage or name not in schedule.scop.arrays:
            continue
        if storage.wraps:
            schedule = slide_storage(schedule, name)
        elif storage.place:
            schedule = _as_laid_out(contract_storage(schedule, (name,)), storage)
    return schedule


def contracted_at_marks(schedule: Schedule, known: Mapping[str, Storage]) -> Schedule:
    """The schedule with storage for the arrays whose marks stand in its tree: `allocate:A`, as large as what a visit of the mark touches, or
    `allocate:A:window`.

    Args:
        known: layouts to keep where they are right.

    Raises:
        IllegalScheduleError: a mark of no local array, or of one that has no such size.
    """
    places = [node for node in nodes(schedule.tree.get_root()) if kind_of(node) == Kind.mark]
    for node in places:
        if not mark_name(node).startswith("allocate:"):
            continue
        name, _, window = mark_name(node).partition(":")[2].partition(":")
        array = schedule.scop.arrays.get(name)
        traffic = None if array is None else traffic_of(name, schedule.scop, schedule.dependences)
        found = None
        if array is not None and traffic is not None and array.kind == "local":
            inside = node.child(0)
            found = window_at(inside, array, schedule, traffic, None) if window else box_at(inside, array, traffic)
        if found is None:
            raise IllegalScheduleError(f"{name} cannot be allocated at its mark")
        schedule = replace(schedule, storage={**schedule.storage, name: found})
        if name in known:
            schedule = _as_laid_out(schedule, known[name])
    return schedule


def _as_laid_out(schedule: Schedule, storage: Storage) -> Schedule:
    """The schedule with that storage in the place of the one found, where it is right, and larger by PADDING at most."""
    found = schedule.storage.get(storage.array)
    if found is None or found.place != storage.place:
        return schedule
    if storage.elements is None or found.elements is None or storage.elements > (1 + PADDING) * found.elements:
        return schedule
    trial = replace(schedule, storage={**schedule.storage, storage.array: storage})
    return schedule if storage_faults(trial, only=storage.array) else trial
