"""A result that a recurrence goes on with, row by row, is made in a few rows aside and copied out.

Running sums of columns read the row before, which a store that bypasses the caches has sent to memory. So such results went through the caches, and each of their lines was read from memory before it was written: three streams
where a copy has two. In rows of its own, which take turns in two places (`window.py`), the recurrence finds the last one in L1, and the result is written only.
It is a transformation of the Scop, before scheduling: all statements that write the result write those rows, and a copy follows each of them.

Rewrite: y[n, k] = f(y[n - 1, k], x[n, k])  ->  y_rows[n, k] = f(y_rows[n - 1, k], x[n, k]); y[n, k] = y_rows[n, k]

When: the result is so large that its stores should bypass the caches (`schedule/streams.py`), nothing but what writes it reads it, in other rows at the same place, and the recurrence goes row by row (`strategy/recurrences/row_order.py`).
Rows are whole lines, since halves of lines that bypass the caches are what memory takes worst; not so short that their ends matter; and L1 holds them.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import islpy as isl

from polyml.expressions import Read, map_reads, reads_of
from polyml.new_names import derived
from polyml.records import dataclass
from polyml.schedule.scan_rows import row_scan
from polyml.schedule.streams import is_large
from polyml.scop.relations import rebuilt
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine
from polyml.target import Target

__all__ = ["RowsAside", "with_rows_aside"]

LEAST_BYTES = 1024
"""Of a row."""

IN_L1 = 0.875
"""Of L1, what a step reads and the places that it goes through in turn may take."""


@dataclass(frozen=True, slots=True)
class RowsAside:
    """scop: with such rows, whose dependences are to be computed anew. rows: the local arrays."""

    scop: Scop
    rows: tuple[str, ...]


def with_rows_aside(scop: Scop, target: Target, results: Set[str]) -> RowsAside | None:
    """The scop with rows for those results; None where there are none.

    Args:
        results: arrays that no later region reads.
    """
    made, rows = scop, list[str]()
    for array in scop.arrays.values():
        if len(array.shape) < 2 or array.memory_strides[-1] != 1 or not is_large(scop, array, target, results):
            continue
        row = array.shape[-1].constant * array.dtype.itemsize
        if row % target.line_bytes or row < LEAST_BYTES:
            continue
        writers = [s for s in scop.statements.values() if s.target.array == array.name]
        before = _rows_before(scop, array.name, writers)
        others = {r.tensor for s in writers for r in reads_of(s.value) if r.tensor != array.name}
        if before and (before + 1 + len(others)) * row <= IN_L1 * target.l1_bytes:
            local = Array(name=made.new_array(f"{array.name}_rows"), dtype=array.dtype, shape=array.shape, kind="local")
            made = _copied_out(made, array.name, local, writers)
            rows.append(local.name)
    return RowsAside(made, tuple(rows)) if rows else None


def _rows_before(scop: Scop, array: str, writers: list[Statement]) -> int:
    """How many rows back the array's readers look at most, which all write it at the same place of another row; 0 where they do something else."""
    if any(s.kind != "assign" or s.argument is not None for s in writers):
        return 0
    found = 0
    for statement in scop.statements.values():
        for read in reads_of(statement.value):
            if read.tensor != array:
                continue
            if statement.target.array != array or row_scan(statement, scop) is not None:
                return 0
            pairs = list(zip(statement.target.subscripts, read.subscripts, strict=True))
            steps = [at - to if isinstance(to, Affine) and isinstance(at, Affine) else None for to, at in pairs]
            if any(step is None or not step.is_constant for step in steps) or steps[-1] != Affine():
                return 0
            found = max([found, *(abs(step.constant) for step in steps if step is not None)])
    return found


def _copied_out(scop: Scop, array: str, local: Array, writers: list[Statement]) -> Scop:
    """The scop with the rows in the array's place, and a copy behind each instance that writes them."""
    dimensions = scop.initial.get_map_list().get_at(0).dim(isl.dim_type.out)
    times = ", ".join(f"t{d}" for d in range(dimensions))
    at, behind = (isl.UnionMap(f"{{ [{times}] -> [{times}, {last}] }}") for last in (0, 1))
    initial, statements = scop.initial.apply_range(at), dict[str, Statement]()
    for name, statement in scop.statements.items():
        if statement not in writers:
            statements[name] = statement
            continue
        value = map_reads(
            statement.value, lambda r: Read(local.name, r.subscripts, r.dtype) if r.tensor == array else r
        )
        place = Access(local.name, statement.target.subscripts)
        statements[name] = replace(statement, target=place, value=value)
        out = derived(name, "out")
        copy = replace(
            statement, name=out, domain=statement.domain.set_tuple_name(out),
            value=Read(local.name, statement.target.subscripts, local.dtype),
        )  # fmt: skip
        own = scop.initial.intersect_domain(statement.domain.to_union_set()).get_map_list().get_at(0)
        initial = initial.union(own.set_tuple_name(isl.dim_type.in_, out).to_union_map().apply_range(behind))
        statements[out] = copy
    return rebuilt(replace(scop, initial=initial), statements, {**scop.arrays, local.name: local})
