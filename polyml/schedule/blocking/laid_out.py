"""Finished rows that are transposed to where they belong: how many of the result's rows at a time.

Blocks of a vector by a vector are transposed in registers and stored to a piece of each of a vector of the result's rows. One block beside the other along these rows stores whole lines, one after the other; one block behind the
other, for all rows before the next piece, comes back to lines that were stored in part. Where the rows lie so that more lines meet in a set of L1 than it has ways, these have left it by then: each store of half a line waits for L2.
"""

from __future__ import annotations

from math import gcd, prod

from polyml.expressions import reads_of
from polyml.schedule.blocking.sizes import WAY
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine
from polyml.target import Target

__all__ = ["lines_at_a_time"]


def lines_at_a_time(scop: Scop, statement: Statement, lanes: str, rows: int, target: Target) -> bool:
    """Whether vectors are parts of lines, and lines of so many of the result's rows, which lie along what were lanes, meet in L1: then a vector of these rows is laid out before the next."""
    reader = next(
        (s for s in scop.statements.values() if any(r.tensor == statement.target.array for r in reads_of(s.value))),
        None,
    )
    step = None if reader is None else _step(scop, statement, reader, lanes)
    if step is None or target.vector_bytes >= target.line_bytes:
        return False
    apart = max(gcd(step, WAY), target.line_bytes)
    return rows * apart > target.l1_bytes


def _step(scop: Scop, statement: Statement, reader: Statement, lanes: str) -> int | None:
    """Bytes between neighbours along the lanes' index where the reader of the sums writes them; None where that is no number."""
    position = next(k for k, s in enumerate(statement.target.subscripts) if isinstance(s, Affine) and s.name == lanes)
    read = next(r for r in reads_of(reader.value) if r.tensor == statement.target.array)
    array, index = scop.arrays[reader.target.array], read.subscripts[position]
    if index not in reader.target.subscripts or not all(extent.is_constant for extent in array.shape):
        return None
    behind = array.shape[reader.target.subscripts.index(index) + 1 :]
    return array.dtype.itemsize * prod(extent.constant for extent in behind)
