"""Contractions inside of recurrences and over domains that are no boxes: register tiles and panels in the middle, the strategy on all that is around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import islpy as isl

from polyml.schedule.pack import Packed
from polyml.schedule.pivots.joined_updates import join_updates
from polyml.schedule.pivots.parts import PivotParts, split_at_pivots
from polyml.schedule.pivots.plan import plan_pivots, updates_in_place, within_block
from polyml.schedule.pivots.slanted import plan_slanted, slanted_parts, split_around
from polyml.schedule.prologues import applied_in_copies
from polyml.schedule.schedule import Note, Product, Schedule, Storage
from polyml.schedule.storage import contract_storage
from polyml.schedule.strategy.cpu import apply_strategy
from polyml.schedule.strategy.sequential.pivoted import build_pivoted, build_slanted
from polyml.schedule.ways.orders import ilp_tree
from polyml.schedule.ways.strategic import arranged
from polyml.schedule.ways.task import Task

__all__ = ["by_pivots", "by_slants"]


def by_pivots(task: Task) -> Schedule | None:
    """Blocks of a factorization around the strategy on polyml's own tree; None where the region is none, or the caller asks for something else."""
    if not task.may_block():
        return None
    if not updates_in_place(task.scop):
        return None
    scop, dependences = join_updates(task.scop, task.dependences)
    facts = task.facts(Packed(scop=scop, dependences=dependences))
    plan = plan_pivots(scop, dependences, facts.models, task.target)
    parts = None if plan is None else split_at_pivots(scop, dependences, plan)
    if plan is None or parts is None:
        return None
    alone = replace(facts.options, parallel=False)
    ordered = ilp_tree(task, scop, dependences, facts.matcher, ())
    inside, notes, worth = apply_strategy(
        ordered, replace(facts, models=within_block(facts.models, plan), options=alone)
    )
    tree = build_pivoted(parts, inside, parallel=task.has_threads)
    return _with_panels(parts, tree, notes, worth)


def by_slants(task: Task) -> Schedule | None:
    """A contraction over a domain that is no box in blocks, the rest of the region around it; None where there is none."""
    if not task.may_block() or all(s.domain.is_box() for s in task.scop.statements.values() if s.kind == "update"):
        return None
    plan = plan_slanted(task.scop, task.known()[1], task.target, shared=task.has_threads)
    found = None if plan is None else arranged(task, partial(ilp_tree, task), (), {plan.core})
    if plan is None or found is None:
        return None
    tree, facts = found
    around, notes, worth = apply_strategy(tree, facts)
    before, after = split_around(facts.packed.scop, facts.packed.dependences, plan.core)
    parts = applied_in_copies(slanted_parts(facts.packed.scop, facts.packed.dependences, plan))
    before = tuple(name for name in before if name in parts.scop.statements)
    tree = build_slanted(parts, around, before, after, parallel=task.has_threads)
    return _with_panels(parts, tree, notes, (*facts.packed.worth, *worth), facts.packed.storage)


def _with_panels(
    parts: PivotParts,
    tree: isl.Schedule,
    notes: tuple[Note, ...],
    worth: tuple[Product, ...],
    others: Mapping[str, Storage] | None = None,
) -> Schedule:
    """The schedule with the panels' storage, that of `others`, and all other local arrays contracted."""
    made = Schedule(
        scop=parts.scop, dependences=parts.dependences, tree=tree, storage={**(others or {}), **parts.storage},
        notes=(Note("blocking", parts.plan.core, str(parts.plan)), *notes),
        worth=tuple(dict.fromkeys((*parts.plan.worth, *worth))),
    )  # fmt: skip
    return contract_storage(made)
