"""A contraction in blocks of its sum, with an operand that is made for each block (schedule/blocking/makers.py)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from polyml.schedule.blocking.blocks import Blocking
from polyml.schedule.blocking.makers import Makers, made_operand, makers_of
from polyml.schedule.blocking.plan import plan_blocking
from polyml.schedule.pack import Packed
from polyml.schedule.schedule import Note, Schedule
from polyml.schedule.storage import contract_storage
from polyml.schedule.strategy.contractions.nests import block_with_makers
from polyml.schedule.strategy.contractions.threads import BLOCKS, shared_loops
from polyml.schedule.strategy.cpu import apply_strategy
from polyml.schedule.ways.strategic import planned
from polyml.schedule.ways.task import Task

__all__ = ["blocks_with_makers", "by_makers"]


def by_makers(task: Task) -> Schedule | None:
    """What makes an operand goes into the blocks of the contraction; None where the region is something else."""
    found = blocks_with_makers(task)
    if found is None:
        return None
    plan, makers = found
    facts = task.facts(Packed(scop=task.scop, dependences=task.dependences))
    tree, facts = block_with_makers(facts, plan, makers)
    tree, notes, worth = apply_strategy(tree, facts)
    packed = facts.packed
    made = Note("blocking", plan.statement, f"{makers.operand}: made for each block of the sum")
    scheduled = Schedule(
        scop=packed.scop, dependences=packed.dependences, tree=tree, storage=dict(packed.storage),
        notes=(*packed.notes, made, *notes), worth=tuple(dict.fromkeys((*packed.worth, *worth))),
    )  # fmt: skip
    return contract_storage(scheduled)


def blocks_with_makers(task: Task) -> tuple[Blocking, Makers] | None:
    """The blocks of the region's contraction, and what makes its operand; None where there is no such region, or blocks in which each element is made more than once, or by another thread."""
    local = [name for name, array in task.scop.arrays.items() if array.kind == "local"]
    if len(local) != 1 or task.scop.sizes or not task.may_block():
        return None
    updates = (s for s in task.scop.statements.values() if s.kind == "update")
    if not any(made_operand(task.scop, update) for update in updates):
        return None  # as makers_of says, without plans of blocks
    # To the contraction the operand is one like others.
    arrays = {name: replace(a, kind="input") if name in local else a for name, a in task.scop.arrays.items()}
    planner = partial(plan_blocking, made=frozenset(local))
    plans = planned(replace(task, scop=replace(task.scop, arrays=arrays)), task.known()[1], planner)
    makers = makers_of(task.scop, plans[0], task.target) if len(plans) == 1 else None
    if makers is None:
        return None
    if task.has_threads:
        # Loops around the blocks, not within.
        shared = shared_loops(plans[0], task.strategy_options.threads)
        if shared not in (None, "batch") and not (shared == BLOCKS and makers.moves_with(plans[0].lanes)):
            return None
    return plans[0], makers
