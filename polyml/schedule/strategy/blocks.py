"""Blocks: an outer loop that nests inside want to jam is tiled, and its points are distributed over them (attention: blocks of queries)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from math import inf, prod

import islpy as isl

from polyml.expressions import reads_of
from polyml.records import dataclass
from polyml.schedule.register_tiles import register_tile
from polyml.schedule.strategy.bands import Band, Place, has_band_below, has_inner_loops, near_rows, take_band
from polyml.schedule.strategy.contractions.side_by_side import plan_side_by_side
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.strategy.lanes import cost_inside, lane_cost, lanes_here
from polyml.schedule.tree import Kind, is_coincident, kind_of
from polyml.sets.affine import Affine

__all__ = ["BlockPlan", "groups_of", "lanes_in_blocks", "plan_block"]

JAM_GAIN = 1.2
"""How many times cheaper a register tile must be than what the nest can do by itself before loops are distributed for it."""

MAX_BLOCK = 64
"""Iterations per block, at most."""

IN_USE = 0.625
"""Of L2, what a block's results and what each block reads again may take together: the next block's lines and all that passes by have the rest."""

AT_ONCE = 8
"""Iterations that hand windows over together: enough for their stores to be in L1."""


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """`member` of the band is tiled by `size`; the children `alone` of the sequence below get its point loop each on their own."""

    member: int
    size: int
    alone: frozenset[int]


def plan_block(band: Band, facts: Facts, place: Place) -> BlockPlan | None:
    """The block that the nests below the band want; None when none wants one."""
    sequence = band.node.child(0)
    if kind_of(sequence) != Kind.sequence:
        return None
    rows: dict[int, dict[int, int]] = {}
    work: dict[int, float] = {}
    for position, inner in _nests(sequence, facts, place):
        wish = _wish(band, inner, facts) or _wish_lanes(band, inner, facts) or _wish_beside(band, inner, facts, place)
        if wish is not None:
            member, count = wish
            rows.setdefault(member, {})[position] = count
            work[member] = work.get(member, 0.0) + facts.models[inner.core].work
    if not rows:
        own_loops = any(_is_sweep_of_rows(sequence.child(k).child(0)) for k in range(sequence.n_children()))
        return None if own_loops else _window_block(band, facts, sequence.n_children())
    member = max(rows, key=lambda k: work[k])
    size = _block_size(band, member, max(rows[member].values()), facts)
    return BlockPlan(member, size, frozenset(rows[member]))


def lanes_in_blocks(band: Band, lanes: int, facts: Facts, place: Place) -> bool:
    """Whether a nest below the band has its lanes along a member in blocks of it, the other statements along loops of their own, and that takes fewer instructions than lanes along member `lanes` for all."""
    sequence = band.node.child(0)
    if kind_of(sequence) != Kind.sequence:
        return False
    apart: dict[str, float] = {}
    for _, inner in _nests(sequence, facts, place):
        wish = _wish_lanes(band, inner, facts)
        if wish is not None:
            own = band.indices[wish[0]]
            apart |= {name: facts.models[name].lane_cost(own[name], facts.target) for name in inner.statements}
    if not apart:
        return False
    models = [facts.models[name] for name in band.statements]
    inside = sum(min(m.instances * apart.get(m.name, inf), cost_inside(m.name, band, facts)) for m in models)
    return JAM_GAIN * inside < lane_cost(band, lanes, facts)


def _nests(sequence: isl.ScheduleNode, facts: Facts, place: Place) -> Iterator[tuple[int, Band]]:
    """Parallel loops among the children of a sequence, and their positions."""
    for position in range(sequence.n_children()):
        child = sequence.child(position).child(0)
        if kind_of(child) == Kind.band and is_coincident(child):
            inner = take_band(child, facts, place)
            if inner is not None:
                yield position, inner


def _is_sweep_of_rows(node: isl.ScheduleNode) -> bool:
    """Whether it is loops that depend on each other from iteration to iteration, with others inside, which have lines of their own to hand over."""
    while kind_of(node) == Kind.band and is_coincident(node):
        node = node.child(0)
    return kind_of(node) == Kind.band and has_band_below(node.child(0))


def _window_block(band: Band, facts: Facts, children: int) -> BlockPlan | None:
    """Several iterations at a time where one hands a small array over that is read at other offsets than it was written: a load that needs parts of several stores waits until they are in
    L1, and with it everything behind."""
    found = [
        name for name in band.statements if facts.scop.arrays[facts.scop.statements[name].target.array].kind == "local"
    ]
    arrays = {facts.scop.statements[name].target.array: name for name in found if not facts.models[name].is_update}
    handed = 0
    for name in band.statements:
        for read in dict.fromkeys(reads_of(facts.scop.statements[name].value)):
            if read.tensor in arrays and isinstance(last := read.subscripts[-1], Affine) and last.name is None:
                maker = facts.models[arrays[read.tensor]]
                own = band.own(maker.name)
                handed += maker.itemsize * prod(extent for i, extent in maker.extents.items() if i not in own)
    member = len(band.loops) - 1
    if not handed or AT_ONCE * handed > facts.target.l1_bytes // 4 or band.extents[member] <= AT_ONCE:
        return None
    return BlockPlan(member, AT_ONCE, frozenset(range(children)))


def _wish(outer: Band, inner: Band, facts: Facts) -> tuple[int, int] | None:
    """The outer member whose jamming makes the inner nest enough cheaper, and its rows."""
    lanes, core = lanes_here(inner, facts), inner.core
    if lanes is None or not has_inner_loops(core, inner, facts):
        return None
    model, vector = facts.models[core], inner.indices[lanes][core]
    own = [member[core] for k, member in enumerate(inner.indices) if k != lanes]
    cost = min(register_tile(model, index, vector, facts.target).cost for index in (None, *own)) / JAM_GAIN
    best: tuple[int, int] | None = None
    for k in near_rows(outer, core, facts):
        if outer.extents[k] < 2:
            continue
        tile = register_tile(model, outer.indices[k][core], vector, facts.target)
        if tile.rows > 1 and tile.cost < cost:
            best, cost = (k, tile.rows), tile.cost
    return best


def _wish_lanes(outer: Band, inner: Band, facts: Facts) -> tuple[int, int] | None:
    """The outer member along which the inner nest would have its lanes, and the iterations of its register tile: few queries whose keys are read where they lie."""
    if lanes_here(inner, facts) is not None or not has_inner_loops(inner.core, inner, facts):
        return None
    for k in range(len(outer.loops)):
        model, index = facts.models[inner.core], outer.indices[k][inner.core]
        both = _joined(outer, k, inner)
        if outer.extents[k] < facts.lanes(inner.core) or lanes_here(both, facts) != 0:
            continue
        rows = [member[inner.core] for member in inner.indices]
        tile = min((register_tile(model, row, index, facts.target) for row in rows), key=lambda tile: tile.cost)
        return k, tile.vectors * facts.lanes(inner.core)
    return None


def _joined(outer: Band, member: int, inner: Band) -> Band:
    """The inner band with a member of the outer one ahead of its own."""
    return replace(
        inner,
        loops=(outer.loops[member], *inner.loops),
        indices=(outer.indices[member], *inner.indices),
        extents=(outer.extents[member], *inner.extents),
    )


def _wish_beside(outer: Band, inner: Band, facts: Facts, place: Place) -> tuple[int, int] | None:
    """The outer member whose iterations the inner nest would have side by side, each with lanes along its sum, and how many: rows of queries that share keys."""
    if lanes_here(inner, facts) is not None or not has_inner_loops(inner.core, inner, facts):
        return None
    for k in range(len(outer.loops)):
        if outer.extents[k] < 2:
            continue
        plan = plan_side_by_side(_joined(outer, k, inner), facts, place)
        if plan is not None and plan.factors.get(0, 1) > 1:
            return k, plan.factors[0]
    return None


def _block_size(band: Band, member: int, rows: int, facts: Facts) -> int:
    """Iterations per block: what the nests hand to each other for one block should stay in half of L2, and beside it what each block reads again."""
    per_iteration: dict[str, int] = {}
    again: dict[str, int] = {}
    for name in band.statements:
        model, own = facts.models[name], band.own(name)
        for access in model.accesses:
            moved = model.itemsize * prod(n for i, n in model.extents.items() if i not in own and access.stride(i))
            if access.write and facts.scop.arrays[access.array].kind == "local":
                per_iteration[access.array] = moved
            elif not access.write and access.stride(band.indices[member][name]) == 0:
                again[access.array] = moved
    l2 = facts.target.l2_bytes
    beside = int(IN_USE * l2) - sum(size for array, size in again.items() if array not in per_iteration)
    fitting = min(l2 // 2, max(beside, 0)) // max(sum(per_iteration.values()), 1)
    return max(rows, min(MAX_BLOCK, fitting, band.extents[member]) // rows * rows)


def groups_of(count: int, alone: Collection[int]) -> list[list[int]]:
    """Positions of a sequence's children: those in `alone` by themselves, runs of others together."""
    groups: list[list[int]] = []
    for position in range(count):
        if position in alone or not groups or groups[-1][-1] in alone:
            groups.append([position])
        else:
            groups[-1].append(position)
    return groups
