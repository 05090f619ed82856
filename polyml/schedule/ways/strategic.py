"""The strategy on an ordered tree: contractions in blocks, operands packed, loops tiled and marked, local arrays contracted; and the plainer schedules behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import partial
from math import prod
from types import MappingProxyType

import islpy as isl

from polyml.errors import SchedulerFailed
from polyml.schedule.blocking.blocks import Blocking
from polyml.schedule.blocking.plan import plan_blocking
from polyml.schedule.cost import StatementModel
from polyml.schedule.isl_scheduler import tree_from_written_order
from polyml.schedule.large_enough import far_arrays, within
from polyml.schedule.layouts.rows_in_turns import in_few_rows
from polyml.schedule.pack import Packed, pack_operands
from polyml.schedule.schedule import Product, Schedule, Storage
from polyml.schedule.storage import contract_storage
from polyml.schedule.strategy.contractions.nests import block_contractions
from polyml.schedule.strategy.cpu import apply_strategy
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.strategy.recurrences.row_order import ROW_ORDER
from polyml.schedule.streams import kept, streamed_sums
from polyml.schedule.ways.orders import Order, ilp_tree, isl_tree
from polyml.schedule.ways.task import Task
from polyml.schedule.window import slide_rows
from polyml.scop.scop import Array, Scop
from polyml.sets.affine import affine
from polyml.target import Target

__all__ = [
    "Planner",
    "arranged",
    "as_written",
    "by_ilp",
    "by_isl",
    "contracted",
    "planned",
    "strategic",
    "without_marks",
]

Planner = Callable[[Scop, StatementModel, Target], Blocking | None]
"""Decides the blocks of a contraction."""


def by_ilp(task: Task) -> Schedule:
    """On the tree of polyml's own scheduler."""
    return strategic(task, partial(ilp_tree, task))


def by_isl(task: Task) -> Schedule:
    """On the tree of isl's scheduler."""
    return strategic(task, lambda scop, dependences, _, ahead: isl_tree(task, scop, dependences, ahead))


def without_marks(task: Task) -> Schedule:
    """isl's tree and contracted storage, no marks."""
    tree = isl_tree(task, task.scop, task.dependences, ())
    return contract_storage(Schedule(scop=task.scop, dependences=task.dependences, tree=tree, storage={}))


def as_written(task: Task) -> Schedule:
    """The order as written."""
    tree = tree_from_written_order(task.scop)
    return Schedule(scop=task.scop, dependences=task.dependences, tree=tree, storage={})


def strategic(
    task: Task, order: Order, *, planner: Planner = plan_blocking, rows: Mapping[str, int] = MappingProxyType({})
) -> Schedule:
    """The order of the statements, the target's strategy, contracted storage; for a CPU packed operands as well. rows: of arrays of which so few are alive at a time."""
    if task.target.is_cuda:
        from polyml.schedule.gpu.mapped import map_to_gpu  # what only a GPU needs

        return map_to_gpu(task.scop, task.dependences, task.target, task.options, order, sized=task.pack)
    plans = planned(task, task.known()[1], planner)
    # A contraction that shares loops with others is packed like any other statement.
    for blocked in (plans, ()) if plans else ((),):
        found = arranged(task, order, blocked)
        if found is not None:
            break
    assert found is not None, "internal: no tree without blocked contractions"
    tree, facts = found
    packed = facts.packed
    tree, notes, worth = apply_strategy(tree, facts)
    notes = (*packed.notes, *notes)
    sums = [nest.plan.statement for nest in facts.blocked.values() if nest.plan.writes_once]
    worth = tuple(dict.fromkeys((*packed.worth, *worth)))
    far = far_arrays(task.scop, worth, task.target.l2_bytes)
    made = Schedule(
        scop=packed.scop,
        dependences=packed.dependences,
        tree=tree,
        storage=dict(packed.storage),
        notes=notes,
        worth=worth,
        streamed=streamed_sums(task.scop, task.target, task.results, sums, far=far),
    )
    in_turns = in_few_rows(made, rows)
    if in_turns is None:
        raise SchedulerFailed(f"more rows of {', '.join(rows)} are alive")
    made = contracted(task, in_turns)
    return slide_rows(made, task.target.l2_bytes) if any(note.stage == ROW_ORDER for note in notes) else made


def contracted(task: Task, made: Schedule) -> Schedule:
    """The schedule with local arrays as small as they may be."""
    return contract_storage(made, in_lanes=partial(_in_lanes, task))


def planned(task: Task, models: Mapping[str, StatementModel], planner: Planner = plan_blocking) -> tuple[Blocking, ...]:
    """The contractions that are worth blocks."""
    if not task.options.vectorize or task.options.precise or task.options.tile_sizes is not None:
        return ()
    if task.scop.sizes and not task.pack and planner is plan_blocking:
        return ()
    # What comes out even depends on who shares it.
    target = replace(task.target, cores=task.strategy_options.threads if task.options.parallel else 1)
    plans = (planner(task.scop, model, target) for model in models.values())
    return tuple(plan for plan in plans if plan is not None)


def arranged(
    task: Task, order: Order, plans: tuple[Blocking, ...], skip: Set[str] = frozenset()
) -> tuple[isl.Schedule, Facts] | None:
    """The ordered tree and what the strategy needs to know; None when the plans do not fit the order. skip: statements whose operands are not packed."""
    matcher, models = task.known()
    packed = Packed(scop=task.scop, dependences=task.dependences)
    if task.options.vectorize and task.pack:
        skip = skip | {plan.statement for plan in plans}
        packed = pack_operands(task.scop, task.dependences, models, task.target, skip=skip)
    if packed.copies:
        facts = task.facts(packed)
    else:
        facts = Facts(packed=packed, matcher=matcher, models=models, target=task.target, options=task.strategy_options)
    tree = order(packed.scop, packed.dependences, facts.matcher, tuple(packed.copies))
    return block_contractions(tree, facts, plans) if plans else (tree, facts)


def _in_lanes(task: Task, vectors: int, array: Array, storage: Storage) -> tuple[Product, ...] | None:
    """A few such arrays should stay in L2; those that no cache holds in full at least in the last level, instead of a line or two of each row in memory. Of rows whose length is not known a version with several vectors at once asks for that; the one for longer rows has one vector, since an array in memory is no smaller."""
    room = task.target.l2_bytes // 4
    if array.bytes is not None and array.bytes > kept(task.target):
        room = kept(task.target)
    lanes = task.target.vector_bytes // array.dtype.itemsize
    most = room // (array.dtype.itemsize * lanes * vectors)
    if storage.elements is not None:
        return () if storage.elements <= most else None
    if not task.pack:
        return () if vectors == 1 else None
    numbers = prod(extent for extent in storage.shape if isinstance(extent, int))
    return within([affine(extent) for extent in storage.shape], most=most) if numbers <= most else None
