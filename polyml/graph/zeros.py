"""Where a tensor with zeros around its values, such as a padded copy, has these values."""

from __future__ import annotations

import islpy as isl

from polyml.expressions import Apply, Const, IndexValue, walk
from polyml.graph.ir import Equation, Graph
from polyml.sets.affine_conditions import condition_text

__all__ = ["Places", "places_of_box", "places_of_values"]

Places = tuple[tuple[int, int] | None, ...]
"""Per dimension of a tensor the first place and the end of those beyond which all elements are zero; None where there are none."""


def places_of_values(graph: Graph) -> dict[str, Places]:
    """By name, where tensors have their values that are made by one choice between something and zero, by a condition on the places."""
    found = {op.result.name: _places(op) for op in graph.ops if isinstance(op, Equation)}
    return {name: places for name, places in found.items() if any(place is not None for place in places)}


def places_of_box(equation: Equation) -> Places:
    """Of a tensor that is made so, where its values fill a box; () elsewhere."""
    return _places(equation, filled=True)


def _places(equation: Equation, *, filled: bool = False) -> Places:
    """() where nothing is known. filled: that there are zeros between its values is nothing, either."""
    match equation.body:
        case Apply(op="select", args=(condition, _, Const(value=0))) if equation.is_plain:
            text = condition_text(condition)
        case _:
            return ()
    if text is None or equation.reduce is not None or equation.base is not None or equation.only_if is not None:
        return ()
    names = {name for expr in walk(condition) if isinstance(expr, IndexValue) for name in expr.affine.variables()}
    if not names <= set(equation.left) or not all(extent.is_constant for extent in equation.result.shape):
        return ()
    name = equation.result.name
    values = isl.Set(f"{{ {name}[{', '.join(equation.left)}] : {text} }}").intersect(equation.domain)
    if values.is_empty() or (filled and not values.is_box()):
        return ()
    found = [
        (values.dim_min_val(k).to_python(), values.dim_max_val(k).to_python() + 1) for k in range(len(equation.left))
    ]
    extents = [extent.constant for extent in equation.result.shape]
    return tuple(None if p == (0, extent) else p for p, extent in zip(found, extents, strict=True))
