"""Statements that carry a recurrence of first order along contiguous rows: innermost loops of theirs get lanes as scans (codegen/passes/sums/scans.py).

Running sums, maxima and minima, x[j] = max(a[j] + x[j - 1], p[j]), and x[j] = a * x[j - 1] + p[j] with a constant a, of which powers are made when code is compiled. Where each step has a factor of its own, products of a vector's factors could overflow
though no element of the result does; with other rows to run beside it such a recurrence keeps its order.
"""

from __future__ import annotations

from polyml.expressions import Const, Expr, Read, reads_of
from polyml.linear import recurrence_of
from polyml.records import dataclass
from polyml.scop.scop import Array, Scop, Statement
from polyml.sets.affine import Affine

__all__ = ["RowScan", "row_scan"]


@dataclass(frozen=True, slots=True)
class RowScan:
    """index: along which a row goes. exact: no value is rounded otherwise than in order. alone: nothing but the element before is read of the array."""

    index: str
    exact: bool
    alone: bool


_LARGEST = 16.0
"""Of constant factors: the sixteenth power is far from overflow."""


def row_scan(statement: Statement, scop: Scop) -> RowScan | None:
    """The scan that a loop over this statement alone may be; None where it is none, or its row is not contiguous."""
    if statement.kind != "assign":
        return None
    array = scop.arrays[statement.target.array]
    reads = [read for read in dict.fromkeys(reads_of(statement.value)) if read.tensor == array.name]
    # What rows before have is there when a row begins; which order that is, the schedule proves.
    here = [read for read in reads if not _is_of_another_row(read, statement, array)]
    if len(here) != 1:
        return None
    (before,) = here
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
    if not step.is_constant or step.constant != -sign or array.memory_strides[dimension] not in (1, -1):
        return None
    found = recurrence_of(statement.value, before)
    if found is None or not (found.factor is None or found.reduction is not None or _is_moderate(found.factor)):
        return None
    return RowScan(index, found.is_exact, len(reads) == 1)


def _is_of_another_row(read: Read, statement: Statement, array: Array) -> bool:
    """Whether the element lies a fixed number of places away in a dimension that rows do not run along."""
    pairs = zip(read.subscripts, statement.target.subscripts, array.memory_strides, strict=True)
    gaps = [
        a - b for a, b, stride in pairs if stride not in (1, -1) and isinstance(a, Affine) and isinstance(b, Affine)
    ]
    return any(gap.is_constant and gap.constant for gap in gaps)


def _is_moderate(factor: Expr) -> bool:
    return isinstance(factor, Const) and abs(factor.value) <= _LARGEST
