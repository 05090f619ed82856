"""Several sweeps over the rows of a large matrix in one: steps of a loop, sums along rows and down columns, the last sweep beside the next row's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from polyml.schedule.pack import Packed
from polyml.schedule.schedule import Note, Schedule
from polyml.schedule.storage import contract_storage
from polyml.schedule.strategy.cpu import apply_strategy
from polyml.schedule.streams import streamed_arrays
from polyml.schedule.sweeps.first_sweep import one_row_ahead
from polyml.schedule.sweeps.last_sweep import one_row_late
from polyml.schedule.sweeps.loop_bodies import body_of
from polyml.schedule.sweeps.row_blocks import in_panels, plan_row_blocks
from polyml.schedule.sweeps.row_registers import rows_side_by_side
from polyml.schedule.sweeps.row_sums import large_matrices, plan_row_sums
from polyml.schedule.sweeps.rows_late import one_block_late
from polyml.schedule.ways.orders import ilp_tree
from polyml.schedule.ways.steps import in_loops
from polyml.schedule.ways.strategic import arranged, planned, strategic
from polyml.schedule.ways.task import Task
from polyml.scop.dependences import analyse

__all__ = ["by_first_sweep", "by_last_sweep", "by_row_blocks", "by_row_sums"]


def by_row_blocks(task: Task) -> Schedule | None:
    """Several steps of a loop over all rows in one sweep; None where there is none."""
    if not task.may_block() or not any(s.loop_depth for s in task.scop.statements.values()):
        return None
    plan = plan_row_blocks(task.scop, task.known()[1], task.target)
    if plan is None:
        return None
    dependences = analyse(plan.scop)
    facts = task.facts(Packed(scop=plan.scop, dependences=dependences), rows=plan)
    tree, notes, worth = apply_strategy(ilp_tree(task, plan.scop, dependences, facts.matcher, ()), facts)
    worth = tuple(dict.fromkeys((*plan.worth, *worth)))
    made = Schedule(scop=plan.scop, dependences=dependences, tree=tree, storage={}, notes=notes, worth=worth)
    made = contract_storage(made)
    return in_panels(made, plan) if set(plan.kept) <= made.storage.keys() else None


def by_row_sums(task: Task) -> Schedule | None:
    """All that reads the rows of a large matrix in one sweep over blocks of them; None where there is none."""
    # Without packing is the version for whatever is small.
    asked = task.may_block(sized=True) and not task.options.precise and (task.pack or not task.scop.sizes)
    if not asked or not large_matrices(task.scop, task.target):
        return None
    body = body_of(task.scop)
    if body is None:
        return None
    matcher, models = task.known_of(body.scop) if body.loops else task.known()
    plan = plan_row_sums(body.scop, matcher, models, task.target)
    if plan is None or (plan.worth and body.loops):  # what no call is asked about in loops
        return None
    if plan.worth and any(not contraction.streams for contraction in planned(task, models)):
        return None
    late = plan.together if plan.together is not None and plan.together.late else None
    if body.loops and late is not None:  # dependences of the next iteration are not known piece by piece
        late, plan = None, replace(plan, together=None)
    scop, dependences, outline = plan.scop, analyse(plan.scop), plan.outline
    if late is not None:
        pieces = one_block_late(plan, late, dependences)
        scop, dependences, outline = pieces.scop, pieces.dependences, pieces.outline
    swept = replace(task, scop=scop, dependences=dependences, pack=False)
    order = partial(ilp_tree, swept, outline=outline)
    found = arranged(swept, order, ()) if body.loops else None
    made = strategic(swept, order) if found is None else in_loops(task, body, *found)
    if made is None:
        return None
    if plan.together is not None:
        made = rows_side_by_side(made, plan.together, task.target)
    notes = (Note("blocking", " ".join(plan.rows), str(plan)), *made.notes)
    return replace(made, notes=notes, worth=(*made.worth, *plan.worth))


def by_last_sweep(task: Task) -> Schedule | None:
    """Rows whose last sweep runs beside the next row's; None where there are none."""
    if not task.may_block():
        return None
    streamed, _ = streamed_arrays(task.scop, task.target, task.results, precise=task.options.precise)
    plan = one_row_late(task.scop, task.known()[0], streamed, task.target) if streamed else None
    if plan is None:
        return None
    late = replace(task, scop=plan.scop, dependences=plan.dependences, pack=False)
    made = strategic(late, partial(ilp_tree, late, outline=plan.outline), rows=plan.kept)
    return made.noted("rows", " ".join(plan.late), f"one row behind the others, in blocks of {plan.size} rows")


def by_first_sweep(task: Task) -> Schedule | None:
    """Rows whose first sweep runs beside the row before; None where there are none."""
    if not task.may_block():
        return None
    plan = one_row_ahead(task.scop, task.known()[0], task.target)
    if plan is None:
        return None
    ahead = replace(task, scop=plan.scop, dependences=plan.dependences, pack=False)
    made = strategic(ahead, partial(ilp_tree, ahead, outline=plan.outline), rows=plan.kept)
    return made.noted(
        "rows", " ".join(plan.late), f"behind the first sweep of the next row, in blocks of {plan.size} rows"
    )
