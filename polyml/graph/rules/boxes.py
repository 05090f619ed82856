"""Equations over boxes: index ranges that start at 0 and have numbers, as most have, or symbolic ends."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import islpy as isl

from polyml.expressions import reads_of
from polyml.graph.ir import Equation, Graph, Tensor
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box
from polyml.sets.from_isl import integer
from polyml.sets.spaces import parameters_text

__all__ = [
    "any_box",
    "bounding_box",
    "box_extents",
    "holds",
    "hull",
    "hull_extents",
    "is_free",
    "most_values",
    "reach",
    "symbolic_box",
    "whole_box",
]


def hull(equation: Equation) -> dict[str, int] | None:
    """The number of values of each index, all from 0 on; None where that is no number."""
    found = dict[str, int]()
    for position, index in enumerate(equation.indices):
        low, high = equation.domain.dim_min_val(position), equation.domain.dim_max_val(position)
        if not low.is_zero() or not high.is_int():
            return None
        found[index] = integer(high) + 1
    return found


def hull_extents(equation: Equation) -> dict[str, int] | None:
    """The same; None also where not all points of the result are met."""
    found = hull(equation)
    if found is None:
        return None
    # Points whose sum has no terms are none of the domain's, and are results.
    left = equation.left
    whole = tuple(affine(found[index]) for index in left) == equation.result.shape
    return found if whole and not equation.domain.dim(isl.dim_type.param) else None


def most_values(equation: Equation, indices: Collection[str]) -> int | None:
    """How many values these indices have together, at most, whatever the graph's sizes are; None where that is no number."""
    found = 1
    for position, index in enumerate(equation.indices):
        if index in indices:
            low, high = equation.domain.dim_min_val(position), equation.domain.dim_max_val(position)
            if not low.is_int() or not high.is_int():
                return None
            found *= max(0, integer(high) - integer(low) + 1)
    return found


def reach(place: Affine, extents: Mapping[str, int]) -> tuple[int, int]:
    """The least and the largest value of an affine subscript over a box."""
    low = high = place.constant
    for name in place.variables():
        most = (extents[name] - 1) * (place.stride(name) or 0)
        low, high = low + min(most, 0), high + max(most, 0)
    return low, high


def box_extents(equation: Equation) -> dict[str, int] | None:
    """The same, where the domain is the whole box."""
    extents = hull_extents(equation)
    if extents is None:
        return None
    # isl knows most boxes by their constraints, without a set to compare them with.
    if equation.domain.is_box() or equation.domain.is_equal(box(equation.result.name, equation.indices, extents)):
        return extents
    return None


def whole_box(equation: Equation, graph: Graph, tensors: Mapping[str, Tensor]) -> dict[str, Affine] | None:
    """The extent of each index, a number or in the graph's sizes; None where the domain is no box from 0 on (which may be empty), or does not meet all points of the result."""
    if not graph.sizes:
        numbers = box_extents(equation)
        return None if numbers is None else {index: affine(extent) for index, extent in numbers.items()}
    found = symbolic_box(equation, graph, tensors)
    whole = found is not None and tuple(found[index] for index in equation.left) == equation.result.shape
    return found if whole else None


def any_box(equation: Equation, graph: Graph, tensors: Mapping[str, Tensor]) -> dict[str, Affine] | None:
    """The extent of each index, a number or in the graph's sizes; None where the domain is no box from 0 on, or may be empty."""
    found = symbolic_box(equation, graph, tensors)
    return found if found is not None and all(holds(extent - 1, graph) for extent in found.values()) else None


def symbolic_box(equation: Equation, graph: Graph, tensors: Mapping[str, Tensor]) -> dict[str, Affine] | None:
    """The same, where the domain may be empty."""
    found = _bounds(equation, tensors)
    if found is None:
        return None
    whole = box(equation.result.name, equation.indices, found, graph.sizes)
    same = whole.intersect_params(graph.context).is_equal(equation.domain.intersect_params(graph.context))
    return found if same else None


def bounding_box(equation: Equation, graph: Graph, tensors: Mapping[str, Tensor]) -> dict[str, Affine] | None:
    """Extents, numbers or in the graph's sizes and 1 or more, of a box from 0 on that the domain lies in; None where none is found."""
    found = _bounds(equation, tensors)
    if found is None or not all(holds(extent - 1, graph) for extent in found.values()):
        return None
    whole = box(equation.result.name, equation.indices, found, graph.sizes)
    inside = equation.domain.intersect_params(graph.context).is_subset(whole)
    return found if inside else None


def is_free(equation: Equation, index: str, extent: Affine, graph: Graph) -> bool:
    """Whether the index has the values from 0 to the extent wherever the others have theirs: no condition ties it to them."""
    position, points = equation.indices.index(index), equation.domain.intersect_params(graph.context)
    others = points.drop_constraints_involving_dims(isl.dim_type.set, position, 1)
    own = box(equation.result.name, (index,), {index: extent}, graph.sizes)
    own = own.insert_dims(isl.dim_type.set, 0, position)
    own = own.add_dims(isl.dim_type.set, len(equation.indices) - position - 1)
    return others.intersect(own.set_tuple_name(equation.result.name)).is_equal(points)


def _bounds(equation: Equation, tensors: Mapping[str, Tensor]) -> dict[str, Affine] | None:
    """By index the number that its values are below, or the extent of a dimension that it is alone; None where an index has neither."""
    found = {i: affine(n) for i, n in _numbers(equation).items()}
    accesses = [(equation.result, equation.target)]
    accesses += [(tensors[read.tensor], read.subscripts) for read in reads_of(equation.body)]
    for tensor, subscripts in accesses:
        for subscript, extent in zip(subscripts, tensor.shape, strict=True):
            if isinstance(subscript, Affine) and subscript.name in equation.indices:
                found.setdefault(subscript.name, extent)
    return found if found.keys() == set(equation.indices) else None


def _numbers(equation: Equation) -> dict[str, int]:
    """The extents of indices that have as many values whatever the sizes are."""
    found: dict[str, int] = {}
    for position, index in enumerate(equation.indices):
        high = equation.domain.dim_max_val(position)
        if high.is_int():
            found[index] = integer(high) + 1
    return found


def holds(value: Affine, graph: Graph) -> bool:
    """Whether the expression in the graph's sizes is at least 0 for all of their values."""
    if value.is_constant:
        return value.constant >= 0
    return graph.context.is_subset(isl.Set(f"{parameters_text(graph.sizes)}{{ : {value.isl_text()} >= 0 }}"))
