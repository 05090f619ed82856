"""Equations over boxes: index ranges that start at 0 and have numbers, as most have, or symbolic ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import islpy as isl

from polyml.graph.ir import Equation, Graph
from polyml.sets.affine import Affine, affine

__all__ = ["box", "box_extents", "holds", "hull_extents"]


def hull_extents(equation: Equation) -> dict[str, int] | None:
    """The number of values of each index, all from 0 on; None where that is no number, or not all points of the result are met."""
    found = dict[str, int]()
    for position, index in enumerate(equation.indices):
        low, high = equation.domain.dim_min_val(position), equation.domain.dim_max_val(position)
        if not low.is_zero() or not high.is_int():
            return None
        found[index] = high.to_python() + 1
    # Points whose sum has no terms are none of the domain's, and are results.
    left = equation.indices[: len(equation.indices) - len(equation.reduced)]
    whole = tuple(affine(found[index]) for index in left) == equation.result.shape
    return found if whole and not equation.domain.dim(isl.dim_type.param) else None


def box_extents(equation: Equation) -> dict[str, int] | None:
    """The same, where the domain is the whole box."""
    extents = hull_extents(equation)
    if extents is None or not equation.domain.is_equal(box(equation.result.name, equation.indices, extents)):
        return None
    return extents


def box(
    name: str, indices: Sequence[str], extents: Mapping[str, int] | Mapping[str, Affine], sizes: Sequence[str] = ()
) -> isl.Set:
    """`[sizes] -> { name[indices] }` with each index below its extent."""
    limits = " and ".join(f"0 <= {index} < {affine(extents[index]).isl_text()}" for index in indices)
    return isl.Set(f"{_head(sizes)}{{ {name}[{', '.join(indices)}] : {limits or 'true'} }}")


def holds(value: Affine, graph: Graph) -> bool:
    """Whether the expression in the graph's sizes is at least 0 for all of their values."""
    if value.is_constant:
        return value.constant >= 0
    return graph.context.is_subset(isl.Set(f"{_head(graph.sizes)}{{ : {value.isl_text()} >= 0 }}"))


def _head(sizes: Sequence[str]) -> str:
    return f"[{', '.join(sizes)}] -> " if sizes else ""
