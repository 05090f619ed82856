"""The constraints of a polyhedron as a matrix of integers."""

from __future__ import annotations

import islpy as isl
import numpy as np
from numpy.typing import NDArray

from polyml.sets.budget import BudgetExhausted

__all__ = ["constraints_text", "table_of"]


def constraints_text(points: isl.BasicSet) -> str:
    """The numbers of constraints, dimensions and sizes, and the constraints, without names."""
    printer = isl.Printer.to_str(points.get_ctx()).set_output_format(isl.format.EXT_POLYLIB)
    return printer.print_set(points.to_set()).get_str()


def table_of(points: isl.BasicSet, most: int | None = None, phase: str = "reading constraints") -> NDArray[np.int64]:
    """The constraints, a row for each: 0 for an equality, dimensions, divisions, sizes, the constant. Text is the fast way out of islpy: one call where the matrix takes one per entry.

    Raises:
        BudgetExhausted: there are more than `most`, in this phase.
    """
    lines = constraints_text(points).split("\n")
    start = next(k for k, line in enumerate(lines) if len(line.split()) == 6)
    rows, columns = (int(n) for n in lines[start].split()[:2])
    if most is not None and rows > most:
        raise BudgetExhausted(phase, most)
    return np.fromstring(" ".join(lines[start + 1 : start + 1 + rows]), np.int64, sep=" ").reshape(rows, columns)
