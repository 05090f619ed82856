"""Arrays that a sequential loop sweeps over again and again, with rows of whole cache lines meanwhile.

A vector of a row that starts anywhere crosses two lines, at the price of two for a load and of more for a store. Where rows are whole lines all rows of an array lie alike, and vector loops start where most of
their accesses are aligned (codegen/streams.py); but two arrays of a caller need not begin at the same place of a line. The arrays themselves belong to the caller: local ones with longer rows stand in for them while the loop runs (relaid.py).

Rewrite: for t: .. A[i, j - 1] ..  ->  A_rows[i, j] = A[i, j]; for t: .. A_rows[i, j - 1] ..; A[i, j] = A_rows[i, j]

When: the loop's statements read neighbours along rows that are longer than a few vectors, of arrays that do not fit in L1 twice, whose rows are no whole lines, or of more than one; and it has enough steps for the copies, which are as much memory
traffic as a few steps without time tiles. A number of steps that is not known yet is asked for at each call (`worth`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from polyml.records import dataclass
from polyml.schedule.cost import memory_strides
from polyml.schedule.relaid import Layout, Relaid, accesses_of, extents_of, line_rows, redirected, relaid, trips_of
from polyml.schedule.schedule import Product
from polyml.scop.scop import Access, Array, Scop
from polyml.sets.affine import Affine, affine
from polyml.target import Target

__all__ = ["LEAST_STEPS", "Padded", "pad_rows", "swept_arrays", "worth_of", "written_arrays"]

LEAST_STEPS = 32
"""Steps that pay for copies there and back: one saves a quarter of its time, in which the copies are a few."""

LEAST_STEPS_OF_ANY = 8
"""The same of rows whose length is not known: it is not known either that they lie at lines as they are, which costs up to twice the time."""

LEAST_VECTORS = 8
"""Vectors in a row: of shorter ones the first and the last weigh more than all that cross lines."""


@dataclass(frozen=True, slots=True)
class Padded:
    """worth: what must hold at a call."""

    relaid: Relaid
    worth: tuple[Product, ...]


def pad_rows(scop: Scop, target: Target) -> Padded | None:
    """The scop with padded arrays, whose dependences are to be computed anew; None where there is no such loop, or rows of one array are whole lines as they are."""
    least = LEAST_STEPS if all(extents_of(array) is not None for array in written_arrays(scop)) else LEAST_STEPS_OF_ANY
    worth = worth_of(scop, least)
    if worth is None:
        return None
    rows = [array for array in written_arrays(scop) if len(array.shape) >= 2 and _is_long(array, target)]
    swept = [array for array in swept_arrays(scop) if array in rows]
    if not swept or not _exceed(swept, 2 * target.l1_bytes) or (len(rows) == 1 and _are_whole(rows[0], target)):
        return None
    for array in swept:
        worth += _large(array, 2 * target.l1_bytes // len(swept), target)
    padded = {array.name: _padded(array, target) for array in rows}
    changed = {}
    for name, statement in scop.statements.items():
        moved = {a: Access(padded[a.array].name, a.subscripts) for a in accesses_of(statement) if a.array in padded}
        changed[name] = redirected(statement, moved)
    layouts = [_layout(array, padded[array.name]) for array in rows]
    return Padded(relaid(scop, replace(scop, statements=changed), layouts), tuple(dict.fromkeys(worth)))


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
            if len({a.subscripts[-1] for a in accesses_of(statement) if a.array == array.name}) > 1:
                yield array
                break


def written_arrays(scop: Scop) -> Iterator[Array]:
    """The callers' arrays that statements of sequential loops write, all of plain subscripts, with rows of neighbours in memory."""
    accesses = [a for s in scop.statements.values() for a in accesses_of(s)]
    written = {statement.target.array for statement in scop.statements.values()}
    for array in scop.arrays.values():
        if array.kind == "local" or array.name not in written or not array.shape:
            continue
        plain = all(isinstance(e, Affine) for a in accesses if a.array == array.name for e in a.subscripts)
        if plain and memory_strides(array)[-1] == 1:
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
    symbolic = tuple(extent for extent in array.shape if not extent.is_constant)
    numbers = prod(extent.constant for extent in array.shape if extent.is_constant) * array.dtype.itemsize
    found = (Product(symbolic, size // max(numbers, 1) + 1),) if symbolic else ()
    row = LEAST_VECTORS * target.vector_bytes // array.dtype.itemsize
    return found if array.shape[-1].is_constant else (*found, Product(array.shape[-1:], row))


def _are_whole(array: Array, target: Target) -> bool:
    """Whether it is known that rows are whole lines apart already."""
    step = memory_strides(array)[-2]
    return step is not None and step * array.dtype.itemsize % target.line_bytes == 0


def _padded(array: Array, target: Target) -> Array:
    *rows, last = array.shape
    length = line_rows(last, array.dtype.itemsize, target.line_bytes)
    return Array(name=f"{array.name}_rows", dtype=array.dtype, shape=(*rows, length), kind="local")


def _layout(array: Array, padded: Array) -> Layout:
    indices = tuple(f"e{d}" for d in range(len(array.shape)))
    same = tuple(affine(index) for index in indices)
    return Layout(array, padded, indices, same, same)
