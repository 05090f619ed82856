"""Arrays that a sequential loop sweeps over again and again, with rows of whole cache lines meanwhile.

A vector of a row that starts anywhere crosses two lines, at the price of two for a load and of more for a store. Where rows are whole lines all rows of an array lie alike, and vector loops start where most of
their accesses are aligned (codegen/passes/vectors/streams.py); but two arrays of a caller need not begin at the same place of a line. The arrays themselves belong to the caller: local ones with longer rows stand in for them while the loop runs (layouts/relaid.py).

Rewrite: for t: .. A[i, j - 1] ..  ->  A_rows[i, j] = A[i, j]; for t: .. A_rows[i, j - 1] ..; A[i, j] = A_rows[i, j]

When: the loop's statements read neighbours along rows that are longer than a few vectors, of arrays that do not fit in L1 twice, whose rows are no whole lines, or of more than one; and it has enough steps for the copies, which are as much memory
traffic as a few steps without time tiles. A number of steps that is not known yet is asked for at each call (`worth`), and so is whether arrays whose rows are whole lines begin at different places of one (`apart`): where they do not, they are
best as they are (jacobi-2d of 1000 x 1000, 32 steps: 11.3 ms, with copies 14.7; where they do: 16.7 and 14.6).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf, prod

from polyml.records import dataclass
from polyml.schedule.large_enough import within
from polyml.schedule.layouts.relaid import (
    Layout,
    Relaid,
    extents_of,
    line_rows,
    redirected,
    relaid,
    trips_of,
)
from polyml.schedule.schedule import Product
from polyml.scop.scop import Access, Array, Scop
from polyml.sets.affine import Affine, affine
from polyml.target import Target

__all__ = ["LEAST_STEPS", "Padded", "few_steps", "pad_rows", "swept_arrays", "worth_of", "written_arrays"]

LEAST_STEPS = 32
"""Steps that pay for copies there and back: one saves a quarter of its time, in which the copies are a few."""

LEAST_STEPS_OF_SPACE = 8
"""The same of arrays with three dimensions or more: most neighbours are at the same place of another row, so that most accesses of a step stop crossing lines (heat-3d of 120^3, 8 steps: 19.4 -> 15.9 ms; of 70^3: 3.6 -> 2.9)."""

LEAST_STEPS_OF_ANY = 8
"""The same of rows whose length is not known, nor how many steps calls have: the other version has no time tiles either, which costs up to four times the time."""

LEAST_VECTORS = 8
"""Vectors in a row: of shorter ones the first and the last weigh more than all that cross lines."""


@dataclass(frozen=True, slots=True)
class Padded:
    """worth: what must hold at a call. apart: arrays of which two must begin at different places of a line; none: wherever they lie."""

    relaid: Relaid
    worth: tuple[Product, ...]
    apart: tuple[str, ...] = ()


def pad_rows(scop: Scop, target: Target) -> Padded | None:
    """The scop with padded arrays, whose dependences are to be computed anew; None where there is no such loop, or rows of one array are whole lines as they are."""
    worth = worth_of(scop, _least_steps(scop))
    if worth is None:
        return None
    rows = [array for array in written_arrays(scop) if len(array.shape) >= 2 and _is_long(array, target)]
    swept = [array for array in swept_arrays(scop) if array in rows]
    alike = all(_are_whole(array, target) for array in rows)
    if not swept or not _exceed(swept, 2 * target.l1_bytes) or (len(rows) == 1 and alike):
        return None
    for array in swept:
        worth += _large(array, 2 * target.l1_bytes // len(swept), target)
    padded = {array.name: _padded(scop, array, target) for array in rows}
    changed = {}
    for name, statement in scop.statements.items():
        moved = {a: Access(padded[a.array].name, a.subscripts) for a in statement.accesses if a.array in padded}
        changed[name] = redirected(statement, moved)
    layouts = [_layout(array, padded[array.name]) for array in rows]
    made = relaid(scop, replace(scop, statements=changed), layouts)
    return Padded(made, tuple(dict.fromkeys(worth)), tuple(padded) if alike else ())


def few_steps(scop: Scop) -> bool:
    """Whether arrays are of symbolic size, and the call at hand has too few steps for copies of them, but enough for time tiles without."""
    return not _are_known(scop) and _least_steps(scop) == LEAST_STEPS


def _least_steps(scop: Scop) -> int:
    """How many steps pay for copies. Where lengths are not known, and the call at hand has few steps, these get a version of their own without copies (`few_steps`)."""
    if any(len(array.shape) > 2 for array in written_arrays(scop)):
        return LEAST_STEPS_OF_SPACE
    return LEAST_STEPS if _are_known(scop) or _steps_at_hand(scop) < LEAST_STEPS else LEAST_STEPS_OF_ANY


def _are_known(scop: Scop) -> bool:
    return all(extents_of(array) is not None for array in written_arrays(scop))


def _steps_at_hand(scop: Scop) -> float:
    """The fewest steps of a loop in the call at hand; infinitely many where that is not known."""
    trips = [trips_of(statement) for statement in scop.statements.values() if statement.loop_depth]
    known = [t.evaluate(scop.examples) for t in trips if t is not None and t.variables() <= scop.examples.keys()]
    return min(known) if known and len(known) == len(trips) else inf


def worth_of(scop: Scop, least: int = LEAST_STEPS) -> tuple[Product, ...] | None:
    """What must hold for all loops around statements to have at least so many steps; None where they have fewer, or that cannot be told."""
    found = set()
    for statement in scop.statements.values():
        trips = trips_of(statement) if statement.loop_depth else None
        if trips is None or (trips.is_constant and trips.constant < least):
            return None
        found |= set() if trips.is_constant else {trips}
    return tuple(Product((trips,), least) for trips in sorted(found, key=str))


def swept_arrays(scop: Scop) -> Iterator[Array]:
    """Those of `written_arrays` that a statement reads at several places of a row."""
    for array in written_arrays(scop):
        for statement in scop.statements.values():
            if len({a.subscripts[-1] for a in statement.accesses if a.array == array.name}) > 1:
                yield array
                break


def written_arrays(scop: Scop) -> Iterator[Array]:
    """The callers' arrays that statements of sequential loops write, all of plain subscripts, with rows of neighbours in memory."""
    accesses = [a for s in scop.statements.values() for a in s.accesses]
    written = {statement.target.array for statement in scop.statements.values()}
    for array in scop.arrays.values():
        if array.kind == "local" or array.name not in written or not array.shape:
            continue
        plain = all(isinstance(e, Affine) for a in accesses if a.array == array.name for e in a.subscripts)
        if plain and array.memory_strides[-1] == 1:
            yield array


