"""Indices of partial writes that others determine are written as what they are.

`if i == j: y[i, j] = 1` becomes `y[i, i] = 1`, with one index, and `if j == 0: ..` writes `y[i, 0]`. As a statement of as many indices as what makes `y` it would share all of that one's loops, and stand under a
condition in the innermost one, which then has no lanes; so it has loops of its own, or shares one of them.

Loops over time are left alone: their bodies write what the loop carries, and are scheduled as a whole.
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyml.expressions import substitute
from polyml.graph.edit import with_ops
from polyml.graph.ir import Equation, Graph
from polyml.sets.affine import Affine, affine
from polyml.sets.from_isl import affine_of

__all__ = ["replace_determined"]


def replace_determined(graph: Graph) -> Graph:
    """The graph with such indices replaced by their values, and fewer loops."""
    return with_ops(graph, (_replaced(op) if isinstance(op, Equation) else op for op in graph.ops))


def _replaced(equation: Equation) -> Equation:
    partial = equation.base is not None and equation.reduce is None and equation.only_if is None
    while partial and (found := _determined(equation)) is not None:
        index, value = found
        given = {index: value}
        domain = equation.domain.project_out(isl.dim_type.set, equation.indices.index(index), 1)
        equation = replace(
            equation,
            indices=tuple(other for other in equation.indices if other != index),
            domain=domain.set_tuple_name(equation.result.name),
            target=tuple(
                t.substitute(given) if isinstance(t, Affine) else substitute(t, given) for t in equation.target
            ),
            body=substitute(equation.body, given),
        )
    return equation


def _determined(equation: Equation) -> tuple[str, Affine] | None:
    """The last index that is a number, or an affine function of others; None where all are free."""
    names = equation.indices
    equalities = [c for c in equation.domain.affine_hull().get_constraints() if c.is_equality()]
    for position in reversed(range(len(names))):
        for constraint in equalities:
            factor = constraint.get_coefficient_val(isl.dim_type.set, position).to_python()
            function = constraint.get_aff()
            if factor in (1, -1) and function.dim(isl.dim_type.div) == 0:
                index = names[position]
                return index, (affine_of(function, names) - affine(index) * factor) * -factor
    return None
