"""Sums along the rows of a matrix and sums down its columns that take each element from a register together.

In blocks of rows (sweeps/row_sums.py) the second reader of a block finds it in L2, and memory waits meanwhile. Where none of a block's sums needs another one of them, some rows go side by
side instead: a vector of each row is loaded once, for the row's own sum, which is in a register, and for the columns' sums, which come from L1 once for all these rows.

Rewrite: for i in b, j: q[i] += A[i, j] * p[j];  for j, i in b: s[j] += r[i] * A[i, j]
    ->  for i in b, 8 at a time: for j: for these i: q[i] += A[i, j] * p[j];  for these i: s[j] += r[i] * A[i, j]

What changes the matrix element by element goes with them: then one of the two sums is enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from polyml.expressions import reads_of
from polyml.records import dataclass
from polyml.schedule.ilp.driver import Around
from polyml.schedule.matching import Matcher
from polyml.schedule.schedule import Schedule
from polyml.schedule.transforms import insert_mark
from polyml.schedule.transforms.loops import loops_around
from polyml.schedule.transforms.nest import with_tree
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.target import Target

__all__ = ["Together", "rows_side_by_side", "sums_together"]


@dataclass(frozen=True, slots=True)
class Together:
    """The statements, with what each calls the rows and the columns.

    late: those that go through a block while the others go through the next one (sweeps/rows_late.py). behind: what needs something of theirs, of the same row, and runs when the block's
    rows are through.
    """

    rows: Mapping[str, str]
    columns: Mapping[str, str]
    late: frozenset[str] = frozenset()
    behind: frozenset[str] = frozenset()

    @property
    def loops(self) -> Around:
        """The loops around them, within a block."""
        columns = Around(self.columns, parallel=False, inside=(tuple(self.columns),))
        return Around(self.rows, parallel=False, inside=(columns,))


def sums_together(
    scop: Scop, matrix: str, rows: Mapping[str, str], along: int, ordered: Sequence[str], matcher: Matcher
) -> Together | None:
    """The sums over rows and columns of the matrix and what changes it, each with its index along the columns, when they may take them element by element. Those that need others of the
    same row have to wait.

    Args:
        rows: per statement that follows the rows its index along them. along: the dimension of the matrix that rows follow.
        ordered: those statements, as they run for a block.
    """
    columns: dict[str, str] = {}
    for name in ordered:
        s = scop.statements[name]
        if len(s.indices) == 2 and (s.kind == "update" or s.target.array == matrix):
            columns[name] = next(index for index in s.indices if index != rows[name])
    taken = [scop.statements[name] for name in columns]
    sums = [s for s in taken if s.target.array != matrix]
    plain = len(scop.arrays[matrix].shape) == 2 and all(scop.arrays[s.target.array].dtype.is_float for s in sums)
    if not plain or not all(_is_plain(s, matrix, rows[s.name], columns[s.name], along) for s in taken):
        return None
    over_columns = sum(_sums_over(s, columns[s.name]) for s in sums)
    ranges = {matcher.values(name, scop.statements[name].indices.index(index)) for name, index in columns.items()}
    if over_columns == len(sums) or (over_columns == 0 and len(sums) == len(taken)) or len(ranges) > 1:
        return None
    changes = {s.name for s in taken if s.target.array == matrix}
    pairs = [(source, sink) for source, sink in matcher.edges if source != sink and {source, sink} <= rows.keys()]
    edges = [(source, sink) for source, sink in pairs if not {source, sink} & changes]
    by_row = {s.name for s in sums if _sums_over(s, columns[s.name])}
    found = _reached(by_row, edges)
    late = frozenset(found & columns.keys() - by_row)
    # Sums down the columns are nobody's business before all rows are through.
    if any(
        (sink in by_row and source in found) or source in columns.keys() - changes - by_row for source, sink in edges
    ):
        return None
    if late and sums != taken:
        return None
    # What else there is runs for a whole block: ahead, unless it needs something of these.
    behind = frozenset(_reached(by_row | changes, pairs) - columns.keys())
    if not late and any(source in behind and sink in columns for source, sink in pairs):
        return None
    return Together(rows={name: rows[name] for name in columns}, columns=columns, late=late, behind=behind)


def _reached(names: Set[str], edges: Sequence[tuple[str, str]]) -> Set[str]:
    """These and whatever needs something of them."""
    found = names
    while new := {sink for source, sink in edges if source in found} - found:
        found = found | new
    return found


def _is_plain(s: Statement, matrix: str, row: str, column: str, along: int) -> bool:
    """Whether it is a real sum over one of the two that reads the matrix by rows, or changes each of the matrix's elements by itself."""
    wanted = [affine(column), affine(column)]
    wanted[along] = affine(row)
    reads = [list(read.subscripts) for read in reads_of(s.value) if read.tensor == matrix]
    if s.target.array == matrix:
        return (
            s.kind == "assign" and s.domain.is_box() and all(r == wanted for r in [*reads, list(s.target.subscripts)])
        )
    over = _sums_over(s, row) != _sums_over(s, column)
    return over and s.reduction == "sum" and s.domain.is_box() and reads == [wanted]


def _sums_over(s: Statement, index: str) -> bool:
    return not any(isinstance(t, Affine) and index in t.variables() for t in s.target.subscripts)


def rows_side_by_side(schedule: Schedule, together: Together, target: Target) -> Schedule:
    """The schedule with several rows at once where lanes run along the columns inside them; else as it is."""
    name = next(iter(together.rows))
    rows, columns = loops_around(schedule, name)[-2:]
    lanes = columns.mark is not None and columns.mark.startswith("vector")
    if not lanes or rows.mark is not None or rows.row != affine(together.rows[name]):
        return schedule
    # Each row has registers for two vectors of its sum and one for its factor; the others get by with the rest.
    count = target.vector_registers // 4
    if count < 2:
        return schedule
    schedule = with_tree(schedule, insert_mark(columns.top.delete(), "vector:2"))
    return with_tree(schedule, insert_mark(loops_around(schedule, name)[-2].node, f"neighbours:{count}"))
