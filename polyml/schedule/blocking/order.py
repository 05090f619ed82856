"""Register tiles in the order of the result's memory: what the loops around them find in L1 again.

The result goes past the caches, through the same few line buffers that lines from L2 come through: while it is written, what tiles read should be in L1. Innermost are loops over rows of the
broadcast operand, of which the next loop out, over columns, reads all again; and where they are few, the loop beyond reads these columns again. Where L2 has no room for all of these rows, L2 keeps some of them.
"""

from __future__ import annotations

from math import ceil, gcd, prod

from polyml.records import dataclass
from polyml.schedule.blocking.sides import Sides
from polyml.schedule.blocking.sizes import by_stride, even
from polyml.schedule.cost import StatementModel
from polyml.target import Target

__all__ = ["columns_in_l1", "rows_to_l1", "tile_order"]

MANY_ROWS = 128
"""Rows for which a panel of the vector operand is read, above which it does not matter where it comes from."""


@dataclass(frozen=True, slots=True)
class _Inside:
    """The innermost loops in the result's order, from the inside out: rows that are kept in L1, other rows, which had better stand further out; columns; whether there are rows beyond."""

    rows: list[str]
    others: list[str]
    columns: list[str]
    again: bool


def tile_order(model: StatementModel, sides: Sides, rows: str, target: Target) -> list[str]:
    """The loops around register tiles, whose rows are those of `rows`, outermost first: in the order of the result, but for rows that L1, or else L2, does not keep for the next column."""
    inside = _inside(model, sides, target)
    order = [i for i in by_stride([*sides.columns, *sides.rows], sides.out) if i != rows]
    if not inside.others or rows in inside.others:
        return order
    at = order.index(inside.columns[0])
    kept = [i for i in order[at:] if i not in inside.others]
    return [*order[:at], *inside.others[::-1], *kept]


def columns_in_l1(model: StatementModel, sides: Sides, depth: int, width: int, target: Target) -> dict[str, int]:
    """A block of the columns whose panels take half of L1, where all of them are read again for the next few rows; empty where that does not matter, or too few fit.

    depth: length of the reduction; width: of a panel."""
    inside = _inside(model, sides, target)
    if not inside.again or not inside.columns or prod(model.extents[i] for i in inside.rows) >= MANY_ROWS:
        return {}
    *inner, last = inside.columns
    one = ceil(model.extents[sides.lanes] / width) * width * depth * model.itemsize
    room = target.l1_bytes // 2 // (one * prod(model.extents[i] for i in inner))
    return {last: even(model.extents[last], room, 1)} if room else {}


def rows_to_l1(model: StatementModel, sides: Sides, target: Target) -> bool:
    """Whether the rows that are read again for each column fit into L1 packed, but not where they lie, in pieces of cache lines."""
    inside = _inside(model, sides, target)
    operand, line = sides.others[0], target.line_bytes
    indices = [*inside.rows, *sides.reduced]
    if not inside.columns or any(operand.stride(i) is None for i in indices):
        return False
    run, apart = model.itemsize, list[tuple[int, int]]()
    # A piece: what is contiguous from the innermost index on.
    for index in sorted(indices, key=lambda i: abs(operand.stride(i) or 0)):
        step = abs(operand.stride(index) or 0) * model.itemsize
        if step == run:
            run *= model.extents[index]
        elif step:
            apart.append((model.extents[index], step))
    grain = gcd(line, *(step for _, step in apart))
    lying = prod(extent for extent, _ in apart) * ceil((run + line - grain) / line) * line
    return _in_l1(model, sides, inside.rows, target) and 4 * lying > 3 * target.l1_bytes


def _inside(model: StatementModel, sides: Sides, target: Target) -> _Inside:
    order = by_stride([*sides.rows, *sides.columns], sides.out)[::-1]
    first = next((k for k, index in enumerate(order) if index in sides.columns), len(order))
    second = next((k for k, index in enumerate(order) if k >= first and index in sides.rows), len(order))
    rows, columns, again = order[:first], order[first:second], second < len(order)
    kept = max((k for k in range(first + 1) if _in_l1(model, sides, rows[:k], target)), default=0)
    if not columns or kept == first:
        return _Inside(rows, [], columns, again)
    if prod(model.extents[i] for i in rows[:kept]) < MANY_ROWS:
        kept = _kept_in_l2(model, sides, rows, target)
        if prod(model.extents[i] for i in rows[:kept]) < MANY_ROWS:
            return _Inside(rows, [], columns, again)
    return _Inside(rows[:kept], rows[kept:], columns, True)


def _kept_in_l2(model: StatementModel, sides: Sides, rows: list[str], target: Target) -> int:
    """How many of the innermost rows a quarter of L2 holds, where all take more than half of it, so that each column would have them from the last cache; else 0. Zen 3, `agfe,cbdg->fedcba`, whose rows take 640 to 770 KB:
    0.86 to 0.98 of the time."""

    def size(kept: list[str]) -> int:
        return prod(model.extents[i] for i in (*kept, *sides.reduced)) * model.itemsize

    if size(rows) <= target.l2_bytes // 2:
        return 0
    return max((k for k in range(len(rows) + 1) if size(rows[:k]) <= target.l2_bytes // 4), default=0)


def _in_l1(model: StatementModel, sides: Sides, rows: list[str], target: Target) -> bool:
    """Whether packed rows leave an eighth of L1."""
    return 8 * prod(model.extents[i] for i in (*rows, *sides.reduced)) * model.itemsize <= 7 * target.l1_bytes
