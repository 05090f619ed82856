"""Arrays laid out anew for as long as loops sweep over them: columns as rows, the batch last, rows of whole lines, in pieces, in turns, or aside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from polyml.schedule.ilp.driver import Outline
from polyml.schedule.layouts.batch_last import lay_batches_last
from polyml.schedule.layouts.columns_aside import with_columns_aside
from polyml.schedule.layouts.padded_rows import pad_rows
from polyml.schedule.layouts.relaid import Relaid
from polyml.schedule.layouts.row_pieces import cut_rows
from polyml.schedule.layouts.rows_aside import with_rows_aside
from polyml.schedule.layouts.rows_in_turns import in_few_rows, take_turns
from polyml.schedule.layouts.sums_ahead import sum_ahead
from polyml.schedule.layouts.time_lanes import time_lanes, time_lanes_tree
from polyml.schedule.layouts.turned_columns import turn_columns
from polyml.schedule.pack import Packed
from polyml.schedule.schedule import Note, Product, Schedule
from polyml.schedule.storage import contract_storage
from polyml.schedule.strategy.cpu import apply_strategy
from polyml.schedule.strategy.recurrences.row_order import ROW_ORDER
from polyml.schedule.strategy.sequential.step_blocks import STEPS
from polyml.schedule.strategy.sequential.time_tiles import TIME_TILES
from polyml.schedule.streams import streamed_arrays
from polyml.schedule.ways.orders import ilp_tree
from polyml.schedule.ways.strategic import by_ilp
from polyml.schedule.ways.task import Task
from polyml.scop.dependences import Dependences, analyse

__all__ = [
    "by_batch",
    "by_columns",
    "by_padded_rows",
    "by_row_pieces",
    "by_rows_aside",
    "by_time_lanes",
    "by_turned",
    "by_turns",
]


def by_columns(task: Task) -> Schedule | None:
    """The strategy with columns that are walked down again and again as rows; None where there are none."""
    scop = with_columns_aside(task.scop, task.target) if task.may_block() else None
    return None if scop is None else by_ilp(replace(task, scop=scop, dependences=analyse(scop)))


def by_rows_aside(task: Task) -> Schedule | None:
    """A recurrence from row to row of a large result in rows of its own, so that the result's stores bypass the caches; None where there is none, or it does not go row by row."""
    # Threads take pieces of rows, too short for stores that bypass the caches, and with ends of their own: two of them would take up to 1.4 times as long.
    alone = task.may_block() and not task.has_threads
    aside = with_rows_aside(task.scop, task.target, task.results) if alone else None
    if aside is None:
        return None
    made = by_ilp(replace(task, scop=aside.scop, dependences=analyse(aside.scop)))
    turns = all(name in made.storage and made.storage[name].wraps for name in aside.rows)
    if not turns or not any(note.stage == ROW_ORDER for note in made.notes):
        return None
    streamed, notes = streamed_arrays(aside.scop, task.target, task.results, precise=task.options.precise)
    return replace(made, streamed=streamed, notes=(*made.notes, *notes))


def by_turned(task: Task) -> Schedule | None:
    """Columns that are contiguous for as long as the loop runs, in blocks of steps where they are many; None where there are none."""
    relaxed = task.may_block() and not task.options.precise
    turned = turn_columns(task.scop, task.target) if relaxed else None
    if turned is None:
        return None
    wanted = STEPS if turned.far else None
    return _relaid(task, turned.relaid, _moved(task, turned.relaid), turned.worth, wanted, sizes=turned.sizes)


def by_batch(task: Task) -> Schedule | None:
    """A lane for each of the small matrices of a batch; None where there are none."""
    relaid = lay_batches_last(task.scop, task.dependences, task.target) if task.may_block() else None
    return None if relaid is None else by_ilp(replace(task, scop=relaid.scop, dependences=_moved(task, relaid)))


