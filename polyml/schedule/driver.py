"""Scop and dependences in, schedule out: order, strategy, storage, proof; and the plainer schedules to fall back to.

The order comes from polyml's own scheduler (ilp/), from isl's, or is the written one; in this order they stand in for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace

from polyml.errors import IllegalScheduleError, SchedulerFailed
from polyml.options import Options
from polyml.schedule.ilp.solve import SolverLimit
from polyml.schedule.large_enough import known_context
from polyml.schedule.legality import check
from polyml.schedule.schedule import Note, Schedule
from polyml.schedule.second_names import with_second_names
from polyml.schedule.storage_check import storage_faults
from polyml.schedule.streams import streamed_arrays, streamed_when_large
from polyml.schedule.ways.laid_blocks import by_laid_blocks
from polyml.schedule.ways.layouts import (
    by_batch,
    by_columns,
    by_padded_rows,
    by_row_pieces,
    by_rows_aside,
    by_time_lanes,
    by_turned,
    by_turns,
)
from polyml.schedule.ways.makers import blocks_with_makers, by_makers
from polyml.schedule.ways.pivots import by_pivots, by_slants
from polyml.schedule.ways.rescaled import by_rescaled
from polyml.schedule.ways.slices import by_slices
from polyml.schedule.ways.steps import by_steps
from polyml.schedule.ways.strategic import as_written, by_ilp, by_isl, without_marks
from polyml.schedule.ways.sweeps import by_first_sweep, by_last_sweep, by_row_blocks, by_row_sums
from polyml.schedule.ways.task import Task
from polyml.schedule.ways.versions import for_few_rows, for_few_steps, for_sizes_at_hand, for_small_sizes
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from polyml.sets.budget import BudgetExhausted, operation_budget
from polyml.target import Target

__all__ = [
    "makes_operands",
    "schedule",
    "schedule_at_hand",
    "schedule_few_rows",
    "schedule_few_steps",
    "schedule_small",
]

Way = Callable[[Task], Schedule | None]
"""Finds a schedule that is not proved yet; None where it does not apply."""

_PLAIN: tuple[tuple[str, Way], ...] = (("the written order", as_written),)

_BY_ISL: tuple[tuple[str, Way], ...] = (
    ("isl's schedule", by_isl),
    ("isl's schedule without marks", without_marks),
    *_PLAIN,
)

WAYS: Mapping[str, tuple[tuple[str, Way], ...]] = {
    "ilp": (
        ("sums that are rescaled", by_rescaled),
        ("blocks at the pivots", by_pivots),
        ("blocks of a slanted contraction", by_slants),
        ("an operand made for each block of a sum", by_makers),
        ("blocks that are laid out", by_laid_blocks),
        ("several steps in a sweep", by_row_blocks),
        ("batches last", by_batch),
        ("columns as rows", by_turned),
        ("columns aside", by_columns),
        ("rows aside", by_rows_aside),
        ("lanes over time", by_time_lanes),
        ("padded rows", by_padded_rows),
        ("rows in pieces", by_row_pieces),
        ("rows in turns", by_turns),
        ("sums over blocks of rows", by_row_sums),
        ("contractions of each step in blocks", by_steps),
        ("contractions of each slice in blocks", by_slices),
        ("rows with a late last sweep", by_last_sweep),
        ("rows with an early first sweep", by_first_sweep),
        ("the schedule by integer programs", by_ilp),
        *_BY_ISL,
    ),
    "isl": _BY_ISL,
    "written": _PLAIN,
}
"""By the scheduler that is asked for, best first; the first one that applies and is proved is taken."""

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
    task = _task(scop, dependences, target, options, results, pack=pack).of_suited_length()
    ways = WAYS[options.scheduler]
    refused: list[Note] = []
    for name, way in ways:
        # The last resort may take longer: after it there is nothing.
        budget = max(options.budget, LAST_RESORT) if way is as_written else options.budget
        found = _proved(task, name, way, budget)
        if isinstance(found, Note):
            refused.append(found)
        elif found is not None:
            return _finished(found, task, tuple(refused))
    raise SchedulerFailed(f"no schedule for {scop.name}: {'; '.join(note.text for note in refused)}")


def makes_operands(scop: Scop, dependences: Dependences, target: Target, options: Options) -> bool:
    """Whether the scop is a contraction with what makes its operand, which is then made a block at a time (schedule/ways/makers.py)."""
    if options.scheduler != "ilp":
        return False
    try:
        with operation_budget(options.budget, phase="scheduling"):
            return (
                blocks_with_makers(_task(scop, dependences, target, options, frozenset(), pack=True).of_suited_length())
                is not None
            )
    except BudgetExhausted:
        return False


def schedule_few_rows(
    scop: Scop, dependences: Dependences, target: Target, options: Options, *, results: Set[str] = frozenset()
) -> Schedule | None:
    """A schedule, proved legal, for sums of products with few rows, of which an operand of symbolic size is read once, in order; `worth` says when. None where there is no such sum."""
    task = _task(scop, dependences, target, options, results, pack=False)
    return _version(task, "an operand in order", for_few_rows)


def schedule_at_hand(
    scop: Scop, dependences: Dependences, target: Target, options: Options, *, results: Set[str] = frozenset()
) -> Schedule | None:
    """A schedule, proved legal, for sums of products of symbolic sizes much like those of the call at hand; `worth` says when. None where these ask for nothing of their own."""
    task = _task(scop, dependences, target, options, results, pack=False)
    return _version(task, "blocks for the sizes at hand", for_sizes_at_hand)


def schedule_small(
    scop: Scop, dependences: Dependences, target: Target, options: Options, *, results: Set[str] = frozenset()
) -> Schedule | None:
    """A schedule, proved legal, for sums of products whose operands caches hold."""
    task = _task(scop, dependences, target, options, results, pack=False)
    return _version(task, "small operands", for_small_sizes)


def schedule_few_steps(
    scop: Scop, dependences: Dependences, target: Target, options: Options, *, results: Set[str] = frozenset()
) -> Schedule | None:
    """A schedule, proved legal, for fewer steps than pay for copies of arrays of symbolic size; `worth` says how large these must be. None where the call at hand has more."""
    task = _task(scop, dependences, target, options, results, pack=True)
    return _version(task, "few steps", for_few_steps)


def _task(
    scop: Scop, dependences: Dependences, target: Target, options: Options, results: Set[str], *, pack: bool
) -> Task:
    """What a way is given. Operands have names of their own but on a GPU, whose tiles go by places (schedule/gpu)."""
    return Task(scop if target.is_cuda else with_second_names(scop), dependences, target, options, results, pack)


def _version(task: Task, name: str, way: Way) -> Schedule | None:
    """A version beside others, where there is one."""
    if task.options.scheduler != "ilp" or task.target.is_cuda:
        return None
    found = _proved(task, name, way, task.options.budget)
    return _finished(found, task, ()) if isinstance(found, Schedule) else None


def _proved(task: Task, name: str, way: Way, budget: int) -> Schedule | Note | None:
    """What the way finds, proved legal within the budget; or why it is dropped."""
    try:
        with operation_budget(budget, phase="scheduling"):
            found = way(task)
            if found is None:
                return None
            check(found, relax_reductions=not task.options.precise)
    except (BudgetExhausted, IllegalScheduleError, SolverLimit, SchedulerFailed) as reason:
        return Note("fallback", task.scop.name, f"{name} was dropped: {reason}")
    if task.options.verify:
        faults = storage_faults(found)
        assert not faults, f"internal: contracted storage is wrong: {'; '.join(faults)}"
    return found


def _finished(found: Schedule, task: Task, refused: tuple[Note, ...]) -> Schedule:
    """The schedule with what is known where it runs, and stores that bypass the caches."""
    scop, options = task.scop, task.options
    streamed, notes, perhaps = frozenset[str](), tuple[Note, ...](), dict[str, int]()
    if options.vectorize:
        streamed, notes = streamed_arrays(scop, task.target, task.results, precise=options.precise)
        perhaps = streamed_when_large(scop, task.target, task.results, precise=options.precise)
    length = task.target.vector_bytes
    if length < options.machine.vector_bytes:
        text = f"{8 * length} bits: of longer ones, which take twice the time, more would be idle"
        notes = (Note("vectors", scop.name, text), *notes)
    known = found.scop
    if not task.target.is_cuda and found.worth:
        known = replace(known, context=known_context(known, found.worth))
    return replace(
        found,
        scop=known,
        any_call=found.scop.context,
        notes=(*found.notes, *notes, *refused),
        streamed=found.streamed | streamed,
        streamed_when_large=perhaps,
        vector_bytes=length,
    )
