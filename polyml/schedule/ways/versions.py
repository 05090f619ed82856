"""Versions of a region of symbolic sizes beside the one for large ones; each says by its `worth` at which sizes it is the better one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from polyml.schedule.blocking.at_hand import plan_at_hand
from polyml.schedule.blocking.in_order import plan_few_rows
from polyml.schedule.blocking.rows_at_hand import plan_rows_at_hand
from polyml.schedule.blocking.small import plan_small, small_limits
from polyml.schedule.layouts.padded_rows import few_steps, pad_rows
from polyml.schedule.schedule import Schedule
from polyml.schedule.strategy.sequential.time_tiles import TIME_TILES
from polyml.schedule.ways.orders import ilp_tree
from polyml.schedule.ways.strategic import Planner, by_ilp, planned, strategic
from polyml.schedule.ways.task import Task

__all__ = ["for_few_rows", "for_few_steps", "for_sizes_at_hand", "for_small_sizes"]


def for_few_rows(task: Task) -> Schedule | None:
    """The strategy around contractions that read an operand in order, since few rows use it; None where there are none."""
    return _with_plans(task, plan_few_rows)


def for_sizes_at_hand(task: Task) -> Schedule | None:
    """The strategy around contractions in blocks that suit the sizes of the call at hand; None where these are no others than for sizes at large."""
    return _with_plans(task, lambda *asked: plan_rows_at_hand(*asked) or plan_at_hand(*asked))


def for_small_sizes(task: Task) -> Schedule | None:
    """The strategy around contractions of operands that caches hold."""
    others = replace(task, pack=False)
    models = task.known()[1]
    plans = planned(others, models, plan_small) if task.scop.sizes else ()
    if not plans:
        return None
    made = strategic(others, partial(ilp_tree, others), planner=plan_small)
    limits = tuple(p for plan in plans for p in small_limits(task.scop, models[plan.statement], task.target))
    return replace(made, small=tuple(dict.fromkeys(limits)))


def for_few_steps(task: Task) -> Schedule | None:
    """Time tiles on the arrays themselves, for fewer steps than copies of them take; None where the call at hand has enough, or nothing asks for copies."""
    if not task.may_sweep() or not few_steps(task.scop) or pad_rows(task.scop, task.target) is None:
        return None
    made = by_ilp(task)
    return made if made.worth and any(note.text.startswith(TIME_TILES) for note in made.notes) else None


def _with_plans(task: Task, planner: Planner) -> Schedule | None:
    """The strategy around contractions of symbolic sizes in blocks that another planner than usual decides; None where it decides none, or those share their loops with others."""
    others = replace(task, pack=False)
    if not task.scop.sizes or not planned(others, task.known()[1], planner):
        return None
    made = strategic(others, partial(ilp_tree, others), planner=planner)
    return made if made.worth else None
