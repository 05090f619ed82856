"""Strips of a matrix that many register tiles go down, copied to a panel ahead of them.

Blocks of a recurrence (foldings) multiply rows with columns of what they have finished themselves, which nobody could lay out before. A strip that is a few vectors wide and many rows deep has each of its rows
a row of memory away from the last one, and where the array begins anywhere, half of its vectors cross lines (vectors as long as lines: all, or none). In a panel they lie one after the other.

Rewrite:
    for (i ..) vector for (j = j0; j < j1; ..) for (k = k0; k < k1; k++) t[i, j] += x[i, k] * y[k + 1, j]
    -> if (there are tiles) for (k = k0; k < k1; k++) vector for (j = j0; j < j1; ..) panel[k - k0, j - j0] = y[k + 1, j]
       for (i ..) vector for (j ..) for (k ..) t[i, j] += x[i, k] * panel[k - k0, j - j0]

When: rows of the matrix are in other pages, all tiles read the same strip, and they are many enough to pay for the panel, which takes no more than half of L1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyml.codegen.loops import Allocate, Assign, For, Function, If, Node, Place, Variable
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import expressions, map_places, variables_by_name, walk_nodes
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Expr, IndexValue, Read, reads_of
from polyml.new_names import fresh
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["strips_in_panels"]

LEAST_ROWS = 32
"""Of all tiles that go down a strip, at least: each row takes an element once, and the panel's costs as much as a few rows do."""

LEAST_DEPTH = 32
"""Rows of a strip."""

PAGE = 4096
"""Bytes between two rows from which on no prefetcher of the hardware follows."""


def strips_in_panels(function: Function, *, l1_bytes: int) -> Function:
    """The function with such panels."""
    return map_loops(function, _Panels(variables_by_name(function), l1_bytes, names_in(function)).panel)


@dataclass(frozen=True, slots=True)
class _Sums:
    """A tile's loop along the lanes, and the one over the terms of its sums."""

    lanes: For
    terms: For

    def reads(self, array: str) -> list[Read]:
        found = (r for node in self.terms.body for e in expressions(node) for r in reads_of(e))
        return [read for read in found if read.tensor == array]


@dataclass(frozen=True, slots=True)
class _Strip:
    """What all tiles read of an array: rows and columns from where to where. shift: what stands beside the loops' variables in its subscripts. extents: the most rows and columns. has_columns: whether there are some for certain."""

    array: Variable
    rows: tuple[Affine, Affine]
    columns: tuple[Affine, Affine]
    shift: tuple[int, int]
    extents: tuple[int, int]
    has_columns: bool


