"""Sums over a column that several elements of a row are made of, found once: those of a stencil's neighbours above and below an element are its left neighbour's, and its right one's, too.

    a[i - 1, j - 1] + a[i + 1, j - 1] + a[i - 1, j] + a[i + 1, j] + a[i - 1, j + 1] + a[i + 1, j + 1]
    -> s[j - 1] + s[j] + s[j + 1], where s[j] = a[i - 1, j] + a[i + 1, j] is made once and kept for two columns

The loop over columns is sequential here, with lanes along something else; of lanes along the row themselves llvm/memory/neighbours.py takes care.

Source: Deitz, Chamberlain, Snyder, "Eliminating redundancies in sum-of-product array computations" (ICS 2001).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from polyml.codegen.passes.sums.sums_by_place import sum_of, terms_of
from polyml.expressions import Apply, Expr, Read, map_reads, reads_of, substitute, walk
from polyml.records import dataclass
from polyml.sets.affine import affine

__all__ = ["Columns", "shared_columns", "substitute_registers"]

MOST = 4
"""Columns that a sum is kept for, at most."""


@dataclass(frozen=True, slots=True)
class Columns:
    """value: with reads that stand for the sum in so many columns from `first` on (registers). sum: in the present column."""

    value: Expr
    sum: Expr
    first: int
    registers: tuple[Read, ...]


def shared_columns(value: Expr, column: str, column_of: Callable[[Read], int | None]) -> Columns | None:
    """The largest sum within the value that is the same in several columns; None where there is none.

    Args:
        column: the variable that is a column's number. column_of: how many columns right of the present one a read is; None: it belongs to no column.
    """
    best: tuple[int, Apply, Counter[Expr], tuple[int, ...]] | None = None
    for total in _sums(value):
        found = _common(total, column, column_of)
        if found is not None and (best is None or found[0] > best[0]):
            best = (found[0], total, *found[1:])
    if best is None:
        return None
    _, total, common, columns = best
    first, count = min(columns), max(columns) - min(columns) + 1
    registers = tuple(Read(f"{column}_column{k}", (), total.dtype) for k in range(count))
    left, kept = Counter[tuple[bool, Expr]](terms_of(total)), list[tuple[bool, Expr]]()
    for at in columns:
        left -= Counter({(False, substitute(term, {column: affine(column) + at})): n for term, n in common.items()})
        kept.append((False, registers[at - first]))
    rest = sorted(left.elements(), key=lambda term: term[0])
    made = sum_of([*kept, *rest], total)
    own = sum_of([(False, term) for term in common.elements()], total)
    return Columns(_replaced(value, total, made), own, first, registers)


def substitute_registers(value: Expr, registers: Mapping[Read, Read]) -> Expr:
    """The value with other names of registers."""
    return map_reads(value, lambda read: registers.get(read, read))


def _sums(value: Expr) -> list[Apply]:
    """The sums in floating point that are no part of another one."""
    found: list[Apply] = []
    stack = [value]
    while stack:
        node = stack.pop()
        if not isinstance(node, Apply):
            continue
        if node.op in ("add", "sub") and node.dtype.is_float:
            found.append(node)
            stack += [term for _, term in terms_of(node)]
        else:
            stack += node.args
    return found


def _common(
    total: Apply, column: str, column_of: Callable[[Read], int | None]
) -> tuple[int, Counter[Expr], tuple[int, ...]] | None:
    """What it saves, the terms that columns of a sum have in common, as of column 0, and these columns."""
    by_column: dict[int, Counter[Expr]] = {}
    for negative, term in terms_of(total):
        places = {column_of(read) for read in reads_of(term)}
        if (
            negative
            or len(places) != 1
            or None in places
            or any(isinstance(n, Apply) and n.op in ("add", "sub") for n in walk(term))
        ):
            continue
        (at,) = places
        assert at is not None, "internal: a place that is none"
        by_column.setdefault(at, Counter())[substitute(term, {column: affine(column) - at})] += 1
    best: tuple[int, Counter[Expr], tuple[int, ...]] | None = None
    for one in by_column:
        for other in by_column:
            common = by_column[one] & by_column[other]
            columns = tuple(sorted(k for k, terms in by_column.items() if common <= terms))
            if one >= other or common.total() < 2 or columns[-1] - columns[0] >= MOST:
                continue
            saved = (len(columns) - 1) * common.total()
            if best is None or saved > best[0]:
                best = (saved, common, columns)
    return best


def _replaced(value: Expr, old: Apply, new: Expr) -> Expr:
    if value is old:
        return new
    return value.with_args(_replaced(arg, old, new) for arg in value.args) if isinstance(value, Apply) else value
