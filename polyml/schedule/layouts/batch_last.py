"""Small matrices of a batch, each of which goes through the same loop: local arrays with the batch last stand in for them, so that each lane works on a matrix of its own.

    for j: .. L[b, i, k] * L[b, j, k] ..     becomes     L_last[i, k, b] = L[b, i, k];  for j: .. L_last[i, k, b] * L_last[j, k, b] ..;  L[b, i, k] = L_last[i, k, b]

Rows of a few elements leave most lanes idle, and a sum along them ends by adding lanes up; a step of a factorization waits for the one before. A vector of matrices has neither: sixteen of 8 x 8 are 4 KB. It is a
transformation of the Scop, before scheduling. What changes places does so once, in blocks that are transposed in registers.

Rows, too, that a loop goes through in each iteration of another one (`y[b, j]` of a sorting network, or of sweeps back and forth).

When: all statements go along the batch, by an index or by the outermost loop around them all, one of them within a loop over more than a row whose iterations wait for each other; along no other index would whole vectors run, and the matrices of a vector of lanes
take no more than half of L2.

Source: interleaved storage of batched factorizations, Dongarra et al., "Optimized batched linear algebra for modern architectures" (Euro-Par 2017); data layout transformation, O'Boyle and Knijnenburg, "Nonsingular data transformations: definition, validity, and applications" (IJPP 1999).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TypeVar

import islpy as isl

from polyml.expressions import plain_index, plain_indices
from polyml.schedule.layouts.relaid import Layout, Relaid, extents_of, line_rows, redirected, relaid
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import maps_of
from polyml.target import Target

__all__ = ["lay_batches_last"]

T = TypeVar("T")

SHORT = 4
"""Lines that a row has at most, where rows differ from step to step."""


def lay_batches_last(scop: Scop, dependences: Dependences, target: Target) -> Relaid | None:
    """The scop with local arrays whose last dimension is the batch; None where there is none, or lanes have better to do."""
    core = max(scop.statements.values(), key=lambda s: (s.loop_depth > 0, len(s.indices)))
    if core.loop_depth == 0 or core.domain.is_empty():
        return None
    accesses = [(s.name, a.array, plain_indices(a.subscripts)) for s in scop.statements.values() for a in s.accesses]
    for index in _batches(scop, core, dependences):
        found = _dimensions(scop, accesses, core, index)
        if found is not None and _pays(scop, core, index, found, target):
            return _relaid(scop, found, target)
    return None


def _batches(scop: Scop, core: Statement, dependences: Dependences) -> tuple[str, ...]:
    """The indices that may be the batch: those that are no loops, beside another one or within two loops; and the outermost loop around all statements, where the next one inside of it has an order."""
    outermost, own = core.indices[0], core.indices[core.loop_depth :]
    found = own if len(own) > 1 or core.loop_depth > 1 else ()
    if core.loop_depth < 2 or len(core.indices) < 3:
        return found
    if any(s.loop_depth == 0 or s.indices[0] != outermost for s in scop.statements.values()):
        return found
    return (outermost, *found) if _has_order(core.indices[1], scop, dependences) else found


def _has_order(loop: str, scop: Scop, dependences: Dependences) -> bool:
    """Whether an iteration of the loop, the second one around statements, uses what an earlier one makes."""
    inside = {s.name for s in scop.statements.values() if s.loop_depth > 1 and s.indices[1] == loop}
    return any(
        {m.get_tuple_name(isl.dim_type.in_), m.get_tuple_name(isl.dim_type.out)} <= inside
        and not m.is_subset(m.equate(isl.dim_type.in_, 1, isl.dim_type.out, 1))
        for m in maps_of(dependences.flow)
    )


def _dimensions(
    scop: Scop, accesses: Sequence[tuple[str, str, list[str | None]]], core: Statement, index: str
) -> dict[str, int] | None:
    """Per array the dimension that goes along the batch, which `index` of one statement does; None where something does not, or goes from one matrix to another.

    Args:
        accesses: of all statements: the statement, the array, its subscripts where they are indices.
    """
    along, found = {core.name: index}, dict[str, int]()
    known = 0
    while known < len(along) + len(found):
        known = len(along) + len(found)
        for statement, array, names in accesses:
            if statement in along and along[statement] in names:
                found.setdefault(array, names.index(along[statement]))
            elif array in found and (name := names[found[array]]) is not None:
                along.setdefault(statement, name)
    alike = all(_is_along(statement, along.get(statement.name), found) for statement in scop.statements.values())
    return found if alike else None


def _is_along(statement: Statement, index: str | None, dimensions: Mapping[str, int]) -> bool:
    """Whether the statement, in each instance, stays with one matrix of the batch, and writes nothing else."""
    if index not in (*statement.indices[:1], *statement.indices[statement.loop_depth :]):
        return False
    if statement.target.array not in dimensions:
        return False
    for access in statement.accesses:
        places = [d for d, s in enumerate(access.subscripts) if not isinstance(s, Affine) or index in s.variables()]
        if places != ([dimensions[access.array]] if access.array in dimensions else []):
            return False
        if places and plain_index(access.subscripts[places[0]]) != index:
            return False
    return True


def _pays(scop: Scop, core: Statement, index: str, dimensions: Mapping[str, int], target: Target) -> bool:
    """Whether lanes would be idle along everything else, and a vector of matrices stays in L2."""
    dtypes = [scop.arrays[name].dtype for name in dimensions]
    itemsize = max(dtype.itemsize for dtype in dtypes)
    number = max((dtype.part if dtype.is_complex else dtype).itemsize for dtype in dtypes)
    lanes = target.lanes(number)
    held = 0
    for name, dimension in dimensions.items():
        extents = extents_of(scop.arrays[name])
        if extents is None or extents[dimension] < lanes:
            return False
        held += prod(extents) // extents[dimension]
    if held * itemsize * lanes > target.l2_bytes // 2:
        return False
    if all(
        scop.arrays[a.array].memory_strides[dimensions[a.array]] == 1 for a in core.accesses if a.array in dimensions
    ):
        return False
    # Of loops inside of a batch that is one itself, those behind the first may have lanes.
    steps = 2 if index == core.indices[0] else core.loop_depth
    # Complex numbers are two of a row's, where what their change of places costs is spread over several uses.
    again = len(core.indices) > max(len(scop.arrays[a.array].shape) for a in core.accesses)
    others = [i for i in core.indices[steps:] if i != index]
    # Scans that use each element once would wait for its change of places, there and back.
    if not again and any(_lies_along(core, i, scop) for i in others):
        return False
    most = SHORT * target.line_bytes // (number if again else itemsize)
    return all(_is_short(core, i, steps, lanes, most) for i in others)


def _lies_along(statement: Statement, index: str, scop: Scop) -> bool:
    """Whether all that the statement touches lies side by side along the index, or is one element for all of it."""
    for access in statement.accesses:
        for step, subscript in zip(scop.arrays[access.array].memory_strides, access.subscripts, strict=True):
            moved = subscript.stride(index) if isinstance(subscript, Affine) else None
            if moved != 0 and (moved, step) != (1, 1):
                return False
    return True


def _is_short(statement: Statement, index: str, steps: int, lanes: int, most: int) -> bool:
    """Whether lanes along the index would be idle for much of the time: rows that end where a loop's step says, or within the second vector.

    Args:
        steps: the leading indices that are taken for steps.
        most: elements of a row that ends where a step says, at most.
    """
    at = statement.indices.index(index)
    inside = len(statement.indices) - at - 1
    rows = statement.domain.project_out(isl.dim_type.set, at + 1, inside)
    rows = rows.project_out(isl.dim_type.set, steps, at - steps)
    low, high = rows.dim_min_val(steps), rows.dim_max_val(steps)
    if not low.is_int() or not high.is_int():  # there are none
        return False
    extent = high.to_python() - low.to_python() + 1
    if not rows.coalesce().is_box():
        return extent <= most
    return extent <= lanes or (extent < 2 * lanes and extent % lanes > 0)


def _relaid(scop: Scop, dimensions: Mapping[str, int], target: Target) -> Relaid:
    moved = {
        name: (scop.arrays[name], _last(scop, scop.arrays[name], dimension, target))
        for name, dimension in dimensions.items()
        if dimension != len(scop.arrays[name].shape) - 1
    }
    changed = {name: _on_local(statement, dimensions, moved) for name, statement in scop.statements.items()}
    layouts = [_layout(array, local, dimensions[name]) for name, (array, local) in moved.items()]
    return relaid(scop, replace(scop, statements=changed), layouts)


def _last(scop: Scop, array: Array, dimension: int, target: Target) -> Array:
    """The array with its batch last; each row starts at a line."""
    others = tuple(extent for d, extent in enumerate(array.shape) if d != dimension)
    length = line_rows(array.shape[dimension], array.dtype.itemsize, target.line_bytes)
    return Array(name=scop.new_array(f"{array.name}_last"), dtype=array.dtype, shape=(*others, length), kind="local")


def _on_local(
    statement: Statement, dimensions: Mapping[str, int], moved: Mapping[str, tuple[Array, Array]]
) -> Statement:
    """The statement on the local arrays."""
    touched = [access for access in statement.accesses if access.array in moved]
    return redirected(
        statement,
        {a: Access(moved[a.array][1].name, _with_last(a.subscripts, dimensions[a.array])) for a in touched},
    )


def _layout(array: Array, local: Array, dimension: int) -> Layout:
    names = tuple(f"e{d}" for d in range(len(array.shape)))
    element = tuple(map(affine, names))
    order = _with_last(names, dimension)
    return Layout(array, local, order, element, tuple(map(affine, order)), back_indices=names)


def _with_last(values: tuple[T, ...], dimension: int) -> tuple[T, ...]:
    return (*values[:dimension], *values[dimension + 1 :], values[dimension])
