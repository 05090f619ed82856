"""Sums weighted by exponentials of scores in tiles of a GPU (schedule/gpu/rescaled.py)."""

from __future__ import annotations

from polyml.schedule.schedule import Schedule
from polyml.schedule.ways.task import Task

__all__ = ["by_rescaled"]


def by_rescaled(task: Task) -> Schedule | None:
    """Tiles whose sums are rescaled where the maximum grows; None where there are none."""
    if not task.target.is_cuda or task.options.precise or not task.options.parallel:
        return None
    from polyml.schedule.gpu.mapped import rescaled_on_gpu  # what only a GPU needs

    return rescaled_on_gpu(task.scop, task.target)
