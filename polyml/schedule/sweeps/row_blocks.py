"""Several steps of a loop that sweeps over a whole matrix in one sweep, where each step needs but one row of the others': the row of its own number.

In `A[i, j] = f(A[i, j], A[i, k], A[k, j])` over all i and j (Floyd and Warshall's shortest paths), step k takes the row k as step k - 1 has left it, and of the
others nothing. So a block of steps may run on the rows of the same numbers first, which keeps every step's row aside; then on each other row in turn, all
steps of the block while the row is in L1. The local array that holds the step's row gets one for each step (scop/expansion.py) and lives as long as the block.

Where each step takes one column as well, that of its number, the same holds along a row: the columns of the steps' numbers go first, which keeps every step's column aside. What is left is the
statement alone, a contraction of both, which runs in register tiles.

Rewrite: band[k] (c) -> band[k_tile] (sequence(rows in the steps' tile: band[k] (c), other rows: band[i_tile] (sequence(columns in the tile: band[k] (c), others: jam i (vector j (band[k]))))))

When: an in-place statement of at least three indices sweeps over more than stays in cache, and a local array carries a row of its target whose number is the step's. What comes out
is proved like any other schedule.

Source: the blocked order of Venkataraman, Sahni and Mukhopadhyaya, "A blocked all-pairs shortest-paths algorithm" (J. Experimental Algorithmics, 2003), but for steps that are taken in their order everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from polyml.expressions import plain_indices, reads_of, variables_in
from polyml.records import dataclass
from polyml.schedule.cost import StatementModel
from polyml.schedule.pivots.plan import widest_tile
from polyml.schedule.register_tiles import RegisterTile
from polyml.schedule.schedule import Product
from polyml.schedule.statement_models import UNKNOWN_EXTENT
from polyml.scop.expansion import expanded_along_loops
from polyml.scop.scop import Array, Scop, Statement
from polyml.sets.affine import Affine
from polyml.sets.shapes import is_known
from polyml.target import Target

__all__ = ["RowBlocks", "plan_row_blocks"]

LEAST_STEPS = 4
"""Of a block: fewer do not save a sweep over memory."""

ANY_STEPS = 32
"""Of a block, at most, where the number of rows is symbolic: few enough for matrices that just leave the cache."""

LEAST_BLOCKS = 8
"""Blocks, at least: what runs ahead on the steps' own rows is no more than a part of the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlocks:
    """scop: with a row for each step. steps: per statement the index of the loop over steps; rows: per statement the index of its row, that of the steps where it takes
    the step's row. size: steps of a block; height: rows that take turns. kept: the local arrays of steps' rows. columns: the same as rows along the lanes, and tile: of the registers, where the
    core stands alone beyond the steps' columns. worth: what must hold at a call for it to pay, of extents that are symbolic."""

    scop: Scop
    core: str
    steps: Mapping[str, str]
    rows: Mapping[str, str]
    size: int
    height: int
    kept: tuple[str, ...]
    columns: Mapping[str, str] | None = None
    tile: RegisterTile | None = None
    worth: tuple[Product, ...] = ()

    def __str__(self) -> str:
        return f"{self.size} steps of {self.steps[self.core]} in one sweep over {self.rows[self.core]}, {self.height} rows at a time"


