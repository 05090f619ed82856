"""Nests whose statements follow a recurrence inside the lanes' loop: how many vectors run at once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import islpy as isl

from polyml.schedule.cost import AccessModel, StatementModel
from polyml.schedule.strategy.bands import Band, is_flat
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.streams import kept
from polyml.schedule.tree import Kind, is_coincident, kind_of
from polyml.sets.shapes import is_known

__all__ = ["has_recurrence", "is_one_walk", "recurrence_vectors", "walks_over_rows"]

_COLUMNS = 4
"""Vectors at once where lanes are neighbours in memory: enough to hide the latency of the recurrence, whole pairs of cache lines."""

_LINES = 4
"""Lines of each row at once where L2 does not hold a strip: memory, the last level and what translates addresses serve longer pieces sooner, and beyond these no better."""

_STEPS = 8
"""Where steps only change the elements at hand, and no memory is waited for: two units whose operations take four cycles."""

_ROWS = 2
"""Where they are rows: every one of them is a stream, and goes through scratch memory."""


def has_recurrence(name: str, band: Band, facts: Facts) -> bool:
    """Whether the statement has a loop below the band that carries more than a reduction."""
    return bool(facts.models[name].recurrences - band.above[name] - band.own(name))


def recurrence_vectors(band: Band, lanes: int, facts: Facts) -> int:
    """As many as hide the latency, while what the loops inside come back to stays in L2. Where that is less than a line, the lines' other parts do not stay either, nor do the pages that they lie in: then as many as hide the latency."""
    walks = [
        (model, access, member)
        for model in (band.sized(facts.models[name]) for name in band.statements)
        for member in (band.indices[lanes][model.name],)
        for access in model.accesses
    ]
    rows = any(access.stride(member) not in (0, 1, -1) and not _is_local(access, facts) for _, access, member in walks)
    wanted = _ROWS if rows else _COLUMNS
    if any(_is_of_any_length(access, facts) for _, access, _ in walks):
        # Rows of scratch memory in lanes: two vectors while they stay in L2, and a version for longer ones (Ways._in_lanes).
        wanted = min(wanted, _ROWS) if facts.options.large else 1
    limit = max(1, -(-band.extents[lanes] // facts.lanes(band.core)))
    if is_one_walk(band.node.child(0)):
        steps = not rows and not walks_over_rows(band, lanes, facts)
        return min(_vectors_of_steps(walks, facts) if steps else wanted, limit)
    held: dict[str, int] = {}
    for model, access, member in walks:
        if not access.write and access.stride(member) != 0:
            held[access.array] = max(held.get(access.array, 0), _bytes_inside(model, access, band))
    # The arrays that are read again, one vector of lanes each.
    each = sum(held.values()) * facts.lanes(band.core)
    stay = facts.target.l2_bytes * 3 // 4 // max(each, 1)
    line = facts.target.line_bytes // facts.target.vector_bytes
    if not rows and stay < line and line > 1:
        local = [_bytes_inside(model, access, band) for model, access, _ in walks if _is_local(access, facts)]
        wide = _vectors_of_lines(max(local, default=0), band, lanes, facts) if wanted == _COLUMNS else wanted
        return min(wide, limit)
    return max(1, min(wanted, limit, stay))


def _vectors_of_lines(lane_bytes: int, band: Band, lanes: int, facts: Facts) -> int:
    """Of a strip that comes from farther than L2: as many as fill `_LINES` lines of each row, while what lanes keep (`lane_bytes` a lane) stays in the last level (`_in_lanes` in ways/strategic.py).
    Fewer whole lines where all strips are alike by that: each vector that is left over walks down by itself, in a part of a line."""
    target, vector = facts.target, facts.lanes(band.core)
    line = target.line_bytes // target.vector_bytes
    wide = min(_LINES * line, target.vector_registers // 2)
    while wide > _COLUMNS and wide * vector * lane_bytes > kept(target):
        wide -= line
    whole = (n for n in range(wide, max(_COLUMNS, wide // 2), -line) if band.extents[lanes] % (n * vector) == 0)
    return max(_COLUMNS, next(whole, wide))


def walks_over_rows(band: Band, lanes: int, facts: Facts) -> bool:
    """Whether the loops inside the band take a statement from row to row of something; steps that only ever change the elements at hand keep them in registers."""
    for model in (facts.models[name] for name in band.statements):
        inside = model.extents.keys() - band.above[model.name] - band.own(model.name)
        moving = [access for access in model.accesses if any(access.stride(index) != 0 for index in inside)]
        if any(access.stride(band.indices[lanes][model.name]) != 0 for access in moving):
            return True
    return False


def _vectors_of_steps(walks: Sequence[tuple[StatementModel, AccessModel, str]], facts: Facts) -> int:
    """As many as registers hold with what their steps read, and one for what a step makes."""
    width = max(model.itemsize for model, _, _ in walks)
    held = {
        access.array: facts.scop.arrays[access.array].dtype.itemsize / width
        for _, access, member in walks
        if access.stride(member) != 0
    }
    return max(1, min(_STEPS, int(facts.target.vector_registers / (sum(held.values()) + 1))))


def is_one_walk(node: isl.ScheduleNode) -> bool:
    """Whether the node is one sequential loop around statements, perhaps with statements and parallel loops around statements before and after it: what it reads comes by once."""
    children = [node.child(k).child(0) for k in range(node.n_children())] if kind_of(node) == Kind.sequence else [node]
    loops = [child for child in children if kind_of(child) != Kind.leaf]
    return all(map(is_flat, loops)) and sum(not is_coincident(loop) for loop in loops) == 1


def _is_local(access: AccessModel, facts: Facts) -> bool:
    return facts.scop.arrays[access.array].kind == "local"


def _is_of_any_length(access: AccessModel, facts: Facts) -> bool:
    return _is_local(access, facts) and not is_known(facts.scop.arrays[access.array].shape)


def _bytes_inside(model: StatementModel, access: AccessModel, band: Band) -> int:
    """Of what one lane of the statement reads in the loops inside the band."""
    outside = band.above[model.name] | band.own(model.name)
    moving = (extent for index, extent in model.extents.items() if index not in outside and access.stride(index) != 0)
    return model.itemsize * prod(moving)
