"""Parts of an equation, of which each has every so many values of an index, or a block of them."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyml.expressions import substitute
from polyml.graph.ir import Equation, Tensor
from polyml.new_names import fresh, fresh_name
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_of, parameters_text

__all__ = ["of_part"]


def of_part(equation: Equation, index: str, step: int, first: int, name: str, tensors: dict[str, Tensor]) -> Equation:
    """The equation, with a result of its own, over the points where the index is `step` times another one, which takes its place, and `first`."""
    result = equation.result
    made = replace(result, name=fresh_name(name, tensors))
    tensors[made.name] = made
    inner = fresh(index, {*equation.indices, *parameters_of(equation.domain)})
    indices = tuple(inner if i == index else i for i in equation.indices)
    value = step * affine(inner) + first
    places = ", ".join(value.isl_text() if i == index else i for i in equation.indices)
    head = parameters_text(parameters_of(equation.domain))
    move = isl.MultiAff(f"{head}{{ {result.name}[{', '.join(indices)}] -> {result.name}[{places}] }}")
    return replace(
        equation,
        result=made,
        indices=indices,
        domain=equation.domain.preimage_multi_aff(move).set_tuple_name(made.name),
        target=tuple(s.substitute({index: value}) if isinstance(s, Affine) else s for s in equation.target),
        reduced=tuple(inner if i == index else i for i in equation.reduced),
        body=substitute(equation.body, {index: value}),
    )
