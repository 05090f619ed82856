"""Integer programs by depth-first branch and bound over HiGHS's warm-started linear programs.

HiGHS's own MIP solver spends most of its time on set-up for programs of this size (a hundred columns, mostly integral at once).
"""

from __future__ import annotations

import time
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polyml.interrupts import signals_wait
from polyml.records import dataclass
from polyml.schedule.ilp.rows import Rows

if TYPE_CHECKING:
    from highspy._core import _Highs

__all__ = ["Program", "Solver", "SolverLimit"]

Floats = NDArray[np.float64]

TOLERANCE = 1e-6

WORK = 1_500_000
"""What the simplex method does in one node of those granted, some ten milliseconds: iterations times the program's coefficients that are not zero. Most programs take one node or two; one
of 220,000 coefficients takes 1400 iterations, two seconds."""

_OPTIMAL, _INFEASIBLE = "Optimal", ("Infeasible", "Primal infeasible or unbounded")
_STOPPED = "Iteration limit reached"


class SolverLimit(Exception):
    """The nodes granted to a solver are used up, or HiGHS could not solve a linear program. Caught by the scheduler's fallback."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Program:
    """Minimize `cost . x` subject to `lower <= rows x <= upper` and `column_lower <= x <= column_upper`.

    integral: which columns must be integers. priority: where several are fractional, the one with the highest is branched on; at 100 and above upwards first.
    """

    rows: Rows
    lower: Floats
    upper: Floats
    column_lower: Floats
    column_upper: Floats
    cost: Floats
    integral: NDArray[np.bool_]
    priority: Floats


@dataclass(slots=True)
class Solver:
    """One HiGHS instance, used for program after program. nodes: linear programs that take up to `WORK` which it may still solve, all programs together; one that takes more counts as several.
    patience: after how many of them the best solution of a program so far is good enough (every solution is legal); three times as many without one are too many.

    programs, solved, seconds, rows, columns: what it did so far: integer programs, linear programs, time, and the largest program's size.
    """

    nodes: int
    patience: int = 200
    programs: int = 0
    solved: int = 0
    seconds: float = 0.0
    rows: int = 0
    columns: int = 0
    _highs: _Highs | None = field(default=None, repr=False)

    def solve(self, program: Program) -> NDArray[np.int64] | None:
        """The best solution (found with patience), rounded to integers (continuous columns too), or None when there is none.

        Raises:
            SolverLimit: no answer within the nodes left.
        """
        start = time.perf_counter()
        self.programs += 1
        self.rows, self.columns = max(self.rows, len(program.rows.values)), max(self.columns, len(program.cost))
        try:
            search = _Search(self, self._load(program), program, max(1, int(np.count_nonzero(program.rows.values))))
            search.visit()
        finally:
            self.seconds += time.perf_counter() - start
        return None if search.best is None else np.rint(search.best).astype(np.int64)

    def spend(self, nodes: int) -> None:
        """Takes so many nodes from those granted, for what was solved before: what a budget suffices for does not depend on what is remembered.

        Raises:
            SolverLimit: fewer are left.
        """
        if self.nodes < nodes:
            raise SolverLimit("the scheduler's integer programs used up their nodes")
        self.nodes -= nodes

    def _load(self, program: Program) -> _Highs:
        if self._highs is None:
            with signals_wait():
                from highspy import _core  # programs without recurrences never need it

            self._highs = _core._Highs()
            for name, value in (("output_flag", False), ("threads", 1), ("parallel", "off"), ("presolve", "off")):
                self._highs.setOptionValue(name, value)
        rows, columns = len(program.lower), len(program.cost)
        present = program.rows.values != 0
        starts = np.zeros(rows + 1, np.int32)
        np.cumsum(present.sum(1), out=starts[1:])
        index = program.rows.columns[present].astype(np.int32)
        values = program.rows.values[present].astype(np.float64)
        row_wise, minimize = 2, 1
        self._highs.passModel(
            columns, rows, len(values), row_wise, minimize, 0.0, program.cost, program.column_lower, program.column_upper,
            program.lower, program.upper, starts, index, values, np.zeros(columns, np.int32),
        )  # fmt: skip
        return self._highs


@dataclass(slots=True)
class _Search:
    """The tree search of one program. coefficients: those of its linear programs that are not zero."""

    solver: Solver
    highs: _Highs
    program: Program
    coefficients: int
    best: Floats | None = None
    value: float = np.inf
    visited: int = 0

    def visit(self) -> None:
        """The subtree under the column bounds in force."""
        lower, upper = self.program.column_lower.copy(), self.program.column_upper.copy()
        self._visit(lower, upper)

    def _visit(self, lower: Floats, upper: Floats) -> None:
        point = self._relaxed()
        if point is None:
            return
        whole = np.rint(point)
        distance = np.abs(point - whole) * self.program.integral
        if distance.max(initial=0.0) < TOLERANCE:
            rounded = np.where(self.program.integral, whole, point)
            if self._holds(rounded):
                self.best, self.value = rounded, float(self.program.cost @ rounded)
            return
        column = int(np.argmax((distance > TOLERANCE) * (self.program.priority + distance)))
        down = np.floor(point[column])
        upwards = point[column] - down >= 0.5 or self.program.priority[column] >= 100
        old = lower[column], upper[column]
        for up in (upwards, not upwards):
            lower[column], upper[column] = (down + 1, old[1]) if up else (old[0], down)
            self.highs.changeColBounds(column, lower[column], upper[column])
            self._visit(lower, upper)
        lower[column], upper[column] = old
        self.highs.changeColBounds(column, *old)

    def _relaxed(self) -> Floats | None:
        """The linear program's optimum; None when it has none or cannot beat the best, or the search has gone on for long enough."""
        if self.visited >= self.solver.patience:
            if self.best is not None:
                return None
            if self.visited >= 3 * self.solver.patience:
                raise SolverLimit(f"an integer program has no solution after {self.visited} nodes")
        self.visited += 1
        if self.solver.nodes <= 0:
            raise SolverLimit("the scheduler's integer programs used up their nodes")
        self.solver.solved += 1
        status = self._run()
        if status not in (_OPTIMAL, *_INFEASIBLE):
            # A warm start can lead astray.
            self.highs.clearSolver()
            status = self._run()
        if status in _INFEASIBLE:
            return None
        if status != _OPTIMAL:
            raise SolverLimit(f"HiGHS ended with: {status}")
        if self.highs.getInfo().objective_function_value > self.value - TOLERANCE:
            return None
        return np.array(self.highs.getSolution().col_value)

    def _run(self) -> str:
        """How the linear program ended; its work is taken from the nodes.

        Raises:
            SolverLimit: they do not suffice.
        """
        self.highs.setOptionValue("simplex_iteration_limit", max(1, self.solver.nodes * WORK // self.coefficients))
        self.highs.run()
        self.solver.nodes -= 1 + self.highs.getInfo().simplex_iteration_count * self.coefficients // WORK
        status = str(self.highs.modelStatusToString(self.highs.getModelStatus()))
        if status == _STOPPED:
            raise SolverLimit("the scheduler's integer programs used up their nodes")
        return status

    def _holds(self, point: Floats) -> bool:
        product = self.program.rows.times(point)
        return bool(
            (product >= self.program.lower - TOLERANCE).all() and (product <= self.program.upper + TOLERANCE).all()
        )