def by_padded_rows(task: Task) -> Schedule | None:
    """Time tiles on arrays whose rows are whole lines; None where nothing asks for it."""
    padded = pad_rows(task.scop, task.target) if task.may_sweep() else None
    if padded is None or (padded.apart and not task.pack):
        return None
    made = _relaid(task, padded.relaid, _moved(task, padded.relaid), padded.worth, TIME_TILES)
    return None if made is None else replace(made, apart=padded.apart)


def by_time_lanes(task: Task) -> Schedule | None:
    """Lanes over the steps of a stencil in place; None where there is none."""
    if not task.may_sweep():
        return None
    found = time_lanes(task.scop, task.target, precise=task.options.precise, threads=task.has_threads)
    if found is None:
        return None
    lanes, worth = found
    text = f"lanes over {lanes.lanes} steps, {lanes.lag} rows behind each other, in strips of {lanes.strip} columns"
    return Schedule(
        scop=task.scop, dependences=task.dependences, tree=time_lanes_tree(task.scop, lanes), storage={},
        notes=(Note(TIME_TILES, lanes.statement, text),), worth=worth, time_lanes=lanes,
    )  # fmt: skip


def by_row_pieces(task: Task) -> Schedule | None:
    """Rows that stay in L1 in a piece for each lane; None where nothing asks for it."""
    pieces = cut_rows(task.scop, task.dependences, task.target) if task.may_sweep() else None
    return None if pieces is None else _relaid(task, pieces.relaid, pieces.dependences, pieces.worth, "")


def by_turns(task: Task) -> Schedule | None:
    """Vectors that a loop makes anew in each step in two rows that take turns; None where there are none."""
    turns = take_turns(task.scop, task.target) if task.may_sweep() else None
    if turns is None:
        return None
    scop, dependences = turns.relaid.scop, analyse(turns.relaid.scop)
    ahead = None if task.options.precise else sum_ahead(scop, dependences, turns.steps)
    if ahead is not None:
        relaid = replace(turns.relaid, scop=ahead.scop)
        made = _relaid(task, relaid, ahead.dependences, (), None, ahead.outline, turns.rows)
        if made is not None:
            return made
    return _relaid(task, turns.relaid, dependences, (), None, None, turns.rows)


def _moved(task: Task, relaid: Relaid) -> Dependences:
    return relaid.dependences(task.dependences, task.scop)


def _relaid(
    task: Task,
    relaid: Relaid,
    dependences: Dependences,
    worth: tuple[Product, ...],
    wanted: str | None,
    outline: Outline | None = None,
    rows: tuple[str, ...] = (),
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> Schedule | None:
    """The strategy on arrays that are laid out anew; None where it does not decide what that is `wanted` for, a note's beginning; nothing is where they stay in L1; None: whatever it decides.

    Args:
        outline: what runs one after the other, where that is decided. rows: of the arrays those whose rows are to take turns; None comes back where more than two are alive. sizes: numbers that symbolic ones are taken for.
    """
    copies = dict.fromkeys((*relaid.ahead, *relaid.behind))
    facts = task.facts(Packed(scop=relaid.scop, dependences=dependences, copies=copies), sizes=sizes)
    ordered = ilp_tree(task, relaid.scop, dependences, facts.matcher, () if outline else relaid.ahead, outline)
    tree, notes, more = apply_strategy(ordered, facts, in_cache=wanted == "")
    if wanted is not None and not any(wanted in (note.stage, note.text.partition(":")[0], "") for note in notes):
        return None
    worth = tuple(dict.fromkeys((*worth, *more)))
    made = Schedule(scop=relaid.scop, dependences=dependences, tree=tree, storage={}, notes=notes, worth=worth)
    in_turns = in_few_rows(made, dict.fromkeys(rows, 2))
    if in_turns is None:
        return None
    # What copies fill ahead of all loops, and write back behind them, is there in full.
    perhaps = [a.name for a in relaid.scop.arrays.values() if a.kind == "local" and a.name not in relaid.arrays]
    return contract_storage(in_turns, perhaps) if perhaps else in_turns
