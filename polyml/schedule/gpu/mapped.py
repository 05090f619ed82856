"""A schedule for a GPU: long reductions cut, statements ordered, contractions in tiles, loops given to blocks and threads, storage where these have room."""

from __future__ import annotations

from collections.abc import Callable

import islpy as isl

from polyml.options import Options
from polyml.schedule.gpu.partial_sums import SplitScop, split_reductions
from polyml.schedule.gpu.rescaled import find_weighted
from polyml.schedule.gpu.rescaled_tiles import rescaled_scop
from polyml.schedule.matching import Matcher
from polyml.schedule.schedule import Note, Schedule
from polyml.schedule.storage import contract_storage
from polyml.schedule.strategy.cuda.atomics import row_cuts
from polyml.schedule.strategy.cuda.model import CudaModel
from polyml.schedule.strategy.cuda.nests import Staged, stage_contractions
from polyml.schedule.strategy.cuda.rescaled import rescaled_tree
from polyml.schedule.strategy.cuda.rescaled_tiles import plan_rescaled
from polyml.schedule.strategy.cuda.room import SharedRoom, shared_room
from polyml.schedule.strategy.cuda.strategy import apply_cuda_strategy
from polyml.schedule.strategy.facts import model_statements
from polyml.scop.dependences import Dependences, analyse
from polyml.scop.scop import Scop
from polyml.target import Target

__all__ = ["map_to_gpu", "rescaled_on_gpu"]


def rescaled_on_gpu(scop: Scop, target: Target) -> Schedule | None:
    """The schedule, not proved yet, of a region of sums weighted by exponentials, whose scores stay in the block; None where it is none, or that does not pay."""
    found = find_weighted(scop)
    plan = None if found is None else plan_rescaled(scop, found, target)
    if plan is None:
        return None
    made, nest, storage = rescaled_scop(scop, plan)
    return Schedule(
        scop=made, dependences=analyse(made), tree=rescaled_tree(made, nest), storage=storage, notes=(Note("tiles", plan.found.result.name, str(plan)),)
    )  # fmt: skip


def map_to_gpu(
    scop: Scop,
    dependences: Dependences,
    target: Target,
    options: Options,
    order: Callable[[Scop, Dependences, Matcher, tuple[str, ...]], isl.Schedule],
    *,
    sized: bool = True,
) -> Schedule:
    """The schedule, not proved yet. Its scop has partial results, tiles and accumulators beyond the given one's arrays.

    Args:
        order: makes the ordered tree; the last argument: copies that come ahead. sized: whether reductions of unknown length may be cut (the schedule's `worth` says when that pays).
    """
    matcher = Matcher(scop, dependences, relax_reductions=not options.precise)
    models = model_statements(scop, matcher)
    split = SplitScop(scop)
    notes: tuple[Note, ...] = ()
    updates: frozenset[str] = frozenset()
    if options.parallel and not options.precise:
        atomic = row_cuts(CudaModel(scop, matcher, models, target)) if options.atomics else {}
        split = split_reductions(scop, models, target, but=atomic.keys(), sized=sized)
    if split.notes:
        scop = split.scop
        dependences = analyse(scop)
        matcher = Matcher(scop, dependences, relax_reductions=True)
        models = model_statements(scop, matcher)
    tree = order(scop, dependences, matcher, ())
    found = Staged(scop=scop, dependences=dependences, tree=tree, notes=split.notes)
    if options.parallel:
        found = stage_contractions(found, models, target)
        if found.nests:
            matcher = Matcher(found.scop, found.dependences, relax_reductions=not options.precise)
            models = model_statements(found.scop, matcher)
        atomics = options.atomics and not options.precise
        tree, notes, updates = apply_cuda_strategy(found, matcher, models, target, atomics=atomics)
    made = Schedule(
        scop=found.scop, dependences=found.dependences, tree=tree, storage=dict(found.storage),
        notes=(*found.notes, *notes), worth=split.worth, atomic=updates,
    )  # fmt: skip
    return contract_storage(made, room=SharedRoom(shared_room(target)), at_lines=False)
