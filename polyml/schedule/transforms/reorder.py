"""Interchange: the loops of a perfect nest in another order."""

from __future__ import annotations

from polyml.errors import TransformError
from polyml.schedule.schedule import Schedule
from polyml.schedule.transforms.nest import nest_of, rebuilt, with_tree

__all__ = ["interchange", "reorder"]


def interchange(schedule: Schedule, statement: str, first: str, second: str) -> Schedule:
    """Two loops of a perfect nest exchanged, with their marks; those between them stay.

    Rewrite: i, k, j -> j, k, i.
    """
    nest = nest_of(schedule, statement, (first, second))
    loops = [loop.loop for loop in nest]
    loops[0], loops[-1] = loops[-1], loops[0]
    return with_tree(schedule, rebuilt(nest, loops))


def reorder(schedule: Schedule, statement: str, *names: str) -> Schedule:
    """The named loops in the order given, in the places that they take up together.

    Raises:
        TransformError: no perfect nest, or a name twice.
    """
    if len(set(names)) < len(names) or not names:
        raise TransformError(f"the order {', '.join(names)} names no loop, or one twice")
    nest = nest_of(schedule, statement, names)
    wanted = iter(names)
    by_name = {loop.name: loop.loop for loop in nest}
    loops = [by_name[next(wanted)] if loop.name in names else loop.loop for loop in nest]
    return with_tree(schedule, rebuilt(nest, loops))
