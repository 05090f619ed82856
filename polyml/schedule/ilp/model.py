"""The integer program of one loop of a group: columns, legality, independence; cost functions add their own columns and rows.

Per statement the columns are its coefficients of the indices, the same again for reversed indices (measured down from the last iteration; only in `signed` models),
coefficients of the sizes, and a constant; all are non-negative, which loses nothing that matters: negative coefficients are what reversed indices are for.

Source: Bondhugula et al., "A practical automatic polyhedral parallelizer and locality optimizer" (PLDI 2008).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from polyml.records import dataclass
from polyml.schedule.ilp.cones import Cone, Face
from polyml.schedule.ilp.hyperplanes import Row
from polyml.schedule.ilp.independence import RowSpace, null_space
from polyml.schedule.ilp.rows import Rows, distinct_rows, rows_of_blocks
from polyml.schedule.ilp.solve import Program

__all__ = ["Model", "Shape"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Basis = Mapping[str, Sequence[tuple[int, ...]]]

COEFFICIENT_BOUND = 4
"""Largest coefficient of an index that is tried first."""
SHIFT_BOUND = 32
"""Largest constant: at least the number of stages of a pipelined time loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a model must know of a statement. last: per index its largest value as (constant, coefficients of the sizes), or None where that is not affine.
    lanes: the indices that suit lanes best, if any does."""

    dimension: int
    last: tuple[tuple[int, tuple[int, ...]] | None, ...]
    lanes: frozenset[int]


@dataclass(slots=True, eq=False)
class Model:
    """Columns, rows and objective of one program, while it is put together.

    names: the group. strict: cones that must not be violated. basis: index parts of the loops around, per statement. sizes: how many symbolic sizes there are. bound: of a coefficient.
    """

    names: tuple[str, ...]
    shapes: Mapping[str, Shape]
    strict: Sequence[Cone]
    basis: Basis
    sizes: int
    signed: bool = False
    bound: int = COEFFICIENT_BOUND
    columns: int = 0
    upper: list[float] = field(default_factory=list)
    priority: list[float] = field(default_factory=list)
    continuous: set[int] = field(default_factory=set)
    blocks: list[tuple[Integers, Integers, Floats, Floats]] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    _distances: dict[Cone, list[tuple[Face, Integers]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.names:
            shape = self.shapes[name]
            self.offsets[name] = self.columns
            self.add_columns(shape.dimension, upper=self.bound, priority=10)
            if self.signed:
                for last in shape.last:
                    self.add_columns(1, upper=self.bound if last is not None else 0, priority=10)
            self.add_columns(self.sizes, upper=self.bound)
            self.add_columns(1, upper=SHIFT_BOUND)

    # -- columns and rows -------------------------------------------------------------------------------------------------------

    def add_columns(self, count: int, *, upper: float = np.inf, priority: float = 0, integral: bool = True) -> int:
        """Columns from 0 to `upper`. *Returns* the first one's number."""
        first = self.columns
        self.columns += count
        self.upper += [upper] * count
        self.priority += [priority] * count
        if not integral:
            self.continuous.update(range(first, self.columns))
        return first

    def add_rows(
        self, columns: Integers, block: Integers, lower: float | Floats = 0.0, upper: float | Floats = np.inf
    ) -> None:
        """Rows `lower <= block x <= upper` of these columns, which ascend."""
        count = len(block)
        self.blocks.append((columns, block, np.full(count, lower, np.float64), np.full(count, upper, np.float64)))

    def index_columns(self, name: str) -> slice:
        """The columns of the statement's index coefficients (as they are, not reversed)."""
        return slice(self.offsets[name], self.offsets[name] + self.shapes[name].dimension)

    def reversed_columns(self, name: str) -> slice:
        """The columns of its reversed indices; empty unless the model is signed."""
        stop = self.index_columns(name).stop
        return slice(stop, stop + (self.shapes[name].dimension if self.signed else 0))

    def shift_columns(self, name: str) -> slice:
        """The columns of its size coefficients, and of the constant behind them."""
        start = self.reversed_columns(name).stop
        return slice(start, start + self.sizes + 1)

    # -- distances --------------------------------------------------------------------------------------------------------------

    def columns_of(self, cone: Cone) -> Integers:
        """The columns of the distances of a cone: those of its statements, without constants where these are one."""
        if cone.source == cone.sink:
            return np.arange(self.offsets[cone.sink], self.reversed_columns(cone.sink).stop)
        first, second = sorted((cone.source, cone.sink), key=self.offsets.__getitem__)
        ranges = [np.arange(self.offsets[name], self.shift_columns(name).stop) for name in (first, second)]
        return np.concatenate(ranges)

    def distance(self, cone: Cone, face: Face | None = None) -> Integers:
        """`row(sink) - row(source)` per generator of the face (without one, of the cone's affine hull), over the cone's columns."""
        generators = cone.hull if face is None else face.generators
        points = generators[:, 1 + self.sizes :]
        if cone.source == cone.sink:
            return np.concatenate([points, -points], axis=1) if self.signed else points
        split = self.shapes[cone.source].dimension
        source = -self._function(generators, cone.source, points[:, :split])
        sink = self._function(generators, cone.sink, points[:, split:])
        ahead = self.offsets[cone.source] < self.offsets[cone.sink]
        return np.concatenate([source, sink] if ahead else [sink, source], axis=1)

    def face_distances(self, cone: Cone) -> list[tuple[Face, Integers]]:
        """`distance` on every face of a cone, computed once."""
        if cone not in self._distances:
            self._distances[cone] = [(face, self.distance(cone, face)) for face in cone.faces]
        return self._distances[cone]

    def _function(self, generators: Integers, name: str, points: Integers) -> Integers:
        """A statement's row on each generator, over its columns."""
        sizes = generators[:, 1 : 1 + self.sizes]
        if not self.signed:
            return np.concatenate([points, sizes, generators[:, :1]], axis=1)
        backwards = np.zeros_like(points)
        for k, last in enumerate(self.shapes[name].last):
            if last is not None:
                constant, factors = last
                backwards[:, k] = constant * generators[:, 0] + sizes @ np.array(factors, np.int64) - points[:, k]
        return np.concatenate([points, backwards, sizes, generators[:, :1]], axis=1)

    # -- constraints ------------------------------------------------------------------------------------------------------------

    def require_legal(self, cones: Sequence[Cone]) -> None:
        """No sink before its source."""
        for cone in cones:
            for face, distance in self.face_distances(cone):
                self.add_rows(self.columns_of(cone), distance, 0.0, np.where(face.lines, 0.0, np.inf))

    def require_zero(self, cones: Sequence[Cone]) -> None:
        """Zero distance: a parallel loop."""
        for cone in cones:
            self.add_rows(self.columns_of(cone), self.distance(cone), 0.0, 0.0)

    def may_have_zero(self, cones: Sequence[Cone]) -> bool:
        """Whether linear algebra leaves every statement a new direction with zero distance on the cones; most often it does not, and nothing is to solve."""
        span = RowSpace(rows_of_blocks([(self.columns_of(cone), self.distance(cone)) for cone in cones]))
        for name in self.names:
            vectors = null_space(self.basis[name], self.shapes[name].dimension)
            for vector in vectors:
                # Zero distance leaves it free exactly when it is no combination of the equations.
                if not span.holds(dict(enumerate(vector, self.offsets[name]))):
                    break
            else:
                if vectors:
                    return False
        return True

    def require_independent(self, vector: int | None = None, backwards: Collection[str] = ()) -> None:
        """A new direction for every statement that has one left.

        Args:
            vector: which of its null-space vectors must not be orthogonal to the row; None: the sum of all, which misses some rows with coefficients of both signs.
            backwards: the statements for which it is the negative vector.
        """
        for name in self.names:
            dimension = self.shapes[name].dimension
            vectors = np.array(null_space(self.basis[name], dimension), np.int64)
            if not len(vectors):
                continue
            wanted = vectors.sum(axis=0) if vector is None else vectors[vector % len(vectors)]
            if name in backwards:
                wanted = -wanted
            columns = np.arange(self.offsets[name], self.reversed_columns(name).stop)
            self.add_rows(columns, np.concatenate([wanted, -wanted] if self.signed else [wanted])[None], 1.0)

    # -- the whole --------------------------------------------------------------------------------------------------------------

    def program(self, cost: Floats) -> Program:
        """The program to solve: equal rows once, rows that hold anyway left out."""
        rows = rows_of_blocks([(columns, block) for columns, block, _, _ in self.blocks])
        lower = np.concatenate([np.zeros(0), *(low for _, _, low, _ in self.blocks)])
        upper = np.concatenate([np.zeros(0), *(high for _, _, _, high in self.blocks)])
        rows, lower, upper = _reduced(rows, lower, upper)
        integral = np.ones(self.columns, bool)
        integral[list(self.continuous)] = False
        return Program(
            rows=rows,
            lower=lower,
            upper=upper,
            column_lower=np.zeros(self.columns),
            column_upper=np.array(self.upper, np.float64),
            cost=cost,
            integral=integral,
            priority=np.array(self.priority, np.float64),
        )

    def is_folded(self, solution: Integers) -> bool:
        """Whether an index is counted forwards and backwards at once, which is a shift by its whole range in disguise."""
        return any(
            bool((solution[self.index_columns(name)] * solution[self.reversed_columns(name)]).any())
            for name in self.names
            if self.signed
        )

    def rows_of(self, solution: Integers) -> dict[str, Row]:
        """The statements' rows in a solution."""
        found = {}
        for name in self.names:
            shape = self.shapes[name]
            indices = solution[self.index_columns(name)].copy()
            shift = solution[self.shift_columns(name)]
            sizes, constant = shift[:-1].copy(), int(shift[-1])
            if self.signed:
                backwards = solution[self.reversed_columns(name)]
                indices -= backwards
                for count, last in zip(backwards, shape.last, strict=True):
                    if count and last is not None:
                        constant += int(count) * last[0]
                        sizes += int(count) * np.array(last[1], np.int64)
            found[name] = Row(tuple(int(c) for c in indices), tuple(int(c) for c in sizes), constant)
        return found


def _reduced(rows: Rows, lower: Floats, upper: Floats) -> tuple[Rows, Floats, Floats]:
    if not rows.values.size:
        return rows, lower, upper
    zero = lower == 0
    needed = ~(zero & (upper == np.inf) & (rows.values >= 0).all(1)) & (rows.values.any(1) | ~zero)
    rows, lower, upper = rows.part(needed), lower[needed], upper[needed]
    divisor = np.gcd.reduce(rows.values, axis=1)
    several = (divisor > 1) & (lower == 0)
    rows.values[several] //= divisor[several, None]
    bounds = np.stack([lower.astype(np.int64), np.isfinite(upper)], axis=1)
    first = distinct_rows(np.concatenate([rows.columns, rows.values, bounds], axis=1))
    return rows.part(first), lower[first], upper[first]
