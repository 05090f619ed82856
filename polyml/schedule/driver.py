"""Scop and dependences in, schedule out: order, strategy, storage, proof; and the plainer schedules to fall back to.

The order comes from polyml's own scheduler (ilp/), from isl's, or is the written one; in this order they stand in for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace

from polyml.errors import IllegalScheduleError, SchedulerFailed
from polyml.options import Options
from polyml.schedule.ilp.solve import SolverLimit
from polyml.schedule.large_enough import known_context
from polyml.schedule.legality import check
from polyml.schedule.schedule import Note, Schedule
from polyml.schedule.storage_check import storage_faults
from polyml.schedule.streams import streamed_arrays, streamed_when_large
from polyml.schedule.ways import Ways
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from polyml.sets.budget import BudgetExhausted, operation_budget
from polyml.target import Target

__all__ = ["schedule"]


LAST_RESORT = 200_000_000
"""isl operations for the proof of the written order, whatever the budget."""


def schedule(
    scop: Scop,
    dependences: Dependences,
    target: Target,
    options: Options,
    *,
    results: Set[str] = frozenset(),
    pack: bool = True,
) -> Schedule:
    """A schedule that is proved legal: the strategy's, or a plainer one with a Note of stage "fallback".

    The schedule's scop and dependences may have copy statements beyond the given ones (packed operands).

    Args:
        results: arrays that nothing reads after this region but the caller. pack: whether operands may be packed.

    Raises:
        SchedulerFailed: when not even the written order passes the proof within the budget.
    """
    work = Ways(scop, dependences, target, options, results, pack)
    attempts: list[tuple[str, Callable[[], Schedule | None]]] = [("the written order", work.written)]
    if options.scheduler != "written":
        attempts.insert(0, ("isl's schedule without marks", work.plain))
        attempts.insert(0, ("isl's schedule", work.by_isl))
    if options.scheduler == "ilp":
        attempts.insert(0, ("the schedule by integer programs", work.by_ilp))
        attempts.insert(0, ("sums over blocks of rows", work.by_row_sums))
        attempts.insert(0, ("rows in pieces", work.by_row_pieces))
        attempts.insert(0, ("padded rows", work.by_padded_rows))
        attempts.insert(0, ("columns aside", work.by_columns))
        attempts.insert(0, ("columns as rows", work.by_turned))
        attempts.insert(0, ("several steps in a sweep", work.by_row_blocks))
        attempts.insert(0, ("blocks of a slanted contraction", work.by_slants))
        attempts.insert(0, ("blocks at the pivots", work.by_pivots))
    refused: list[Note] = []
    for position, (name, attempt) in enumerate(attempts):
        # The last resort may take longer: after it there is nothing.
        last = position == len(attempts) - 1
        try:
            with operation_budget(max(options.budget, LAST_RESORT) if last else options.budget, phase="scheduling"):
                found = attempt()
                if found is None:
                    continue
                check(found, relax_reductions=not options.precise)
        except (BudgetExhausted, IllegalScheduleError, SolverLimit, SchedulerFailed) as reason:
            refused.append(Note("fallback", scop.name, f"{name} was dropped: {reason}"))
            continue
        if options.verify:
            faults = storage_faults(found)
            assert not faults, f"internal: contracted storage is wrong: {'; '.join(faults)}"
        streamed, notes, perhaps = frozenset[str](), tuple[Note, ...](), frozenset[str]()
        if options.vectorize:
            streamed, notes = streamed_arrays(scop, target, results, precise=options.precise)
            perhaps = streamed_when_large(scop, results, precise=options.precise)
        notes = (*found.notes, *notes, *refused)
        known = found.scop
        if not target.is_cuda and found.worth:
            known = replace(known, context=known_context(known, found.worth))
        return replace(
            found,
            scop=known,
            notes=notes,
            streamed=found.streamed | streamed,
            streamed_when_large=perhaps,
        )
    raise SchedulerFailed(f"no schedule for {scop.name}: {'; '.join(note.text for note in refused)}")
