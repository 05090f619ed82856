"""Loops that choose a mask's element go around those that do not, where an update of a computed element is masked: `a[t, place(y, x, t)] += where(e[y, x], 1, 0)` has y and x outside.

A whole loop is skipped then where the mask says so (codegen/passes/sums/skip_masked.py). How often it does is not known; such updates go element by element in any order, so that one order is as good as
another where the mask always holds, as long as caches have the elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod

import islpy as isl

from polyml.expressions import Expr, substitute
from polyml.graph.builder.parts import variables_of
from polyml.masked_terms import LEAST_SKIPPED, LEAST_SKIPPED_IN_LANES, mask_of
from polyml.records import dataclass
from polyml.schedule.strategy.bands import Band, Place, has_band_below, take_band
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.strategy.lanes import lane_cost, scalar_cost
from polyml.schedule.strategy.threads import even_tile, is_heavy
from polyml.schedule.transforms import Loop, merge_with_child, nest_loops, tile_loop
from polyml.schedule.tree import Kind, kind_of, statements_below
from polyml.scop.scop import Statement
from polyml.sets.affine import Affine, affine

__all__ = ["MaskedLoops", "masked_loops"]


@dataclass(frozen=True, slots=True)
class MaskedLoops:
    """band: of all loops of the update. loops: what takes its place, outermost first. text: for notes."""

    band: isl.ScheduleNode
    loops: tuple[Loop, ...]
    text: str

    def build(self) -> isl.ScheduleNode:
        """The loops in the band's place."""
        return nest_loops(self.band, self.loops)


def masked_loops(node: isl.ScheduleNode, facts: Facts, place: Place) -> MaskedLoops | None:
    """Another order for the bands from a node down to masked updates; None where it is something else, or all of its loops choose the mask's element."""
    names = statements_below(node)
    masks = {name: mask for name in names if (mask := _mask(facts.scop.statements[name], facts)) is not None}
    if len(masks) < len(names):
        return None
    while kind_of(node.child(0)) == Kind.band:
        node = merge_with_child(node)
    band = None if has_band_below(node.child(0)) else take_band(node, facts, place)
    chosen = None if band is None else _mask_members(band, masks)
    if band is None or not chosen:
        return None
    inside = [k for k in range(len(band.loops)) if k not in chosen and _is_movable(band, k, facts)]
    outside = [k for k in range(len(band.loops)) if k not in inside]
    lanes = _lanes(band, inside, facts)
    if not _stays_near(band, inside, facts):
        return None
    if prod(band.extents[k] for k in inside) < (LEAST_SKIPPED if lanes is None else LEAST_SKIPPED_IN_LANES):
        return None
    inside.sort(key=lambda k: (k == lanes, band.loops[k].coincident))
    loops = [band.loops[k] for k in (*outside, *inside)]
    if lanes is not None:
        loops[-1] = loops[-1].marked("vector:1")
    shared = _shared(band, [*outside, *inside], facts) if place.parallel and is_heavy(band, facts) else None
    if shared is not None:
        loops.insert(0, shared)
    skipped, around = (", ".join(band.indices[k][band.core] for k in part) for part in (inside, outside))
    return MaskedLoops(band.node, tuple(loops), f"{skipped} inside of {around}, which choose the mask's element")


def _mask_members(band: Band, masks: Mapping[str, Expr]) -> list[int] | None:
    """The members that choose the mask's element, where it is one and the same for all statements."""
    found = set()
    for name, mask in masks.items():
        numbers = {own[name]: affine(f"i{k}") for k, own in enumerate(band.indices)}
        found.add(substitute(mask, numbers))
    if len(found) != 1:
        return None
    used = variables_of(found.pop())
    return [k for k in range(len(band.indices)) if f"i{k}" in used]


def _is_movable(band: Band, k: int, facts: Facts) -> bool:
    """Whether a loop may go inside of the others: it carries nothing, or reductions alone, whose order is free."""
    if band.loops[k].coincident or not facts.options.relax_reductions:
        return band.loops[k].coincident
    statements = facts.scop.statements
    return facts.matcher.carries_nothing({n: statements[n].indices.index(i) for n, i in band.indices[k].items()})


def _stays_near(band: Band, inside: Sequence[int], facts: Facts) -> bool:
    """Whether L1 holds what is updated, or that matters little: neighbours are updated together, or each update computes a place of its own first. Elsewhere rows may meet in the cache, which took three times as long where the mask mostly holds."""
    for name in band.statements:
        target = facts.scop.statements[name].target
        own = {band.indices[k][name] for k in inside}
        *_, last = target.subscripts
        computed = (s for s in target.subscripts if not isinstance(s, Affine))
        moving = any(variables_of(s) & own for s in computed) or (isinstance(last, Affine) and last.variables() & own)
        size = facts.scop.arrays[target.array].bytes
        if not moving and (size is None or size > facts.target.l1_bytes):
            return False
    return True


def _lanes(band: Band, inside: Sequence[int], facts: Facts) -> int | None:
    """The loop inside that lanes pay along."""
    if not facts.options.vectorize:
        return None
    costs = {k: lane_cost(band, k, facts) for k in inside if band.loops[k].coincident}
    best = min(costs, key=lambda k: (costs[k], -k), default=None)
    return best if best is not None and costs[best] < scalar_cost(band, facts) else None


def _shared(band: Band, order: Sequence[int], facts: Facts) -> Loop | None:
    """Pieces of a loop for the threads, the outermost one that carries nothing."""
    threads = facts.options.threads
    shared = next((k for k in order if band.loops[k].coincident and band.extents[k] >= threads), None)
    if shared is None:
        return None
    # Each piece goes through the mask.
    size = max(even_tile(band.extents[shared], 1, threads), min(LEAST_SKIPPED, ceil(band.extents[shared] / threads)))
    return tile_loop(band.loops[shared], size).marked("parallel")


def _mask(statement: Statement, facts: Facts) -> Expr | None:
    """The condition without which an update of a computed element does nothing; None where there is none."""
    if statement.kind != "update" or statement.argument is not None or statement.reduction is None:
        return None
    if all(isinstance(subscript, Affine) for subscript in statement.target.subscripts):
        return None
    mask = mask_of(statement.value, statement.reduction, precise=not facts.options.relax_reductions)
    return None if mask is None else mask[0]
