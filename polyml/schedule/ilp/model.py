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
from polyml.schedule.ilp.independence import RowSpace, distinct_rows, null_space
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
    blocks: list[tuple[Integers, Floats, Floats]] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    statement_columns: int = 0
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
        self.statement_columns = self.columns

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

    def add_rows(self, block: Integers, lower: float | Floats = 0.0, upper: float | Floats = np.inf) -> None:
        """Rows `lower <= block x <= upper`; the block may be narrower than the model will be."""
        count = len(block)
        self.blocks.append((block, np.full(count, lower, np.float64), np.full(count, upper, np.float64)))

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

    def distance(self, cone: Cone, face: Face | None = None) -> Integers:
        """`row(sink) - row(source)` per generator of the face (without one, of the cone's affine hull), over the statements' columns."""
        generators = cone.hull if face is None else face.generators
        found = np.zeros((len(generators), self.statement_columns), np.int64)
        points = generators[:, 1 + self.sizes :]
        if cone.source == cone.sink:
            found[:, self.index_columns(cone.sink)] = points
            if self.signed:
                found[:, self.reversed_columns(cone.sink)] = -points
            return found
        split = self.shapes[cone.source].dimension
        for name, part, sign in ((cone.source, points[:, :split], -1), (cone.sink, points[:, split:], 1)):
            self._add_function(found, generators, name, part, sign)
        return found

    def face_distances(self, cone: Cone) -> list[tuple[Face, Integers]]:
        """`distance` on every face of a cone, computed once."""
        if cone not in self._distances:
            self._distances[cone] = [(face, self.distance(cone, face)) for face in cone.faces]
        return self._distances[cone]

    def _add_function(self, found: Integers, generators: Integers, name: str, points: Integers, sign: int) -> None:
        found[:, self.index_columns(name)] = sign * points
        shift = self.shift_columns(name)
        if self.sizes:
            found[:, shift.start : shift.stop - 1] = sign * generators[:, 1 : 1 + self.sizes]
        found[:, shift.stop - 1] = sign * generators[:, 0]
        if not self.signed:
            return
        start = self.reversed_columns(name).start
        for k, last in enumerate(self.shapes[name].last):
            if last is not None:
                constant, sizes = last
                top = constant * generators[:, 0] + generators[:, 1 : 1 + self.sizes] @ np.array(sizes, np.int64)
                found[:, start + k] = sign * (top - points[:, k])

    # -- constraints ------------------------------------------------------------------------------------------------------------

    def require_legal(self, cones: Sequence[Cone]) -> None:
        """No sink before its source."""
        for cone in cones:
            for face, distance in self.face_distances(cone):
                self.add_rows(distance, 0.0, np.where(face.lines, 0.0, np.inf))

    def require_zero(self, cones: Sequence[Cone]) -> None:
        """Zero distance: a parallel loop."""
        for cone in cones:
            self.add_rows(self.distance(cone), 0.0, 0.0)

    def may_have_zero(self, cones: Sequence[Cone]) -> bool:
        """Whether linear algebra leaves every statement a new direction with zero distance on the cones; most often it does not, and nothing is to solve."""
        empty = np.zeros((0, self.statement_columns), np.int64)
        span = RowSpace(np.concatenate([empty, *(self.distance(cone) for cone in cones)]))
        for name in self.names:
            vectors = null_space(self.basis[name], self.shapes[name].dimension)
            columns = self.index_columns(name)
            functional = np.zeros(self.statement_columns, np.int64)
            for vector in vectors:
                # Zero distance leaves it free exactly when it is no combination of the equations.
                functional[columns] = vector
                if not span.holds(functional):
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
            block = np.zeros((1, self.columns), np.int64)
            block[0, self.index_columns(name)] = wanted
            if self.signed:
                block[0, self.reversed_columns(name)] = -wanted
            self.add_rows(block, 1.0)

    # -- the whole --------------------------------------------------------------------------------------------------------------

    def program(self, cost: Floats) -> Program:
        """The program to solve: equal rows once, rows that hold anyway left out."""
        matrix = np.zeros((sum(len(b) for b, _, _ in self.blocks), self.columns), np.int64)
        top = 0
        for block, _, _ in self.blocks:
            matrix[top : top + len(block), : block.shape[1]] = block
            top += len(block)
        lower = np.concatenate([np.zeros(0), *(low for _, low, _ in self.blocks)])
        upper = np.concatenate([np.zeros(0), *(high for _, _, high in self.blocks)])
        matrix, lower, upper = _reduced(matrix, lower, upper)
        integral = np.ones(self.columns, bool)
        integral[list(self.continuous)] = False
        return Program(
            matrix=matrix.astype(np.float64),
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


def _reduced(matrix: Integers, lower: Floats, upper: Floats) -> tuple[Integers, Floats, Floats]:
    if not len(matrix):
        return matrix, lower, upper
    zero = lower == 0
    needed = ~(zero & (upper == np.inf) & (matrix >= 0).all(1)) & (matrix.any(1) | ~zero)
    matrix, lower, upper = matrix[needed], lower[needed], upper[needed]
    divisor = np.gcd.reduce(matrix, axis=1)
    several = (divisor > 1) & (lower == 0)
    matrix[several] //= divisor[several, None]
    keys = np.column_stack([matrix, lower.astype(np.int64), np.isfinite(upper).astype(np.int64)])
    first = distinct_rows(keys)
    return matrix[first], lower[first], upper[first]
