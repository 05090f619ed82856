"""Bands for time tiling: loops along which no dependence points backwards, skewed and shifted where a recurrence asks for it, and short in reach.

A loop along an index of a stencil has dependences in both directions; plus a multiple of the time step it has not. Tiles of a band whose loops all have distances of at
least zero can run one after the other, whatever their sizes.

Source: Bondhugula et al., "A practical automatic polyhedral parallelizer and locality optimizer" (PLDI 2008); Wonnacott, "Achieving scalable locality with time
skewing" (IJPP 2002).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.ilp.cones import Cone
from polyml.schedule.ilp.costs import TILING_COSTS
from polyml.schedule.ilp.hyperplanes import Hyperplane, Row, distances, row_function
from polyml.schedule.ilp.model import COEFFICIENT_BOUND
from polyml.schedule.ilp.problem import Basis, Problem, within
from polyml.schedule.ilp.solve import Solver, SolverLimit
from polyml.scop.scop import Scop

__all__ = ["SkewedLoop", "skewed_band", "skewed_by"]

NODES = 500
"""Linear programs that the search for a band may take."""

REACH = 32
"""Iterations that a dependence may span along each loop of the band, at most: what a tile needs from its neighbours is then a thin border."""


@dataclass(frozen=True, slots=True)
class SkewedLoop:
    """One loop. rows: per statement. row: the loop as isl's function of the instances."""

    rows: Mapping[str, Row]
    row: isl.UnionPwAff

    @property
    def coefficients(self) -> dict[str, tuple[int, ...]]:
        """Per statement, of its indices."""
        return {name: row.indices for name, row in self.rows.items()}

    def shifted(self, by: int, scop: Scop) -> SkewedLoop:
        """All rows plus a number: distances stay as they are."""
        return _loop(scop, {name: row.shifted(by) for name, row in self.rows.items()}) if by else self


def skewed_band(
    scop: Scop, every: Sequence[Cone], names: Sequence[str], together: Sequence[Cone] = ()
) -> tuple[SkewedLoop, ...]:
    """Loops over the statements that may all be tiled together, the least skewed first; fewer than two when there is no such band.

    Args:
        every: the scop's dependences.
        together: those of them that hand on a value within one iteration: no loop is to part them if that is possible, though all are skewed more then.
    """
    cones = within(every, names)
    tries = (COEFFICIENT_BOUND, together), (COEFFICIENT_BOUND, ()), (REACH // 2, ())
    for bound, whole in tries if together else tries[1:]:
        found = _band(Problem(scop, TILING_COSTS, Solver(NODES), bound), cones, names, whole)
        # Stencils of a high order want more skewing than is usual.
        if len(found) == max(len(scop.statements[name].indices) for name in names):
            break
    if not all(_is_short(loop, cones) for loop in found):
        return ()
    return tuple(_loop(scop, loop.rows) for loop in found)


def _band(
    problem: Problem, cones: Sequence[Cone], names: Sequence[str], together: Sequence[Cone]
) -> tuple[Hyperplane, ...]:
    deepest = max(problem.dimension(name) for name in names)
    # Statements of fewer dimensions, such as boundaries, need no directions of their own: they go along.
    basis: Basis = {
        name: () if problem.dimension(name) == deepest else _all_of(problem.dimension(name)) for name in names
    }
    try:
        return problem.band(tuple(names), cones, basis, together=together)
    except SolverLimit:
        return ()


def skewed_by(loop: SkewedLoop, factor: int, own: Mapping[str, int], scop: Scop, every: Sequence[Cone]) -> SkewedLoop:
    """The loop with everything but one index multiplied: it is skewed and shifted by multiples of the factor. The loop as it is where a dependence would run against that.

    Args:
        own: per statement the position of that index; statements without it go along.
    """
    rows = {}
    for name, row in loop.rows.items():
        indices = tuple(c if k == own.get(name) else factor * c for k, c in enumerate(row.indices))
        sizes = tuple(factor * c for c in row.sizes)
        rows[name] = replace(row, indices=indices, sizes=sizes, constant=factor * row.constant)
    for cone in within(every, tuple(rows)):
        for face in cone.faces:
            spans = distances(cone, rows, face)
            if (spans < 0).any() or spans[face.lines].any():
                return loop
    return _loop(scop, rows)


def _loop(scop: Scop, rows: Mapping[str, Row]) -> SkewedLoop:
    total = isl.UnionPwAff.empty_space(scop.context.get_space())
    for name, row in rows.items():
        total = total.union_add(row_function(row, scop, name))
    return SkewedLoop(rows, total)


def _all_of(dimension: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(k == position) for k in range(dimension)) for position in range(dimension))


def _is_short(loop: Hyperplane, cones: Sequence[Cone]) -> bool:
    """Whether every dependence spans `REACH` iterations of the loop at most, for all sizes."""
    for cone in cones:
        for face in cone.faces:
            spans = distances(cone, loop.rows, face)
            if (abs(spans) > REACH * face.generators[:, 0]).any():
                return False
    return True
