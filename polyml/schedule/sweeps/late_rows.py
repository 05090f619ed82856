"""Loops over rows in which a part of each row runs beside another part of the next one: the last sweep late (last_sweep.py), or the first one early (first_sweep.py).

Which statements are late, and which sweep two rows share, is an `Order`; here it becomes blocks of rows, whose first and last row have pieces of their own, and arrays of which as many rows are kept as are alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import islpy as isl

from polyml.expressions import Read, map_reads, reads_of, variables_in
from polyml.new_names import derived
from polyml.records import dataclass
from polyml.schedule.ilp.driver import Around, Outline
from polyml.schedule.matching import Matcher
from polyml.schedule.pieces import Pieces
from polyml.schedule.sweeps.row_sums import cut
from polyml.schedule.written import in_order, with_statements
from polyml.scop.dependences import Dependences, analyse
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.shapes import element_count
from polyml.target import Target

__all__ = ["HEAVY", "LateRows", "Order", "bytes_of_rows", "in_pieces", "is_by_rows", "rows_of_block", "sums_before"]

HEAVY = 8.0
"""Operations of an element from which on a sweep computes so much that stores beside it cost nothing."""

MOST_ROWS, LEAST_ROWS, BLOCKS = 32, 8, 16
"""Rows of a block, and blocks that there should be."""


@dataclass(frozen=True, slots=True)
class LateRows:
    """The scop in pieces, its dependences, and what runs one after the other. kept: local arrays of more than numbers, and how many of their rows are alive. late: what waits. size: rows of a block."""

    scop: Scop
    dependences: Dependences
    outline: Outline
    kept: Mapping[str, int]
    late: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Order:
    """The statements by where they run for a row: ahead of the sweep that two rows share, in it, and behind it. late: those that run for the row before."""

    before: tuple[str, ...]
    host: tuple[str, ...]
    after: tuple[str, ...]
    late: tuple[str, ...]


def is_by_rows(scop: Scop, matcher: Matcher) -> bool:
    """Whether all statements run along the same rows, whose elements lie side by side, and none of which needs anything of another."""
    statements = scop.statements
    plain = all(s.indices and s.argument is None and s.domain.is_box() for s in statements.values())
    if not plain or scop.sizes or not in_order(scop) or any(map(_goes_down_columns, statements.values())):
        return False
    same = len({matcher.values(name, 0) for name in statements}) == 1
    return same and matcher.carries_nothing(dict.fromkeys(statements, 0))


def _goes_down_columns(s: Statement) -> bool:
    """Whether neighbouring elements of an array that it goes along are of different rows."""
    row, *others = s.indices
    accesses = (s.target.subscripts, *(read.subscripts for read in reads_of(s.value)))
    return any(
        len(places) > 1 and row in variables_in(places[-1:]) and not variables_in(places[:-1]).isdisjoint(others)
        for places in accesses
    )


def sums_before(scop: Scop, matcher: Matcher) -> dict[str, int]:
    """How many sums must be complete before a statement runs for a row."""
    found: dict[str, int] = {}
    for name, s in scop.statements.items():
        sources = [source for source, sink in matcher.edges if sink == name and source in found]
        found[name] = max((found[source] + _is_sum(scop.statements[source], s) for source in sources), default=0)
    return found


def _is_sum(source: Statement, sink: Statement) -> bool:
    return source.kind == "update" and not (sink.kind == "update" and sink.target.array == source.target.array)


def rows_of_block(scop: Scop, matcher: Matcher, target: Target) -> int:
    """How many, without a rest where that is possible; 0 where rows are few, or so long that two of each do not stay in L2."""
    rows = _rows(scop, matcher)
    most = min(MOST_ROWS, rows // BLOCKS)
    if most < LEAST_ROWS or 4 * sum(bytes_of_rows(scop, matcher).values()) > target.l2_bytes:
        return 0
    least = max(LEAST_ROWS, most // 2)
    return next((size for size in range(most, least - 1, -1) if rows % size == 0), most)


def bytes_of_rows(scop: Scop, matcher: Matcher) -> dict[str, int]:
    """Of each array what there is for a row."""
    rows = max(1, _rows(scop, matcher))
    return {a.name: a.dtype.itemsize * element_count(a.shape) // rows for a in scop.arrays.values()}


def _rows(scop: Scop, matcher: Matcher) -> int:
    return matcher.extent(next(iter(scop.statements)), 0) or 0


def in_pieces(scop: Scop, order: Order, size: int) -> LateRows:
    """The scop in blocks of so many rows, in that order."""
    statements, arrays, copies = _with_copies(scop, order)
    cuts = {name: cut(s, s.indices[0], size, "block") for name, s in statements.items()}
    blocks = with_statements(scop, cuts, arrays)
    made = Pieces(blocks)
    parts = (order.before, order.host, (*order.after, *copies))
    first: list[list[str]] = [[] for _ in parts]
    main: list[list[str]] = [[] for _ in parts]
    last: list[list[str]] = [[] for _ in parts]
    for part, members in enumerate(parts):
        for name in members:
            s = cuts[name]
            if name in order.late:
                followed = _followed(s)
                last[part] += made.add(s, s.domain.subtract(followed), ending="last")
                main[part] += made.add(s, followed, late=s.indices[1])
            else:
                start = s.domain.intersect(_first(s))
                first[part] += made.add(s, start, ending="first")
                main[part] += made.add(s, s.domain.subtract(start))
    starts, groups, ends = (tuple(tuple(group) for group in every if group) for every in (first, main, last))
    inside = [name for group in groups for name in group]
    index = {name: made.statements[name].indices[1] for name in inside}
    loop = Around(index, parallel=False, inside=groups, carries=True)
    everything = [*(name for group in starts for name in group), *inside, *(name for group in ends for name in group)]
    around = Around(
        {name: made.statements[name].indices[0] for name in everything},
        parallel=True,
        inside=(*starts, loop, *ends),
    )
    early = {s.target.array for name, s in statements.items() if name not in order.late}
    read = {r.tensor for name in order.late for r in reads_of(statements[name].value)}
    rows = (a for a in blocks.arrays.values() if a.kind == "local" and a.name in read and len(a.shape) > 1)
    kept = {a.name: 2 if a.name in early else 1 for a in rows}
    return LateRows(made.scop(everything), made.dependences(analyse(blocks)), (around,), kept, order.late, size)


def _with_copies(scop: Scop, order: Order) -> tuple[dict[str, Statement], dict[str, Array], tuple[str, ...]]:
    """The statements in order, the arrays, and the names of copies of sums that the last sweep reads: while it does, the next row's are made in their place."""
    early = [name for name in (*order.before, *order.host, *order.after) if name not in order.late]
    found = {name: scop.statements[name] for name in early}
    read = {r.tensor for name in order.late for r in reads_of(scop.statements[name].value)}
    arrays, copies = dict(scop.arrays), dict[str, str]()
    for s in [s for s in found.values() if s.kind == "init" and s.target.array in read]:
        array = arrays[s.target.array]
        row = replace(array, name=scop.new_array(f"{array.name}_row"), kind="local")
        arrays[row.name], copies[array.name] = row, row.name
        value = Read(array.name, s.target.subscripts, array.dtype)
        target = Access(row.name, s.target.subscripts)
        name = derived(s.name, "row")
        found[name] = replace(
            s,
            name=name,
            domain=s.domain.set_tuple_name(name),
            kind="assign",
            target=target,
            value=value,
            reduction=None,
        )

    def moved(read: Read) -> Read:
        return replace(read, tensor=copies.get(read.tensor, read.tensor))

    added = tuple(name for name in found if name not in scop.statements)
    late = {name: scop.statements[name] for name in order.late}
    return found | {n: replace(s, value=map_reads(s.value, moved)) for n, s in late.items()}, arrays, added


def _followed(s: Statement) -> isl.Set:
    """Instances of rows that another row of their block follows."""
    names = list(s.indices)
    there = [f"{i} + 1" if k == 1 else i for k, i in enumerate(names)]
    later = isl.Map(f"{{ {s.name}[{', '.join(names)}] -> {s.name}[{', '.join(there)}] }}")
    return s.domain.intersect(s.domain.apply(later.reverse()))


def _first(s: Statement) -> isl.Set:
    """All instances of the first row of a block."""
    return isl.Set(f"{{ {s.name}[{', '.join(s.indices)}] : {s.indices[1]} = 0 }}")