@dataclass(frozen=True, slots=True)
class _Panels:
    variables: Mapping[str, Variable]
    l1_bytes: int
    taken: set[str]

    def panel(self, tiles: For, ranges: Ranges, _: For | None) -> Node | None:
        """Tiles with a panel of what they read, if it is worth one; None for any other loop."""
        trips = ranges.highest(tiles.upper - tiles.lower)
        sums = _sums_of(tiles) if trips is not None and trips >= LEAST_ROWS else ()
        if not sums:
            return None
        written = {step.target.variable for step in walk_nodes(tiles.body) if isinstance(step, Assign)}
        arrays = dict.fromkeys(r.tensor for s in sums[0].terms.body for e in expressions(s) for r in reads_of(e))
        strips = (self.strip(array, tiles, sums, ranges) for array in arrays if array not in written)
        found = next((strip for strip in strips if strip is not None), None)
        return tiles if found is None else self.with_panel(found, tiles, sums)

    def strip(self, array: str, tiles: For, sums: tuple[_Sums, ...], ranges: Ranges) -> _Strip | None:
        """What the tiles read of the array, where that is the same for all, and worth a panel."""
        variable = self.variables[array]
        if len(variable.shape) != 2 or variable.lanes > 1 or variable.memory_strides[-1] != 1:
            return None
        if (variable.memory_strides[0] or PAGE) * variable.dtype.itemsize < PAGE:
            return None
        shifts = [[shift for read in part.reads(array) if (shift := _shift(read, part)) is not None] for part in sums]
        rows = {(part.terms.lower, part.terms.upper) for part in sums}
        if not all(shifts) or len({min(each) for each in shifts}) != 1 or len(rows) != 1:
            return None
        first = min(shifts[0])
        for part, each in zip(sums, shifts, strict=True):
            if any(row != first[0] or column >= first[1] + part.lanes.step for row, column in each):
                return None
        deep, wide = rows.pop(), (sums[0].lanes.lower, sums[-1].lanes.upper)
        depth, width = (ranges.highest(last - first) for first, last in (deep, wide))
        if depth is None or width is None or depth < LEAST_DEPTH:
            return None
        if tiles.variable in deep[0].variables() | deep[1].variables() | wide[0].variables() | wide[1].variables():
            return None
        width = -(-width // sums[0].lanes.width) * sums[0].lanes.width
        if depth * width * variable.dtype.itemsize > self.l1_bytes // 2:
            return None
        return _Strip(variable, deep, wide, first, (depth, width), ranges.is_positive(wide[1] - wide[0]))

    def with_panel(self, strip: _Strip, tiles: For, sums: tuple[_Sums, ...]) -> Node:
        """The loop with the panel ahead of it, and reading that."""
        array, (k0, k1), (j0, j1), width = strip.array, strip.rows, strip.columns, sums[0].lanes.width
        panel = fresh(f"{array.name}_panel", self.taken)
        row, column = (fresh(f"{panel}_{name}", self.taken) for name in ("row", "column"))
        shape = tuple(affine(extent) for extent in strip.extents)
        variable = Variable(name=panel, dtype=array.dtype, shape=shape, scope="local", alignment=64)
        down, along = strip.shift
        value = Read(array.name, (affine(row) + down, affine(column) + along), array.dtype)
        copy = Assign(target=Place(panel, (affine(row) - k0, affine(column) - j0)), value=value)
        whole = j0 + (j1 - j0) // width * width
        strips = [
            For(variable=column, lower=lower, upper=upper, kind="vector", step=width, width=width, masked=masked, body=(copy,))
            for lower, upper, masked in ((j0, whole, False), (whole, j1, True))
        ]  # fmt: skip
        copies = For(variable=row, lower=k0, upper=k1, body=tuple(strips))
        some = _is_below(tiles.lower, tiles.upper)
        if not strip.has_columns:  # their end may lie anywhere before the beginning
            some = Apply("and", (some, _is_below(j0, j1)), boolean)

        def moved(part: _Sums) -> For:
            def read(read: Read) -> Expr:
                shift = _shift(read, part) if read.tensor == array.name else None
                if shift is None:
                    return read
                place = affine(part.terms.variable) - k0, affine(part.lanes.variable) + (shift[1] - along) - j0
                return Read(panel, place, read.dtype)

            return replace(part.lanes, body=map_places((part.terms,), place=lambda place: place, read=read))

        packed = replace(tiles, body=tuple(map(moved, sums)))
        return Allocate(variable=variable, body=(If(condition=some, then=(copies,)), packed))


def _is_below(value: Affine, limit: Affine) -> Expr:
    return Apply("lt", (IndexValue(value, i64), IndexValue(limit, i64)), boolean)


def _sums_of(tiles: For) -> tuple[_Sums, ...]:
    """The loops in tiles that are nothing but sums over a range of terms, with lanes side by side; none where there is anything else."""
    found: list[_Sums] = []
    for lanes in tiles.body:
        if not isinstance(lanes, For) or lanes.kind != "vector" or len(lanes.body) != 1:
            return ()
        (terms,) = lanes.body
        if not isinstance(terms, For) or terms.kind != "sequential" or terms.step != 1:
            return ()
        if not all(isinstance(node, Assign) for node in terms.body):
            return ()
        if found and found[-1].lanes.upper != lanes.lower:
            return ()
        found.append(_Sums(lanes, terms))
    return tuple(found) if tiles.kind == "sequential" else ()


def _shift(read: Read, part: _Sums) -> tuple[int, int] | None:
    """What stands beside the terms' variable in the first subscript, and beside the lanes' in the second; None where anything else does."""
    row, column = read.subscripts
    if not isinstance(row, Affine) or not isinstance(column, Affine):
        return None
    down, along = row - affine(part.terms.variable), column - affine(part.lanes.variable)
    return (down.constant, along.constant) if down.is_constant and along.is_constant else None
