"""The last sweep over a row, which writes results past the caches, while the next row is computed with.

A row that is swept several times (a softmax) waits for memory in its first sweep, for the units in the next, and for its stores in the last. One row later the last sweep runs in the same
loop as the one that computes most: stores leave while exponentials are computed, and what each takes of the core's units the other leaves idle (divisions and multiply-adds).

Rewrite, for rows n, B the first sweeps, H the one that computes most, A what follows it, W the last one:
    for n: (B[n]; for k: H[n, k]; A[n]; for k: W[n, k])
    ->  for blocks: (B[f]; for k: H[f, k]; A[f];  for n > f: (B[n]; for k: (H[n, k]; W[n - 1, k]); A[n]);  for k: W[l, k])

f and l are the first and the last row of a block, of which threads take one each. What W needs of the row before lives in two rows that take turns.

When: all statements run along rows that need nothing of each other, W writes what bypasses the caches, H computes much, and two rows of everything stay in L2.

Source: shifted fusion is loop alignment, Allen, Callahan and Kennedy, "Automatic decomposition of scientific programs for parallel execution" (POPL 1987).
"""

from __future__ import annotations

from collections.abc import Set

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
from polyml.target import Target

__all__ = ["one_row_late"]

LONG = 16
"""Lines of a row from which on it is written past the caches."""


def one_row_late(scop: Scop, matcher: Matcher, streamed: Set[str], target: Target) -> LateRows | None:
    """The scop with the sweep that writes the streamed arrays one row late; None where that does not pay."""
    order = _order(scop, matcher, streamed)
    size = 0 if order is None else _rows_of_block(scop, order, matcher, target)
    return None if order is None or not size else in_pieces(scop, order, size)


def _order(scop: Scop, matcher: Matcher, streamed: Set[str]) -> Order | None:
    statements = scop.statements
    late = tuple(name for name, s in statements.items() if s.target.array in streamed)
    if not late or not is_by_rows(scop, matcher):
        return None
    level = sums_before(scop, matcher)
    early = [name for name in statements if name not in late]
    sweeps = [level[name] for name in early if len(statements[name].indices) > 1]
    if not sweeps or any(level[name] <= max(sweeps) for name in late):
        return None
    top = max(sweeps)
    host = tuple(name for name in early if level[name] == top and len(statements[name].indices) > 1)
    after = tuple(name for name in early if level[name] > top)
    before = tuple(name for name in early if name not in (*host, *after))
    if sum(operations_of(statements[name].value) for name in host) < HEAVY:
        return None
    return Order(before, (*host, *late), after, late)


def _rows_of_block(scop: Scop, order: Order, matcher: Matcher, target: Target) -> int:
    """How many; 0 where rows are few, or short, or no whole lines (vectors would cross those of two rows), or so long that two of each do not stay in L2."""
    row = bytes_of_rows(scop, matcher)
    written = [row[scop.statements[name].target.array] for name in order.late]
    if min(written) < LONG * target.line_bytes or any(length % target.line_bytes for length in written):
        return 0
    return rows_of_block(scop, matcher, target)
