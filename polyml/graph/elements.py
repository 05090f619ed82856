"""Which elements of tensors equations touch, as integer sets over their subscripts."""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from polyml.expressions import Read, Subscript, variables_in
from polyml.graph.ir import Equation, Tensor
from polyml.sets.affine import Affine
from polyml.sets.boxes import box
from polyml.sets.from_text import map_of, set_of

__all__ = ["all_elements", "are_apart", "elements_at", "elements_read"]


def all_elements(tensor: Tensor) -> isl.Set:
    """The box of a tensor's subscripts."""
    names = [f"e{d}'" for d in range(len(tensor.shape))]
    return box("", names, dict(zip(names, tensor.shape, strict=True)), sorted(variables_in(tensor.shape)))


def elements_read(equation: Equation, read: Read) -> isl.Set:
    """What an equation reads by that read, all that there could be where a subscript is a value."""
    return elements_at(equation.domain, equation.indices, read.subscripts)


def elements_at(points: isl.Set, indices: Sequence[str], subscripts: Sequence[Subscript]) -> isl.Set:
    """The image of points over the indices; everything where a subscript is a value."""
    places = [s for s in subscripts if isinstance(s, Affine)]
    if len(places) < len(subscripts):
        return set_of(f"{{ [{', '.join(f'e{d}' for d in range(len(subscripts)))}] }}")
    names = sorted(variables_in(places) - set(indices))
    text = f"[{', '.join(indices)}] -> [{', '.join(place.isl_text() for place in places)}]"
    return points.reset_tuple_id().apply(map_of(f"[{', '.join(names)}] -> {{ {text} }}"))


def are_apart(points: isl.Set, indices: Sequence[str], places: Sequence[Affine]) -> bool:
    """Whether no two of the points over the indices have the same place."""
    if set(indices) <= {place.name for place in places}:
        return True
    names = sorted(variables_in(places) - set(indices))
    text = f"[{', '.join(indices)}] -> [{', '.join(place.isl_text() for place in places)}]"
    relation = map_of(f"[{', '.join(names)}] -> {{ {text} }}")
    return bool(relation.intersect_domain(points.reset_tuple_id()).is_injective())
