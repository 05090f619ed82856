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

__all__ = ["schedule", "schedule_at_hand", "schedule_few_rows", "schedule_few_steps"]


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
    work = Ways(scop, dependences, target, options, results, pack).of_suited_length()
    attempts: list[tuple[str, Callable[[], Schedule | None]]] = [("the written order", work.written)]
    if options.scheduler != "written":
        attempts.insert(0, ("isl's schedule without marks", work.plain))
        attempts.insert(0, ("isl's schedule", work.by_isl))
    if options.scheduler == "ilp":
        attempts.insert(0, ("the schedule by integer programs", work.by_ilp))
        attempts.insert(0, ("rows with a late last sweep", work.by_last_sweep))
        attempts.insert(0, ("sums over blocks of rows", work.by_row_sums))
        attempts.insert(0, ("rows in turns", work.by_turns))
        attempts.insert(0, ("rows in pieces", work.by_row_pieces))
        attempts.insert(0, ("padded rows", work.by_padded_rows))
        attempts.insert(0, ("rows aside", work.by_rows_aside))
        attempts.insert(0, ("columns aside", work.by_columns))
        attempts.insert(0, ("columns as rows", work.by_turned))
        attempts.insert(0, ("batches last", work.by_batch))
        attempts.insert(0, ("several steps in a sweep", work.by_row_blocks))
        attempts.insert(0, ("blocks of a slanted contraction", work.by_slants))
        attempts.insert(0, ("blocks at the pivots", work.by_pivots))
        attempts.insert(0, ("sums that are rescaled", work.by_rescaled))
    refused: list[Note] = []
    for position, (name, attempt) in enumerate(attempts):
        # The last resort may take longer: after it there is nothing.
        last = position == len(attempts) - 1
        found = _proved(work, name, attempt, max(options.budget, LAST_RESORT) if last else options.budget)
        if isinstance(found, Note):
            refused.append(found)
        elif found is not None:
            return _finished(found, work, tuple(refused))
    raise SchedulerFailed(f"no schedule for {scop.name}: {'; '.join(note.text for note in refused)}")


def schedule_few_rows(
    scop: Scop, dependences: Dependences, target: Target, options: Options, *, results: Set[str] = frozenset()
) -> Schedule | None:
    """A schedule, proved legal, for sums of products with few rows, of which an operand of symbolic size is read once, in order; `worth` says when. None where there is no such sum."""
    work = Ways(scop, dependences, target, options, results, pack=False)
    return _version(work, "an operand in order", work.by_few_rows)


def schedule_at_hand(
    scop: Scop, dependences: Dependences, target: Target, options: Options, *, results: Set[str] = frozenset()
) -> Schedule | None:
    """A schedule, proved legal, for sums of products of symbolic sizes much like those of the call at hand; `worth` says when. None where these ask for nothing of their own."""
    work = Ways(scop, dependences, target, options, results, pack=False)
    return _version(work, "blocks for the sizes at hand", work.at_hand)


def schedule_few_steps(
    scop: Scop, dependences: Dependences, target: Target, options: Options, *, results: Set[str] = frozenset()
) -> Schedule | None:
    """A schedule, proved legal, for fewer steps than pay for copies of arrays of symbolic size; `worth` says how large these must be. None where the call at hand has more."""
    work = Ways(scop, dependences, target, options, results, pack=True)
    return _version(work, "few steps", work.as_they_lie)


def _version(work: Ways, name: str, attempt: Callable[[], Schedule | None]) -> Schedule | None:
    """A version beside others, where there is one."""
    if work.options.scheduler != "ilp" or work.target.is_cuda:
        return None
    found = _proved(work, name, attempt, work.options.budget)
    return _finished(found, work, ()) if isinstance(found, Schedule) else None


def _proved(work: Ways, name: str, attempt: Callable[[], Schedule | None], budget: int) -> Schedule | Note | None:
    """What the attempt finds, proved legal within the budget; or why it is dropped."""
    try:
        with operation_budget(budget, phase="scheduling"):
            found = attempt()
            if found is None:
                return None
            check(found, relax_reductions=not work.options.precise)
    except (BudgetExhausted, IllegalScheduleError, SolverLimit, SchedulerFailed) as reason:
        return Note("fallback", work.scop.name, f"{name} was dropped: {reason}")
    if work.options.verify:
        faults = storage_faults(found)
        assert not faults, f"internal: contracted storage is wrong: {'; '.join(faults)}"
    return found


def _finished(found: Schedule, work: Ways, refused: tuple[Note, ...]) -> Schedule:
    """The schedule with what is known where it runs, and stores that bypass the caches."""
    scop, options = work.scop, work.options
    streamed, notes, perhaps = frozenset[str](), tuple[Note, ...](), dict[str, int]()
    if options.vectorize:
        streamed, notes = streamed_arrays(scop, work.target, work.results, precise=options.precise)
        perhaps = streamed_when_large(scop, work.target, work.results, precise=options.precise)
    length = work.target.vector_bytes
    if length < options.machine.vector_bytes:
        text = f"{8 * length} bits: of longer ones, which take twice the time, more would be idle"
        notes = (Note("vectors", scop.name, text), *notes)
    known = found.scop
    if not work.target.is_cuda and found.worth:
        known = replace(known, context=known_context(known, found.worth))
    return replace(
        found,
        scop=known,
        notes=(*found.notes, *notes, *refused),
        streamed=found.streamed | streamed,
        streamed_when_large=perhaps,
        vector_bytes=length,
    )
