"""The versions of one region: where sizes are symbolic, or it matters how arrays lie, a schedule for large sizes has others beside it, and each call asks which one suits."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from polyml.codegen.loops import Function
from polyml.codegen.passes.large import Apart, where_worth
from polyml.compiler.loops import LoweredRegion, to_loops
from polyml.graph.region import Region
from polyml.options import Options
from polyml.schedule.driver import schedule, schedule_at_hand, schedule_few_rows, schedule_few_steps, schedule_small
from polyml.schedule.schedule import Product, Schedule
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop

__all__ = ["in_versions"]


def in_versions(
    region: Region, scop: Scop, dependences: Dependences, scheduled: Schedule, options: Options, results: Set[str]
) -> LoweredRegion:
    """The loops of a schedule, and of those that run where what it takes for granted (`Schedule.worth`, `Schedule.apart`) does not hold, where caches hold the operands, or sizes are much like those of the call at hand."""
    made = to_loops(region, scheduled, options)
    if not scheduled.worth and not scheduled.apart:
        return made

    def first(other: Schedule | None, loops: Function) -> Function:
        """The other schedule's loops where they are worth it, else these."""
        if other is None:
            return loops
        return where_worth(other.worth, to_loops(region, _alone(other), options).loops, loops)

    asked = (scop, dependences, options.machine, options)
    small = schedule_small(*asked, results=results)
    if small is None or small.worth:
        bare = schedule(*asked, results=results, pack=False)
        loops = to_loops(region, bare if _for_larger(scheduled.worth) else _alone(bare), options).loops
        loops = first(small, loops)
    else:
        loops = to_loops(region, _alone(small), options).loops
    loops = first(schedule_few_rows(*asked, results=results), loops)
    few_steps = schedule_few_steps(*asked, results=results)
    if few_steps is not None and few_steps.worth != scheduled.worth:
        loops = first(few_steps, loops)
    lie = Apart(scheduled.apart, options.machine.line_bytes)
    near = small.small if small is not None else ()
    loops = where_worth(scheduled.worth, made.loops, loops, apart=lie, unless=near)
    at_hand = schedule_at_hand(*asked, results=results)
    loops = first(at_hand, loops)
    blocks = (note for note in at_hand.notes if note.stage == "blocking") if at_hand is not None else ()
    own = (replace(note, text=f"for sizes near those at hand: {note.text}") for note in blocks)
    return replace(made, loops=loops, notes=(*made.notes, *own))


def _alone(other: Schedule) -> Schedule:
    """For small operands, or few rows: one version of it is enough."""
    return replace(other, streamed_when_large={})


def _for_larger(worth: Sequence[Product]) -> bool:
    """Whether sizes for which this does not hold are larger ones."""
    return all(product.most is not None and not product.least for product in worth)