def _is_long(array: Array, target: Target) -> bool:
    """Whether a row is many vectors, as far as that is known, and a vector long enough to cross lines more often than not."""
    length = array.shape[-1].constant * array.dtype.itemsize
    long = not array.shape[-1].is_constant or length >= LEAST_VECTORS * target.vector_bytes
    return long and 2 * target.vector_bytes >= target.line_bytes


def _exceed(arrays: Sequence[Array], size: int) -> bool:
    """Whether they are more bytes than `size`, or perhaps."""
    numbers = [extents_of(array) for array in arrays]
    total = sum(a.dtype.itemsize * prod(n) for a, n in zip(arrays, numbers, strict=True) if n is not None)
    return None in numbers or total > size


def _large(array: Array, size: int, target: Target) -> tuple[Product, ...]:
    """What must hold at a call where extents are symbolic, so that it is more than `size` bytes, and rows are long."""
    row = LEAST_VECTORS * target.vector_bytes // array.dtype.itemsize
    return (*within(array.shape, size // array.dtype.itemsize + 1), *within(array.shape[-1:], row))


def _are_whole(array: Array, target: Target) -> bool:
    """Whether it is known that rows are whole lines apart already."""
    step = array.memory_strides[-2]
    return step is not None and step * array.dtype.itemsize % target.line_bytes == 0


def _padded(scop: Scop, array: Array, target: Target) -> Array:
    *rows, last = array.shape
    length = line_rows(last, array.dtype.itemsize, target.line_bytes)
    return Array(name=scop.new_array(f"{array.name}_rows"), dtype=array.dtype, shape=(*rows, length), kind="local")


def _layout(array: Array, padded: Array) -> Layout:
    indices = tuple(f"e{d}" for d in range(len(array.shape)))
    same = tuple(affine(index) for index in indices)
    return Layout(array, padded, indices, same, same)
