"""Several steps of a loop that sweeps over a whole matrix in one sweep, where each step needs but one row of the others': the row of its own number.

In `A[i, j] = f(A[i, j], A[i, k], A[k, j])` over all i and j (Floyd and Warshall's shortest paths), step k takes the row k as step k - 1 has left it, and of the
others nothing. So a block of steps may run on the rows of the same numbers first, which keeps every step's row aside; then on each other row in turn, all
steps of the block while the row is in L1. The local array that holds the step's row gets one for each step (scop/expansion.py) and lives as long as the block.

Where each step takes one column as well, that of its number, the same holds along a row: the columns of the steps' numbers go first, which keeps every step's column aside. What is left is the
statement alone, a contraction of both, which runs in register tiles.

A tile takes a vector or two of each step's row, a row of memory away from those of the step before, which no prefetcher of the hardware follows. Where a vector is less than a line, that is a line of L1 for each
vector or two, and a page; so the steps' rows lie in panels as wide as the tile there, all steps one after the other, and the tile has one vector and as many rows as take its elements in turn. What is read in order of memory comes from the last cache
just as well, so blocks have as many steps as make up for a sweep over memory.

Rewrite: band[k] (c) -> band[k_tile] (sequence(rows in the steps' tile: band[k] (c), other rows: band[i_tile] (sequence(columns in the tile: band[k] (c), others: jam i (vector j (band[k]))))))

When: an in-place statement of at least three indices sweeps over more than stays in cache, and a local array carries a row of its target whose number is the step's. What comes out
is proved like any other schedule.

Source: the blocked order of Venkataraman, Sahni and Mukhopadhyaya, "A blocked all-pairs shortest-paths algorithm" (J. Experimental Algorithmics, 2003), but for steps that are taken in their order everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import islpy as isl

from polyml.expressions import plain_indices, reads_of, variables_in
from polyml.records import dataclass
from polyml.schedule.cost import StatementModel
from polyml.schedule.pivots.plan import widest_tile
from polyml.schedule.register_tiles import RegisterTile
from polyml.schedule.schedule import Product, Schedule
from polyml.schedule.statement_models import UNKNOWN_EXTENT
from polyml.scop.expansion import expanded_along_loops, with_a_place_ahead
from polyml.scop.scop import Array, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.shapes import is_known
from polyml.sets.spaces import parameters_text
from polyml.target import Target

__all__ = ["RowBlocks", "in_panels", "plan_row_blocks"]

LEAST_STEPS = 4
"""Of a block: fewer do not save a sweep over memory."""

ANY_STEPS = 32
"""Of a block, at most, where the number of rows is symbolic: few enough for matrices that just leave the cache."""

PANEL_STEPS = 32
"""Of a block whose rows lie in panels, at most: their operations take longer than memory takes for what they change."""

PANELS_SHARE = 8
"""The part of the last cache that panels take, at most."""

LEAST_BLOCKS = 8
"""Blocks, at least: what runs ahead on the steps' own rows is no more than a part of the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlocks:
    """scop: with a row for each step. steps: per statement the index of the loop over steps; rows: per statement the index of its row, that of the steps where it takes
    the step's row. size: steps of a block; height: rows that take turns. kept: the local arrays of steps' rows. columns: the same as rows along the lanes, and tile: of the registers, where the
    core stands alone beyond the steps' columns. panels: of `kept`, those that lie in panels of `width` elements. worth: what must hold at a call for it to pay, of extents that are symbolic."""

    scop: Scop
    core: str
    steps: Mapping[str, str]
    rows: Mapping[str, str]
    size: int
    height: int
    kept: tuple[str, ...]
    columns: Mapping[str, str] | None = None
    tile: RegisterTile | None = None
    panels: tuple[str, ...] = ()
    width: int = 0
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
        lanes = 1 - dimension if len(numbers) == 2 and 1 in strides else None
        columns, crossed = (None, ()) if lanes is None else _columns(scop, core, step, rows, lanes)
        most = models[core.name].extents[step] // LEAST_BLOCKS
        size = _power(min(target.l2_bytes // 2 // row_bytes, most, ANY_STEPS if symbolic else most))
        tile, panels, width = None if columns is None else _even(widest_tile(target)), tuple[str, ...](), 0
        if columns is not None and target.vector_bytes < target.line_bytes:
            steps_of_panels = _power(min(target.l3_bytes // PANELS_SHARE // row_bytes, most, PANEL_STEPS))
            tall, lanes_of_panels = _tall(target), target.lanes(array.dtype.itemsize)
            found = _along(scop, kept, columns)
            if found and steps_of_panels >= max(tall.rows, lanes_of_panels):
                size, tile, panels, width = steps_of_panels, tall, found, lanes_of_panels
        both = (*kept, *crossed)
        made = expanded_along_loops(scop, both, None if symbolic else prod(numbers) * array.dtype.itemsize)
        if size >= LEAST_STEPS and all(len(made.arrays[k].shape) > len(scop.arrays[k].shape) for k in both):
            height = max(1, target.l1_bytes // 2 // row_bytes)
            return RowBlocks(
                scop=with_a_place_ahead(made, panels), core=core.name, steps=dict.fromkeys(scop.statements, step), rows=rows, size=size, kept=both,
                height=_power(height) if tile is None else tile.rows, columns=columns, tile=tile, panels=panels, width=width,
                worth=_worth(array, LEAST_BLOCKS * size, target) if symbolic else (),
            )  # fmt: skip
    return None


def in_panels(made: Schedule, plan: RowBlocks) -> Schedule:
    """The schedule with those of the steps' rows in panels that the plan says."""
    scop, width = made.scop, plan.width
    storage = dict(made.storage)
    for array in plan.panels:
        offsets = {}
        for statement in (s for s in scop.statements.values() if array in s.touched):
            _, at, lane = _places(statement, array)[0]
            k, text = plan.steps[statement.name], f"floor(({lane.isl_text()})/{width})"
            first = f"{at.isl_text()} - ({k} mod {plan.size})"
            head = f"{parameters_text(scop.sizes)}{{ {statement.name}[{', '.join(statement.indices)}]"
            offsets[statement.name] = isl.MultiAff(f"{head} -> [(-{text}), ({first}), ({width}*{text})] }}")
        count = (scop.arrays[array].shape[-1] + (width - 1)) // width
        shape = (count.constant if count.is_constant else count, plan.size, width)
        storage[array] = replace(storage[array], shape=shape, offsets=offsets)
    return replace(made, storage=storage)


def _along(scop: Scop, kept: Sequence[str], columns: Mapping[str, str]) -> tuple[str, ...]:
    """The steps' rows whose elements are found by the index of the column in every statement."""
    found = []
    for name in kept:
        users = [statement for statement in scop.statements.values() if name in statement.touched]
        if all({(affine(columns[s.name]),)} == set(_places(s, name)) for s in users):
            found.append(name)
    return tuple(found)


def _places(statement: Statement, array: str) -> list[tuple[Affine, ...]]:
    """The subscripts of the array in the statement."""
    accesses = [statement.target.subscripts] if statement.target.array == array else []
    accesses += [read.subscripts for read in reads_of(statement.value) if read.tensor == array]
    return [tuple(s for s in subscripts if isinstance(s, Affine)) for subscripts in accesses]


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
    return RegisterTile(_power(tile.rows), _power(tile.vectors), tile.cost)


def _tall(target: Target) -> RegisterTile:
    """One vector of as many rows as leave registers for the panel's vector, an element of the row, their sum and what that takes: a power of two."""
    return RegisterTile(_power(target.vector_registers - 4), 1, 1.0)


def _power(most: int) -> int:
    """The largest power of two up to a number; 0 where there is none."""
    return 1 << (most.bit_length() - 1) if most > 0 else 0


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
