"""Short rows that are swept several times, each sweep waiting for what the one before summed up (softmax, norms), or that an extremum is looked for in: some of them run side by side.

A row of a few vectors is less work than the chain through its sums is long: add the lanes up, divide, take a root, begin the next sweep. Processors look ahead by a few rows of instructions only, most of which wait.
Longer rows fill that time themselves. argmax's lanes are put together by a longer chain still, whatever follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import islpy as isl

from polyml.schedule.statement_models import UNKNOWN_EXTENT
from polyml.schedule.strategy.bands import Band, Place, is_flat, take_band
from polyml.schedule.strategy.contractions.side_by_side import SideBySide
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.strategy.lanes import carries_only_reductions, lane_cost, scalar_cost
from polyml.schedule.tree import Kind, kind_of

__all__ = ["plan_short_rows"]

ROWS = 4
"""Rows side by side: more gain little, and are more to compile."""

VECTORS = 8
"""Vectors of a row, at most."""

SEARCHED = 64
"""The same where a sweep looks for the place of an extremum: what its lanes have found is put together by a chain of some thirty instructions, which takes as long as some forty vectors."""

FAR_VECTORS = 3
"""The same where caches do not hold what is written: several rows are several streams of lines, which nobody fetches ahead of the stores."""

NEAR = 2
"""What is written counts as held by caches up to so many times L2."""


def plan_short_rows(band: Band, facts: Facts, place: Place) -> SideBySide | None:
    """Rows of a band of parallel loops around two sweeps or more along short rows, the first a reduction, or around one that looks for an extremum; None where there is something else inside."""
    last = len(band.loops) - 1
    if not facts.options.relax_reductions or band.extents[last] < 2 * ROWS:
        return None
    sweeps = list(_sweeps(band.node.child(0), facts, place))
    if any(sweep is None for sweep in sweeps):
        return None
    searches = any(facts.scop.statements[name].argument is not None for name in band.statements)
    if len(sweeps) < 2 and not searches:
        return None
    near = _written(band, facts) <= NEAR * facts.target.l2_bytes
    most = FAR_VECTORS if not near else SEARCHED if searches else VECTORS
    for sweep in sweeps:
        if sweep is None or not _is_known(sweep, facts) or sweep.extents[0] > most * facts.lanes(sweep.core):
            return None
        if lane_cost(sweep, 0, facts) >= scalar_cost(sweep, facts) or not carries_only_reductions(sweep, 0, facts):
            return None
    if not searches and not any(
        facts.models[name].is_update for sweep in sweeps[:-1] if sweep is not None for name in sweep.statements
    ):
        return None
    return SideBySide({last: ROWS}, tuple(range(len(band.loops))), rows=True)


def _written(band: Band, facts: Facts) -> int:
    """Bytes of the arrays that the band writes for others to read, of symbolic size in the call at hand."""
    scop = facts.scop
    known = {size: scop.examples.get(size, UNKNOWN_EXTENT) for size in scop.sizes}
    arrays = {scop.arrays[scop.statements[name].target.array] for name in band.statements}
    sizes = (prod(e.evaluate(known) for e in a.shape) * a.dtype.itemsize for a in arrays if a.kind != "local")
    return sum(sizes)


def _is_known(sweep: Band, facts: Facts) -> bool:
    """Whether the length of the rows is no size."""
    statement, index = facts.scop.statements[sweep.core], sweep.indices[0][sweep.core]
    return bool(statement.domain.dim_max_val(statement.indices.index(index)).is_int())


def _sweeps(node: isl.ScheduleNode, facts: Facts, place: Place) -> Iterator[Band | None]:
    """The loops below the band, one after the other; None for what is none around nothing but statements."""
    children = [node.child(k).child(0) for k in range(node.n_children())] if kind_of(node) == Kind.sequence else [node]
    for child in children:
        if kind_of(child) != Kind.leaf:
            yield take_band(child, facts, place) if is_flat(child) else None
