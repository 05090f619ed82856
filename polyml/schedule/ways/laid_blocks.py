"""A contraction in blocks, each of which is laid out by a copy while a cache has it (schedule/blocking/laid_blocks.py)."""

from __future__ import annotations

from polyml.schedule.blocking.laid_blocks import laid_blocks
from polyml.schedule.pack import Packed
from polyml.schedule.schedule import Schedule
from polyml.schedule.storage import contract_storage
from polyml.schedule.strategy.contractions.nests import block_with_copy
from polyml.schedule.strategy.cpu import apply_strategy
from polyml.schedule.ways.task import Task

__all__ = ["by_laid_blocks"]


def by_laid_blocks(task: Task) -> Schedule | None:
    """What lays the result of a contraction out goes into its blocks; None where the region is something else."""
    if len(task.scop.statements) != 3 or not task.may_block() or task.options.precise:
        return None
    found = laid_blocks(task.scop, task.known()[1], task.target)
    if found is None:
        return None
    tree, facts = block_with_copy(task.facts(Packed(scop=task.scop, dependences=task.dependences)), found)
    tree, notes, worth = apply_strategy(tree, facts)
    packed = facts.packed
    scheduled = Schedule(
        scop=packed.scop, dependences=packed.dependences, tree=tree, storage=dict(packed.storage),
        notes=(*packed.notes, *notes), worth=tuple(dict.fromkeys((*packed.worth, *worth))),
    )  # fmt: skip
    return contract_storage(scheduled)
