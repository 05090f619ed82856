"""Statements that carry a recurrence of first order along contiguous rows: innermost loops of theirs get lanes as scans (codegen/scans.py).

Running sums, maxima and minima, and x[j] = a * x[j - 1] + p[j] with a constant a, of which powers are made when code is compiled. Where each step has a factor of its own, products of a vector's factors could overflow
though no element of the result does; with other rows to run beside it such a recurrence keeps its order.
"""

from __future__ import annotations

from polyml.expressions import Const, Expr, Read, reads_of
from polyml.linear import recurrence_of
from polyml.records import dataclass
from polyml.schedule.cost import memory_strides
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine

__all__ = ["RowScan", "row_scan"]


@dataclass(frozen=True, slots=True)
class RowScan:
    """index: along which a row goes. exact: no value is rounded otherwise than in order."""

    index: str
    exact: bool


_LARGEST = 16.0
"""Of constant factors: the sixteenth power is far from overflow."""


def row_scan(statement: Statement, scop: Scop) -> RowScan | None:
    """The scan that a loop over this statement alone may be; None where it is none, or its row is not contiguous."""
    if statement.kind != "assign":
        return None
    array = scop.arrays[statement.target.array]
    before: Read | None = None
    for read in dict.fromkeys(reads_of(statement.value)):
        if read.tensor == array.name:
            if before is not None:
                return None
            before = read
    if before is None:
        return None
    places: list[tuple[int, Affine, Affine]] = []
    for d, (written, read_at) in enumerate(zip(statement.target.subscripts, before.subscripts, strict=True)):
        if not isinstance(written, Affine) or not isinstance(read_at, Affine):
            return None
        if written != read_at:
            places.append((d, written, read_at - written))
    if len(places) != 1:
        return None
    ((dimension, written, step),) = places
    index = next((i for i in written.variables() if i in statement.indices), None)
    sign = None if index is None else written.stride(index)
    elsewhere = (s for d, s in enumerate(statement.target.subscripts) if d != dimension and isinstance(s, Affine))
    if index is None or sign not in (1, -1) or any(index in s.variables() for s in elsewhere):
        return None
    if not step.is_constant or step.constant != -sign or memory_strides(array)[dimension] not in (1, -1):
        return None
    found = recurrence_of(statement.value, before)
    if found is None or not (found.factor is None or _is_moderate(found.factor)):
        return None
    return RowScan(index, found.reduction is not None or not statement.value.dtype.is_float)


def _is_moderate(factor: Expr) -> bool:
    return isinstance(factor, Const) and abs(factor.value) <= _LARGEST
