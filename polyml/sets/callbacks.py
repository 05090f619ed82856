"""Calls of isl's that call Python back, with functions that no exception may leave: islpy drops it, and isl goes on with nothing where a node should be, which may end the process.

Handlers of signals may raise, so they wait until isl is done.
"""

from __future__ import annotations

from collections.abc import Callable

import islpy as isl

from polyml.interrupts import signals_wait

__all__ = ["mapped_bottom_up", "pieces_of"]


def pieces_of(value: isl.PwAff | isl.Aff) -> list[tuple[isl.Set, isl.Aff]]:
    """`get_pieces()`, but without a Python function as the callback: no handler runs in a dictionary's own."""
    found: dict[isl.Set, isl.Aff] = {}
    (value.to_pw_aff() if isinstance(value, isl.Aff) else value).foreach_piece(found.__setitem__)
    return list(found.items())


def mapped_bottom_up(tree: isl.Schedule, change: Callable[[isl.ScheduleNode], isl.ScheduleNode]) -> isl.Schedule:
    """`map_schedule_node_bottom_up`; what `change` raises (isl itself does, where its operations are used up) is raised behind it.

    Raises:
        isl.Error, and whatever `change` does.
    """
    faults: list[Exception] = []

    def changed(node: isl.ScheduleNode) -> isl.ScheduleNode:
        if not faults:
            try:
                return change(node)
            except Exception as fault:
                faults.append(fault)
        return node

    with signals_wait():
        mapped = tree.map_schedule_node_bottom_up(changed)
    if faults:
        raise faults[0]
    return mapped
