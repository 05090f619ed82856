"""Scop and dependences in, schedule out: order, strategy, storage, proof; and the plainer schedules to fall back to."""

from __future__ import annotations

from collections.abc import Callable

from polyml.errors import IllegalScheduleError, SchedulerFailed
from polyml.options import Options
from polyml.schedule.isl_scheduler import tree_from_written_order
from polyml.schedule.legality import check
from polyml.schedule.matching import Matcher
from polyml.schedule.order import order_statements
from polyml.schedule.schedule import Note, Schedule
from polyml.schedule.storage import contract_storage, storage_faults
from polyml.schedule.strategy.cpu import StrategyOptions, apply_strategy
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from polyml.sets.budget import BudgetExhausted, operation_budget
from polyml.target import Target

__all__ = ["schedule"]


def schedule(scop: Scop, dependences: Dependences, target: Target, options: Options) -> Schedule:
    """A schedule that is proved legal: the CPU strategy's, or a plainer one with a Note of stage "fallback".

    Raises:
        SchedulerFailed: when not even the written order passes the proof within the budget.
    """
    attempts: list[tuple[str, Callable[[], Schedule]]] = [("the written order", lambda: _written(scop, dependences))]
    if options.scheduler != "written":
        attempts.insert(0, ("the order without marks", lambda: _ordered(scop, dependences, options)))
        attempts.insert(0, ("the strategy's schedule", lambda: _strategic(scop, dependences, target, options)))
    refused: list[Note] = []
    for name, attempt in attempts:
        try:
            with operation_budget(options.budget, phase="scheduling"):
                found = attempt()
                check(found, relax_reductions=not options.precise)
        except (BudgetExhausted, IllegalScheduleError) as reason:
            refused.append(Note("fallback", scop.name, f"{name} was dropped: {reason}"))
            continue
        if options.verify:
            faults = storage_faults(found)
            assert not faults, f"internal: contracted storage is wrong: {'; '.join(faults)}"
        for note in refused:
            found = found.noted(note.stage, note.subject, note.text)
        return found
    raise SchedulerFailed(f"no schedule for {scop.name}: {'; '.join(note.text for note in refused)}")


def _strategic(scop: Scop, dependences: Dependences, target: Target, options: Options) -> Schedule:
    ordered = _order(scop, dependences, options)
    matcher = Matcher(scop, dependences, relax_reductions=not options.precise)
    tree, notes = apply_strategy(ordered.tree, scop, matcher, target, _strategy_options(target, options))
    return contract_storage(
        Schedule(scop=scop, dependences=dependences, tree=tree, storage={}, notes=(*ordered.notes, *notes))
    )


def _strategy_options(target: Target, options: Options) -> StrategyOptions:
    return StrategyOptions(
        threads=options.threads or target.cores,
        vectorize=options.vectorize,
        parallel=options.parallel,
        relax_reductions=not options.precise,
        tile_sizes=options.tile_sizes,
        register_tile=options.register_tile,
    )


def _ordered(scop: Scop, dependences: Dependences, options: Options) -> Schedule:
    return contract_storage(_order(scop, dependences, options))


def _order(scop: Scop, dependences: Dependences, options: Options) -> Schedule:
    tree, notes = order_statements(scop, dependences, relax_reductions=not options.precise)
    return Schedule(scop=scop, dependences=dependences, tree=tree, storage={}, notes=notes)


def _written(scop: Scop, dependences: Dependences) -> Schedule:
    return Schedule(scop=scop, dependences=dependences, tree=tree_from_written_order(scop), storage={})
