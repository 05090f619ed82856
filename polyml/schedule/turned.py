"""Matrices whose columns a sequential loop walks down again and again, turned: rows of local arrays stand for their columns meanwhile.

Orthogonalization by columns sums down columns and takes things off them. In a matrix whose rows are contiguous, lanes run along rows, and few columns together are a strip of memory, one
line (and one page) for each element down. With the columns contiguous a step's columns are a few vectors each, which stay in L1. It is a transformation of the Scop, before scheduling: the
matrices are turned ahead of the loop, as far as they are read before they are written, and turned back behind it, as far as they are written.

Rewrite: for k: .. A[i, k] .. A[i, j] ..  ->  A_turned[j, i] = A[i, j]; for k: .. A_turned[k, i] .. A_turned[j, i] ..; A[i, j] = A_turned[j, i]

When: the heaviest of the loop's statements changes the matrix in place, another sums down its columns, all statements walk down the columns of all matrices along one index each, so that every access becomes contiguous or a single
element, and the matrix does not fit in L2.

Source: data layout transformation, O'Boyle and Knijnenburg, "Nonsingular data transformations: definition, validity, and applications" (IJPP 1999).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import islpy as isl

from polyml.expressions import Read, map_reads, reads_of
from polyml.records import dataclass
from polyml.schedule.cost import memory_strides
from polyml.scop.dependences import values_of
from polyml.scop.relations import rebuilt
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.target import Target

__all__ = ["Turned", "turn_columns"]

PAGE = 4096


@dataclass(frozen=True, slots=True)
class Turned:
    """scop: with the turned arrays. ahead, behind: the copies before the loop and after it."""

    scop: Scop
    ahead: tuple[str, ...]
    behind: tuple[str, ...]


def turn_columns(scop: Scop, target: Target) -> Turned | None:
    """The scop with columns as rows, whose dependences are to be computed anew; None where there is no such loop."""
    matrix = _swept_matrix(scop, target)
    if matrix is None or not _sums_down(scop, matrix):
        return None
    arrays = _arrays_to_turn(scop, matrix, target)
    if not arrays:
        return None
    changed = {name: _redirected(statement, arrays) for name, statement in scop.statements.items()}
    ahead: dict[str, Statement] = {}
    behind: dict[str, Statement] = {}
    for name, turned in arrays.items():
        if scop.arrays[name].kind == "local":
            continue
        read, written = _elements(scop, name)
        for kind, elements, made in (("in", read, ahead), ("out", written, behind)):
            if not elements.is_empty():
                copy = _copy(scop.arrays[name], turned, elements, back=kind == "out")
                made[copy.name] = copy
    statements = {**ahead, **changed, **behind}
    ordered = replace(scop, initial=_initial(scop, list(ahead.values()), list(behind.values())))
    made_scop = rebuilt(ordered, statements, {**scop.arrays, **{a.name: a for a in arrays.values()}})
    return Turned(made_scop, tuple(ahead), tuple(behind))


def _swept_matrix(scop: Scop, target: Target) -> str | None:
    """The matrix that the heaviest statement of a sequential loop changes in place, all of it in each step."""
    deepest = max(scop.statements.values(), key=lambda s: (len(s.indices), s.kind == "assign"))
    array = scop.arrays[deepest.target.array]
    names = [s.name if isinstance(s, Affine) else None for s in deepest.target.subscripts]
    if len(deepest.indices) != 3 or deepest.loop_depth != 1 or deepest.kind != "assign" or deepest.argument is not None:
        return None
    if len(names) != 2 or set(names) != set(deepest.indices[1:]) or memory_strides(array)[-1] != 1:
        return None
    in_place = any(
        r.tensor == array.name and r.subscripts == deepest.target.subscripts for r in reads_of(deepest.value)
    )
    if not in_place or array.kind == "local" or not all(extent.is_constant for extent in array.shape):
        return None
    bytes_ = array.dtype.itemsize * prod(extent.constant for extent in array.shape)
    return array.name if bytes_ > target.l2_bytes else None


def _sums_down(scop: Scop, matrix: str) -> bool:
    """Whether a statement of the loop sums down the matrix's columns."""
    for statement in scop.statements.values():
        if statement.kind == "update" and len(statement.indices) == 3:
            down = {_name(r.subscripts[0]) for r in reads_of(statement.value) if r.tensor == matrix}
            if down and not down & {_name(s) for s in statement.target.subscripts}:
                return True
    return False