def plan_row_blocks(scop: Scop, models: Mapping[str, StatementModel], target: Target) -> RowBlocks | None:
    """The plan; None where no loop is of that form, or all stays in cache anyway."""
    core = scop.statements[max(scop.statements, key=lambda name: models[name].work)]
    steps = {s.indices[0] for s in scop.statements.values() if s.loop_depth}
    if len(steps) != 1 or not all(s.loop_depth for s in scop.statements.values()) or len(core.indices) < 3:
        return None
    (step,) = steps
    array = scop.arrays[core.target.array]
    if array.kind == "local" or step in _names(core) or len(array.shape) < 2:
        return None
    numbers = [extent.constant if extent.is_constant else UNKNOWN_EXTENT for extent in array.shape]
    symbolic = not is_known(array.shape)
    if prod(numbers) * array.dtype.itemsize <= target.l2_bytes // 2:
        return None
    strides = array.memory_strides
    for dimension in range(len(numbers)):
        if strides[dimension] == 1:  # the lanes'
            continue
        rows = _rows(scop, array.name, dimension)
        kept = () if rows is None else _kept(scop, core, step, rows)
        if rows is None or not kept:
            continue
        row_bytes = prod(n for d, n in enumerate(numbers) if d != dimension) * array.dtype.itemsize
        room = min(target.l2_bytes // 2 // row_bytes, models[core.name].extents[step] // LEAST_BLOCKS)
        room = min(room, ANY_STEPS) if symbolic else room
        size = 1 << (room.bit_length() - 1) if room > 0 else 0
        lanes = 1 - dimension if len(numbers) == 2 and 1 in strides else None
        columns, crossed = (None, ()) if lanes is None else _columns(scop, core, step, rows, lanes)
        both = (*kept, *crossed)
        made = expanded_along_loops(scop, both, None if symbolic else prod(numbers) * array.dtype.itemsize)
        if size >= LEAST_STEPS and all(len(made.arrays[k].shape) > len(scop.arrays[k].shape) for k in both):
            tile = None if columns is None else _even(widest_tile(target))
            height = max(1, target.l1_bytes // 2 // row_bytes)
            return RowBlocks(
                scop=made, core=core.name, steps=dict.fromkeys(scop.statements, step), rows=rows, size=size, kept=both,
                height=1 << (height.bit_length() - 1) if tile is None else tile.rows, columns=columns, tile=tile,
                worth=_worth(array, LEAST_BLOCKS * size, target) if symbolic else (),
            )  # fmt: skip
    return None


def _worth(array: Array, least: int, target: Target) -> tuple[Product, ...]:
    """That no cache holds the array, and each of its extents is so large."""
    long = (Product((extent,), least) for extent in array.shape if not extent.is_constant)
    return tuple(dict.fromkeys((Product(array.shape, target.l2_bytes // 2 // array.dtype.itemsize + 1), *long)))


def _columns(
    scop: Scop, core: Statement, step: str, rows: Mapping[str, str], dimension: int
) -> tuple[dict[str, str] | None, tuple[str, ...]]:
    """Per statement the index of its column, which stands in the dimension, and the local arrays of steps' columns; None where beyond those there is not the core alone."""
    columns = _rows(scop, core.target.array, dimension)
    if columns is None:
        return None, ()
    beyond = [name for name in scop.statements if step not in (rows[name], columns[name])]
    crossed = _kept(scop, core, step, columns)
    return (columns, crossed) if beyond == [core.name] and crossed else (None, ())


def _even(tile: RegisterTile) -> RegisterTile:
    """The tile with powers of two as sides, which blocks of steps are multiples of: no tile lies across the edge of one."""
    rows, vectors = (1 << (side.bit_length() - 1) for side in (tile.rows, tile.vectors))
    return RegisterTile(rows, vectors, tile.cost)


def _names(statement: Statement) -> list[str | None]:
    return plain_indices(statement.target.subscripts)


def _rows(scop: Scop, array: str, dimension: int) -> dict[str, str] | None:
    """Per statement the index that is the array's subscript in the dimension, of what it writes, else of what it reads; None when one has none."""
    found: dict[str, str] = {}
    for name, statement in scop.statements.items():
        if statement.target.array == array:
            subscripts = {statement.target.subscripts[dimension]}
        else:
            subscripts = {r.subscripts[dimension] for r in reads_of(statement.value) if r.tensor == array}
        row = next(iter(subscripts), None)
        if len(subscripts) != 1 or not isinstance(row, Affine) or row.name not in statement.indices:
            return None
        found[name] = row.name
    return found


def _kept(scop: Scop, core: Statement, step: str, rows: Mapping[str, str]) -> tuple[str, ...]:
    """Local arrays that the core reads, one set for all its rows, made from the row of the step's number."""
    read = {r.tensor: r for r in reads_of(core.value) if scop.arrays[r.tensor].kind == "local"}
    found = []
    for name, statement in scop.statements.items():
        array = statement.target.array
        if array in read and rows[name] == step and step not in _names(statement):
            used = variables_in(read[array].subscripts)
            if rows[core.name] not in used:
                found.append(array)
    return tuple(found) if rows[core.name] != step else ()
