"""Recurrences down the columns of a large matrix, a row at a time.

Lanes run along rows, and the recurrence goes from row to row. With the lanes outside, its values stay in registers, but every row lies in another page: a line of each at a time is what memory gives slowest.
With the recurrence outside, whole rows come in order, as in a copy, and what the recurrence goes on with is a row that is still in cache. Threads share the columns, in pieces as wide as can be. Temporaries take as
many rows as the recurrence looks back, and the one at hand (schedule/window.py).

Rewrite: band[k] (sequence(first, band[n] (step))) -> band[k_tile] (sequence(band[k] (first), band[n] (band[k] (step)))).

When: one loop over rows, with nothing but statements in it, which walks over more than L2 holds. Several loops one after the other keep a strip of columns in cache from the first to the last, those of few columns
walk over memory in order as they are, and steps that only change the element at hand (Newton's, Horner's) walk over nothing.

Predicted for running sums of columns, 4096 x 1024 in f32 (16 MB in, 16 MB out): what a copy takes, and the result's lines read before they are written.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.strategy.bands import Band, descend
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.strategy.recurrences.vectors import has_recurrence, is_one_walk, walks_over_rows
from polyml.schedule.transforms import graft, insert_band, insert_sequence, nest_loops, tile_loop
from polyml.schedule.tree import Kind, is_coincident, kind_of

__all__ = ["ROW_ORDER", "RowOrder", "build_row_order", "plan_row_order"]

ROW_ORDER = "row order"
"""What notes of it are filed under."""

LEAST = 64
"""Elements of a row that are worth a place of their own in memory."""

SHARED_BYTES = 1024
"""Of a row that a thread takes, at least: memory delivers shorter pieces to two threads no faster than whole rows to one."""

HEAVY = 16
"""Instructions per element from which on arithmetic is what threads share."""


@dataclass(frozen=True, slots=True)
class RowOrder:
    """lanes: the band's member along rows, taken in pieces of `width`. shared: the member whose iterations, or pieces, the threads share. name: of the heaviest statement's lanes."""

    lanes: int
    width: int
    shared: int | None
    name: str

    def __str__(self) -> str:
        return f"row by row, {self.width} {self.name} at a time"


def plan_row_order(band: Band, lanes: int, facts: Facts, *, parallel: bool) -> RowOrder | None:
    """Whether the nest with these lanes goes row by row, and in which pieces."""
    if (facts.scop.sizes and not facts.options.large) or band.extents[lanes] <= LEAST:
        return None
    carried = any(has_recurrence(name, band, facts) for name in band.statements)
    if not carried or not is_one_walk(band.node.child(0)):
        return None
    models = [band.sized(facts.models[name]) for name in band.statements]
    column = band.indices[lanes]
    if any(access.stride(column[model.name]) not in (0, 1) for model in models for access in model.accesses):
        return None
    if not walks_over_rows(band, lanes, facts):
        return None
    core = next(model for model in models if model.name == band.core)
    walked = [access for access in core.accesses if access.stride(column[core.name]) == 1]
    outside = band.above[core.name] | {member[core.name] for k, member in enumerate(band.indices) if k != lanes}
    plane = core.itemsize * prod(extent for index, extent in core.extents.items() if index not in outside)
    if not walked or plane <= facts.target.l2_bytes:
        return None
    extent, threads = band.extents[lanes], facts.options.threads
    line = facts.target.line_bytes // core.itemsize
    pieces = -(-extent // max(LEAST, facts.target.l2_bytes // 4 // (len(walked) * core.itemsize) // line * line))
    shared = next((k for k, count in enumerate(band.extents) if k != lanes and count >= threads), lanes)
    if parallel and shared == lanes:
        heavy = sum(model.operations for model in models) >= HEAVY
        room = extent // (LEAST if heavy else max(LEAST, SHARED_BYTES // core.itemsize))
        pieces = max(pieces, min(room, -(-pieces // threads) * threads))
    width = min(extent, max(LEAST, -(-extent // pieces // line) * line))
    return RowOrder(lanes, width, shared if parallel else None, column[core.name])


def build_row_order(band: Band, plan: RowOrder, facts: Facts) -> tuple[isl.ScheduleNode, int]:
    """The nest with its lanes' loop right around its statements. *Returns* the node in the band's place, and how far below it what is inside of all other loops is."""
    inside = _others_first(band.node.child(0), facts)
    band = replace(band, node=inside.parent())
    own = band.loops[plan.lanes]
    outer = [(k, loop) for k, loop in enumerate(band.loops) if k != plan.lanes]
    if plan.width < band.extents[plan.lanes]:
        outer.append((plan.lanes, tile_loop(own, plan.width)))
    outer.sort(key=lambda item: item[0] != plan.shared)
    loops = [loop.marked("parallel") if k == plan.shared else loop for k, loop in outer]
    node = nest_loops(band.node, loops)
    depth = len(loops) + sum(loop.mark is not None for loop in loops)
    node = descend(node, depth)

    def around_statements(part: isl.ScheduleNode) -> isl.ScheduleNode:
        if kind_of(part) == Kind.band:
            return around_statements(part.child(0)).parent()
        row = own.row.intersect_domain(part.get_universe_domain())
        return insert_band(part, [replace(own, row=row)], permutable=True)

    if kind_of(node) != Kind.sequence:
        return around_statements(node).ancestor(depth), depth
    for position in range(node.n_children()):
        node = around_statements(node.child(position).child(0)).ancestor(2)
    return node.ancestor(depth), depth


def _others_first(sequence: isl.ScheduleNode, facts: Facts) -> isl.ScheduleNode:
    """The sequence with what the recurrence's loop does not make ahead of it, so that values which only that loop goes on with die in it."""
    if kind_of(sequence) != Kind.sequence:
        return sequence
    filters = [sequence.child(k).filter_get_filter() for k in range(sequence.n_children())]
    bodies = [sequence.child(k).child(0) for k in range(sequence.n_children())]
    walk = next(k for k, body in enumerate(bodies) if kind_of(body) == Kind.band and not is_coincident(body))
    late, early = [walk], list(range(walk))
    for k in range(walk + 1, len(bodies)):
        waits = facts.packed.dependences.validity.intersect_range(filters[k])
        free = all(waits.intersect_domain(filters[other]).is_empty() for other in late)
        (early if free else late).append(k)
    order = [*early, *late]
    if order == sorted(order):
        return sequence
    node = insert_sequence(sequence.cut(), [filters[k] for k in order])
    for position, k in enumerate(order):
        node = graft(node.child(position).child(0), bodies[k]).ancestor(2)
    return node
