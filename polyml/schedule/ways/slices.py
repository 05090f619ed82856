"""A contraction and what follows it slice by slice (schedule/sweeps/slices.py): one slice is scheduled like a program of its own, in blocks and panels, and the loop over slices goes around it.

Of what the contraction makes one slice is alive, which L2 holds, where all of it would go to memory and come back. Operands that all slices share are packed once, ahead of the loop, where a slice needs all of their panels (schedule/sweeps/copies_ahead.py), or else again for each: they are small.
"""

from __future__ import annotations

from polyml.schedule.schedule import Schedule
from polyml.schedule.sweeps.loop_bodies import body_of
from polyml.schedule.sweeps.slices import in_slices
from polyml.schedule.ways.steps import is_contraction, scheduled_body
from polyml.schedule.ways.task import Task

__all__ = ["by_slices"]

SHARE = 4
"""Slices for each thread, at least: then the last ones do not wait for long."""


def by_slices(task: Task) -> Schedule | None:
    """The loop over slices around one of them; None where there are none, they are too large for L2, or too few for the threads."""
    if not task.may_block() or task.options.precise or not task.pack or task.scop.sizes:
        return None
    found = in_slices(task.scop, task.dependences, most=task.target.l2_bytes // 2)
    if found is None or (task.has_threads and found.count < SHARE * task.strategy_options.threads):
        return None
    body, contractions = body_of(found.scop), {name for name, m in task.known()[1].items() if is_contraction(m)}
    if body is None or not contractions:
        return None
    models = task.known_of(body.scop)[1]
    if not all(is_contraction(models[name]) for name in contractions):
        return None
    return scheduled_body(task, body, apart=True)
