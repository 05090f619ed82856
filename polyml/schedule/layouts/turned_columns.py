"""Matrices whose columns a sequential loop walks down again and again, turned: rows of local arrays stand for their columns meanwhile.

Orthogonalization by columns sums down columns and takes things off them. In a matrix whose rows are contiguous, lanes run along rows, and few columns together are a strip of memory, one
line (and one page) for each element down. With the columns contiguous a step's columns are a few vectors each, which stay in L1. It is a transformation of the Scop, before scheduling: the
matrices are turned ahead of the loop, as far as they are read before they are written, and turned back behind it, as far as they are written.

Rewrite: for k: .. A[i, k] .. A[i, j] ..  ->  A_turned[j, i] = A[i, j]; for k: .. A_turned[k, i] .. A_turned[j, i] ..; A[i, j] = A_turned[j, i]

When: the heaviest of the loop's statements changes the matrix in place, another sums down its columns, all statements walk down the columns of all matrices along one index each, so that every access becomes contiguous or a single
element, and the matrix does not fit in L1. One that fits in L2 has no need of blocks of steps: there what counts is that a column is as few lines as it has elements for, since each line is also
what threads take from each other when one of them writes to a column.

Source: data layout transformation, O'Boyle and Knijnenburg, "Nonsingular data transformations: definition, validity, and applications" (IJPP 1999).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from polyml.expressions import plain_index, plain_indices, reads_of
from polyml.records import dataclass
from polyml.schedule.large_enough import bytes_at_hand, within
from polyml.schedule.layouts.relaid import Layout, Relaid, extents_of, line_rows, redirected, relaid
from polyml.schedule.schedule import Product
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.target import Target

__all__ = ["Turned", "turn_columns"]


@dataclass(frozen=True, slots=True)
class Turned:
    """far: whether the matrix is larger than L2, or may be. worth: what must hold at a call. sizes: what symbolic ones are taken for, the numbers of the call at hand where its matrix is as large; otherwise none."""

    relaid: Relaid
    far: bool
    worth: tuple[Product, ...]
    sizes: Mapping[str, int]


def turn_columns(scop: Scop, target: Target) -> Turned | None:
    """The scop with columns as rows, whose dependences are to be computed anew; None where there is no such loop."""
    matrix = _swept_matrix(scop, target)
    if matrix is None or not _sums_down(scop, matrix):
        return None
    arrays = _arrays_to_turn(scop, matrix, target)
    if not arrays:
        return None
    changed = {name: _on_turned(statement, arrays) for name, statement in scop.statements.items()}
    layouts = [_layout(scop.arrays[name], turned) for name, turned in arrays.items()]
    made = relaid(scop, replace(scop, statements=changed), layouts)
    array = scop.arrays[matrix]
    at_hand = bytes_at_hand(scop, array)  # 0 where nobody knows
    far = not target.l1_bytes < at_hand <= target.l2_bytes
    least = target.l2_bytes if far else target.l1_bytes
    return Turned(
        made,
        far,
        within(array.shape, least // array.dtype.itemsize + 1),
        {name: scop.examples[name] for name in scop.sizes} if at_hand > target.l1_bytes else {},
    )


def _swept_matrix(scop: Scop, target: Target) -> str | None:
    """The matrix that the heaviest statement of a sequential loop changes in place, all of it in each step."""
    deepest = max(scop.statements.values(), key=lambda s: (len(s.indices), s.kind == "assign"))
    array = scop.arrays[deepest.target.array]
    names = plain_indices(deepest.target.subscripts)
    if len(deepest.indices) != 3 or deepest.loop_depth != 1 or deepest.kind != "assign" or deepest.argument is not None:
        return None
    if len(names) != 2 or set(names) != set(deepest.indices[1:]) or array.memory_strides[-1] != 1:
        return None
    in_place = any(
        r.tensor == array.name and r.subscripts == deepest.target.subscripts for r in reads_of(deepest.value)
    )
    if not in_place or array.kind == "local":
        return None
    numbers = extents_of(array)
    return array.name if numbers is None or array.dtype.itemsize * prod(numbers) > target.l1_bytes else None


def _sums_down(scop: Scop, matrix: str) -> bool:
    """Whether a statement of the loop sums down the matrix's columns."""
    for statement in scop.statements.values():
        if statement.kind == "update" and len(statement.indices) == 3:
            down = {plain_index(r.subscripts[0]) for r in reads_of(statement.value) if r.tensor == matrix}
            if down and not down & {plain_index(s) for s in statement.target.subscripts}:
                return True
    return False


def _arrays_to_turn(scop: Scop, matrix: str, target: Target) -> dict[str, Array]:
    """The arrays whose first subscript is, in every statement that touches them, the index down the matrix's columns, and what they become; none where something would not be contiguous then."""
    found: set[str] = set()
    for statement in scop.statements.values():
        accesses = statement.accesses
        down = {plain_index(a.subscripts[0]) for a in accesses if a.array == matrix}
        if len(down) > 1 or (down and not down <= set(statement.indices)):
            return {}
        for access in accesses:
            places = [d for d, s in enumerate(access.subscripts) if not isinstance(s, Affine) or s.variables() & down]
            last = len(access.subscripts) - 1
            if len(places) > 1 or (places and plain_index(access.subscripts[places[0]]) not in down):
                return {}
            if places and places[0] != last:
                found.add(access.array)
    touched = {
        name: [s for s in scop.statements.values() if any(a.array == name for a in s.accesses)] for name in found
    }
    for name, users in touched.items():
        array = scop.arrays[name]
        if len(array.shape) != 2 or array.memory_strides[-1] != 1:
            return {}
        if not all(user.loop_depth for user in users):
            return {}
        subscripts = [s for user in users for a in user.accesses if a.array == name for s in a.subscripts]
        if not all(isinstance(s, Affine) for s in subscripts):
            return {}
    return {name: _turned(scop, scop.arrays[name], target) for name in scop.arrays if name in found}


def _turned(scop: Scop, array: Array, target: Target) -> Array:
    """The array with its dimensions exchanged; each row starts at a line."""
    rows, columns = array.shape
    length = line_rows(rows, array.dtype.itemsize, target.line_bytes)
    return Array(name=scop.new_array(f"{array.name}_turned"), dtype=array.dtype, shape=(columns, length), kind="local")


def _on_turned(statement: Statement, arrays: Mapping[str, Array]) -> Statement:
    """The statement on the turned arrays."""
    touched = [access for access in statement.accesses if access.array in arrays]
    return redirected(statement, {a: Access(arrays[a.array].name, tuple(reversed(a.subscripts))) for a in touched})


def _layout(array: Array, turned: Array) -> Layout:
    """Copies write rows of their target: those of the turned array ahead, those of the array behind."""
    element, place = (tuple(affine(e) for e in names) for names in (("e0", "e1"), ("e1", "e0")))
    return Layout(array, turned, ("e1", "e0"), element, place, back_indices=("e0", "e1"))