def _arrays_to_turn(scop: Scop, matrix: str, target: Target) -> dict[str, Array]:
    """The arrays whose first subscript is, in every statement that touches them, the index down the matrix's columns, and what they become; none where something would not be contiguous then."""
    found: set[str] = set()
    for statement in scop.statements.values():
        accesses = _accesses(statement)
        down = {_name(a.subscripts[0]) for a in accesses if a.array == matrix}
        if len(down) > 1 or (down and not down <= set(statement.indices)):
            return {}
        for access in accesses:
            places = [d for d, s in enumerate(access.subscripts) if not isinstance(s, Affine) or s.variables() & down]
            last = len(access.subscripts) - 1
            if len(places) > 1 or (places and _name(access.subscripts[places[0]]) not in down):
                return {}
            if places and places[0] != last:
                found.add(access.array)
    touched = {
        name: [s for s in scop.statements.values() if any(a.array == name for a in _accesses(s))] for name in found
    }
    for name, users in touched.items():
        array = scop.arrays[name]
        constant = all(extent.is_constant for extent in array.shape)
        if len(array.shape) != 2 or not constant or memory_strides(array)[-1] != 1:
            return {}
        if not all(user.loop_depth for user in users):
            return {}
        subscripts = [s for user in users for a in _accesses(user) if a.array == name for s in a.subscripts]
        if not all(isinstance(s, Affine) for s in subscripts):
            return {}
    return {name: _turned(scop.arrays[name], target) for name in scop.arrays if name in found}


def _turned(array: Array, target: Target) -> Array:
    """The array with its dimensions exchanged; each row starts at a line."""
    rows, columns = (extent.constant for extent in array.shape)
    line = max(1, target.line_bytes // array.dtype.itemsize)
    length = -(-rows // line) * line
    if length * array.dtype.itemsize % PAGE == 0:
        length += line  # rows at multiples of a page fall into the same few sets of a cache
    return Array(name=f"{array.name}_turned", dtype=array.dtype, shape=(affine(columns), affine(length)), kind="local")


def _accesses(statement: Statement) -> list[Access]:
    made = [a for a in (statement.target, statement.argument) if a is not None]
    return made + [Access(r.tensor, r.subscripts) for r in reads_of(statement.value)]


def _name(subscript: object) -> str | None:
    return subscript.name if isinstance(subscript, Affine) else None


def _redirected(statement: Statement, arrays: Mapping[str, Array]) -> Statement:
    """The statement on the turned arrays."""

    def turned(access: Access) -> Access:
        if access.array not in arrays:
            return access
        return Access(arrays[access.array].name, tuple(reversed(access.subscripts)))

    def read(r: Read) -> Read:
        return Read(arrays[r.tensor].name, tuple(reversed(r.subscripts)), r.dtype) if r.tensor in arrays else r

    argument = None if statement.argument is None else turned(statement.argument)
    return replace(
        statement, target=turned(statement.target), argument=argument, value=map_reads(statement.value, read)
    )


def _elements(scop: Scop, array: str) -> tuple[isl.Set, isl.Set]:
    """The elements of the array that are read from before the region, and those that are written; all of it where these are no convex set."""
    rows, columns = (extent.constant for extent in scop.arrays[array].shape)
    everything = isl.Set(f"{{ {array}[e0, e1] : 0 <= e0 < {rows} and 0 <= e1 < {columns} }}")
    own = everything.to_union_set()
    _, from_before = values_of(scop, array)
    sets = []
    for relation in (from_before, scop.may_writes):
        one = relation.range().intersect(own)
        sets.append(isl.Set.empty(everything.get_space()) if one.is_empty() else isl.Set.from_union_set(one).coalesce())
    read, written = sets
    sure = written.to_union_set().is_subset(scop.must_writes.range())
    if written.n_basic_set() > 1 or not sure:
        return everything, everything
    return (read.simple_hull().to_set().intersect(everything) if read.n_basic_set() > 1 else read), written


def _copy(array: Array, turned: Array, elements: isl.Set, *, back: bool) -> Statement:
    """The statement that copies elements of an array to the turned one, or back."""
    indices = ("e0", "e1") if back else ("e1", "e0")
    name = f"S_{array.name}_back" if back else f"S_{turned.name}"
    moved = isl.Map(f"{{ {array.name}[e0, e1] -> {name}[{', '.join(indices)}] }}")
    at, at_turned = (tuple(affine(e) for e in names) for names in (("e0", "e1"), ("e1", "e0")))
    if back:
        target, value = Access(array.name, at), Read(turned.name, at_turned, array.dtype)
    else:
        target, value = Access(turned.name, at_turned), Read(array.name, at, array.dtype)
    return Statement(name=name, indices=indices, domain=elements.apply(moved), kind="copy", target=target, value=value)


def _initial(scop: Scop, ahead: list[Statement], behind: list[Statement]) -> isl.UnionMap:
    """The written order between the copies."""
    maps = scop.initial.get_map_list()
    depth = maps.get_at(0).dim(isl.dim_type.out)
    wide = max(depth, 2)
    times = ", ".join(f"t{d}" for d in range(depth))
    zeros = "".join(", 0" for _ in range(wide - depth))
    total = scop.initial.apply_range(isl.UnionMap(f"{{ [{times}] -> [0, {times}{zeros}] }}"))
    for place, copies in ((-1, ahead), (1, behind)):
        for position, copy in enumerate(copies):
            time = ", ".join([str(place), str(position), *copy.indices[: wide - 1]] + ["0"] * (wide - 3))
            text = f"{{ {copy.name}[{', '.join(copy.indices)}] -> [{time}] }}"
            total = total.union(isl.Map(text).intersect_domain(copy.domain).to_union_map())
    return total
