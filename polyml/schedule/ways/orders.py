"""The order of statements and loops, by polyml's own scheduler or by isl's, as the task's budget allows."""

from __future__ import annotations

from collections.abc import Callable

import islpy as isl

from polyml.debug import report
from polyml.schedule.batches import copies_in_batches
from polyml.schedule.ilp.costs import DEFAULT_COSTS
from polyml.schedule.ilp.driver import NODES, Outline, schedule_by_ilp
from polyml.schedule.ilp.fusion import Machine
from polyml.schedule.isl_scheduler import tree_by_isl
from polyml.schedule.matching import Matcher
from polyml.schedule.ways.task import Task
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from polyml.sets.budget import BudgetExhausted

__all__ = ["Order", "ilp_tree", "isl_tree"]

Order = Callable[[Scop, Dependences, Matcher, tuple[str, ...]], isl.Schedule]
"""Makes the ordered tree; the last argument: copies that come ahead."""

ISL_SHARE = 100
"""Of the budget's operations isl's scheduler gets one in so many, pivots of large tableaus: PolyBench needs less than 200,000 per kernel (at most 0.4 s at SMALL)."""

ISL_SHARE_INSTEAD = 1000
"""The same where it stands in for the integer programs, which found nothing: the time is spent, and pivots can grow without bound (nussinov with its scalar
expanded: 0.4 s for 20,000, 25 s for 30,000)."""


def ilp_tree(
    task: Task,
    scop: Scop,
    dependences: Dependences,
    matcher: Matcher,
    ahead: tuple[str, ...],
    outline: Outline | None = None,
) -> isl.Schedule:
    """By polyml's own scheduler. outline: what runs one after the other, where that is decided."""
    if outline is None:
        outline = copies_in_batches(scop, ahead)
        ahead = () if outline else ahead
    tree, made = schedule_by_ilp(
        scop,
        matcher,
        costs=task.options.costs or DEFAULT_COSTS,
        fusion=task.options.fusion_policy,
        ahead=ahead,
        outline=outline,
        nodes=min(NODES, max(1, task.options.budget // 1000)),
        machine=Machine(task.strategy_options.threads, task.target.l2_bytes),
    )
    report(f"integer programs of {scop.name}", str(made), level=6)
    return tree


def isl_tree(task: Task, scop: Scop, dependences: Dependences, ahead: tuple[str, ...]) -> isl.Schedule:
    """By isl's scheduler.

    Raises:
        BudgetExhausted: its share of the budget does not suffice. SchedulerFailed: isl finds no schedule.
    """
    if task.refused and not ahead:
        raise task.refused[0]  # it was asked for the same, and would take as long again
    share = ISL_SHARE if task.options.scheduler == "isl" else ISL_SHARE_INSTEAD
    budget = max(1, task.options.budget // share)
    try:
        return tree_by_isl(scop, dependences, relax_reductions=not task.options.precise, budget=budget, ahead=ahead)
    except BudgetExhausted as reason:
        if scop is task.scop:
            task.refused.append(reason)
        raise
