"""The first sweep over a row beside the sweep of the row before that computes most.

A row of which a maximum is found first (a logsumexp, an entropy) waits for memory in that sweep, then for the maximum's lanes to be put together, and then computes exponentials, whose chains of dependent instructions leave
every third slot of the core's units idle. One row ahead the first sweep runs in the loop of the exponentials: its few instructions fill such slots, its loads have a row's time to arrive, and a row's maximum is there before it is needed.

Rewrite, for rows n, F the first sweep, B what follows it, H the sweep that computes much, A what follows that:
    for n: (for k: F[n, k]; B[n]; for k: H[n, k]; A[n])
    ->  for blocks: (for k: F[f, k];  for n > f: (B[n - 1]; for k: (F[n, k]; H[n - 1, k]); A[n - 1]);  B[l]; for k: H[l, k]; A[l])

f and l are the first and the last row of a block, of which threads take one each. What the others need of the first sweep lives in two rows that take turns.

When: exponentials are straight code and a maximum is one instruction (AVX-512; elsewhere a row's vectors are twice as many, each of which takes twice as long, so that little is gained), all statements run along rows that need nothing of each other,
the first sweep only finds minima and maxima of little that is computed (lanes of sums would be put together with those of H's, for which the next row would wait), H computes much, rows are so long that they do not run side by side,
and two of what the first sweep reads, with what is fetched ahead, stay in L1. Not where two arrays and more come from memory, which is what is waited for then: a loop that does nothing but load has more lines on their way.
Where results bypass the caches the last sweep is late instead (`last_sweep.py`).
"""

from __future__ import annotations

from polyml.expressions import reads_of
from polyml.operation_weights import operations_of
from polyml.schedule.matching import Matcher
from polyml.schedule.sweeps.late_rows import (
    HEAVY,
    LateRows,
    Order,
    bytes_of_rows,
    in_pieces,
    is_by_rows,
    rows_of_block,
    sums_before,
)
from polyml.scop.scop import Scop
from polyml.sets.shapes import element_count
from polyml.target import Target

__all__ = ["one_row_ahead"]

LIGHT = 2.0
"""Operations of an element up to which the first sweep finds room beside another one."""

VECTORS = 8
"""Vectors of a row up to which rows run side by side (strategy/short_rows.py)."""


def one_row_ahead(scop: Scop, matcher: Matcher, target: Target) -> LateRows | None:
    """The scop with the first sweep one row ahead of the others; None where that does not pay."""
    order = _order(scop, matcher) if target.scalef else None
    size = 0 if order is None else rows_of_block(scop, matcher, target)
    if order is None or not size:
        return None
    row = bytes_of_rows(scop, matcher)
    early = (scop.statements[name] for name in order.host if name not in order.late)
    swept = {name for s in early for name in (s.target.array, *(r.tensor for r in reads_of(s.value)))}
    if max(row[name] for name in swept) <= VECTORS * target.vector_bytes:
        return None
    if 2 * sum(row[name] for name in swept) + target.rows_ahead > target.l1_bytes:
        return None
    read = [a for a in scop.arrays.values() if a.name in swept and a.kind != "local"]
    sizes = [a.dtype.itemsize * element_count(a.shape) for a in read]
    if sum(sizes) >= 2 * max(sizes) and 2 * sum(sizes) > target.l3_bytes:
        return None
    return in_pieces(scop, order, size)


def _order(scop: Scop, matcher: Matcher) -> Order | None:
    if not is_by_rows(scop, matcher):
        return None
    statements, level = scop.statements, sums_before(scop, matcher)
    first = [name for name, s in statements.items() if level[name] == 0 and len(s.indices) > 1]
    kinds = {statements[name].reduction for name in first}
    if not kinds & {"min", "max"} or kinds - {"min", "max", None}:
        return None
    if sum(operations_of(statements[name].value) for name in first) > LIGHT * len(first):
        return None
    found = {statements[name].target.array for name in first}
    early = [name for name, s in statements.items() if level[name] == 0 and s.target.array in found]
    heavy = [name for name, s in statements.items() if level[name] == 1 and len(s.indices) > 1]
    if not heavy or sum(operations_of(statements[name].value) for name in heavy) < HEAVY:
        return None
    late = [name for name in statements if name not in early]
    ahead = _sources(matcher, heavy)
    before = [name for name in (*early, *late) if name not in first and name not in heavy and name in {*early, *ahead}]
    after = [name for name in late if name not in before and name not in heavy]
    return Order(tuple(before), (*first, *heavy), tuple(after), tuple(late))


def _sources(matcher: Matcher, names: list[str]) -> set[str]:
    """What these statements depend on, with themselves."""
    found, new = set(names), set(names)
    while new:
        new = {source for source, sink in matcher.edges if sink in new} - found
        found |= new
    return found
